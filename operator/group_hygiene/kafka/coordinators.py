"""Sends requests about many groups or partitions: in chunks, concurrently, with one result or Fault for each.

`ask_brokers` sends to brokers that are known, `ask` and `ask_once` to the coordinators of groups, `cluster.ask_leaders`
to the leaders of partitions. All isolate failures in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Generic, TypeVar

from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from group_hygiene.kafka.bounds import TOO_MUCH
from group_hygiene.kafka.client import (
    NO_ANSWER,
    Call,
    Client,
    Deadline,
    Request,
    Response,
    Results,
    fault_of_code,
    retrying,
)
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.model.groups import Fault

K = TypeVar("K", bound=Hashable)

_LOOKUP_CHUNK = 1_000
_ROUNDS = 3
_SHORTEST_ROUND_S = 1.0
# Another broker may coordinate the group: look it up before the next request.
_MOVED = frozenset(
    {"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "NETWORK_EXCEPTION", "BROKER_NOT_AVAILABLE", "REQUEST_TIMED_OUT"}
)
# Prefix of group ids that no consumer uses.
PREFIX = "group-hygiene-loaded-"
# Divisible by 3, 16, 24, 50, 100 and 200, common values of offsets.topic.num.partitions. An id whose hash has a certain
# remainder modulo this number has a certain remainder modulo each divisor.
SAMPLES = 1_200
# The share of a read's time for sample groups: a new cluster has no coordinators yet, and the requests are repeated.
_SAMPLES_SHARE = 0.25


@dataclass(frozen=True)
class Question(Generic[K]):
    """A request about many groups, or about many partitions.

    request: builds the request for some keys. answers: reads a result or a Fault for each of them from the response.
    chunk: the most keys of a request.
    """

    request: Callable[[list[K]], Request]
    answers: Callable[[Sequence[K], Response], Mapping[K, Any]]
    chunk: int


def ask_brokers(
    client: Client,
    brokers: Mapping[K, int | None],
    question: Question[K],
    deadline: Deadline,
    *,
    split: bool = False,
) -> Results[K, Any]:
    """Send `question` to the broker of each group or partition, None = any: a result for exactly these.

    split: a request that fails as a whole is split in halves until the key that makes it fail is alone, and one whose
    answer is too large beside others is sent again by itself.
    """
    by_broker: dict[int | None, list[K]] = {}
    for key, broker in brokers.items():
        by_broker.setdefault(broker, []).append(key)
    chunks = [
        (broker, tuple(keys[start : start + question.chunk]))
        for broker, keys in by_broker.items()
        for start in range(0, len(keys), question.chunk)
    ]
    results: dict[K, Any] = {}
    # Each is sent together, with limits for all of its answers.
    together = [chunks] if chunks else []
    while together:
        chunks = together.pop()
        calls = {chunk: Call(chunk[0], question.request(list(chunk[1]))) for chunk in chunks}
        answers = client.send_each(calls, deadline, lambda chunk, response: question.answers(chunk[1], response))
        for (broker, keys), answer in answers.items():
            if not isinstance(answer, Fault):
                results.update({key: answer[key] for key in keys if key in answer})
            elif split and answer.code == TOO_MUCH and len(chunks) > 1:
                together.append([(broker, keys)])
            elif answer.retriable or len(keys) == 1 or not split or answer.code == TOO_MUCH:
                results.update(dict.fromkeys(keys, answer))
            else:
                half = len(keys) // 2
                together += [[(broker, keys[:half])], [(broker, keys[half:])]]
    return Results({key: results.get(key, NO_ANSWER) for key in brokers})


def ask(
    client: Client, groups: Mapping[str, int | None], question: Question[str], deadline: Deadline
) -> Results[str, Any]:
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
        coordinators.update({group: None for group, fault in results.faults.items() if fault.code in _MOVED})
        return results

    return retrying(groups, attempt, deadline)


def ask_once(
    client: Client, groups: Mapping[str, int | None], question: Question[str], deadline: Deadline
) -> Results[str, Any]:
    """As `ask`, for requests that change something: each group is asked once, and no request is split."""
    return _ask_round(client, dict(groups), list(groups), question, deadline, split=False)


def _ask_round(
    client: Client,
    coordinators: dict[str, int | None],
    groups: Sequence[str],
    question: Question[str],
    deadline: Deadline,
    *,
    split: bool,
) -> Results[str, Any]:
    """Coordinators that are None are looked up, and noted in `coordinators`."""
    found = look_up(client, [group for group in groups if coordinators[group] is None], deadline)
    coordinators.update(found.ok)
    known = {group: coordinators[group] for group in groups if group not in found.faults}
    results = ask_brokers(client, known, question, deadline, split=split)
    results.update(found.faults)
    return results


def look_up(
    client: Client,
    groups: Sequence[str],
    deadline: Deadline,
    broker: int | None = None,
    kind: CoordinatorType = CoordinatorType.GROUP,
) -> Results[str, int]:
    """The coordinator's broker id for each group: batched (KIP-699, brokers 3.0 on), else one request a group.

    broker: which one to ask; None = any. kind: TRANSACTION = `groups` are transactional ids. The result has exactly
    these, whatever the broker answers.
    """
    batched = client.supports(FindCoordinatorRequest, 4)

    def request(names: list[str]) -> Request:
        if batched:
            return FindCoordinatorRequest(key_type=kind.value, coordinator_keys=names, min_version=4)
        return FindCoordinatorRequest(key_type=kind.value, key=names[0], max_version=3)

    def found(names: Sequence[str], response: Response) -> dict[str, int | Fault]:
        rows = {row.key: row for row in response.coordinators} if batched else {names[0]: response}
        return {name: fault_of_code(row.error_code) if row.error_code else row.node_id for name, row in rows.items()}

    question = Question(request, found, _LOOKUP_CHUNK if batched else 1)
    return ask_brokers(client, dict.fromkeys(groups, broker), question, deadline)


def read_samples(client: Client, brokers: Mapping[int, str], deadline: Deadline) -> tuple[dict[str, int], list[str]]:
    """Sample id -> its coordinator, for clusters whose brokers hide `__consumer_offsets`; and why some are unknown.

    There the leaders of that topic's partitions are not known, but FindCoordinator returns, for any group id, the
    broker that coordinates it. The sample ids cover every partition if the topic has 50 partitions, Kafka's default, or
    another divisor of SAMPLES. With another number of partitions they cover a part. brokers: of the cluster's metadata.
    """
    ids = sample_ids()
    answers = retrying(ids, lambda left: look_up(client, left, deadline), Deadline(deadline.left * _SAMPLES_SHARE))
    found, faults = answers.ok, list(answers.faults.values())
    problems = [f"{len(faults)} of {len(ids)} sample groups have no coordinator: {faults[0]}"] if faults else []
    if lost := sorted(set(found.values()) - brokers.keys()):
        problems.append(f"broker {lost[0]} coordinates groups and is not in the cluster's metadata")
    return found, problems


@cache
def sample_ids() -> tuple[str, ...]:
    """One id for each remainder modulo SAMPLES, found by trial: about ten thousand ids."""
    ids: dict[int, str] = {}
    for number in count():
        if len(ids) == SAMPLES:
            break
        name = f"{PREFIX}{number}"
        ids.setdefault(partition_of(name, SAMPLES), name)
    return tuple(ids.values())
