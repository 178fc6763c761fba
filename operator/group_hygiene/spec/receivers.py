"""Parses the receivers of alerts, the entries of `receivers`, into frozen records. No I/O.

Secrets are only referenced here, and read elsewhere.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from group_hygiene.errors import SpecError
from group_hygiene.spec.fields import Decisive, convert, require
from group_hygiene.spec.secret import SecretRef

RECEIVERS_MAX = 8

ReceiverName = Annotated[str, Meta(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")]
ReceiverNames = Annotated[tuple[ReceiverName, ...], Meta(max_length=RECEIVERS_MAX)]
# An address without credentials and without a query, as every reader of the object can see it.
_Address = Annotated[str, Meta(max_length=1024, pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?\Z")]


class ReceiverKind(StrEnum):
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
    kind: ReceiverKind
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


class _Slack(Decisive, frozen=True):
    url_secret_ref: SecretRef


class _Alertmanager(Decisive, frozen=True, kw_only=True):
    address: _Address | None = None
    url_secret_ref: SecretRef | None = None
    token_secret_ref: SecretRef | None = None
    ca_secret_ref: SecretRef | None = None

    def __post_init__(self) -> None:
        one = (self.address is None) != (self.url_secret_ref is None)
        require(one, "must hold exactly one of address and urlSecretRef")


class _Webhook(_Alertmanager, frozen=True, kw_only=True):
    hmac_secret_ref: SecretRef | None = None


class _Receiver(Decisive, frozen=True):
    name: ReceiverName
    type: Literal["Alertmanager", "Slack", "Webhook"]
    alertmanager: _Alertmanager | None = None
    slack: _Slack | None = None
    webhook: _Webhook | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in ReceiverKind if getattr(self, kind) is not None]
        require(given == [self.type.lower()], "must hold the field of its type, and no other")


_RECEIVERS: Any = Annotated[tuple[_Receiver, ...], Meta(max_length=RECEIVERS_MAX)]


def parse_receivers(entries: Any, field: str) -> tuple[Receiver, ...]:
    """A list of receivers, each with a name of its own. Raises SpecError, which names `field`."""
    found: tuple[_Receiver, ...] = convert(entries, _RECEIVERS, field)
    if len({receiver.name for receiver in found}) < len(found):
        raise SpecError(f"{field} must not name a receiver twice")
    return tuple(map(_receiver, found))


def _receiver(given: _Receiver) -> Receiver:
    kind = ReceiverKind(given.type.lower())
    spec = structs.asdict(getattr(given, kind))
    address = spec.pop("address", None)
    return Receiver(given.name, kind, address, **{name.removesuffix("_secret_ref"): ref for name, ref in spec.items()})
