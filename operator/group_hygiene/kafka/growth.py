"""Finds brokers that compute partitions of `__consumer_offsets` from an old number of them. Reads only.

A broker uses the number of its start until it is restarted (KAFKA-7771, KAFKA-14418). No request returns it, but it
shows: in the coordinators that the broker names for groups, where their partitions have different leaders; and in the
records that it has written since it leads a partition (`Tail.grown`).
"""

from __future__ import annotations

import time

from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, read_cluster
from group_hygiene.kafka.coordinators import look_up
from group_hygiene.kafka.loaded import ids_by_partition
from group_hygiene.kafka.offsets import epoch_ends
from group_hygiene.kafka.tail import Tail
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.model.snapshot import Cluster

# Of these many partitions, the coordinator of a group is requested from each broker.
_ASKED = 200
_AGAIN_S = 2.0


def by_coordinators(client: Client, cluster: Cluster, deadline: Deadline) -> dict[int, str]:
    """Broker -> what shows its old number, in words: one of its answers to FindCoordinator.

    A broker whose metadata are out of date answers wrongly for a moment: only a second answer counts, while Metadata
    names the same leaders.
    """
    found = _by_coordinators(client, cluster, deadline)
    if not found:
        return {}
    time.sleep(min(_AGAIN_S, deadline.left))
    again = _by_coordinators(client, cluster, deadline)
    now = read_cluster(client, deadline)
    if isinstance(now, Fault) or now.leaders != cluster.leaders:
        return {}
    return {broker: example for broker, example in again.items() if broker in found}


def _by_coordinators(client: Client, cluster: Cluster, deadline: Deadline) -> dict[int, str]:
    ids = ids_by_partition(len(cluster.leaders), deadline)
    if isinstance(ids, Fault):
        return {}
    asked = {index: ids[index] for index in list(ids)[:_ASKED]}
    found: dict[int, str] = {}
    for broker in cluster.brokers:
        answers = look_up(client, list(asked.values()), deadline, broker).ok
        for index, name in asked.items():
            leader = cluster.leaders[index][0]
            answer = answers.get(name, leader)
            if answer != leader:
                found[broker] = (
                    f"it names broker {answer} as the coordinator of a group whose partition is "
                    f"{OFFSETS_TOPIC}-{index}, which broker {leader} leads"
                )
                break
    return found


def since_elected(client: Client, cluster: Cluster, deadline: Deadline) -> Tail:
    """The first records of each partition since its leader leads it; one answer of each is read.

    Needs READ on the topic: partitions that can't be read show nothing.
    """
    before = {Partition(OFFSETS_TOPIC, index): epoch - 1 for index, (_, epoch) in cluster.leaders.items() if epoch > 0}
    ends = epoch_ends(client, before, deadline).ok
    starts = {place.partition: end for place, end in ends.items() if end > 0}
    tail = Tail(client, cluster.leaders, starts)
    tail.peek(deadline)
    return tail
