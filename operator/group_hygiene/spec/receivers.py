"""Parses the receivers of alerts, the entries of `receivers`, into frozen records. No I/O.

Secrets are only referenced here, and read elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from group_hygiene.errors import SpecError
from group_hygiene.spec.secret import SecretRef

RECEIVERS_MAX = 8

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NAME_MAX, _ADDRESS_MAX = 63, 1024
# An address without credentials and without a query, as every reader of the object can see it.
_ADDRESS = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?")


class Kind(StrEnum):
    """The protocol of a receiver, by the field that configures it."""

    ALERTMANAGER = "alertmanager"
    SLACK = "slack"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver without its Secrets. Either `address` or `url` is given.

    address: a plain URL. url: the Secret with the URL. token: for `Authorization: Bearer`. hmac: the signing key. ca:
    the authorities (PEM) to trust instead of the system's.
    """

    name: str
    kind: Kind
    address: str | None = None
    url: SecretRef | None = None
    token: SecretRef | None = None
    hmac: SecretRef | None = None
    ca: SecretRef | None = None

    @property
    def digest(self) -> str:
        """A hash of its address: with another one, it counts as a new receiver without earlier alerts."""
        where = f"{self.kind} {self.address} {self.url}"
        return hashlib.sha256(where.encode()).hexdigest()[:16]


_TYPES = {kind.capitalize(): kind for kind in Kind}
_FIELDS: Mapping[Kind, frozenset[str]] = {
    Kind.ALERTMANAGER: frozenset({"address", "urlSecretRef", "tokenSecretRef", "caSecretRef"}),
    Kind.SLACK: frozenset({"urlSecretRef"}),
    Kind.WEBHOOK: frozenset({"address", "urlSecretRef", "tokenSecretRef", "hmacSecretRef", "caSecretRef"}),
}


def parse_receivers(entries: Any, field: str) -> tuple[Receiver, ...]:
    """A list of receivers, each with a name of its own. Raises SpecError, which names `field`."""
    if not isinstance(entries, list | tuple) or len(entries) > RECEIVERS_MAX:
        raise SpecError(f"{field} must be a list of at most {RECEIVERS_MAX} receivers")
    receivers = tuple(_parse(entry, f"{field}[{i}]") for i, entry in enumerate(entries))
    if len({receiver.name for receiver in receivers}) < len(receivers):
        raise SpecError(f"{field} must not name a receiver twice")
    return receivers


def parse_names(names: Any, field: str) -> tuple[str, ...]:
    """A list of names of receivers, none of them twice. Raises SpecError, which names `field`."""
    if not isinstance(names, list | tuple) or len(names) > RECEIVERS_MAX:
        raise SpecError(f"{field} must be a list of at most {RECEIVERS_MAX} names of receivers")
    found = tuple(_parse_name(name, f"{field}[{i}]") for i, name in enumerate(names))
    if len(set(found)) < len(found):
        raise SpecError(f"{field} must not name a receiver twice")
    return found


def _parse_name(name: Any, field: str) -> str:
    if not isinstance(name, str) or len(name) > _NAME_MAX or not _NAME.fullmatch(name):
        raise SpecError(f"{field}: name must be lower-case letters, digits and '-', at most {_NAME_MAX}")
    return name


def _parse(entry: Any, field: str) -> Receiver:
    if not isinstance(entry, Mapping):
        raise SpecError(f"{field} must be given, as a mapping")
    name = _parse_name(entry.get("name"), field)
    kind = _TYPES.get(str(entry.get("type")))
    if kind is None:
        raise SpecError(f"{field}.type must be one of {', '.join(_TYPES)}")
    if set(entry) != {"name", "type", kind}:
        raise SpecError(f"{field} must hold the field of its type, {kind}, beside name and type, and no other")
    spec, field = entry[kind], f"{field}.{kind}"
    if not isinstance(spec, Mapping) or not set(spec) <= _FIELDS[kind]:
        raise SpecError(f"{field} must hold only {', '.join(sorted(_FIELDS[kind]))}")
    address = spec.get("address")
    if kind is Kind.SLACK and "urlSecretRef" not in spec:
        raise SpecError(f"{field}.urlSecretRef must be given")
    if (address is None) == (spec.get("urlSecretRef") is None):
        raise SpecError(f"{field} must hold exactly one of address and urlSecretRef")
    if address is not None and not _is_address(address):
        raise SpecError(f"{field}.address must be a plain http or https URL, without credentials and without a query")
    refs = {key.removesuffix("SecretRef"): _ref(spec[key], f"{field}.{key}") for key in spec if key != "address"}
    return Receiver(name, kind, address, **refs)


def _is_address(address: Any) -> bool:
    return isinstance(address, str) and len(address) <= _ADDRESS_MAX and bool(_ADDRESS.fullmatch(address))


def _ref(value: Any, field: str) -> SecretRef:
    name, key = (value.get("name"), value.get("key")) if isinstance(value, Mapping) else (None, None)
    if not isinstance(name, str) or not isinstance(key, str) or not name or not key:
        raise SpecError(f"{field} must name a Secret and its key: {{name, key}}")
    return SecretRef(name, key)
