"""The spec of a `KafkaConnection`, read into frozen records: how to reach a cluster, and what to leave alone.

No I/O: Secrets are read by the function that the caller hands in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from group_hygiene import reasons
from group_hygiene.access import Access, Grant, Right, parse_access
from group_hygiene.durations import parse_duration
from group_hygiene.errors import SpecError
from group_hygiene.fields import CONNECTION, parse_known, parse_mapping
from group_hygiene.patterns import Patterns
from group_hygiene.policy import Limits, Policy, parse_limits, parse_whole
from group_hygiene.receivers import Receiver, parse_receivers
from group_hygiene.secret import Hidden, SecretRef
from group_hygiene.storage import STORAGE_OPTIONS, Store, is_location, is_path, read_store

_TIMEOUT_MIN, _TIMEOUT_MAX = timedelta(seconds=1), timedelta(minutes=10)
_MAX_AGE, _MAX_AGE_MIN, _MAX_AGE_MAX = timedelta(hours=1), timedelta(seconds=1), timedelta(hours=720)

# No topic can be named . or ..
_TOPIC = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
# Kafka's own.
_NO_LEDGER = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})


class Mechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class Role(StrEnum):
    """What a cluster is for. FailoverTarget: a replicator writes groups there that run elsewhere."""

    PRIMARY = "Primary"
    FAILOVER_TARGET = "FailoverTarget"


ReadSecret = Callable[[SecretRef], str]
# Of a Secret by its name: the texts under those of the given keys that it has.
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
    """All that a client needs to reach a cluster, secrets included. Equal settings = no need to connect anew.

    timeout: of one whole scan, and of connecting. requests_per_second: at most; None = as fast as brokers answer.
    """

    bootstrap_servers: tuple[str, ...]
    tls: Tls | None = None
    sasl: Sasl | None = None
    timeout: timedelta = timedelta(seconds=30)
    requests_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class LedgerSpec:
    """Where the operator keeps its ledger. confirmed: the id of the one that is ours, as the spec's author says."""

    topic: str = "__group_hygiene"
    replication_factor: int = 3
    confirmed: str | None = None


@dataclass(frozen=True, slots=True)
class ActivitySpec:
    """Where a pipeline's tables of the cluster are.

    max_age: how old may be what they cover. secret: whose keys say how to reach the object store (STORAGE_OPTIONS);
    None = the process's own identity.
    """

    uri: str
    max_age: timedelta = _MAX_AGE
    secret: str | None = None

    @property
    def local(self) -> bool:
        """Whether it is a path on the machine that reads it."""
        return is_path(self.uri)

    def store(self, read_secret: ReadSecretTexts) -> Store | None:
        """How to reach the object store, read by `read_secret`; None = no Secret is named.

        Raises SecretProblem, as `read_secret` does, unless its credentials are complete and lead to where they may.
        """
        if self.secret is None or self.local:
            return None
        return read_store(self.uri, self.secret, read_secret(self.secret, STORAGE_OPTIONS))


@dataclass(frozen=True, slots=True)
class Connection:
    """A `KafkaConnection` object whose Secrets were not read yet: `settings` reads them.

    requests_per_second: how many requests to the cluster at most; None = as fast as it answers. activity: None = there
    is no pipeline. checkpoint_topics: of MirrorMaker 2; None = all that are named like one. role: None = not said.
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
        """Whether who may use it hangs on labels of namespaces."""
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
    """A `KafkaConnection` object as a Connection. Raises SpecError for what the CRD would have refused."""
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


def parse_admitting(obj: Mapping[str, Any]) -> Connection:
    """Whom a `KafkaConnection` lets in that `parse_connection` refuses, and nothing else of it: nothing runs by that.

    An `access` that can't be read, either, lets in its own namespace alone.
    """
    spec = obj.get("spec") or {}
    try:
        access = parse_access(spec.get("access") or [])
    except SpecError:
        access = ()
    whom = {"bootstrapServers": ["unread:0"]}
    return replace(parse_connection({"metadata": obj.get("metadata"), "spec": whom}), access=access)


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
    """What the connection grants a namespace; None = nothing. labels: the namespace's own, None = could not be read."""
    if namespace == connection.namespace:
        return Grant(None)
    entries = tuple(entry for entry in connection.access if entry.picks(namespace, labels))
    return Grant(entries) if entries else None


def admit(connection: Connection, policy: Policy, given: Grant | None) -> Policy:
    """The policy, narrowed to the groups that its namespace is granted for its action (see Match.beyond).

    given: what the connection grants the policy's namespace.

    Raises SpecError with the reason CrossNamespaceRefused or ActionNotGranted when it is granted nothing at all.
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


def receivers_of(connection: Connection, policy: Policy) -> Iterator[tuple[str, Receiver | None, bool]]:
    """Who is told of a policy: names with their receivers, and whether these are the policy's own.

    None = the policy names one that the connection does not have.
    """
    theirs = {receiver.name: receiver for receiver in connection.receivers}
    for entry in theirs if policy.alert.receivers is None else policy.alert.receivers:
        if isinstance(entry, str):
            yield entry, theirs.get(entry), False
        else:
            yield entry.name, entry, True


def nothing_granted(key: str, namespace: str) -> str:
    """What a namespace is told that may not use a connection: the same whether there is such a connection or not."""
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
    if (spec.get("certificate") is None) != (spec.get("privateKey") is None):
        raise SpecError("spec.tls.certificate and privateKey must be given together")
    return Tls(
        ca=_read(spec, "ca", read_secret),
        certificate=_read(spec, "certificate", read_secret),
        private_key=_hidden(spec, "privateKey", read_secret),
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
    if oauth is None and (spec.get("username") is None or spec.get("password") is None):
        raise SpecError("spec.sasl.username and password must be given, unless the mechanism is OAUTHBEARER")
    return Sasl(
        mechanism=mechanism,
        username=spec.get("username"),
        password=_hidden(spec, "password", read_secret),
        oauth=None if oauth is None else _oauth(oauth, read_secret),
    )


def _oauth(spec: Mapping[str, Any], read_secret: ReadSecret) -> OAuth:
    return OAuth(
        token_endpoint=spec["tokenEndpoint"],
        client_id=spec["clientId"],
        client_secret=_hidden(spec, "clientSecret", read_secret) or Hidden(""),
        scope=spec.get("scope"),
        ca=_read(spec, "ca", read_secret),
    )
