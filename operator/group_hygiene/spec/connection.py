"""Parses the spec of a `KafkaConnection` into frozen records.

No I/O: the caller passes the function that reads Secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from msgspec import field, structs

from group_hygiene.errors import AuthenticationFailed, SpecError
from group_hygiene.model import reasons
from group_hygiene.spec.access import Access, Grant, Right, missing_entry
from group_hygiene.spec.durations import Duration
from group_hygiene.spec.fields import Decisive, SpecPart, convert
from group_hygiene.spec.judge import judged, judged_part, verdict, with_defaults
from group_hygiene.spec.msk import Hosts, MskGrant, MskIam, MskIamSpec
from group_hygiene.spec.owners import NO_OWNERS, GroupOwner, Owners
from group_hygiene.spec.patterns import NO_PATTERNS, Patterns
from group_hygiene.spec.policy import FLOORS_OF_TENANTS, NO_FLOORS, Floors, Limits, Policy
from group_hygiene.spec.receivers import Receiver, ReceiverEntry
from group_hygiene.spec.secret import Hidden, SecretRef
from group_hygiene.spec.storage import STORAGE_OPTIONS, Store, is_path, read_store


class Mechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    AWS_MSK_IAM = "AWS_MSK_IAM"


class Role(StrEnum):
    """The role of a cluster. FailoverTarget: a replicator writes groups that are in use in another cluster."""

    PRIMARY = "Primary"
    FAILOVER_TARGET = "FailoverTarget"


class TopicVisibility(StrEnum):
    """How it is known that the user may DESCRIBE all topics: by the brokers' disks, or by a statement in the spec."""

    VERIFIED = "Verified"
    ATTESTED = "Attested"


ReadSecret = Callable[[SecretRef], str]
# (name of a Secret, keys) -> the texts of those keys that it has.
ReadSecretTexts = Callable[[str, Collection[str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts; ca None = the system's. verify_hostname False accepts a certificate for any host."""

    ca: str | None = None
    certificate: str | None = None
    private_key: Hidden | None = None
    verify_hostname: bool = True


@dataclass(frozen=True, slots=True)
class OAuth:
    """Where to get tokens: the client credentials grant of RFC 6749, section 4.4. `ca` is a PEM text."""

    token_endpoint: str
    client_id: str
    client_secret: Hidden
    scope: str | None = None
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class Sasl:
    mechanism: Mechanism
    username: str | None = None
    password: Hidden | None = None
    oauth: OAuth | None = None
    msk: MskIam | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client, including secrets. With equal settings it need not reconnect.

    timeout: of one whole scan, and of connecting. requests_per_second: the limit; None = no limit.
    """

    bootstrap_servers: tuple[str, ...]
    tls: Tls | None = None
    sasl: Sasl | None = None
    timeout: timedelta = timedelta(seconds=30)
    requests_per_second: int | None = None


def with_granted_hosts(settings: Settings, namespace: str, grants: Iterable[MskGrant]) -> Settings:
    """The settings of a connection in this namespace, with the brokers that may get tokens of the operator's identity.

    Raises AuthenticationFailed with the reason IdentityNotAllowed if the connection needs one, and none is granted.
    """
    sasl = settings.sasl
    if sasl is None or sasl.msk is None:
        return settings
    login = sasl.msk
    hosts = tuple(each.host for each in grants if (each.namespace, each.role_arn) == (namespace, login.role_arn))
    if not hosts:
        whose = "assume that role" if login.role_arn else "use its own AWS identity"
        message = (
            f"sasl.mechanism AWS_MSK_IAM: the operator may not {whose} for connections of namespace {namespace}: "
            "start it with --allow-msk-identity NAMESPACE=HOST[,ROLE_ARN]"
        )
        raise AuthenticationFailed(message, reasons.IDENTITY_NOT_ALLOWED)
    return replace(settings, sasl=replace(sasl, msk=replace(login, hosts=Hosts(hosts))))


class LedgerSpec(SpecPart, frozen=True):
    """The topic of the operator's ledger. confirmed: the required id of the ledger, `spec.ledger.id`."""

    topic: str = "__group_hygiene"
    replication_factor: int = 3
    confirmed: str | None = field(name="id", default=None)


class SecretName(SpecPart, frozen=True):
    name: str


class ActivitySpec(SpecPart, frozen=True):
    """The location of a pipeline's tables of the cluster.

    max_age: the largest accepted age of their data. secret_ref: a Secret with the options of the object store
    (STORAGE_OPTIONS); None = the process's own identity.
    """

    uri: str
    max_age: Duration = Duration(hours=1)
    secret_ref: SecretName | None = None

    @property
    def secret(self) -> str | None:
        return None if self.secret_ref is None else self.secret_ref.name

    @property
    def local(self) -> bool:
        """Whether it is a path on the machine that reads it."""
        return is_path(self.uri)

    def store(self, read_secret: ReadSecretTexts) -> Store | None:
        """The options of the object store, read by `read_secret`; None = no Secret is named.

        Raises SecretProblem if `read_secret` does, or if the credentials are incomplete or invalid.
        """
        if self.secret is None or self.local:
            return None
        return read_store(self.uri, self.secret, read_secret(self.secret, STORAGE_OPTIONS))


class TlsSpec(SpecPart, frozen=True, kw_only=True):
    """`spec.tls` with references to its Secrets."""

    ca_secret_ref: SecretRef | None = None
    certificate_secret_ref: SecretRef | None = None
    private_key_secret_ref: SecretRef | None = None
    verify_hostname: bool

    def read(self, read_secret: ReadSecret) -> Tls:
        return Tls(
            ca=_read(self.ca_secret_ref, read_secret),
            certificate=_read(self.certificate_secret_ref, read_secret),
            private_key=_hidden(self.private_key_secret_ref, read_secret),
            verify_hostname=self.verify_hostname,
        )


class _OAuth(SpecPart, frozen=True, kw_only=True):
    token_endpoint: str
    client_id: str = field(name="clientID")
    client_secret_ref: SecretRef
    scope: str | None = None
    ca_secret_ref: SecretRef | None = None


class SaslSpec(SpecPart, frozen=True, kw_only=True):
    """`spec.sasl` with references to its Secrets."""

    mechanism: Mechanism
    username: str | None = None
    password_secret_ref: SecretRef | None = None
    oauth: _OAuth | None = None
    aws_msk_iam: MskIamSpec | None = None

    def read(self, read_secret: ReadSecret) -> Sasl:
        password, oauth = _hidden(self.password_secret_ref, read_secret), self.oauth
        if self.aws_msk_iam is not None:
            return Sasl(self.mechanism, msk=self.aws_msk_iam.login())
        if oauth is None:
            return Sasl(self.mechanism, self.username, password)
        secret, ca = _hidden(oauth.client_secret_ref, read_secret), _read(oauth.ca_secret_ref, read_secret)
        return Sasl(
            self.mechanism,
            oauth=OAuth(oauth.token_endpoint, oauth.client_id, secret or Hidden(""), oauth.scope, ca),
        )


def _read(ref: SecretRef | None, read_secret: ReadSecret) -> str | None:
    return None if ref is None else read_secret(ref)


def _hidden(ref: SecretRef | None, read_secret: ReadSecret) -> Hidden | None:
    return None if ref is None else Hidden.trimmed(read_secret(ref))


@dataclass(frozen=True, slots=True)
class Connection:
    """A `KafkaConnection` object without its Secrets, which `settings` reads.

    requests_per_second: the limit of requests to the cluster; None = no limit. activity: None = there is no pipeline.
    checkpoint_topics: of MirrorMaker 2; None = all topics with such a name. role: None = not given. keep_link: a URL
    with {group}; "" = none.
    topics_attested: the owner states that the user may DESCRIBE all topics (`TopicVisibility`). floors: as given.
    cluster_id: of the Kafka cluster that it must lead to; None = that of the first answer.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    protect: Patterns
    limits: Limits | None
    timeout: timedelta
    bootstrap_servers: tuple[str, ...]
    tls: TlsSpec | None = None
    sasl: SaslSpec | None = None
    ledger: LedgerSpec = LedgerSpec()
    requests_per_second: int | None = None
    access: tuple[Access, ...] = ()
    activity: ActivitySpec | None = None
    receivers: tuple[Receiver, ...] = ()
    checkpoint_topics: frozenset[str] | None = None
    role: Role | None = None
    owners: Owners = NO_OWNERS
    keep_link: str = ""
    topics_attested: bool = False
    floors: Floors = NO_FLOORS
    cluster_id: str | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def selects_by_label(self) -> bool:
        """Whether its access depends on labels of namespaces."""
        return any(entry.by_label for entry in self.access)

    def settings(self, read_secret: ReadSecret) -> Settings:
        """The settings, with each Secret that the spec names read by `read_secret` (which raises SecretProblem)."""
        return Settings(
            bootstrap_servers=self.bootstrap_servers,
            tls=None if self.tls is None else self.tls.read(read_secret),
            sasl=None if self.sasl is None else self.sasl.read(read_secret),
            timeout=self.timeout,
            requests_per_second=self.requests_per_second,
        )


class _Scan(SpecPart, frozen=True):
    timeout: Duration


class _Limits(Decisive, frozen=True):
    max_per_run: int | None = None
    max_percent: int | None = None
    min_groups: int | None = None
    requests_per_second: int | None = None
    min_grace_period: Duration | None = None
    min_unchanged_for: Duration | None = None
    min_idle_for: Duration | None = None
    min_backup_retention: Duration | None = None

    @property
    def floors(self) -> Floors:
        return Floors(self.min_grace_period, self.min_unchanged_for, self.min_idle_for, self.min_backup_retention)

    def of_deletions(self) -> Limits | None:
        """None = none is given. A limit that is not given restricts no policy."""
        if self.max_per_run is None and self.max_percent is None and self.min_groups is None:
            return None
        return Limits(self.max_per_run or 10_000, self.max_percent or 100, self.min_groups or 0)


class _MirrorMaker(Decisive, frozen=True):
    checkpoint_topics: frozenset[str]


class _Spec(Decisive, frozen=True, kw_only=True):
    bootstrap_servers: tuple[str, ...]
    cluster_id: str | None = field(name="clusterID", default=None)
    tls: TlsSpec | None = None
    sasl: SaslSpec | None = None
    role: Role | None = None
    topic_visibility: TopicVisibility = TopicVisibility.VERIFIED
    scan: _Scan
    protect: Patterns = NO_PATTERNS
    limits: _Limits = _Limits()
    ledger: LedgerSpec
    mirror_maker: _MirrorMaker | None = None
    activity: ActivitySpec | None = None
    access: tuple[Access, ...] = ()
    receivers: tuple[ReceiverEntry, ...] = ()
    owners: tuple[GroupOwner, ...] = ()
    keep_link: str = ""


# They have defaults, also if they are left out.
_BLOCKS = ("scan", "ledger")


def parse_connection(obj: Mapping[str, Any]) -> Connection:
    """A `KafkaConnection` object as a Connection.

    Raises SpecError for a spec that the CRD refuses, or that can't be judged.
    """
    return _connection(obj, judged("KafkaConnection", obj, _BLOCKS))


def _connection(obj: Mapping[str, Any], given: Mapping[str, Any]) -> Connection:
    """given: a valid spec with defaults."""
    metadata, spec = obj.get("metadata") or {}, convert(given, _Spec, "spec")
    return Connection(
        namespace=metadata.get("namespace") or "default",
        name=metadata.get("name") or "",
        uid=metadata.get("uid") or "",
        generation=int(metadata.get("generation") or 0),
        protect=spec.protect,
        limits=spec.limits.of_deletions(),
        floors=spec.limits.floors,
        timeout=spec.scan.timeout,
        bootstrap_servers=spec.bootstrap_servers,
        tls=spec.tls,
        sasl=spec.sasl,
        ledger=spec.ledger,
        requests_per_second=spec.limits.requests_per_second,
        access=spec.access,
        activity=spec.activity,
        receivers=tuple(entry.receiver for entry in spec.receivers),
        checkpoint_topics=None if spec.mirror_maker is None else spec.mirror_maker.checkpoint_topics,
        role=spec.role,
        owners=Owners(spec.owners),
        keep_link=spec.keep_link,
        topics_attested=spec.topic_visibility is TopicVisibility.ATTESTED,
        cluster_id=spec.cluster_id,
    )


def cluster_of(obj: Mapping[str, Any]) -> str | None:
    """The id of the Kafka cluster that a KafkaConnection must lead to: in its spec, or else its status; None = any."""
    return _named(obj, "clusterID")


def ledger_of(obj: Mapping[str, Any]) -> str | None:
    """The id of the only ledger that a KafkaConnection uses: in its spec, or else its status; None = not known yet."""
    return _named(obj, "ledger", "id")


def _named(obj: Mapping[str, Any], *path: str) -> str | None:
    """obj: of any shape, as it may have been stored under an older CRD."""
    for part in ("spec", "status"):
        value: Any = obj
        for name in (part, *path):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value and isinstance(value, str):
            return value
    return None


def parse_access_only(obj: Mapping[str, Any]) -> Connection:
    """Only the `access` of a `KafkaConnection` that `parse_connection` refuses. No policy runs with this Connection.

    If its `access` is wrong, too, or nothing could be judged, it admits only its own namespace.
    """
    given = with_defaults("KafkaConnection", {"bootstrapServers": ["unread:0"]}, _BLOCKS)
    with suppress(SpecError):
        wrong, spec = verdict("KafkaConnection", obj).fields, obj.get("spec")
        if isinstance(spec, Mapping) and "access" in spec.keys() - wrong:
            return _connection(obj, {**given, "access": spec["access"]})
    return _connection(obj, given)


def parse_activity(spec: Mapping[str, Any]) -> ActivitySpec:
    """`spec.activity` of a KafkaConnection. Raises SpecError."""
    path = "spec.activity"
    return convert(judged_part("KafkaConnection", path, spec), ActivitySpec, path)


def grant(connection: Connection, namespace: str, labels: Mapping[str, str] | None) -> Grant | None:
    """The rights that the connection grants a namespace; None = none. labels: of the namespace, None = not readable."""
    if namespace == connection.namespace:
        return Grant(None)
    entries = tuple(entry for entry in connection.access if entry.selects(namespace, labels))
    return Grant(entries, namespace) if entries else None


def admit(connection: Connection, policy: Policy, given: Grant | None) -> Policy:
    """The policy as it runs: narrowed to the groups that its namespace is granted for its action (see Match.ungranted),
    with the connection's floors, and without protections that the namespace may not lift (see Policy.stricter).

    given: the rights that the connection grants the policy's namespace.

    Raises SpecError with the reason CrossNamespaceRefused or ActionNotGranted if the policy's action is not granted.
    """
    right = Right(policy.action.value)
    given = admit_right(connection.key, policy.namespace, given, right, policy.match.groups.sources)
    liftable, floors = given.liftable(right), connection.floors
    match = structs.replace(policy.match, within=given.groups(right), liftable=liftable)
    stricter: tuple[str, ...] = ()
    if liftable is not None:
        floors = floors.or_else(FLOORS_OF_TENANTS)
        lifted = match.unprotect & frozenset().union(*(protections for protections, _ in liftable))
        if policy.action.changes and lifted != match.unprotect:
            match = structs.replace(match, unprotect=lifted)
            stricter = (f"match.unprotect is without {', '.join(sorted(policy.match.unprotect - lifted))}",)
    return floors.apply(replace(policy, match=match, stricter=stricter))


def admit_right(key: str, namespace: str, given: Grant | None, right: Right, groups: Sequence[str] = ()) -> Grant:
    """`given`, if it has the right; else raises SpecError like `admit`, with the entry that spec.access lacks.

    key: of the connection. given: None = it grants the namespace nothing, or does not exist, which looks the same.
    groups: patterns, for that entry.
    """
    entry = f"its owner must add {missing_entry(namespace, [right], groups)} to spec.access"
    if given is None:
        own = "or connectionRef must name a connection of that namespace itself"
        message = f"KafkaConnection {key} grants nothing to namespace {namespace}: {entry}, {own}"
        raise SpecError(message, reasons.CROSS_NAMESPACE)
    if right not in given.rights:
        only = ", ".join(sorted(given.rights))
        message = f"KafkaConnection {key} does not grant {right} to namespace {namespace}, only {only}: {entry}"
        raise SpecError(message, reasons.ACTION_NOT_GRANTED)
    return given


def receivers_of(connection: Connection, policy: Policy) -> dict[str, Receiver | None]:
    """The receivers that a policy notifies, by name; None = the connection has no receiver of that name."""
    known = {receiver.name: receiver for receiver in connection.receivers}
    return {
        name: known.get(name)
        for name in (known if policy.alert.receiver_names is None else policy.alert.receiver_names)
    }
