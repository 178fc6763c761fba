"""Finds the groups that MirrorMaker 2 mirrors into this cluster, by its checkpoints (KIP-382).

MirrorMaker commits translated offsets only for groups that are Empty or absent here, for a later failover. The record
key of a checkpoint begins with the group id (org.apache.kafka.connect.mirror.Checkpoint.KEY_SCHEMA).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterable

from group_hygiene.kafka.bounds import TOO_MUCH
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import partition_counts, topic_ids
from group_hygiene.kafka.offsets import end_offsets, start_offsets
from group_hygiene.kafka.partition import Batch, PartitionLeader, fetch
from group_hygiene.model.groups import Fault, Partition

# A quarter of a million ids: each takes this many bytes beside its characters.
_MOST_BYTES, _OBJECT_BYTES = 32 << 20, 100
# DefaultReplicationPolicy and its heirs put replication.policy.separator, which may be empty, between these words.
_CHECKPOINTS, _INTERNAL = "checkpoints", "internal"


def is_checkpoints(topic: str) -> bool:
    """Whether MirrorMaker 2 writes its checkpoints to a topic of this name, with any separator or none."""
    if not topic.endswith(_INTERNAL):
        return False
    alias, found, separator = topic.removesuffix(_INTERNAL).rpartition(_CHECKPOINTS)
    return bool(found) and alias.endswith(separator)


def checkpoint_topics(topics: Iterable[str], named: Collection[str] | None) -> list[str]:
    """The topics with checkpoints: `named`, whether they exist or not; None = those of `topics` with such a name."""
    return [topic for topic in topics if is_checkpoints(topic)] if named is None else sorted(named)


class Checkpoints:
    """Remembers the groups that it has read, so that each call of `read` reads new records only, and one that runs out
    of time leaves the rest to the next.

    Ids stay as long as their topic is asked for, up to `most_bytes`: a client that may write to such a topic can invent
    any number.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        # By topic id, as a recreated topic is unread. Below 2.8, without ids, an end before our position shows it, or
        # another batch before that position.
        self._positions: dict[tuple[str, Partition], tuple[int, Batch | None]] = {}
        # Topic -> the groups that it names, and their bytes.
        self._groups: dict[str, set[str]] = {}
        self._bytes: Counter[str] = Counter()
        self.problem: Fault | None = None

    def read(self, client: Client, topics: Iterable[str], deadline: Deadline) -> frozenset[str] | Fault:
        """All group ids in checkpoints up to the topics' ends, or the Fault of this read, which `problem` shows."""
        found = self._read_all(client, topics, deadline)
        self.problem = found if isinstance(found, Fault) else None
        return found

    def _read_all(self, client: Client, topics: Iterable[str], deadline: Deadline) -> frozenset[str] | Fault:
        wanted = dict.fromkeys(sorted(set(topics)))
        self._positions = {key: value for key, value in self._positions.items() if key[1].topic in wanted}
        self._groups = {topic: self._groups.get(topic, set()) for topic in wanted}
        self._bytes = Counter({topic: self._bytes[topic] for topic in wanted})
        ids, counts = topic_ids(client, wanted, deadline), partition_counts(client, wanted, deadline)
        for topic in wanted:
            for answer in (ids[topic], counts[topic]):
                if isinstance(answer, Fault):
                    return answer.at(f"topic {topic}")
        places = [Partition(topic, index) for topic, count in counts.ok.items() for index in range(count)]
        # Partition -> its leader, by topic.
        leaders: dict[str, dict[int, int]] = {topic: {} for topic in wanted}
        for place, end in end_offsets(client, places, deadline).items():
            key, leader = (str(ids[place.topic]), place), PartitionLeader(client, place, leaders[place.topic])
            fault = end if isinstance(end, Fault) else self._read(leader, key, end, deadline)
            if fault is not None:
                reached, _ = self._positions.get(key, (0, None))
                return fault.at(f"partition {place.partition} of {place.topic} is read to offset {reached} of {end}")
        return frozenset().union(*self._groups.values())

    def _read(self, leader: PartitionLeader, key: tuple[str, Partition], end: int, deadline: Deadline) -> Fault | None:
        place, (position, last) = leader.partition, self._positions.get(key, (0, None))
        if last is None or position > end:
            start = start_offsets(leader.client, [place], deadline)[place]
            if isinstance(start, Fault):
                return start
            position, last = start, None
        known = last
        while position < end or known is not None:
            answer = fetch(leader, position, deadline, known)
            if isinstance(answer, Fault) and answer.code == "OFFSET_OUT_OF_RANGE" and known is not None:
                # Truncated or recreated.
                del self._positions[key]
                return self._read(leader, key, end, deadline)
            if isinstance(answer, Fault):
                return answer
            known = None
            named = {group for record in answer.records if (group := _group_of(record.key)) is not None}
            added = named - self._groups[place.topic]
            self._groups[place.topic] |= added
            self._bytes[place.topic] += sum(_OBJECT_BYTES + len(group) for group in added)
            if self._bytes.total() > self._most_bytes:
                return Fault(TOO_MUCH, f"checkpoints name more groups than {self._most_bytes} bytes hold")
            if answer.position == position and answer.stable < end:
                return Fault("UNSTABLE_OFFSET_COMMIT", f"a transaction is open in topic {place.topic}")
            position, last = (answer.position, answer.last) if answer.position > position else (end, last)
            # Also before the end: a large topic takes several scans.
            self._positions[key] = position, last
        return None


def _group_of(key: bytes | None) -> str | None:
    if key is None or len(key) < 2:
        return None
    (length,) = struct.unpack_from(">h", key)
    if length < 0 or len(key) < 2 + length:
        return None
    return key[2 : 2 + length].decode("utf-8", errors="replace")
