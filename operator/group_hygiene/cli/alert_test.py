"""`alert test`: send a test message to receivers of a connection or policy, as the operator sends its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from group_hygiene.cli.output import Column, Report, Table, working
from group_hygiene.cli.target import current_namespace, open_api, read_object
from group_hygiene.controller.objects import CONNECTIONS, POLICIES
from group_hygiene.errors import HygieneError, UsageError
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.alerts import AlertType, Item, Status
from group_hygiene.observe.messages import body, post, read_endpoint
from group_hygiene.observe.outbox import receiver_not_found
from group_hygiene.process.egress import Egress, parse_egress
from group_hygiene.spec.connection import Connection, Receiver, parse_connection, receivers_of
from group_hygiene.spec.policy import Policy, parse_policy

if TYPE_CHECKING:
    from group_hygiene.cli.commands import TestOptions
    from group_hygiene.controller.api import Api

# Alertmanager shows the test alert no longer than this.
_SHOWN_FOR = timedelta(minutes=10)
_COLUMNS = tuple(map(Column, ("RECEIVER", "TYPE", "RESULT", "REASON", "MESSAGE")))


def send_tests(wanted: TestOptions) -> Report:
    """Send to all receivers at once; one result for each. Raises HygieneError if there is no receiver."""
    namespace = wanted.namespace or current_namespace(wanted.context, wanted.kubeconfig)
    egress = parse_egress(wanted.allowed)
    with working("reading from Kubernetes"):
        api = open_api(wanted.context, wanted.kubeconfig)
        policy = None
        name = wanted.connection or ""
        if wanted.policy is not None:
            policy = parse_policy(read_object(api, POLICIES, namespace, wanted.policy))
            namespace, name = policy.connection_namespace, policy.connection_name
        connection = parse_connection(read_object(api, CONNECTIONS, namespace, name))
    known: dict[str, Receiver | None] = {each.name: each for each in connection.receivers}
    receivers = known if policy is None else receivers_of(connection, policy)
    receivers = {name: receiver for name, receiver in receivers.items() if wanted.receiver in (None, name)}
    if not receivers:
        missing = "no receivers" if wanted.receiver is None else f"no receiver {wanted.receiver!r}"
        owner = f"KafkaConnection {connection.key}" if policy is None else f"GroupPolicy {policy.key}"
        raise UsageError(f"{owner} has {missing}")
    item = _test_item(connection, policy)

    async def send_all() -> list[Refusal | None]:
        sent = (_send(api, connection.namespace, *each, item, egress) for each in receivers.items())
        return await asyncio.gather(*sent)

    with working(f"sending to {len(receivers)} receivers"):
        failures = asyncio.run(send_all())
    return _report(receivers, failures)


async def _send(
    api: Api, namespace: str, name: str, receiver: Receiver | None, item: Item, egress: Egress
) -> Refusal | None:
    if receiver is None:
        return receiver_not_found(name)
    try:
        # In a thread: a slow read of one Secret must not delay messages to other receivers.
        endpoint = await asyncio.to_thread(read_endpoint, receiver, partial(api.read_secret, namespace))
    except HygieneError as error:
        # The message of the API has advice for the operator, not for a user.
        denied = f"you may not read the Secrets that it names in namespace {namespace}"
        return Refusal(error.reason, denied if error.reason == reasons.SECRET_FORBIDDEN else str(error))
    now = datetime.now(UTC)
    return (await post(endpoint, body(endpoint.kind, [item], now), now, egress)).failure


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


def _report(receivers: Mapping[str, Receiver | None], failures: Sequence[Refusal | None]) -> Report:
    results = [
        {
            "receiver": name,
            "type": None if receiver is None else str(receiver.kind),
            "result": "Delivered" if failure is None else "Failed",
            "reason": None if failure is None else failure.reason,
            "message": None if failure is None else failure.message,
        }
        for (name, receiver), failure in zip(receivers.items(), failures, strict=True)
    ]
    errors = [f"receiver {r['receiver']}: {r['reason']}: {r['message']}" for r in results if r["result"] == "Failed"]
    delivered = [str(r["receiver"]) for r in results if r["result"] == "Delivered"]
    return Report({"results": results, "errors": errors}, delivered, [Table.of(results, _COLUMNS)], (), errors)
