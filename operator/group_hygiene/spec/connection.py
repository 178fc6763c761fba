"""Parses the spec of a `KafkaConnection` into frozen records.

No I/O: the caller passes the function that reads Secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from group_hygiene.errors import SpecError
from group_hygiene.model import reasons
from group_hygiene.spec.access import Access, Grant, Right, parse_access
from group_hygiene.spec.durations import parse_duration
from group_hygiene.spec.fields import CONNECTION, parse_known, parse_mapping
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Limits, Policy, parse_limits, parse_whole
from group_hygiene.spec.receivers import Receiver, parse_receivers
from group_hygiene.spec.secret import Hidden, SecretRef
from group_hygiene.spec.storage import STORAGE_OPTIONS, Store, is_location, is_path, read_store

_TIMEOUT_MIN, _TIMEOUT_MAX = timedelta(seconds=1), timedelta(minutes=10)
_MAX_AGE, _MAX_AGE_MIN, _MAX_AGE_MAX = timedelta(hours=1), timedelta(seconds=1), timedelta(hours=720)

# Kafka refuses topics named . or ..
_TOPIC = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
# Kafka's internal topics.
_NO_LEDGER = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})


class Mechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class Role(StrEnum):
    """The role of a cluster. FailoverTarget: a replicator writes groups that are in use in another cluster."""

    PRIMARY = "Primary"
    FAILOVER_TARGET = "FailoverTarget"


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


@dataclass(frozen=True, slots=True)
class LedgerSpec:
    """The topic of the operator's ledger. confirmed: the required id of the ledger, `spec.ledger.id`."""

    topic: str = "__group_hygiene"
    replication_factor: int = 3
    confirmed: str | None = None


@dataclass(frozen=True, slots=True)
class ActivitySpec:
    """The location of a pipeline's tables of the cluster.

    max_age: the largest accepted age of their data. secret: a Secret with the options of the object store
    (STORAGE_OPTIONS); None = the process's own identity.
    """

    uri: str
    max_age: timedelta = _MAX_AGE
    secret: str | None = None

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


@dataclass(frozen=True, slots=True)
class Connection:
    """A `KafkaConnection` object without its Secrets, which `settings` reads.

    requests_per_second: the limit of requests to the cluster; None = no limit. activity: None = there is no pipeline.
    checkpoint_topics: of MirrorMaker 2; None = all topics with such a name. role: None = not given.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    protect: Patterns
    limits: Limits | None
    timeout: timedelta
    spec: Mapping[str, Any]
    ledger: LedgerSpec = LedgerSpec()
    requests_per_second: int | None = None
    access: tuple[Access, ...] = ()
    activity: ActivitySpec | None = None
    receivers: tuple[Receiver, ...] = ()
    checkpoint_topics: frozenset[str] | None = None
    role: Role | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def selects_by_label(self) -> bool:
        """Whether its access depends on labels of namespaces."""
        return any(entry.selector is not None for entry in self.access)

    def settings(self, read_secret: ReadSecret) -> Settings:
        """The settings, with each Secret that the spec names read by `read_secret` (which raises SecretProblem)."""
        tls, sasl = self.spec.get("tls"), self.spec.get("sasl")
        return Settings(
            bootstrap_servers=tuple(self.spec["bootstrapServers"]),
            tls=None if tls is None else _tls(tls, read_secret),
            sasl=None if sasl is None else _sasl(sasl, read_secret),
            timeout=self.timeout,
            requests_per_second=self.requests_per_second,
        )


def parse_connection(obj: Mapping[str, Any]) -> Connection:
    """A `KafkaConnection` object as a Connection. Raises SpecError for values that the CRD refuses."""
    metadata, spec = obj.get("metadata") or {}, parse_known(obj.get("spec") or {}, "spec", CONNECTION)
    servers = spec.get("bootstrapServers") or []
    if not servers or not all(isinstance(server, str) and ":" in server for server in servers):
        raise SpecError("spec.bootstrapServers must hold at least one host:port")
    limits = parse_known(spec.get("limits") or {}, "spec.limits", CONNECTION)
    counts = {key for key in ("maxPerRun", "maxPercent") if key in limits}
    rate = limits.get("requestsPerSecond")
    return Connection(
        namespace=metadata.get("namespace") or "default",
        name=metadata.get("name") or "",
        uid=metadata.get("uid") or "",
        generation=int(metadata.get("generation") or 0),
        protect=Patterns(spec.get("protect") or [], "spec.protect"),
        limits=parse_limits(limits, "spec.limits", Limits(10_000, 100)) if counts else None,
        timeout=parse_duration(
            (spec.get("scan") or {}).get("timeout", "30s"), "spec.scan.timeout", _TIMEOUT_MIN, _TIMEOUT_MAX
        ),
        ledger=_parse_ledger(spec.get("ledger") or {}),
        requests_per_second=None if rate is None else parse_whole(rate, 1, 10_000, "spec.limits.requestsPerSecond"),
        access=parse_access(spec.get("access") or []),
        activity=None if spec.get("activity") is None else parse_activity(spec["activity"]),
        receivers=parse_receivers(spec.get("receivers") or [], "spec.receivers"),
        checkpoint_topics=_parse_mirror_maker(spec.get("mirrorMaker")),
        role=_parse_role(spec.get("role")),
        spec=spec,
    )


def _parse_role(value: Any) -> Role | None:
    if value is None:
        return None
    try:
        return Role(value)
    except ValueError:
        raise SpecError(f"spec.role must be one of {', '.join(Role)}, not {value!r}") from None


def parse_access_only(obj: Mapping[str, Any]) -> Connection:
    """Only the `access` of a `KafkaConnection` that `parse_connection` refuses. No policy runs with this Connection.

    If its `access` is invalid, too, it admits only its own namespace.
    """
    spec = obj.get("spec") or {}
    try:
        access = parse_access(spec.get("access") or [])
    except SpecError:
        access = ()
    placeholder = {"bootstrapServers": ["unread:0"]}
    return replace(parse_connection({"metadata": obj.get("metadata"), "spec": placeholder}), access=access)


def parse_activity(spec: Mapping[str, Any]) -> ActivitySpec:
    """`spec.activity` of a KafkaConnection. Raises SpecError."""
    spec = parse_mapping(spec, "spec.activity")
    uri, secret = spec.get("uri"), spec.get("secretRef")
    if not isinstance(uri, str) or not is_location(uri):
        raise SpecError(
            "spec.activity.uri must be the address of a folder, like s3://bucket/kafka-main (or gs://, az://, abfss://)"
            ", or an absolute path"
        )
    name = None if secret is None else parse_mapping(secret, "spec.activity.secretRef").get("name")
    if secret is not None and (not isinstance(name, str) or not name):
        raise SpecError("spec.activity.secretRef.name must be given")
    max_age = spec.get("maxAge")
    return ActivitySpec(
        uri=uri,
        max_age=(
            _MAX_AGE if max_age is None else parse_duration(max_age, "spec.activity.maxAge", _MAX_AGE_MIN, _MAX_AGE_MAX)
        ),
        secret=name,
    )


def grant(connection: Connection, namespace: str, labels: Mapping[str, str] | None) -> Grant | None:
    """The rights that the connection grants a namespace; None = none. labels: of the namespace, None = not readable."""
    if namespace == connection.namespace:
        return Grant(None)
    entries = tuple(entry for entry in connection.access if entry.selects(namespace, labels))
    return Grant(entries) if entries else None


def admit(connection: Connection, policy: Policy, given: Grant | None) -> Policy:
    """The policy, narrowed to the groups that its namespace is granted for its action (see Match.ungranted).

    given: the rights that the connection grants the policy's namespace.

    Raises SpecError with the reason CrossNamespaceRefused or ActionNotGranted if the policy's action is not granted.
    """
    if given is None:
        raise SpecError(nothing_granted(connection.key, policy.namespace), reasons.CROSS_NAMESPACE)
    right = Right(policy.action.value)
    if right not in given.rights:
        raise SpecError(
            f"KafkaConnection {connection.key} does not grant action {right} to namespace {policy.namespace}: "
            f"spec.action must be one of {', '.join(sorted(given.rights))}",
            reasons.ACTION_NOT_GRANTED,
        )
    return replace(policy, match=replace(policy.match, within=given.groups(right)))


def receivers_of(connection: Connection, policy: Policy) -> dict[str, Receiver | None]:
    """The receivers that a policy notifies, by name; None = the connection has no receiver of that name."""
    known = {receiver.name: receiver for receiver in connection.receivers}
    return {name: known.get(name) for name in (known if policy.alert.receivers is None else policy.alert.receivers)}


def nothing_granted(key: str, namespace: str) -> str:
    """The message for a namespace that may not use a connection: the same whether the connection exists or not."""
    return (
        f"KafkaConnection {key} grants nothing to namespace {namespace}: "
        "its spec.access must name it, or connectionRef must name a connection of that namespace itself"
    )


def _parse_ledger(spec: Mapping[str, Any]) -> LedgerSpec:
    topic, confirmed = spec.get("topic", LedgerSpec().topic), spec.get("id")
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in _NO_LEDGER:
        raise SpecError(f"spec.ledger.topic must be the name of a topic that is not Kafka's own, not {topic!r}")
    if confirmed is not None and not isinstance(confirmed, str):
        raise SpecError("spec.ledger.id must be a text")
    factor = parse_whole(spec.get("replicationFactor", 3), 1, 10, "spec.ledger.replicationFactor")
    return LedgerSpec(topic, factor, confirmed or None)


def _parse_mirror_maker(spec: Any) -> frozenset[str] | None:
    if spec is None:
        return None
    topics = parse_known(spec, "spec.mirrorMaker", CONNECTION).get("checkpointTopics")
    if not isinstance(topics, list | tuple) or not all(isinstance(t, str) and _TOPIC.fullmatch(t) for t in topics):
        raise SpecError("spec.mirrorMaker.checkpointTopics must be a list of names of topics")
    return frozenset(topics)


def _read(spec: Mapping[str, Any], field: str, read_secret: ReadSecret) -> str | None:
    ref = spec.get(field)
    return None if ref is None else read_secret(SecretRef(ref["name"], ref["key"]))


def _hidden(spec: Mapping[str, Any], field: str, read_secret: ReadSecret) -> Hidden | None:
    value = _read(spec, field, read_secret)
    return None if value is None else Hidden.trimmed(value)


def _tls(spec: Mapping[str, Any], read_secret: ReadSecret) -> Tls:
    if (spec.get("certificateSecretRef") is None) != (spec.get("privateKeySecretRef") is None):
        raise SpecError("spec.tls.certificateSecretRef and privateKeySecretRef must be given together")
    return Tls(
        ca=_read(spec, "caSecretRef", read_secret),
        certificate=_read(spec, "certificateSecretRef", read_secret),
        private_key=_hidden(spec, "privateKeySecretRef", read_secret),
        verify_hostname=bool(spec.get("verifyHostname", True)),
    )


def _sasl(spec: Mapping[str, Any], read_secret: ReadSecret) -> Sasl:
    try:
        mechanism = Mechanism(str(spec.get("mechanism")))
    except ValueError:
        raise SpecError(f"spec.sasl.mechanism must be one of {', '.join(Mechanism)}") from None
    oauth = spec.get("oauth")
    if (mechanism is Mechanism.OAUTHBEARER) != (oauth is not None):
        raise SpecError("spec.sasl.oauth must be given with mechanism OAUTHBEARER, and only with it")
    if oauth is None and (spec.get("username") is None or spec.get("passwordSecretRef") is None):
        raise SpecError("spec.sasl.username and passwordSecretRef must be given, unless the mechanism is OAUTHBEARER")
    return Sasl(
        mechanism=mechanism,
        username=spec.get("username"),
        password=_hidden(spec, "passwordSecretRef", read_secret),
        oauth=None if oauth is None else _oauth(oauth, read_secret),
    )


def _oauth(spec: Mapping[str, Any], read_secret: ReadSecret) -> OAuth:
    return OAuth(
        token_endpoint=spec["tokenEndpoint"],
        client_id=spec["clientID"],
        client_secret=_hidden(spec, "clientSecretRef", read_secret) or Hidden(""),
        scope=spec.get("scope"),
        ca=_read(spec, "caSecretRef", read_secret),
    )
