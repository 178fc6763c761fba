"""A cluster, a ledger and an API server in memory, on which runs of the operator go wrong a thousand times a minute.

Fakes of what can't be provoked at that rate, at the seams that the operator has: `Client.send_each`, `Ledger`, `Api`.
Brokers answer as 2.5 does, with topic ids beside. Each exchange may be the last thing that a process does, may lose its
answer, or may be the moment at which something else happens (see `Trouble`). The truth is kept here; what must never
happen is the subject of the test.
"""

from __future__ import annotations

import copy
import json
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace as Row
from typing import Any

from kafka.protocol.admin import DescribeLogDirsResponse
from kafka.protocol.metadata import MetadataResponse
from kafka.record import MemoryRecordsBuilder

from group_hygiene.controller.objects import CONNECTIONS, key_of
from group_hygiene.errors import ApiError, Conflict, LedgerFenced, LedgerProblem, NotFound
from group_hygiene.evidence.reader import CoveredPartition, Reading
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.ledger import contents
from group_hygiene.ledger.contents import Contents
from group_hygiene.model import entries, reasons
from group_hygiene.model.entries import Change, KeepRequest, Key, Mark, Owner, Removal
from group_hygiene.model.evidence import Activity, Claims
from group_hygiene.model.groups import CommittedOffset, Fault, GroupType, Offsets, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.process.memory import Intake
from tests.unit.make import NOW

TOPICS = {"orders": 2, "__consumer_offsets": 1}
_EXCHANGE_S = 0.01
_LOST = Fault("NETWORK_EXCEPTION", "the connection ended", retriable=True)
_NOT_FOUND, _NON_EMPTY, _UNSTABLE, _DENIED, _GROUP_DENIED = 69, 68, 88, 29, 30

Object = dict[str, Any]


class Crash(BaseException):
    """The process dies here: no `except Exception` of it may see that."""


class Lost(Exception):
    """There is no answer."""


@dataclass
class Trouble:
    """What goes wrong at the `nth` exchange of a kind in a run; the empty kind is any.

    what: crash-before, crash-after, lost (done, no answer), refused (not done), late (done when the run is over), or
    something that happens then (`World.happens`), with its arguments.
    """

    kind: str
    nth: int
    what: str
    arguments: tuple[Any, ...] = ()


@dataclass
class Group:
    """A group as it really is. committed, left: real seconds of its last commit, and of the last join or leave."""

    present: bool = True
    members: bool = False
    pending: bool = False
    offsets: dict[Partition, CommittedOffset] = field(default_factory=dict)
    committed: float = 0.0
    left: float = 0.0

    @property
    def used(self) -> float:
        return max(self.committed, self.left)

    @property
    def state(self) -> str:
        return "Dead" if not self.present else "Stable" if self.members else "Empty"


@dataclass
class Deletion:
    """One that a broker carried out. id: of the intent at that time. late: after its sender had given up. at: real
    seconds. remade: the group was recreated before the ledger recorded its deletion, so that no process can know of it.
    """

    group: str
    id: str
    late: bool
    at: float
    remade: bool = False


@dataclass
class Answer:
    """The last answer about a group's offsets, and when it was given, real seconds."""

    at: float
    offsets: Offsets


@dataclass
class Tables:
    """The result of one run of the pipeline. read_at: real seconds. to: the end of the offsets log at that time."""

    read_at: float
    to: int
    leader_epoch: int
    groups: dict[str, Group]

    def reading(self, version: int) -> Reading:
        """Brokers' clocks are right."""
        read_at = NOW + timedelta(seconds=self.read_at)
        topic = str(topic_id(OFFSETS_TOPIC))
        known = {name: _activity(group, self.to, read_at) for name, group in self.groups.items()}
        return Reading(
            "c", "table", version, {0: CoveredPartition(topic, self.to, read_at, None, self.leader_epoch)}, known
        )


def _activity(group: Group, to: int, read_at: datetime) -> Activity:
    state = "Gone" if not group.present else "Active" if group.members else "Empty"
    committed, left = (NOW + timedelta(seconds=seconds) for seconds in (group.committed, group.left))
    since = left if state == "Empty" else None
    return Activity(GroupType.CLASSIC, "consumer", state, None, committed, committed, since, 0, to, read_at)


class World:
    """real: seconds that really passed. offset: by how many of them the operator's clock is wrong.

    sent: when the exchange that is under way was begun. What happens later its sender can't have known.
    """

    def __init__(self, names: Sequence[str], check: Callable[[World, str, Mapping[str, Any]], None]) -> None:
        """check: called when a broker is about to delete a group in time, with the intent that stands."""
        self.real, self.offset, self.leads = 0.0, 0.0, True
        self.sent = self.stepped = self.replaced = 0.0
        self.groups = {name: Group(present=False) for name in names}
        self.others = 20
        self.log: list[tuple[bytes, bytes | None]] = []
        # The number of records in each partition of `orders`.
        self.end = 100
        # The group of each record of the offsets log, and the place of the offset that it deletes.
        self.offsets_log: list[tuple[str, Partition | None]] = []
        # Key -> the last value, and when it was appended, real seconds.
        self.latest: dict[Key, tuple[Any, float]] = {}
        self.known_to = self.listed_at = 0
        self.epoch = 0
        self.reread: dict[str, Answer] = {}
        # The same, of scans.
        self.scanned: dict[str, Answer] = {}
        # The spec of the policy that made the last mark; policy uid and group -> spec.
        self.marked_by: dict[tuple[str, str], Object] = {}
        # When the operator last wrote its ledger, when topics were last hidden or shown, when the present run began.
        self.written = self.hidden_at = self.began = 0.0
        self.hidden, self.leader_epoch = False, 3
        self.denied: set[str] = set()
        # The number of records in the ledger, and of groups in the last list, when the present run read them.
        self.known_from = self.listed = 0
        self.tables = [Tables(0.0, 0, 3, {})]
        self.served = 0
        # The last answer of the tables.
        self.tables_read = self.tables[0]
        self.asked: dict[str, tuple[int, datetime]] = {}
        self.deletions: list[Deletion] = []
        # What a check found.
        self.failures: list[Exception] = []
        # Policy uid -> what the run that is under way deleted.
        self.run_deleted: dict[str, list[str]] = {}
        self.late: list[Callable[[], None]] = []
        self.delivering = False
        self.troubles: list[Trouble] = []
        self.counts: dict[str, int] = {}
        self.api = MemoryApi(self)
        self._check = check

    # Time, as the operator's Clock and as its module `time`

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.real + self.offset)

    def monotonic(self) -> float:
        return self.real

    def sleep(self, seconds: float) -> None:
        self.real += seconds

    def seconds_left(self) -> float:
        return 20.0 if self.leads else 0.0

    def is_confirmed(self) -> bool:
        return self.leads

    # As the only release of its cluster
    namespace = "group-hygiene"

    def other_leads(self, namespace: str) -> bool:
        raise NotImplementedError

    # What happens beside the operator

    def happens(self, what: str, *arguments: Any) -> None:
        getattr(self, what)(*arguments)

    def commit(self, name: str, offset: int) -> None:
        """Commit for both partitions, at most their ends."""
        group = self.groups[name]
        if not group.present:
            self.appear(name)
        for index in range(2):
            at = min(offset + index, self.end)
            group.offsets[Partition("orders", index)] = CommittedOffset(at, 0, f"{name}-{index}@{offset}")
        group.committed = self.real
        self.offsets_log.append((name, None))

    def commit_again(self, name: str) -> None:
        """Commit the same offsets."""
        if self.groups[name].present:
            self.groups[name].committed = self.real
            self.offsets_log.append((name, None))

    def catch_up(self, name: str) -> None:
        self.commit(name, self.end)

    def produce(self) -> None:
        self.end += 1

    def appear(self, name: str) -> None:
        group = self.groups[name]
        if not group.present:
            for deletion in self.deletions:
                deletion.remade |= deletion.group == name and not self.has_outcome(deletion)
            group.present, group.offsets, group.left = True, {}, self.real
            self.commit(name, 1)

    def come_back(self) -> None:
        for name in self.groups:
            self.appear(name)

    def join(self, name: str) -> None:
        self.appear(name)
        self.groups[name].members = True
        self._note_member(name)

    def leave(self, name: str) -> None:
        if self.groups[name].members:
            self.groups[name].members = False
            self._note_member(name)

    def visit(self, name: str) -> None:
        """A consumer joins and dies before it commits."""
        self.join(name)
        self.leave(name)

    def _note_member(self, name: str) -> None:
        self.groups[name].left = self.real
        self.offsets_log.append((name, None))

    def begin_transaction(self, name: str) -> None:
        self.groups[name].pending = self.groups[name].present

    def end_transaction(self, name: str) -> None:
        self.groups[name].pending = False

    def vanish(self, name: str) -> None:
        self.groups[name] = Group(present=False)

    def keep(self, name: str, hours: float) -> None:
        at = NOW + timedelta(seconds=self.real)
        until = at + timedelta(hours=hours)
        self.append([KeepRequest(group=name, until=until, why="audit", by="ann", at=at)])
        self.asked[name] = (len(self.log), until)

    def step_clock(self, offset: float) -> None:
        self.offset, self.stepped = offset, self.real

    def pause(self, seconds: float) -> None:
        self.real += seconds

    def lose_lead(self) -> None:
        self.leads, self.replaced = False, self.real

    def edit(self, name: str, change: Object) -> None:
        self.api.edit("kafkaconnections" if name == "main" else "grouppolicies", name, change)

    def hide_topics(self, hidden: bool) -> None:
        """The operator's user may not DESCRIBE some topic."""
        self.hidden, self.hidden_at = hidden, self.real

    def deny(self, name: str) -> None:
        """The operator's user may not read the offsets of a group."""
        self.denied.add(name)

    def allow(self, name: str) -> None:
        self.denied.discard(name)

    def move_leaders(self) -> None:
        self.leader_epoch += 1

    def run_pipeline(self) -> None:
        self.tables.append(Tables(self.real, len(self.offsets_log), self.leader_epoch, copy.deepcopy(self.groups)))
        self.served = len(self.tables) - 1

    def put_back(self, by: int) -> None:
        """Older tables replace the current ones."""
        self.served = max(0, self.served - by)

    def read_tables(self) -> Reading | Refusal:
        def read() -> Reading:
            self.tables_read = self.tables[self.served]
            return self.tables_read.reading(self.served)

        try:
            found: Reading = self.exchange("Tables", read)
        except Lost:
            return Refusal(reasons.EVIDENCE_UNREADABLE, "the tables did not answer")
        return found

    # Exchanges

    def exchange(self, kind: str, effect: Callable[[], Any]) -> Any:
        """`effect` is what the other side does. Raises Crash, or Lost."""
        self.sent = self.real
        self.real += _EXCHANGE_S
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.counts[""] = self.counts.get("", 0) + 1
        due = [each for each in self.troubles if each.kind in (kind, "") and each.nth == self.counts[each.kind]]
        found = next(iter(due), None)
        if found is None:
            return effect()
        match found.what:
            case "crash-before":
                raise Crash
            case "crash-after":
                effect()
                raise Crash
            case "lost":
                effect()
                raise Lost
            case "refused":
                raise Lost
            case "late":
                self.late.append(effect)
                raise Lost
            case what:
                self.happens(what, *found.arguments)
                return effect()

    def deliver(self) -> None:
        """Requests arrive that were under way."""
        self.delivering = True
        for effect in self.late:
            effect()
        self.late.clear()
        self.delivering = False

    # The ledger's log

    def append(self, changes: Sequence[Change]) -> None:
        for change in changes:
            value = None if isinstance(change, Removal) else contents.encode_value(change)
            self.log.append((contents.encode_key(change.key), value))
            self.latest[change.key] = (None if value is None else json.loads(value), self.real)
            if isinstance(change, Mark):
                uid = change.policy_uid
                self.marked_by[uid, change.group] = self.api.specs[uid, self.api.read["grouppolicies", uid]]

    def value(self, *key: str) -> Any:
        """What stands under a key; None = nothing."""
        return self.latest.get(key, (None, 0.0))[0]

    def has_outcome(self, deletion: Deletion) -> bool:
        """Whether the ledger ever recorded it."""
        return ("outcome", deletion.group, deletion.id, "Deleted") in self.latest

    # A broker's DeleteGroups

    def delete(self, name: str, late: bool) -> int:
        group = self.groups[name]
        if not group.present:
            return _NOT_FOUND
        if group.members:
            return _NON_EMPTY
        intent = self.value("intent", name) or {}
        if not late:
            try:
                self._check(self, name, intent)
            except Exception as error:
                # The operator survives any exception in the run of a policy; the test must not.
                self.failures.append(error)
            self.run_deleted.setdefault(intent["policy_uid"], []).append(name)
        ids = [key[2] for key in self.latest if key[0] == "backup" and key[1] == name]
        self.deletions.append(Deletion(name, intent.get("id") or max(ids, default=""), late, self.real))
        self.offsets_log += [(name, place) for place in group.offsets]
        self.groups[name] = Group(present=False)
        return 0


_NOT_SUPPORTED = ("ConsumerGroupDescribe", "ShareGroupDescribe", "StreamsGroupDescribe")


class MemoryClient:
    """`group_hygiene.kafka.client.Client`."""

    def __init__(self, world: World, settings: Any) -> None:
        self._world, self.settings, self.intake = world, settings, Intake()

    def supports(self, request_class: Any, version: int = 0) -> bool:
        return False

    def send(self, call: Any, deadline: Any) -> Any:
        return self.send_each({None: call}, deadline)[None]

    def send_each(self, calls: Mapping[Any, Any], deadline: Any, reduce: Any = None) -> dict[Any, Any]:
        results: dict[Any, Any] = {}
        for key, call in calls.items():
            kind = type(call.request).__name__.removesuffix("Request")
            if kind in _NOT_SUPPORTED:
                results[key] = Fault("UNSUPPORTED_VERSION", kind)
                continue
            answer = _ANSWERS[kind]
            try:
                found = self._world.exchange(kind, lambda: answer(self._world, call.request))  # noqa: B023
            except Lost:
                results[key] = _LOST
                continue
            results[key] = found if reduce is None else reduce(key, found)
        return results

    @contextmanager
    def burst(self) -> Iterator[None]:
        yield

    def close(self) -> None:
        pass


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def _metadata(world: World, request: Any) -> Any:
    asked = list(TOPICS) if request.topics is None else [topic.name for topic in request.topics]
    row, version = MetadataResponse.MetadataResponseTopic, 12

    def topic(name: str) -> Any:
        known: Object = {"error_code": 0, "leader_id": 1, "leader_epoch": world.leader_epoch, "replica_nodes": [1]}
        rest: Object = {"isr_nodes": [1], "offline_replicas": []}
        count = TOPICS.get(name, 0)
        places = [row.MetadataResponsePartition(partition_index=index, **known, **rest) for index in range(count)]
        return row(
            name=name,
            error_code=0 if places else _DENIED if world.hidden and name == "secret" else 3,
            partitions=places,
            topic_id=topic_id(name),
        )

    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="kafka", port=9092, rack=None)
    fields: Object = {"throttle_time_ms": 0, "controller_id": 1, "cluster_id": "c"}
    answer = MetadataResponse(brokers=[broker], topics=[topic(each) for each in asked], **fields)
    return Row(body=bytes(answer.encode(version=version)), version=version)


def _log_dirs(world: World, _: Any) -> Any:
    row, version = DescribeLogDirsResponse.DescribeLogDirsResult, 4
    topics = [row.DescribeLogDirsTopic(name=topic, partitions=[]) for topic in [*TOPICS, *["secret"] * world.hidden]]
    answer = DescribeLogDirsResponse(
        throttle_time_ms=0, error_code=0, results=[row(error_code=0, log_dir="/a", topics=topics)]
    )
    return Row(body=bytes(answer.encode(version=version)), version=version)


def _list(world: World, _: Any) -> Any:
    world.listed_at = world.counts.get("", 0)
    there = [name for name, group in world.groups.items() if group.present]
    world.listed = len(there) + world.others
    rows = [Row(group_id=name, protocol_type="consumer") for name in there]
    rows += [Row(group_id=f"other-{number}", protocol_type="consumer") for number in range(world.others)]
    return Row(error_code=0, groups=rows)


def _describe(world: World, request: Any) -> Any:
    def row(name: str) -> Any:
        group = world.groups.get(name, Group(members=True))
        kind = "consumer" if group.present else ""
        known: Object = {"error_code": 0, "error_message": None, "protocol_data": "", "members": []}
        return Row(group_id=name, group_state=group.state, protocol_type=kind, **known)

    return Row(groups=[row(name) for name in request.groups])


def _offsets(world: World, request: Any) -> Any:
    name = request.group_id
    group = world.groups.get(name, Group(members=True))
    everything = request.topics is None
    places = (
        list(group.offsets)
        if everything
        else [Partition(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    )
    if name in world.denied:
        return Row(error_code=_GROUP_DENIED, topics=[])
    if everything:
        answers = world.reread if request.require_stable else world.scanned
        answers[name] = Answer(world.real, dict(group.offsets))
    code = _UNSTABLE if group.pending and request.require_stable else 0
    nothing = CommittedOffset(-1, -1, "")

    def row(place: Partition) -> Any:
        saved = group.offsets.get(place, nothing)
        known = {"committed_leader_epoch": saved.leader_epoch, "metadata": saved.metadata, "error_code": code}
        return Row(partition_index=place.partition, committed_offset=saved.offset, **known)

    topics = {place.topic: [row(each) for each in places if each.topic == place.topic] for place in places}
    return Row(error_code=0, topics=[Row(name=topic, partitions=rows) for topic, rows in topics.items()])


def _ends(world: World, request: Any) -> Any:
    def row(topic: str, place: Any) -> Any:
        end = len(world.offsets_log) if topic == OFFSETS_TOPIC else world.end
        # The records of the offsets log have no times.
        offset = {-1: end, -2: 0}.get(place.timestamp, -1)
        return Row(partition_index=place.partition_index, error_code=0, offset=offset)

    return Row(
        topics=[
            Row(name=topic.name, partitions=[row(topic.name, place) for place in topic.partitions])
            for topic in request.topics
        ]
    )


def _epoch_ends(world: World, request: Any) -> Any:
    rows = [Row(partition=0, error_code=0, end_offset=len(world.offsets_log))]
    return Row(topics=[Row(topic=topic.topic, partitions=rows) for topic in request.topics])


def _fetch_offsets_log(world: World, place: Any) -> Any:
    """Any record of a group shows its use, also a tombstone."""
    records, first = MemoryRecordsBuilder(2, 0, 100_000), place.fetch_offset
    for name, gone in world.offsets_log[first:]:
        key = struct.pack(">hh", 2 if gone is None else 1, len(name)) + name.encode()
        if gone is not None:
            key += struct.pack(">h", len(gone.topic)) + gone.topic.encode() + struct.pack(">i", gone.partition)
        records.append(timestamp=0, key=key, value=None)
    records.close()
    end = len(world.offsets_log)
    body = first.to_bytes(8, "big") + bytes(records.buffer())[8:] if first < end else b""
    known = {"last_stable_offset": end, "aborted_transactions": None, "records": body}
    row = Row(partition_index=place.partition, error_code=0, high_watermark=end, log_start_offset=0, **known)
    return Row(error_code=0, responses=[Row(partitions=[row])])


def _fetch(world: World, request: Any) -> Any:
    (topic,) = request.topics
    if topic.topic == OFFSETS_TOPIC:
        return _fetch_offsets_log(world, topic.partitions[0])
    # Every topic ends in a record.
    records = MemoryRecordsBuilder(2, 0, 1_000)
    records.append(timestamp=0, key=None, value=b"x")
    records.close()
    place = Row(
        error_code=0,
        high_watermark=world.end,
        log_start_offset=0,
        last_stable_offset=world.end,
        aborted_transactions=None,
        # Brokers put the offset in, which the checksum leaves out.
        records=(world.end - 1).to_bytes(8, "big") + bytes(records.buffer())[8:],
    )
    return Row(error_code=0, responses=[Row(partitions=[place])])


def _delete(world: World, request: Any) -> Any:
    late = world.delivering
    rows = [Row(group_id=name, error_code=world.delete(name, late)) for name in request.groups_names]
    return Row(results=rows)


_ANSWERS: Mapping[str, Callable[[World, Any], Any]] = {
    "RawMetadata": _metadata,
    "ListGroups": _list,
    "DescribeGroups": _describe,
    "FindCoordinator": lambda *_: Row(error_code=0, node_id=1),
    "OffsetFetch": _offsets,
    "ListOffsets": _ends,
    "OffsetForLeaderEpoch": _epoch_ends,
    "Fetch": _fetch,
    "RawDescribeLogDirs": _log_dirs,
    "DescribeConfigs": lambda *_: Row(results=[]),
    "DeleteGroups": _delete,
}


class MemoryLedger:
    """`group_hygiene.ledger.ledger.Ledger`; entries are written and read as the bytes that they are."""

    def __init__(self, world: World, settings: Any) -> None:
        self.contents = Contents()
        self._world, self._settings = world, settings
        self._position, self._epoch = 0, 0

    replicas = 3

    @property
    def writer(self) -> str:
        return str(self._settings.writer)

    @property
    def id(self) -> str | None:
        return self.contents.owner.ledger if self.contents.owner else None

    def check_settings(self, deadline: Any) -> None:
        pass

    def read_on(self, deadline: Any) -> None:
        self._exchange("Fetch", lambda: None)
        for key, value in self._world.log[self._position :]:
            self.contents.take(key, value)
        self._position = self._world.known_to = len(self._world.log)

    def claim(self, deadline: Any = None) -> None:
        def begin() -> None:
            self._world.epoch += 1
            self._epoch = self._world.epoch

        self._exchange("InitProducerId", begin)
        self.read_on(deadline)
        if self.contents.owner is None:
            self.write([Owner(installation=self._settings.installation, ledger="ledger", since=self._world.now())])

    def note(self, changes: Sequence[Change], deadline: Any = None) -> datetime | None:
        written = list(changes)
        if self._epoch != self._world.epoch:
            raise LedgerFenced("another process writes")
        if not written:
            return None
        self._exchange("EndTxn", lambda: self._world.append(written))
        self._world.written = self._world.real
        return NOW + timedelta(seconds=self._world.real)

    def write(self, changes: Sequence[Change], deadline: Any = None, until: Any = None) -> datetime | None:
        stamp = self.note(changes, deadline)
        self.read_on(deadline)
        return stamp

    def entries(self, wanted: Callable[[Key], bool], deadline: Any) -> Iterator[entries.Entry]:
        found: list[entries.Entry] = []

        def read() -> None:
            standing = {key: value for key, (value, _) in self._world.latest.items() if value is not None}
            found.extend(contents.decode(key, json.dumps(standing[key]).encode()) for key in standing if wanted(key))

        self._exchange("Fetch", read)
        return iter(found)

    def sweep(self, now: datetime, deadline: Any = None) -> int:
        standing = {key: value for key, (value, _) in self._world.latest.items() if value is not None}
        over = [key for key, value in standing.items() if _is_over(value, now)]
        self.note([Removal(key) for key in over])
        self.contents.forget_expired(now)
        return len(over)

    def _exchange(self, kind: str, effect: Callable[[], None]) -> None:
        try:
            self._world.exchange(kind, effect)
        except Lost:
            raise LedgerProblem(f"{kind}: no answer") from None


def _is_over(value: Object, now: datetime) -> bool:
    until = value.get("expires") if value["kind"] in ("backup", "outcome") else value.get("until")
    return until is not None and datetime.fromisoformat(until) <= now


class MemoryObjects:
    """The calls of `group_hygiene.controller.objects.Objects` that a loop makes: no watch is ever late here."""

    is_complete = True

    def __init__(self, api: MemoryApi) -> None:
        self._api = api

    def put(self, plural: str, obj: Object) -> None:
        pass

    def get(self, plural: str, namespace: str, name: str) -> Object | None:
        if plural == CONNECTIONS:
            # A round takes a moment before it scans.
            self._api.world.real += 3 * _EXCHANGE_S
        return self._api.known(plural).get(name)

    def naming(self, plural: str, namespace: str, name: str) -> list[Key]:
        return [key_of(obj) for obj in self._api.known(plural).values()]

    def active_uids(self, plural: str) -> set[str]:
        return {obj["metadata"]["uid"] for obj in self._api.known(plural).values()}

    uids = active_uids


class MemoryApi:
    """The calls of `group_hygiene.controller.api.Api` that a loop makes, on objects that live here."""

    def __init__(self, world: World) -> None:
        self._world = self.world = world
        self._objects: dict[tuple[str, str], Object] = {}
        self._version = 0
        # Plural and name -> the generation in the last answer.
        self.read: dict[tuple[str, str], int] = {}
        # And after how many exchanges of this run.
        self.read_at: dict[tuple[str, str], int] = {}
        # Name and generation -> spec of a policy.
        self.specs: dict[tuple[str, int], Object] = {}

    def put(self, plural: str, name: str, spec: Object, namespace: str = "kafka") -> None:
        metadata = {"namespace": namespace, "name": name, "uid": name, "generation": 0}
        self._objects[plural, name] = {"metadata": metadata, "spec": {}}
        self.edit(plural, name, spec)

    def edit(self, plural: str, name: str, change: Object) -> None:
        obj = self._objects[plural, name]
        spec = _merged(obj["spec"], change)
        if spec != obj["spec"]:
            obj["spec"] = spec
            obj["metadata"]["generation"] += 1
            self.specs[name, obj["metadata"]["generation"]] = copy.deepcopy(spec)
        self._bump(obj)

    def known(self, plural: str) -> dict[str, Object]:
        """Name -> object, as the store has them, without a request."""
        return {name: self._read(plural, obj) for (kind, name), obj in self._objects.items() if kind == plural}

    def get(self, plural: str, namespace: str, name: str) -> Object:
        if (plural, name) not in self._objects:
            raise NotFound(f"there is no {name}")
        return self._read(plural, self._exchange("get", lambda: self._objects[plural, name]))

    def patch_status(self, plural: str, obj: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
        def write() -> None:
            known = self._objects[plural, obj["metadata"]["name"]]
            if known["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
                raise Conflict("it was edited")
            known["status"] = _merged(known.get("status") or {}, patch)
            self._bump(known)

        self._exchange("patch", write)
        return self._read(plural, self._objects[plural, obj["metadata"]["name"]])

    def crd_problem(self, plural: str) -> None:
        pass

    def claimed_groups(self, age: float = 0.0) -> Claims:
        return Claims()

    def create_event(self, namespace: str, body: Object) -> None:
        pass

    def _read(self, plural: str, obj: Object) -> Object:
        self.read[plural, obj["metadata"]["name"]] = obj["metadata"]["generation"]
        self.read_at[plural, obj["metadata"]["name"]] = self._world.counts.get("", 0)
        return copy.deepcopy({"status": {}} | obj)

    def _bump(self, obj: Object) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)

    def _exchange(self, kind: str, effect: Callable[[], Any]) -> Any:
        try:
            return self._world.exchange(kind, effect)
        except Lost:
            raise ApiError(f"{kind}: no answer") from None


def _merged(old: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """RFC 7396."""
    new = {**old}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = _merged(new.get(key) or {}, value) if isinstance(value, Mapping) else value
    return new
