"""Who gets alerts, as a spec says it: the entries of `receivers`, read into frozen records. No I/O.

What is secret of a receiver is named here, and read elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from group_hygiene.errors import SpecError
from group_hygiene.secret import SecretRef

RECEIVERS_MAX = 8

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NAME_MAX, _ADDRESS_MAX = 63, 1024
# Neither credentials nor a query belong into an address that everybody may read.
_ADDRESS = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?")


class Kind(StrEnum):
    """How a receiver is spoken to, by the field that configures it."""

    ALERTMANAGER = "alertmanager"
    SLACK = "slack"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver whose Secrets were not read yet. Either `address` or `url` is given.

    address: a plain URL. url: where a Secret has one. token: for `Authorization: Bearer`. hmac: the key that signs.
    ca: of the authorities (PEM) that are trusted instead of the system's.
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
        """Of where it is: another one is another receiver, which was told nothing yet."""
        where = f"{self.kind} {self.address} {self.url}"
        return hashlib.sha256(where.encode()).hexdigest()[:16]


_FIELDS: Mapping[Kind, frozenset[str]] = {
    Kind.ALERTMANAGER: frozenset({"address", "url", "token", "ca"}),
    Kind.SLACK: frozenset({"url"}),
    Kind.WEBHOOK: frozenset({"address", "url", "token", "hmac", "ca"}),
}


def is_inline(entry: Mapping[str, Any]) -> bool:
    """Whether a policy's entry defines a receiver; one that does not means the connection's of that name."""
    return any(kind in entry for kind in Kind)


def parse_receivers(entries: Any, field: str) -> tuple[Receiver, ...]:
    """A list of receivers, each with a name of its own. Raises SpecError, which names `field`."""
    if not isinstance(entries, list | tuple) or len(entries) > RECEIVERS_MAX:
        raise SpecError(f"{field} must be a list of at most {RECEIVERS_MAX} receivers")
    receivers = tuple(_parse(entry, f"{field}[{i}]") for i, entry in enumerate(entries))
    if len({receiver.name for receiver in receivers}) < len(receivers):
        raise SpecError(f"{field} must not name a receiver twice")
    return receivers


def parse_name(name: Any, field: str) -> str:
    """A receiver's name. Raises SpecError."""
    if not isinstance(name, str) or len(name) > _NAME_MAX or not _NAME.fullmatch(name):
        raise SpecError(f"{field}: name must be lower-case letters, digits and '-', at most {_NAME_MAX}")
    return name


def _parse(entry: Any, field: str) -> Receiver:
    if not isinstance(entry, Mapping):
        raise SpecError(f"{field} must be given, as a mapping")
    name = parse_name(entry.get("name"), field)
    kinds = [kind for kind in Kind if kind in entry]
    if len(kinds) != 1 or set(entry) != {"name", *kinds}:
        raise SpecError(f"{field} must hold exactly one of alertmanager, slack and webhook beside its name")
    (kind,) = kinds
    spec, field = entry[kind], f"{field}.{kind}"
    if not isinstance(spec, Mapping) or not set(spec) <= _FIELDS[kind]:
        raise SpecError(f"{field} must hold only {', '.join(sorted(_FIELDS[kind]))}")
    address = spec.get("address")
    if kind is Kind.SLACK and "url" not in spec:
        raise SpecError(f"{field}.url must be given")
    if (address is None) == (spec.get("url") is None):
        raise SpecError(f"{field} must hold exactly one of address and url")
    if address is not None and not _is_address(address):
        raise SpecError(f"{field}.address must be a plain http or https URL, without credentials and without a query")
    refs = {key: _ref(spec[key], f"{field}.{key}") for key in ("url", "token", "hmac", "ca") if key in spec}
    return Receiver(name, kind, address, **refs)


def _is_address(address: Any) -> bool:
    return isinstance(address, str) and len(address) <= _ADDRESS_MAX and bool(_ADDRESS.fullmatch(address))


def _ref(value: Any, field: str) -> SecretRef:
    name, key = (value.get("name"), value.get("key")) if isinstance(value, Mapping) else (None, None)
    if not isinstance(name, str) or not isinstance(key, str) or not name or not key:
        raise SpecError(f"{field} must name a Secret and its key: {{name, key}}")
    return SecretRef(name, key)
