"""Coordinators of sample groups, for clusters whose brokers hide `__consumer_offsets`.

There the leaders of that topic's partitions are not known, but FindCoordinator returns, for any group id, the broker
that coordinates it. The sample ids cover every partition if the topic has 50 partitions, Kafka's default, or another
divisor of SAMPLES. With another number of partitions they cover a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import count
from typing import NamedTuple

from group_hygiene.kafka.client import Client, Deadline, retrying
from group_hygiene.kafka.coordinators import look_up
from group_hygiene.kafka.partitions import partition_of
from group_hygiene.model.groups import Fault

# Prefix of group ids that no consumer uses.
PREFIX = "group-hygiene-loaded-"
# Divisible by 3, 16, 24, 50, 100 and 200, common values of offsets.topic.num.partitions. An id whose hash has a certain
# remainder modulo this number has a certain remainder modulo each divisor.
SAMPLES = 1_200
# The share of a read's time for these requests: a new cluster has no coordinators yet, and they are repeated.
_SHARE = 0.25


class Coordinators(NamedTuple):
    """found: sample id -> the broker that coordinates it. problems: why groups may have none, in words."""

    found: Mapping[str, int]
    problems: tuple[str, ...]


def read_coordinators(client: Client, brokers: Mapping[int, str], deadline: Deadline) -> Coordinators:
    """The coordinator of each sample id. brokers: those in the cluster's metadata."""
    ids = sample_ids()
    answers = retrying(ids, lambda left: look_up(client, left, deadline), Deadline(deadline.left * _SHARE))
    faults = [answer for answer in answers.values() if isinstance(answer, Fault)]
    found = {name: answer for name, answer in answers.items() if not isinstance(answer, Fault)}
    problems = [f"{len(faults)} of {len(ids)} sample groups have no coordinator: {faults[0]}"] if faults else []
    if lost := sorted(set(found.values()) - brokers.keys()):
        problems.append(f"broker {lost[0]} coordinates groups and is not in the cluster's metadata")
    return Coordinators(found, tuple(problems))


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
