"""Makes abandoned groups quickly, by raw requests over the direct listener; and live clients.

An abandoned group had one member that joined, committed and left: JoinGroup, SyncGroup, OffsetCommit, LeaveGroup.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from uuid import UUID

from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.consumer import (
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from testing.faults.errors import FaultsError
from testing.sandbox.kafka.wire import known_brokers
from testing.sandbox.waiting import wait_for

T = TypeVar("T")

# (topic, partition) -> committed offset.
Offsets = Mapping[tuple[str, int], int]
# The leader epoch of every commit; not -1, which means none.
LEADER_EPOCH = 0
# COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR; UNKNOWN_MEMBER_ID, as a new coordinator does
# not know members that were joining.
_NOT_YET = frozenset({14, 15, 16, 25})
_THREADS = 8
_SECONDS = 60.0


def metadata(group: str, topic: str, partition: int, offset: int) -> str:
    """The metadata of a commit: unique, so that the audit finds a backup that mixes commits up."""
    return f"{group} \N{RIGHTWARDS ARROW} {topic}-{partition}@{offset}"


class Groups:
    """The groups of one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def topic(self, name: str, partitions: int = 2, records: int = 10) -> str:
        """A topic with so many records in each partition; a group with lower offsets has unread records."""
        for made in self.admin.create_topics([NewTopic(name, partitions, -1)]).values():
            made.result()
        self.produce(name, partitions, records)
        return name

    def produce(self, topic: str, partitions: int = 2, records: int = 10) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for partition in range(partitions):
            for _ in range(records):
                producer.produce(topic, b"x", partition=partition)
        if producer.flush(_SECONDS):
            raise FaultsError(f"records for {topic} could not be written")

    def abandon(self, groups: Mapping[str, Offsets]) -> None:
        """Make groups, each with these committed offsets."""
        left = iter(groups.items())
        lock = threading.Lock()

        def work() -> None:
            with _Brokers(self.bootstrap) as brokers:
                while True:
                    with lock:
                        found = next(left, None)
                    if found is None:
                        return
                    _abandon(brokers, *found)

        with ThreadPoolExecutor(_THREADS) as pool:
            for done in [pool.submit(work) for _ in range(min(_THREADS, len(groups)))]:
                done.result()

    def commit(self, group: str, offsets: Offsets, retention_ms: int | None = None) -> None:
        """Commit as a consumer that uses `assign`: the group stays Empty.

        retention_ms: the offsets expire by then, as those of clients before KIP-211 do; None = by the broker's setting.
        """
        with _Brokers(self.bootstrap) as brokers:
            _commit(brokers, group, offsets, (-1, ""), retention_ms)

    def listed(self) -> set[str]:
        """All groups that the live brokers list; the groups of a dead one are listed by the new coordinators."""
        return self._read(_Brokers.groups, "groups can't be listed")

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The committed offsets of a group."""
        return self._read(lambda brokers: brokers.offsets(group), f"offsets of {group} can't be read")

    def _read(self, read: Callable[[_Brokers], T], problem: str) -> T:
        """Read by new connections, until all brokers that are needed answer."""
        end = time.monotonic() + _SECONDS
        while True:
            try:
                with _Brokers(self.bootstrap) as brokers:
                    return read(brokers)
            except (_NotYet, OSError) as error:
                if time.monotonic() > end:
                    raise FaultsError(f"{problem}: {error!r}") from error
                time.sleep(0.2)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Topic -> its id (KIP-516) as a UUID; brokers below 2.8 have none."""
        asked = sorted(topics)
        if not asked:
            return {}
        described = self.admin.describe_topics(TopicCollection(asked), request_timeout=_SECONDS)
        ids = {topic: answer.result().topic_id for topic, answer in described.items()}
        return {topic: str(id_) for topic, each in ids.items() if (id_ := UUID(bytes=_id_bytes(each))).int}

    def member(self, group: str, topic: str) -> Member:
        return Member(self.bootstrap, group, topic)

    def pending(self, group: str, offsets: Offsets) -> Any:
        """A producer whose open transaction has sent offsets for a group; `abort_transaction` ends it."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": f"pending-{group}", "log_level": 0}
        )
        producer.init_transactions(_SECONDS)
        producer.begin_transaction()
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
        places = [TopicPartition(topic, index, offset) for (topic, index), offset in offsets.items()]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), _SECONDS)
        consumer.close()
        return producer


class Member:
    """A consumer that is a member of its group until `leave`."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
        )
        self._consumer.subscribe([topic])
        self._stop, self._joined = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()
        wait_for(self._joined.is_set, f"a consumer joins {group}", _SECONDS)

    def leave(self) -> None:
        self._stop.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._consumer.poll(0.2)
            if self._consumer.assignment() and not self._joined.is_set():
                self._consumer.pause(self._consumer.assignment())
                self._joined.set()
        self._consumer.close()


class _Brokers:
    """Connections to brokers, by address; for one thread."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap.split(",")
        self._connections: dict[str, socket.socket] = {}
        self._coordinators: dict[str, str] = {}

    def __enter__(self) -> _Brokers:
        return self

    def __exit__(self, *_error: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def coordinator(self, group: str) -> str:
        if group not in self._coordinators:
            # These versions of requests are known to brokers from 2.5 to 4.4.
            request = FindCoordinatorRequest(key=group, key_type=0, version=3)
            row = self.send(self._bootstrap[0], request, FindCoordinatorResponse)
            if row.error_code:
                raise _NotYet
            self._coordinators[group] = f"{row.host}:{row.port}"
        return self._coordinators[group]

    def groups(self) -> set[str]:
        """The groups that all brokers in the metadata list."""
        places = [(address, int(port)) for address, _, port in (each.rpartition(":") for each in self._bootstrap)]
        known = next((found for address, port in places if (found := known_brokers(port, address=address))), None)
        if not known:
            raise _NotYet("no broker answers")
        listed: set[str] = set()
        for port in known.values():
            answer = self.send(f"{places[0][0]}:{port}", ListGroupsRequest(version=3), ListGroupsResponse)
            _check(answer.error_code)
            listed |= {group.group_id for group in answer.groups}
        return listed

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The committed offsets of a group."""
        request = OffsetFetchRequest(group_id=group, topics=None, version=5)
        answer = self.ask(group, request, OffsetFetchResponse)
        _check(answer.error_code)
        return {
            (topic.name, place.partition_index): place.committed_offset
            for topic in answer.topics
            for place in topic.partitions
        }

    def ask(self, group: str, request: Any, response: Any) -> Any:
        try:
            return self.send(self.coordinator(group), request, response)
        except OSError as error:
            raise _NotYet from error

    def forget(self, group: str) -> None:
        self._coordinators.pop(group, None)

    def send(self, address: str, request: Any, response: Any) -> Any:
        connection = self._connections.get(address)
        if connection is None:
            host, _, port = address.rpartition(":")
            connection = self._connections[address] = socket.create_connection((host, int(port)), timeout=30)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request.with_header(correlation_id=1, client_id="faults")
        try:
            connection.sendall(request.encode(framed=True, header=True))
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            return response.decode(_exactly(connection, size), version=request.version, header=True)
        except OSError:
            self._connections.pop(address).close()
            raise


class _NotYet(Exception):
    pass


def _id_bytes(topic_id: Any) -> bytes:
    return struct.pack(">qq", topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        data += chunk
    return bytes(data)


def _abandon(brokers: _Brokers, group: str, offsets: Offsets) -> None:
    end = time.monotonic() + _SECONDS
    while True:
        try:
            member = _join(brokers, group)
            _commit(brokers, group, offsets, member)
            _check(brokers.ask(group, _leave(group, member[1]), LeaveGroupResponse).error_code)
            return
        except _NotYet:
            brokers.forget(group)
            if time.monotonic() > end:
                raise FaultsError(f"group {group} could not be made") from None
            time.sleep(0.2)


def _join(brokers: _Brokers, group: str) -> tuple[int, str]:
    """Generation and member id. Version 3: later ones need two requests, the first for a member id (KIP-394)."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
        version=3,
    )
    joined = brokers.ask(group, request, JoinGroupResponse)
    _check(joined.error_code)
    member = (joined.generation_id, joined.member_id)
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member[1], assignment=b"")
    sync = SyncGroupRequest(
        group_id=group, generation_id=member[0], member_id=member[1], assignments=[assignment], version=2
    )
    _check(brokers.ask(group, sync, SyncGroupResponse).error_code)
    return member


def _commit(
    brokers: _Brokers, group: str, offsets: Offsets, member: tuple[int, str], retention_ms: int | None = None
) -> None:
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    partition_class = topic_class.OffsetCommitRequestPartition
    topics = [
        topic_class(
            name=topic,
            partitions=[
                partition_class(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=LEADER_EPOCH,
                    committed_metadata=metadata(group, name, index, offset),
                )
                for (name, index), offset in offsets.items()
                if name == topic
            ],
        )
        for topic in dict.fromkeys(name for name, _ in offsets)
    ]
    # Requests up to version 4 have a retention time.
    retention = {"version": 8} if retention_ms is None else {"version": 4, "retention_time_ms": retention_ms}
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=member[0], member_id=member[1], topics=topics, **retention
    )
    answer = brokers.ask(group, request, OffsetCommitResponse)
    for topic in answer.topics:
        for place in topic.partitions:
            _check(place.error_code)


def _leave(group: str, member: str) -> Any:
    return LeaveGroupRequest(group_id=group, member_id=member, version=2)


def _check(code: int) -> None:
    if code in _NOT_YET:
        raise _NotYet
    if code:
        raise FaultsError(f"making a group: the broker answers error {code}")
