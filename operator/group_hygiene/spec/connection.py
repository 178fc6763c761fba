"""Parses a `KafkaConnection` into frozen records: access of namespaces, owners of groups, receivers of alerts.

No I/O: the caller passes the function that reads Secrets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

from msgspec import field, structs

from group_hygiene.errors import SpecError
from group_hygiene.model import reasons
from group_hygiene.spec.client_settings import Mechanism, MskIamSpec, OAuth, Sasl, Settings, Tls
from group_hygiene.spec.crds import judged, judged_part, verdict, with_defaults
from group_hygiene.spec.fields import Decisive, Duration, Hidden, SecretRef, SpecPart, convert
from group_hygiene.spec.patterns import NO_PATTERNS, Patterns, TenantPatterns, of_namespace
from group_hygiene.spec.policy import FLOORS_OF_TENANTS, Floors, Lifted, Limits, Policy, Unprotect
from group_hygiene.spec.storage import STORAGE_OPTIONS, Store, is_path, read_store

# The namespaces that may use a `KafkaConnection`, for which groups and actions. No I/O.

# Of the groups in the text of an entry, which is in messages of at most 1,000 bytes.
_LISTED_MAX = 300


class Right(StrEnum):
    """A right that a namespace may be granted: policies with this action, restores, or requests to keep groups."""

    ALERT = "Alert"
    DELETE = "Delete"
    DELETE_OFFSETS = "DeleteOffsets"
    RESTORE = "Restore"
    KEEP = "Keep"


class SelectorOperator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(Decisive, frozen=True):
    """One of a label selector's matchExpressions."""

    key: str
    operator: SelectorOperator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """As in Kubernetes: NotIn also matches objects without the label (labels.Requirement.Matches)."""
        value = labels.get(self.key)
        match self.operator:
            case SelectorOperator.IN:
                return value is not None and value in self.values
            case SelectorOperator.NOT_IN:
                return value is None or value not in self.values
            case SelectorOperator.EXISTS:
                return value is not None
            case SelectorOperator.DOES_NOT_EXIST:
                return value is None


class Selector(Decisive, frozen=True, kw_only=True):
    """A metav1.LabelSelector; all of its requirements must match, so an empty one selects everything."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        equal = all(labels.get(key) == value for key, value in self.match_labels.items())
        return equal and all(requirement.matches(labels) for requirement in self.match_expressions)


class _Namespaces(Decisive, frozen=True, kw_only=True):
    names: frozenset[str] | None = None
    selector: Selector | None = None


class Access(Decisive, frozen=True, kw_only=True):
    """One entry of `access`: namespaces, by name or by their labels, and their rights on groups.

    unprotect: the protections that their policies may lift from these groups.
    """

    namespaces: _Namespaces
    groups: TenantPatterns
    rights: frozenset[Right] = field(name="actions")
    unprotect: frozenset[Unprotect] = frozenset()

    @property
    def by_label(self) -> bool:
        return self.namespaces.selector is not None

    def selects(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Whether it selects a namespace. labels: None = not readable."""
        names, selector = self.namespaces.names or (), self.namespaces.selector
        return namespace in names or (selector is not None and labels is not None and selector.matches(labels))


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a namespace on a connection: the entries that select it; None = its own connection, all rights."""

    entries: tuple[Access, ...] | None
    namespace: str = ""

    @property
    def rights(self) -> frozenset[Right]:
        return (
            frozenset(Right) if self.entries is None else frozenset().union(*(entry.rights for entry in self.entries))
        )

    def groups(self, right: Right) -> Patterns | None:
        """The groups for which the right is granted; None = all groups."""
        return None if self.entries is None else of_namespace(_sources(self.entries, right), self.namespace)

    def liftable(self, right: Right) -> tuple[Lifted, ...] | None:
        """The protections that policies with this action may lift, and from which groups; None = all from all."""
        if self.entries is None:
            return None
        return tuple(
            (entry.unprotect, entry.groups.of_namespace(self.namespace))
            for entry in self.entries
            if right in entry.rights
        )


def missing_entry(namespace: str, rights: Iterable[Right], groups: Sequence[str] = ()) -> str:
    """The entry of `spec.access` to ask the owner of a connection for, as YAML on one line.

    groups: patterns; none, or more than a message has room for, are shown as `...`.
    """
    listed = json.dumps([*groups])
    if not groups or len(listed) > _LISTED_MAX:
        listed = "[...]"
    actions = ", ".join(rights)
    return f"{{namespaces: {{names: {json.dumps([namespace])}}}, groups: {listed}, actions: [{actions}]}}"


def granted_to_any(entries: Iterable[Access], right: Right) -> TenantPatterns:
    """The groups for which some entry grants this right."""
    return TenantPatterns(_sources(entries, right))


def _sources(entries: Iterable[Access], right: Right) -> tuple[str, ...]:
    return tuple(pattern for entry in entries if right in entry.rights for pattern in entry.groups.sources)


# Parses the owners of groups, `owners` and `keepLink` of a `KafkaConnection`. No I/O.

# The name of an owner that is the namespace in the group's id.
_EACH = "{namespace}"


class GroupOwner(Decisive, frozen=True, kw_only=True):
    """One entry of `owners`. receiver: its name, for messages about only this owner's groups; None = no messages.

    name: `{namespace}` = each namespace that `{namespace}` in `groups` stands for is the owner of its groups.
    """

    name: str
    groups: TenantPatterns
    receiver: str | None = None


class Owners:
    """The owners of a connection. The first entry with a pattern that matches a group is the group's owner."""

    __slots__ = ("_all", "entries")

    def __init__(self, entries: Sequence[GroupOwner] = ()) -> None:
        self.entries = tuple(entries)
        # Most groups of a large cluster may have no owner: one check of all patterns shows that.
        self._all = TenantPatterns([pattern for owner in entries for pattern in owner.groups.sources])

    def of(self, group: str) -> str:
        """The name of the group's owner; "" = it has none."""
        if not self._all.matches(group):
            return ""
        owner = next(owner for owner in self.entries if owner.groups.matches(group))
        return owner.groups.namespace_of(group) if owner.name == _EACH else owner.name

    @property
    def notified(self) -> list[GroupOwner]:
        """The owners with a receiver."""
        return [owner for owner in self.entries if owner.receiver is not None]


NO_OWNERS = Owners()


# The receivers of alerts, the entries of `receivers`, as frozen records. No I/O.
#
# Secrets are only referenced here, and read elsewhere.


class ReceiverKind(StrEnum):
    """The protocol of a receiver, by the field that configures it."""

    ALERTMANAGER = "alertmanager"
    SLACK = "slack"
    WEBHOOK = "webhook"


class _Slack(Decisive, frozen=True):
    url_secret_ref: SecretRef


class _Alertmanager(Decisive, frozen=True, kw_only=True):
    address: str | None = None
    url_secret_ref: SecretRef | None = None
    token_secret_ref: SecretRef | None = None
    ca_secret_ref: SecretRef | None = None


class Webhook(_Alertmanager, frozen=True, kw_only=True):
    """`webhook` of a receiver."""

    hmac_secret_ref: SecretRef | None = None


class Receiver(Decisive, frozen=True):
    """One entry of `receivers`, with the field of its type. It has either `address` or `url`."""

    name: str
    type: str
    alertmanager: _Alertmanager | None = None
    slack: _Slack | None = None
    webhook: Webhook | None = None

    @property
    def kind(self) -> ReceiverKind:
        return ReceiverKind(self.type.lower())

    @property
    def _settings(self) -> _Alertmanager | _Slack | None:
        return {"alertmanager": self.alertmanager, "slack": self.slack, "webhook": self.webhook}[self.kind]

    @property
    def address(self) -> str | None:
        """A plain URL."""
        return self._settings.address if isinstance(self._settings, _Alertmanager) else None

    @property
    def url(self) -> SecretRef | None:
        """The Secret with the URL."""
        return self._secret("url")

    @property
    def token(self) -> SecretRef | None:
        """For `Authorization: Bearer`."""
        return self._secret("token")

    @property
    def hmac(self) -> SecretRef | None:
        """The signing key."""
        return self._secret("hmac")

    @property
    def ca(self) -> SecretRef | None:
        """The authorities (PEM) to trust instead of the system's."""
        return self._secret("ca")

    @property
    def digest(self) -> str:
        """A hash of its address: with another one, it counts as a new receiver without earlier alerts."""
        where = f"{self.kind} {self.address} {self.url}"
        return hashlib.sha256(where.encode()).hexdigest()[:16]

    def _secret(self, of: str) -> SecretRef | None:
        found: SecretRef | None = getattr(self._settings, f"{of}_secret_ref", None)
        return found


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


class OAuthSpec(SpecPart, frozen=True, kw_only=True):
    """`spec.sasl.oauth` with references to its Secrets."""

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
    oauth: OAuthSpec | None = None
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


class ScanSpec(SpecPart, frozen=True):
    """timeout: of one whole scan, and of connecting."""

    timeout: Duration = Duration(seconds=30)


class LimitsSpec(Decisive, frozen=True, kw_only=True):
    """`spec.limits`. requests_per_second: to the cluster; None = no limit."""

    max_per_run: int | None = None
    max_percent: int | None = None
    min_groups: int | None = None
    requests_per_second: int | None = None
    min_grace_period: Duration | None = None
    min_unchanged_for: Duration | None = None
    min_idle_for: Duration | None = None
    min_backup_retention: Duration | None = None


class MirrorMakerSpec(Decisive, frozen=True):
    """`spec.mirrorMaker`."""

    checkpoint_topics: frozenset[str]


class ConnectionSpec(Decisive, frozen=True, kw_only=True):
    """Without its Secrets, which `Connection.settings` reads.

    cluster_id: of the Kafka cluster that it must lead to; None = that of the first answer. role: None = not given.
    activity: None = there is no pipeline. keep_link: a URL with {group}; "" = none.
    """

    bootstrap_servers: tuple[str, ...] = ()
    cluster_id: str | None = field(name="clusterID", default=None)
    tls: TlsSpec | None = None
    sasl: SaslSpec | None = None
    role: Role | None = None
    topic_visibility: TopicVisibility = TopicVisibility.VERIFIED
    scan: ScanSpec = ScanSpec()
    protect: Patterns = NO_PATTERNS
    given_limits: LimitsSpec = field(name="limits", default=LimitsSpec())
    ledger: LedgerSpec = LedgerSpec()
    mirror_maker: MirrorMakerSpec | None = None
    activity: ActivitySpec | None = None
    access: tuple[Access, ...] = ()
    receivers: tuple[Receiver, ...] = ()
    group_owners: tuple[GroupOwner, ...] = field(name="owners", default=())
    keep_link: str = ""


class Connection(ConnectionSpec, frozen=True, kw_only=True, dict=True):
    """A `KafkaConnection` object; without arguments, that of a command that has none."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    generation: int = 0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def timeout(self) -> timedelta:
        return self.scan.timeout

    @property
    def limits(self) -> Limits | None:
        """Of deletions; None = none is given. A limit that is not given restricts no policy."""
        given = self.given_limits
        if given.max_per_run is None and given.max_percent is None and given.min_groups is None:
            return None
        return Limits(given.max_per_run or 10_000, given.max_percent or 100, given.min_groups or 0)

    @property
    def floors(self) -> Floors:
        """As given."""
        given = self.given_limits
        return Floors(given.min_grace_period, given.min_unchanged_for, given.min_idle_for, given.min_backup_retention)

    @property
    def checkpoint_topics(self) -> frozenset[str] | None:
        """Of MirrorMaker 2; None = all topics with such a name."""
        return None if self.mirror_maker is None else self.mirror_maker.checkpoint_topics

    @property
    def topics_attested(self) -> bool:
        """Whether the owner states that the user may DESCRIBE all topics."""
        return self.topic_visibility is TopicVisibility.ATTESTED

    @cached_property
    def owners(self) -> Owners:
        return Owners(self.group_owners)

    @property
    def selects_by_label(self) -> bool:
        """Whether its access depends on labels of namespaces."""
        return any(entry.by_label for entry in self.access)

    def with_timeout(self, timeout: timedelta) -> Connection:
        return structs.replace(self, scan=ScanSpec(Duration(seconds=timeout.total_seconds())))

    def settings(self, read_secret: ReadSecret) -> Settings:
        """The settings, with each Secret that the spec names read by `read_secret` (which raises SecretProblem)."""
        return Settings(
            bootstrap_servers=self.bootstrap_servers,
            tls=None if self.tls is None else self.tls.read(read_secret),
            sasl=None if self.sasl is None else self.sasl.read(read_secret),
            timeout=self.timeout,
            requests_per_second=self.given_limits.requests_per_second,
        )


# They have defaults, also if they are left out.
_BLOCKS = ("scan", "ledger")


def parse_connection(obj: Mapping[str, Any]) -> Connection:
    """A `KafkaConnection` object as a Connection.

    Raises SpecError for a spec that the CRD refuses, or that can't be judged.
    """
    return _connection(obj, judged("KafkaConnection", obj, _BLOCKS))


def _connection(obj: Mapping[str, Any], given: Mapping[str, Any]) -> Connection:
    """given: a valid spec with defaults."""
    metadata = obj.get("metadata") or {}
    return Connection(
        **structs.asdict(convert(given, ConnectionSpec, "spec")),
        namespace=metadata.get("namespace") or "default",
        name=metadata.get("name") or "",
        uid=metadata.get("uid") or "",
        generation=int(metadata.get("generation") or 0),
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
    return floors.apply(structs.replace(policy, match=match, stricter=stricter))


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
