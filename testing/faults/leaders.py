"""Moves the leaders of `__consumer_offsets` from broker to broker while groups are listed repeatedly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from kafka import KafkaAdminClient, TopicPartition
from kafka.protocol.admin import ElectionType

from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, read_cluster
from group_hygiene.kafka.groups import list_groups, list_problems
from group_hygiene.model.groups import Cluster, Fault
from group_hygiene.spec.client_settings import Settings
from testing.faults.errors import Broken
from testing.faults.groups import Groups
from testing.faults.stage import Stage

MOVES = 200
_GROUPS_PER_MOVE = 20
_SECONDS = 60.0


@dataclass
class Lists:
    """The results of a number of lists of all groups. lacking: complete lists that lacked a group."""

    moves: int = 0
    complete: int = 0
    incomplete: int = 0
    lacking: int = 0

    def __str__(self) -> str:
        lists = f"{self.complete} complete lists, {self.incomplete} incomplete ones"
        return f"{self.moves} moves: {lists}, {self.lacking} complete ones lacked groups"


def leaders_move(stage: Stage) -> None:
    """All leaders of the offsets topic move, 200 times, while groups are listed: no complete list lacks a group.

    Some groups commit right before each move: the next leader has their records before its high watermark includes
    them.
    """
    with stage.cluster(3) as kafka:
        groups = Groups(kafka.plaintext_bootstrap)
        topic = groups.topic("of-groups")
        numbers = count()

        def commit() -> list[str]:
            names = [f"group-{next(numbers)}" for _ in range(_GROUPS_PER_MOVE)]
            groups.abandon({name: {(topic, 0): 1} for name in names})
            return names

        client = connect(Settings(tuple(kafka.plaintext_bootstrap.split(","))))
        try:
            lists = lists_while_leaders_move(client, kafka.plaintext_bootstrap, commit, MOVES)
        finally:
            client.close()
    stage.tried += lists.moves
    stage.say(str(lists))
    if lists.lacking:
        raise Broken(f"a complete list lacked groups: {lists}")


def lists_while_leaders_move(
    client: Client, bootstrap: str, commit: Callable[[], Collection[str]], moves: int
) -> Lists:
    """List all groups as a scan does, without a pause, while all leaders of the offsets topic move `moves` times.

    commit: makes groups and returns their ids; called right before each move. Each move begins after a complete list,
    so that the cluster is stable again.
    """
    # The first commit creates the offsets topic.
    found, wanted = Lists(), set(commit())
    with mover(bootstrap) as move:
        while found.moves < moves:
            wanted.update(commit())
            moving = threading.Thread(target=move)
            moving.start()
            found.moves += 1
            at_rest = False
            while moving.is_alive() or not at_rest:
                listed = _complete_list(client)
                at_rest = listed is not None and not moving.is_alive()
                if listed is None:
                    found.incomplete += 1
                    # A leader that missed a commit while it loaded counts as incomplete until the next commit.
                    wanted.update([] if moving.is_alive() else commit())
                else:
                    found.complete += 1
                    found.lacking += not wanted <= listed
            moving.join()
    return found


def _complete_list(client: Client) -> set[str] | None:
    """The ids of all groups; None = some may be missing."""
    deadline = Deadline(_SECONDS)
    before = read_cluster(client, deadline)
    if not isinstance(before, Cluster):
        return None
    listing = list_groups(client, before, deadline)
    after: Cluster | Fault = read_cluster(client, deadline)
    return None if list_problems(before, listing, after, "moved") else set(listing.groups)


@contextmanager
def mover(bootstrap: str) -> Iterator[Callable[[], None]]:
    """A function that makes the next replica of each partition of the offsets topic its leader."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        yield _Mover(admin)
    finally:
        admin.close()


class _Mover:
    """Each call makes the next replica of each partition its leader: by a reassignment, and a preferred election."""

    def __init__(self, admin: KafkaAdminClient) -> None:
        self._admin = admin
        (topic,) = admin.describe_topics([OFFSETS_TOPIC])
        self._replicas = {row["partition_index"]: list(row["replica_nodes"]) for row in topic["partitions"]}
        if not self._replicas:
            raise Broken(f"{OFFSETS_TOPIC} has no partitions that could move")

    def __call__(self) -> None:
        self._replicas = {index: [*order[1:], order[0]] for index, order in self._replicas.items()}
        orders = {TopicPartition(OFFSETS_TOPIC, index): order for index, order in self._replicas.items()}
        self._admin.alter_partition_reassignments(orders)
        self._admin.elect_leaders(ElectionType.PREFERRED, {OFFSETS_TOPIC: list(self._replicas)}, raise_errors=False)
