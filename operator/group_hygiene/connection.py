"""The spec of a `KafkaConnection`, read into frozen records: how to reach a cluster, and what to leave alone.

No I/O: Secrets are read by the function that the caller hands in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from group_hygiene.errors import SpecError
from group_hygiene.policy import Limits, Patterns, parse_duration, parse_limits

_TIMEOUT_MIN, _TIMEOUT_MAX = timedelta(seconds=1), timedelta(minutes=10)


class Mechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class Hidden(str):
    """A secret text that no log, repr or message shows. `reveal` gives it to the one who must send it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"

    def reveal(self) -> str:
        return "".join(self)


class SecretRef(NamedTuple):
    """One key of one Secret in the connection's own namespace."""

    name: str
    key: str


ReadSecret = Callable[[SecretRef], str]


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

    timeout: of one whole scan, and of connecting.
    """

    bootstrap_servers: tuple[str, ...]
    tls: Tls | None = None
    sasl: Sasl | None = None
    timeout: timedelta = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Connection:
    """A `KafkaConnection` object whose Secrets were not read yet: `settings` reads them."""

    namespace: str
    name: str
    uid: str
    generation: int
    protect: Patterns
    limits: Limits | None
    timeout: timedelta
    spec: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def settings(self, read_secret: ReadSecret) -> Settings:
        """The settings, with each Secret that the spec names read by `read_secret` (which raises SecretProblem)."""
        tls, sasl = self.spec.get("tls"), self.spec.get("sasl")
        return Settings(
            bootstrap_servers=tuple(self.spec["bootstrapServers"]),
            tls=None if tls is None else _tls(tls, read_secret),
            sasl=None if sasl is None else _sasl(sasl, read_secret),
            timeout=self.timeout,
        )


def parse_connection(obj: Mapping[str, Any]) -> Connection:
    """A `KafkaConnection` object as a Connection. Raises SpecError for what the CRD would have refused."""
    metadata, spec = obj.get("metadata") or {}, obj.get("spec") or {}
    servers = spec.get("bootstrapServers") or []
    if not servers or not all(isinstance(server, str) and ":" in server for server in servers):
        raise SpecError("spec.bootstrapServers must hold at least one host:port")
    limits = spec.get("limits")
    return Connection(
        namespace=metadata.get("namespace") or "default",
        name=metadata.get("name") or "",
        uid=metadata.get("uid") or "",
        generation=int(metadata.get("generation") or 0),
        protect=Patterns(spec.get("protect") or [], "spec.protect"),
        limits=None if not limits else parse_limits(limits, "spec.limits", Limits(10_000, 100)),
        timeout=parse_duration(
            (spec.get("scan") or {}).get("timeout", "30s"), "spec.scan.timeout", _TIMEOUT_MIN, _TIMEOUT_MAX
        ),
        spec=spec,
    )


def _read(spec: Mapping[str, Any], field: str, read_secret: ReadSecret) -> str | None:
    ref = spec.get(field)
    return None if ref is None else read_secret(SecretRef(ref["name"], ref["key"]))


def _hidden(spec: Mapping[str, Any], field: str, read_secret: ReadSecret) -> Hidden | None:
    value = _read(spec, field, read_secret)
    # `kubectl create secret --from-file` and echo leave a line end that no password has.
    return None if value is None else Hidden(value.rstrip("\r\n"))


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
