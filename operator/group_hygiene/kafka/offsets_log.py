"""The partition of a group in `__consumer_offsets`, and its records: bytes in, a frozen record out, or BrokenRecord.

All records of Kafka 2.5 to 4.4. Layouts: group-coordinator/src/main/resources/common/message/*.json of each version,
and before those the Scala schemas of kafka.coordinator.group.GroupMetadataManager. Pure. Spark's workers import this
module: of this package it may import only `errors` and `encoding`, and no client library.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from group_hygiene.errors import HygieneError
from group_hygiene.kafka.encoding import Layout, LayoutError, Reader


class BrokenRecord(HygieneError):
    """Not a record of Kafka 2.5 to 4.4: an unknown version, or bytes that do not fit their layout exactly."""

    reason = "EvidenceUnreadable"


class Commit(NamedTuple):
    """An offset that a group committed; offset None = a tombstone: expired, deleted, or its topic is gone.

    leader_epoch: -1 = not given. commit_ms: time of the commit; expire_ms: time of expiry, if the client gave one.
    legacy: under the key of Kafka 0.8; the same partition may also have an offset under the current key.
    """

    group: str
    topic: str
    partition: int
    offset: int | None = None
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int | None = None
    expire_ms: int | None = None
    legacy: bool = False

    @property
    def gone(self) -> bool:
        return self.offset is None

    @property
    def by_client(self) -> bool:
        """Whether only a client's request causes such a record: brokers remove offsets by themselves."""
        return not self.gone


class MemberClient(NamedTuple):
    """A member's client as its broker saw it. Texts are cut to TEXT_MAX bytes; host: like 10.1.2.3.

    instance_id: of a static member. rack_id: of the KIP-848 family only.
    """

    client_id: str
    host: str | None
    instance_id: str | None = None
    rack_id: str | None = None


class StateRecord(NamedTuple):
    """Any other record of a group. gone: it is a tombstone, which has no other fields than `member_id`.

    kind: see `RECORD_TYPES`; `classic` is a whole group, `*-epoch` an epoch bump, `*-member` one member of the group.
    generation: of a classic group, or the epoch that the record sets (of the group, its assignment or its member).
    members: the number of members of a classic group. state_ms: since when a classic group is in its state (Empty, if
    it has no members); None = not in the record. clients: of the members in the record, the first CLIENTS_MAX.
    """

    group: str
    kind: str
    gone: bool
    protocol_type: str | None = None
    generation: int | None = None
    member_id: str | None = None
    members: int | None = None
    state_ms: int | None = None
    clients: tuple[MemberClient, ...] = ()

    @property
    def by_client(self) -> bool:
        """Whether only a client's request causes such a record: brokers remove members by themselves."""
        with_members = bool(self.members) or self.kind in _MEMBER_RECORDS
        return with_members and not self.gone


def group_of(key: bytes | None) -> str:
    """The group of a record, by its key alone. Raises only BrokenRecord."""
    try:
        number, size = _KEY_START.unpack_from(key or b"")
        if number not in _COMMIT_KEYS and number not in _RECORD_TYPES:
            raise BrokenRecord(f"the key is of type {number}, which is not known")
        if size < 0 or key is None or len(key) < 4 + size:
            raise LayoutError("the text of a key is longer than it")
        return key[4 : 4 + size].decode()
    except _LAYOUT_ERRORS as error:
        raise BrokenRecord(f"its bytes do not fit their layout: {error}") from error


def decode(key: bytes | None, value: bytes | None) -> Commit | StateRecord:
    """Decode one record; no value = a tombstone. Raises only BrokenRecord.

    Transaction markers (control batches) are no such records: the caller omits them.
    """
    if key is None:
        raise BrokenRecord("a record without a key")
    try:
        number = _INT16.unpack_from(key)[0]
        if number in _COMMIT_KEYS:
            group, topic, partition = _commit_place(key)
            if value is None:
                return Commit(group, topic, partition, legacy=number == 0)
            return Commit(group, topic, partition, *_commit_value(value), legacy=number == 0)
        return _group_state(number, key, value)
    except _LAYOUT_ERRORS as error:
        raise BrokenRecord(f"its bytes do not fit their layout: {error}") from error


def partition_of(group: str, partitions: int) -> int:
    """A group's partition of `__consumer_offsets` (GroupCoordinatorService.partitionFor, String.hashCode)."""
    return partition_of_hash(hash_of(group), partitions)


def hash_of(text: str) -> int:
    """String.hashCode, as an unsigned number."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code


def partition_of_hash(code: int, partitions: int) -> int:
    """The partition of a group whose id has this hash. By numpy's arrays of int64, of many."""
    # As Utils.abs: the smallest number, which has no positive counterpart, becomes 0.
    return abs(code - (code >> 31 << 32)) % (1 << 31) % partitions


# Tenants choose these texts and numbers: no record may fill a table.
CLIENTS_MAX, TEXT_MAX = 5, 100
_LAYOUT_ERRORS = (LayoutError, struct.error, UnicodeDecodeError)
_INT16 = struct.Struct(">h")
_KEY_START = struct.Struct(">hh")
_MEMBER_RECORDS = frozenset({"consumer-member", "share-member", "streams-member"})
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_COMMIT_KEYS = (0, 1)
# version, offset, (leader epoch,) length of the metadata; after the metadata: commit time, (time of expiry).
_HEAD_V0, _HEAD_V3 = struct.Struct(">hqh"), struct.Struct(">hqih")
_TAIL_V1 = struct.Struct(">qq")


def _commit_place(key: bytes) -> tuple[str, str, int]:
    """OffsetCommitKey, LegacyOffsetCommitKey: group, topic, partition."""
    group_ends = 4 + _INT16.unpack_from(key, 2)[0]
    if group_ends < 4:
        raise LayoutError("a text of negative length")
    topic_at = group_ends + 2
    topic_ends = topic_at + _INT16.unpack_from(key, group_ends)[0]
    if topic_ends < topic_at or len(key) != topic_ends + 4:
        raise LayoutError("the key of a commit is too short, or too long")
    return key[4:group_ends].decode(), key[topic_at:topic_ends].decode(), _INT32.unpack_from(key, topic_ends)[0]


def _commit_value(value: bytes) -> tuple[int, int, str, int, int | None]:
    """OffsetCommitValue: offset, leader epoch, metadata, commit time, time of expiry."""
    version = _INT16.unpack_from(value)[0]
    if version == 4:
        reader = Reader(value, 2, flexible=True)
        offset, epoch, metadata, time = reader.number(8), reader.number(4), reader.text(), reader.number(8)
        reader.tagged()
        reader.end()
        return offset, epoch, metadata, time, None
    if version == 3:
        _, offset, epoch, size = _HEAD_V3.unpack_from(value)
        at = 16
    elif 0 <= version < 3:
        _, offset, size = _HEAD_V0.unpack_from(value)
        at, epoch = 12, -1
    else:
        raise BrokenRecord(f"the value of a commit is of version {version}, which is not known")
    ends = at + size
    if size < 0 or len(value) != ends + (16 if version == 1 else 8):
        raise LayoutError("the value of a commit is too short, or too long")
    if version != 1:
        return offset, epoch, value[at:ends].decode(), _INT64.unpack_from(value, ends)[0], None
    time, expiry = _TAIL_V1.unpack_from(value, ends)
    return offset, epoch, value[at:ends].decode(), time, None if expiry == -1 else expiry


_TOPIC = (16, [4])
_TASKS = [("text", [4])]
_NAMED_TOPIC = (16, "text", [4])
_TOPICS_WITH_RACKS = [(16, "text", 4, [(4, ["text"])])]
_MEMBER_START = ("text?", "text?", "text", "text", ["text"], "text?", 4, "text?")
_SHARE_STATE_4_0 = ([_NAMED_TOPIC], [(16, "text")])
_CONFIGURED_TOPIC = ("text", 4, 2, [("text", "text")])
_SUBTOPOLOGY = (
    *("text", ["text"], ["text"], [_CONFIGURED_TOPIC], ["text"], [_CONFIGURED_TOPIC]),
    [([2], [2], [2])],
)
_EPOCH: Layout = (4,)


class _RecordType(NamedTuple):
    """A record type. second: the field after the group's id in its key. counts: its value begins with an epoch.

    client: its value begins with these fields of a Client.

    layouts: of its value of version 0, the newest first; early-access releases changed them under the same version.
    """

    name: str
    layouts: tuple[Layout, ...]
    second: str = ""
    counts: bool = False
    client: tuple[str, ...] = ()


_CLIENT = ("instance_id", "rack_id", "client_id", "host")
_CLASSIC_CLIENT = ("instance_id", "client_id", "host")
_CLASSIC = _RecordType("classic", ())
# By the number in the key: org.apache.kafka.coordinator.group.generated.CoordinatorRecordType.
_RECORD_TYPES = {
    2: _CLASSIC,
    3: _RecordType("consumer-epoch", (_EPOCH,), counts=True),
    # The second is Kafka 3.7's.
    4: _RecordType("consumer-topics", ((_TOPICS_WITH_RACKS,), (4, _TOPICS_WITH_RACKS))),
    5: _RecordType(
        *("consumer-member", (_MEMBER_START, (*_MEMBER_START, [("text", 2, 2, 1, 2, "bytes")])), "member"),
        client=_CLIENT,
    ),
    6: _RecordType("consumer-target-epoch", (_EPOCH,), counts=True),
    7: _RecordType("consumer-target-member", (([_TOPIC],), (1, [_TOPIC], 2, "bytes")), "member"),
    8: _RecordType(
        "consumer-assignment",
        ((4, 4, 1, [_TOPIC], [_TOPIC]), (4, 4, 4, [_TOPIC], [_TOPIC], [_TOPIC], 1, 2, "bytes")),
        "member",
        counts=True,
    ),
    # The second is Kafka 4.0's, as for the share groups' epoch and state below.
    9: _RecordType("share-topics", (_SHARE_STATE_4_0, (_TOPICS_WITH_RACKS,))),
    10: _RecordType("share-member", (("text?", "text", "text", ["text"]),), "member", client=_CLIENT[1:]),
    11: _RecordType("share-epoch", ((4, 8), _EPOCH), counts=True),
    12: _RecordType("share-target-epoch", (_EPOCH,), counts=True),
    13: _RecordType("share-target-member", (([_TOPIC],),), "member"),
    14: _RecordType("share-assignment", ((4, 4, 1, [_TOPIC]),), "member", counts=True),
    15: _RecordType("share-state", (([_NAMED_TOPIC], [_NAMED_TOPIC], [(16, "text")]), _SHARE_STATE_4_0)),
    16: _RecordType("consumer-regex", ((["text"], 8, 8),), "regex"),
    17: _RecordType("streams-epoch", ((4, 8),), counts=True),
    # 18 was a Streams group's topics (StreamsGroupPartitionMetadata). Kafka removed it before 4.1, the first release
    # that creates such groups.
    19: _RecordType(
        "streams-member",
        (("text?", "text?", "text", "text", 4, 4, "text", frozenset([("text", 2)]), [("text", "text")]),),
        "member",
        client=_CLIENT,
    ),
    20: _RecordType("streams-target-epoch", (_EPOCH,), counts=True),
    21: _RecordType("streams-target-member", ((_TASKS, _TASKS, _TASKS),), "member"),
    22: _RecordType(
        "streams-assignment",
        ((4, 4, 1, _TASKS, _TASKS, _TASKS, _TASKS, _TASKS, _TASKS),),
        "member",
        counts=True,
    ),
    23: _RecordType("streams-topology", ((4, [_SUBTOPOLOGY]),)),
}
RECORD_TYPES = tuple(kind.name for kind in _RECORD_TYPES.values())


def _group_state(number: int, key: bytes, value: bytes | None) -> StateRecord:
    kind = _RECORD_TYPES.get(number)
    if kind is None:
        raise BrokenRecord(f"the key is of type {number}, which is not known")
    reader = Reader(key, 2, flexible=False)
    group = reader.text()
    second = reader.text() if kind.second else None
    reader.end()
    member = second if kind.second == "member" else None
    if value is None:
        return StateRecord(group, kind.name, gone=True, member_id=member)
    version = _INT16.unpack_from(value)[0]
    if kind is _CLASSIC:
        return _classic(group, version, value)
    if version != 0:
        raise BrokenRecord(f"the value of a {kind.name} record is of version {version}, which is not known")
    _check(value, kind.layouts)
    generation = _INT32.unpack_from(value, 2)[0] if kind.counts else None
    fields = Reader(value, 2, flexible=True)
    clients = (_client({name: fields.text_or_null() for name in kind.client}),) if kind.client else ()
    return StateRecord(group, kind.name, gone=False, generation=generation, member_id=member, clients=clients)


def _client(fields: Mapping[str, str | None]) -> MemberClient:
    shown = {name: text and text.encode()[:TEXT_MAX].decode(errors="ignore") for name, text in fields.items()}
    client_id, host = shown.pop("client_id") or "", shown.pop("host")
    # Java writes an address as `name/address`, mostly without the name.
    return MemberClient(client_id, host and host.removeprefix("/"), **shown)


def _check(value: bytes, layouts: Sequence[Layout]) -> None:
    last: Exception = LayoutError("no layout")
    for layout in layouts:
        try:
            reader = Reader(value, 2, flexible=True)
            reader.skip(layout)
            reader.end()
            return
        except _LAYOUT_ERRORS as error:
            last = error
    raise last


def _classic(group: str, version: int, value: bytes) -> StateRecord:
    """GroupMetadataValue."""
    if not 0 <= version <= 4:
        raise BrokenRecord(f"the value of a classic group is of version {version}, which is not known")
    reader = Reader(value, 2, flexible=version == 4)
    protocol_type, generation = reader.text(), reader.number(4)
    # The assignor, and the leader of the group.
    reader.skip_field("text?")
    reader.skip_field("text?")
    since = reader.number(8) if version >= 2 else -1
    rest = (*[4] * (version >= 1), 4, "bytes", "bytes")
    members, clients = reader.count(), list[MemberClient]()
    for _ in range(members):
        reader.skip_field("text")
        names = _CLASSIC_CLIENT if version >= 3 else _CLASSIC_CLIENT[1:]
        fields = {name: reader.text_or_null() if name == "instance_id" else reader.text() for name in names}
        if len(clients) < CLIENTS_MAX:
            clients.append(_client(fields))
        reader.skip(rest)
    reader.tagged()
    reader.end()
    return StateRecord(
        *(group, "classic", False, protocol_type, generation),
        members=members,
        state_ms=None if since == -1 else since,
        clients=tuple(clients),
    )
