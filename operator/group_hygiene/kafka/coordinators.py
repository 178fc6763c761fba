"""Sends requests to the coordinators of groups: in chunks, concurrently, with one result or Fault per group.

Describe and offset fetch use `ask`, commit and delete use `ask_once`: all isolate failures in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from group_hygiene.kafka.client import (
    NO_ANSWER,
    TOO_MUCH,
    Call,
    Client,
    Deadline,
    Request,
    Response,
    fault_of_code,
    retrying,
)
from group_hygiene.model.groups import Fault

_LOOKUP_CHUNK = 1_000
_ROUNDS = 3
_SHORTEST_ROUND_S = 1.0
# Another broker may coordinate the group: look it up before the next request.
_MOVED = frozenset(
    {"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "NETWORK_EXCEPTION", "BROKER_NOT_AVAILABLE", "REQUEST_TIMED_OUT"}
)


@dataclass(frozen=True)
class Question:
    """A request about many groups.

    request: builds the request for these groups. answers: reads a result or a Fault for each of them from the response.
    chunk: groups per request.
    """

    request: Callable[[list[str]], Request]
    answers: Callable[[Sequence[str], Response], Mapping[str, Any]]
    chunk: int


def ask(client: Client, groups: Mapping[str, int | None], question: Question, deadline: Deadline) -> dict[str, Any]:
    """Send `question` to the coordinator of each group. `groups`: id -> last known coordinator, None = look it up.

    A request that fails as a whole is split in halves until the failing group is alone. Retriable failures are repeated
    until the deadline, after another lookup of the coordinator.
    """
    coordinators = dict(groups)
    # A broker that hangs delays its round: groups without an answer from other brokers need another round.
    round_seconds = max(_SHORTEST_ROUND_S, deadline.left / _ROUNDS)

    def attempt(left: list[str]) -> dict[str, Any]:
        until = Deadline(min(deadline.left, round_seconds))
        results = _ask_round(client, coordinators, left, question, until, split=True)
        for group, answer in results.items():
            if isinstance(answer, Fault) and answer.code in _MOVED:
                coordinators[group] = None
        return results

    return retrying(groups, attempt, deadline)


def ask_once(
    client: Client, groups: Mapping[str, int | None], question: Question, deadline: Deadline
) -> dict[str, Any]:
    """As `ask`, for requests that change something: each group is asked once, and no request is split."""
    results = _ask_round(client, dict(groups), list(groups), question, deadline, split=False)
    return {group: results.get(group, NO_ANSWER) for group in groups}


def _ask_round(
    client: Client,
    coordinators: dict[str, int | None],
    groups: Sequence[str],
    question: Question,
    deadline: Deadline,
    *,
    split: bool,
) -> dict[str, Any]:
    """Coordinators that are None are looked up, and noted in `coordinators`."""
    results: dict[str, Any] = {}
    unknown = [group for group in groups if coordinators[group] is None]
    if unknown:
        for group, found in look_up(client, unknown, deadline).items():
            if isinstance(found, Fault):
                results[group] = found
            else:
                coordinators[group] = found
    by_broker: dict[int, list[str]] = {}
    for group in groups:
        broker = coordinators[group]
        if broker is not None:
            by_broker.setdefault(broker, []).append(group)
    chunks = [
        (broker, tuple(members[start : start + question.chunk]))
        for broker, members in by_broker.items()
        for start in range(0, len(members), question.chunk)
    ]
    while chunks:
        calls = {chunk: Call(chunk[0], question.request(list(chunk[1]))) for chunk in chunks}
        answers = client.send_each(calls, deadline, lambda chunk, response: question.answers(chunk[1], response))
        chunks = []
        for (broker, members), answer in answers.items():
            if not isinstance(answer, Fault):
                results.update(answer)
            elif answer.retriable or len(members) == 1 or not split or answer.code == TOO_MUCH:
                results.update(dict.fromkeys(members, answer))
            else:
                half = len(members) // 2
                chunks += [(broker, members[:half]), (broker, members[half:])]
    return results


def look_up(
    client: Client, groups: Sequence[str], deadline: Deadline, broker: int | None = None
) -> dict[str, int | Fault]:
    """The coordinator's broker id for each group: batched (KIP-699, brokers 3.0 on), else one request a group.

    broker: which one to ask; None = any. The result has exactly these groups, whatever the broker answers.
    """
    key_type = CoordinatorType.GROUP.value
    found: dict[str, int | Fault] = dict.fromkeys(groups, NO_ANSWER)
    if client.supports(FindCoordinatorRequest, 4):
        chunks = [tuple(groups[start : start + _LOOKUP_CHUNK]) for start in range(0, len(groups), _LOOKUP_CHUNK)]
        calls = {
            chunk: Call(broker, FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(chunk), min_version=4))
            for chunk in chunks
        }
        for chunk, answer in client.send_each(calls, deadline).items():
            if isinstance(answer, Fault):
                found.update(dict.fromkeys(chunk, answer))
                continue
            for row in answer.coordinators:
                if row.key in found:
                    found[row.key] = fault_of_code(row.error_code) if row.error_code else row.node_id
        return found
    singles = {
        group: Call(broker, FindCoordinatorRequest(key=group, key_type=key_type, max_version=3)) for group in groups
    }
    for group, answer in client.send_each(singles, deadline).items():
        if isinstance(answer, Fault):
            found[group] = answer
        else:
            found[group] = fault_of_code(answer.error_code) if answer.error_code else answer.node_id
    return found
