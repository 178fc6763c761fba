"""Fill a cluster with groups quickly: raw OffsetCommit requests, many connections, and a few groups with a member.

A commit with generation -1 makes a *simple* group: Empty, of type Classic. A broker answers one request of a connection
at a time, so what makes it fast is many connections to each group's own coordinator.
"""

import asyncio
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse

from group_hygiene.kafka.client import Deadline, connect
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.model.groups import Fault
from group_hygiene.spec.client_settings import Settings
from testing.bench.errors import BenchError

# Of the brokers that are filled.
CONFIG = {
    "offsets.topic.num.partitions": "50",
    "offsets.topic.replication.factor": "1",
    # Commits are written at once instead of gathered: loading waits for each.
    "group.coordinator.append.linger.ms": "0",
    # Nothing is expired or compacted while somebody is measured.
    "offsets.retention.check.interval.ms": "86400000",
    "log.cleaner.enable": "false",
}
UNUSED = "unused-"
PARTITIONS = 10
_UNUSED_EVERY = 100
_LIVE = 5
_TOPICS = 20
_OFFSET_TOPIC_SECONDS = 300.0
_CONNECTIONS_PER_BROKER = 12
_COMMIT_VERSION = 8
# COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: right after `__consumer_offsets` was made.
_NOT_YET = frozenset({14, 15, 16})
_NOT_YET_SECONDS = 300.0
_WORDS = ("billing", "checkout", "clickstream-enricher", "search-indexer", "fraud", "mailer", "warehouse-loader")


@dataclass(frozen=True)
class Loaded:
    """What is in the cluster, and so what every program must count: all groups, and those whose id is unused."""

    groups: int
    partitions: int
    empty: int
    unused: int
    unused_partitions: int


class Members:
    """A few groups with a member each, so that a filter on states has something to leave out."""

    def __init__(self, bootstrap: str) -> None:
        self._consumers = [_member(bootstrap, f"live-{number}") for number in range(_LIVE)]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._assigned = threading.Event()

    def start(self) -> None:
        """Join, and commit one offset a partition."""
        self._thread.start()
        if not self._assigned.wait(60):
            raise BenchError("the consumers of the groups with members got no partitions within 60 s")

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _poll(self) -> None:
        left = list(self._consumers)
        while not self._stopping.is_set():
            for consumer in self._consumers:
                consumer.poll(0.05 if left else 0.2)
                if consumer in left and consumer.assignment():
                    partitions = [TopicPartition(p.topic, p.partition, 0) for p in consumer.assignment()]
                    consumer.commit(offsets=partitions, asynchronous=False)
                    # A member that only keeps its place, and takes no time from what is measured.
                    consumer.pause(consumer.assignment())
                    left.remove(consumer)
            if not left:
                self._assigned.set()
        for consumer in self._consumers:
            consumer.close()


def load(bootstrap: str, groups: int) -> tuple[Loaded, Members]:
    """Make `groups` groups with 10 committed partitions each; a few have members until `Members.stop`."""
    make_topics(bootstrap)
    members = Members(bootstrap)
    members.start()
    names = [group_name(number) for number in range(groups - _LIVE)]
    unused = sum(name.startswith(UNUSED) for name in names)
    asyncio.run(_commit_all(_by_coordinator(bootstrap, names), len(names)))
    return Loaded(groups, groups * PARTITIONS, len(names), unused, unused * PARTITIONS), members


def commit_more(bootstrap: str, names: list[str], partitions: int) -> int:
    """Each of these groups commits so many of its partitions once more; returns the number of commits."""
    asyncio.run(_commit_all(_by_coordinator(bootstrap, names), len(names), partitions))
    return len(names) * partitions


def make_topics(bootstrap: str) -> None:
    """The topics that the groups commit to."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [NewTopic(topic_name(number), PARTITIONS, 1) for number in range(_TOPICS)]
    for made in admin.create_topics(topics).values():
        made.result()


def coordinating_partition(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds a group of ASCII id: Java's Math.abs(String.hashCode)."""
    value = 0
    for byte in group.encode("ascii"):
        value = (31 * value + byte) & 0xFFFFFFFF
    return (value if value < 1 << 31 else (1 << 32) - value) % partitions


def group_name(number: int) -> str:
    """The id of one of the groups that are made."""
    if number % _UNUSED_EVERY == 0:
        return f"{UNUSED}{number:07d}"
    return f"team-{number % 97}.{_WORDS[number % len(_WORDS)]}.{number:07d}"


def topic_name(number: int) -> str:
    """The topic to which this group commits."""
    index = number % _TOPICS
    return f"events.{_WORDS[index % len(_WORDS)]}.{index:03d}"


def _member(bootstrap: str, group: str) -> Any:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    )
    consumer.subscribe([topic_name(0)])
    return consumer


def _by_coordinator(bootstrap: str, names: list[str]) -> dict[str, list[str]]:
    """host:port -> the groups that its broker coordinates. The groups with members made `__consumer_offsets`."""
    client = connect(Settings(tuple(bootstrap.split(","))))
    try:
        cluster = read_cluster(client, Deadline(_OFFSET_TOPIC_SECONDS))
    finally:
        client.close()
    if isinstance(cluster, Fault) or cluster.problems:
        raise BenchError(f"the cluster is not ready: {cluster}")
    found: dict[str, list[str]] = {address: [] for address in cluster.brokers.values()}
    for name in names:
        leader, _ = cluster.leaders[coordinating_partition(name, len(cluster.leaders))]
        found[cluster.brokers[leader]].append(name)
    return found


async def _commit_all(by_coordinator: Mapping[str, list[str]], total: int, partitions: int = PARTITIONS) -> None:
    done = [0]
    started = time.monotonic()

    async def report() -> None:
        while True:
            await asyncio.sleep(5)
            rate = done[0] / (time.monotonic() - started)
            print(f"  {done[0]:,} of {total:,} groups ({rate:,.0f}/s)", file=sys.stderr, flush=True)

    reporting = asyncio.create_task(report())
    # The connections to one broker share one iterator.
    shared = [(address, iter(names)) for address, names in by_coordinator.items()]
    try:
        workers = shared * _CONNECTIONS_PER_BROKER
        await asyncio.gather(*(_commit_from(address, left, done, partitions) for address, left in workers))
    finally:
        reporting.cancel()


async def _commit_from(address: str, names: Iterator[str], done: list[int], partitions: int) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for name in names:
            request = _commit(name, partitions)
            give_up = time.monotonic() + _NOT_YET_SECONDS
            while True:
                writer.write(request)
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                answer = OffsetCommitResponse.decode(
                    await reader.readexactly(size), version=_COMMIT_VERSION, header=True
                )
                codes = {entry.error_code for topic in answer.topics for entry in topic.partitions}
                if not codes & _NOT_YET or time.monotonic() > give_up:
                    break
                await asyncio.sleep(0.2)
            if codes != {0}:
                raise BenchError(f"committing for {name}: error codes {sorted(codes)}")
            done[0] += 1
    finally:
        writer.close()


def _commit(name: str, count: int) -> bytes:
    number = int(name[-7:])
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    partition_class = topic_class.OffsetCommitRequestPartition
    partitions = [
        partition_class(partition_index=index, committed_offset=number * 10 + index, committed_metadata="")
        for index in range(count)
    ]
    request = OffsetCommitRequest(
        group_id=name,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[topic_class(name=topic_name(number), partitions=partitions)],
        version=_COMMIT_VERSION,
    )
    request.with_header(correlation_id=1, client_id="bench")
    encoded: bytes = request.encode(framed=True, header=True)
    return encoded
