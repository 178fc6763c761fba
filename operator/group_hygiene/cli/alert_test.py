"""`alert test`: send a test message to receivers of a connection or policy, as the operator sends its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from group_hygiene.alerts.delivery import post, read_endpoint
from group_hygiene.alerts.messages import body
from group_hygiene.alerts.outbox import receiver_not_found
from group_hygiene.alerts.state import AlertType, Item, Status
from group_hygiene.cli.output import Column, Report, Table, working
from group_hygiene.cli.target import open_api, read_object
from group_hygiene.controller.objects import CONNECTIONS, POLICIES
from group_hygiene.errors import HygieneError, UsageError
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.network.egress import Egress, parse_egress
from group_hygiene.spec.connection import Connection, parse_connection, receivers_of
from group_hygiene.spec.policy import Policy, parse_policy
from group_hygiene.spec.receivers import Receiver

if TYPE_CHECKING:
    from group_hygiene.controller.api import Api

# Alertmanager shows the test alert no longer than this.
_SHOWN_FOR = timedelta(minutes=10)
_COLUMNS = (Column("RECEIVER"), Column("TYPE"), Column("RESULT"), Column("REASON"), Column("MESSAGE"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The receivers to test: of a connection or a policy, by name. receiver: only this one. allowed: see egress."""

    namespace: str
    connection: str | None
    policy: str | None
    receiver: str | None
    allowed: Sequence[str]
    context: str | None = None
    kubeconfig: Path | None = None


@dataclass(frozen=True, slots=True)
class _Recipient:
    """A receiver to test; None = the connection has no such receiver. namespace: of its Secrets."""

    name: str
    receiver: Receiver | None
    namespace: str


def send_tests(wanted: Wanted) -> Report:
    """Send to all receivers at once; one result for each. Raises HygieneError if there is no receiver."""
    egress = parse_egress(wanted.allowed)
    with working("reading from Kubernetes"):
        api = open_api(wanted.context, wanted.kubeconfig)
        policy = (
            None if wanted.policy is None else parse_policy(read_object(api, POLICIES, wanted.namespace, wanted.policy))
        )
        connection = _connection(api, wanted, policy)
    recipients = _recipients(connection, policy)
    if wanted.receiver is not None:
        recipients = [recipient for recipient in recipients if recipient.name == wanted.receiver]
    if not recipients:
        missing = "no receivers" if wanted.receiver is None else f"no receiver {wanted.receiver!r}"
        owner = f"KafkaConnection {connection.key}" if policy is None else f"GroupPolicy {policy.key}"
        raise UsageError(f"{owner} has {missing}")
    item = _test_item(connection, policy)
    with working(f"sending to {len(recipients)} receivers"):
        failures = asyncio.run(_send_all(api, recipients, item, egress))
    return _report(recipients, failures)


async def _send_all(api: Api, recipients: Sequence[_Recipient], item: Item, egress: Egress) -> list[Refusal | None]:
    return list(await asyncio.gather(*(_send(api, recipient, item, egress) for recipient in recipients)))


async def _send(api: Api, recipient: _Recipient, item: Item, egress: Egress) -> Refusal | None:
    if recipient.receiver is None:
        return receiver_not_found(recipient.name)
    try:
        # In a thread: a slow read of one Secret must not delay messages to other receivers.
        endpoint = await asyncio.to_thread(
            read_endpoint, recipient.receiver, lambda ref: api.read_secret(recipient.namespace, ref)
        )
    except HygieneError as error:
        # The message of the API has advice for the operator, not for a user.
        denied = f"you may not read the Secrets that it names in namespace {recipient.namespace}"
        return Refusal(error.reason, denied if error.reason == reasons.SECRET_FORBIDDEN else str(error))
    now = datetime.now(UTC)
    return (await post(endpoint, body(endpoint.kind, [item], now), now, egress)).failure


def _connection(api: Api, wanted: Wanted, policy: Policy | None) -> Connection:
    if policy is None:
        return parse_connection(read_object(api, CONNECTIONS, wanted.namespace, wanted.connection or ""))
    return parse_connection(read_object(api, CONNECTIONS, policy.connection_namespace, policy.connection_name))


def _recipients(connection: Connection, policy: Policy | None) -> list[_Recipient]:
    if policy is None:
        return [_Recipient(receiver.name, receiver, connection.namespace) for receiver in connection.receivers]
    return [
        _Recipient(name, receiver, connection.namespace) for name, receiver in receivers_of(connection, policy).items()
    ]


def _test_item(connection: Connection, policy: Policy | None) -> Item:
    now = datetime.now(UTC)
    return Item(
        status=Status.NOTICE,
        type=AlertType.TEST,
        policy="" if policy is None else policy.key,
        connection=connection.key,
        since=now,
        until=now + _SHOWN_FOR,
        action="" if policy is None else str(policy.action),
        mode="" if policy is None else str(policy.mode),
    )


def _report(recipients: Sequence[_Recipient], failures: Sequence[Refusal | None]) -> Report:
    results = [
        {
            "receiver": recipient.name,
            "type": None if recipient.receiver is None else str(recipient.receiver.kind),
            "result": "Delivered" if failure is None else "Failed",
            "reason": None if failure is None else failure.reason,
            "message": None if failure is None else failure.message,
        }
        for recipient, failure in zip(recipients, failures, strict=True)
    ]
    errors = [f"receiver {r['receiver']}: {r['reason']}: {r['message']}" for r in results if r["result"] == "Failed"]
    rows = [(r["receiver"], r["type"], r["result"], r["reason"], r["message"]) for r in results]
    delivered = [str(r["receiver"]) for r in results if r["result"] == "Delivered"]
    return Report({"results": results, "errors": errors}, delivered, [Table(_COLUMNS, rows)], (), errors)
