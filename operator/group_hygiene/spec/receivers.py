"""The receivers of alerts, the entries of `receivers`, as frozen records. No I/O.

Secrets are only referenced here, and read elsewhere.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from msgspec import structs

from group_hygiene.spec.fields import Decisive
from group_hygiene.spec.secret import SecretRef


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
    address: str | None = None
    url_secret_ref: SecretRef | None = None
    token_secret_ref: SecretRef | None = None
    ca_secret_ref: SecretRef | None = None


class _Webhook(_Alertmanager, frozen=True, kw_only=True):
    hmac_secret_ref: SecretRef | None = None


class ReceiverEntry(Decisive, frozen=True):
    """One entry of `receivers`."""

    name: str
    type: str
    alertmanager: _Alertmanager | None = None
    slack: _Slack | None = None
    webhook: _Webhook | None = None

    @property
    def receiver(self) -> Receiver:
        kind = ReceiverKind(self.type.lower())
        spec = structs.asdict(getattr(self, kind))
        address = spec.pop("address", None)
        return Receiver(
            self.name, kind, address, **{name.removesuffix("_secret_ref"): ref for name, ref in spec.items()}
        )
