"""`python -m testing.bench.logs NAME RECORDS FOLDER`: writes one of three logs into the data of a stopped broker.

A broker takes minutes for ten million commits, and a cleaner hours until a log is sparse. So the segments of
`__consumer_offsets` are written by numpy, as a broker and its cleaner leave them: batches of version 2, uncompressed,
those of the compacted log with one record left in each. There is no index: the broker makes it when it starts, and
refuses batches whose CRC is wrong. Commits are of the last 28 days. One group in ten also had a member: it has records
of the group itself, and as many fewer commits.
"""

import json
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from testing.bench.load import PARTITIONS, group_name, topic_name

LOG_PARTITIONS = 50
NAMES = ("distinct", "repeats", "compacted")
# Of which each log has whole groups.
LEAST_RECORDS = 10_000
_REPEATS = 100
_LEFT = 10  # One record in so many is left in the compacted log, of as many times more offsets as it has records.
_OFFSETS_A_RECORD = 1_000
_JOINED_EVERY = 10
_DAYS = 28
_DAY_MS = 86_400_000
# What the cleaner left batches of.
_BATCH_OFFSETS = 10
_COMMIT, _STABLE, _EMPTY = range(3)
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_AT, _CRC_FROM, _SIZE_AT = 17, 21, 8
_BASE_AT, _TIME_AT, _LAST_TIME_AT, _LAST_DELTA_AT = 0, 27, 35, 23
_VALUE = struct.Struct(">hqihq")
_FILE = "00000000000000000000.log"
_KEPT = ("partition.metadata", "leader-epoch-checkpoint")

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Log:
    """groups: how many; each commits all of its partitions `rounds` times. records: in the log.

    offsets: of all its partitions together; 0 = as many as there are records, without gaps.
    """

    name: str
    groups: int
    rounds: int = 1
    offsets: int = 0

    @property
    def records(self) -> int:
        return self.groups * self.rounds * PARTITIONS

    @property
    def is_sparse(self) -> bool:
        return self.offsets > 0

    @property
    def joined(self) -> int:
        """How many groups had a member."""
        return len(range(_JOINED_EVERY // 2, self.groups, _JOINED_EVERY))

    @property
    def states(self) -> int:
        """Records of groups themselves: that the last member came, and left; compaction keeps the second."""
        return self.joined * self.rounds * self.state_records

    @property
    def state_records(self) -> int:
        """Of one group that had a member, in one round."""
        return 1 if self.is_sparse else 2


def log_of(name: str, records: int) -> Log:
    """The log of that name; `records`: of the first two; of the compacted one before compaction."""
    if name == "distinct":
        return Log(name, records // PARTITIONS)
    if name == "repeats":
        return Log(name, records // PARTITIONS // _REPEATS, _REPEATS)
    left = records // _LEFT
    return Log(name, left // PARTITIONS, 1, left * _OFFSETS_A_RECORD)


@dataclass(frozen=True)
class _Batches:
    """Of one log partition, in order; one row a batch. count: of records, of the partitions `first` and following.

    delta: of its first record, from the offset `base`. time: in milliseconds since 1970.
    """

    kind: Numbers
    group: Numbers
    first: Numbers
    count: Numbers
    round: Numbers
    time: Numbers
    base: Numbers
    delta: Numbers

    def __len__(self) -> int:
        return len(self.kind)


def write(log: Log, data: Path, now_ms: int) -> int:
    """Write it into this data folder of a broker, which has the empty topic; returns the sum of committed offsets."""
    names = [group_name(number) for number in range(log.groups)]
    places = _places(names)
    random = np.random.default_rng(7)
    # Which group commits, one row a time.
    turns = np.concatenate([random.permutation(log.groups) for _ in range(log.rounds)])
    rounds = np.repeat(np.arange(log.rounds), log.groups)
    times = now_ms - _DAYS * _DAY_MS + np.arange(len(turns)) * (_DAYS * _DAY_MS) // len(turns)
    total = 0
    for partition in range(LOG_PARTITIONS):
        folder = data / f"{OFFSETS_TOPIC}-{partition}"
        for file in folder.iterdir():
            if file.name not in _KEPT:
                file.unlink()
        here = places[turns] == partition
        batches = _batches(log, turns[here], rounds[here], times[here], random)
        total += int(_offsets(batches)[1].sum())
        with (folder / _FILE).open("wb") as segment:
            segment.writelines(_encoded(batches, names))
    return total


def _places(names: Sequence[str]) -> Numbers:
    """The log partition of each group: Java's Math.abs(String.hashCode) of its id, which is ASCII."""
    letters = np.array(names, "S")
    letters = letters.view(np.uint8).reshape(len(names), -1).astype(np.uint32)
    value = np.zeros(len(names), np.uint32)
    for column in letters.T:
        value = np.where(column > 0, value * np.uint32(31) + column, value)
    return np.abs(value.view(np.int32).astype(np.int64)) % LOG_PARTITIONS


def _batches(log: Log, groups: Numbers, rounds: Numbers, times: Numbers, random: np.random.Generator) -> _Batches:
    joined = groups % _JOINED_EVERY == _JOINED_EVERY // 2
    commits = PARTITIONS - np.where(joined, log.state_records, 0)
    if log.is_sparse:
        return _sparse(log, np.repeat(groups, PARTITIONS), np.tile(np.arange(PARTITIONS), len(groups)), times, random)
    # A member joins, its group commits, and it leaves; the other groups only commit.
    many = np.where(joined, 3, 1)
    turn = np.repeat(np.arange(len(groups)), many)
    step = np.arange(len(turn)) - np.repeat(np.cumsum(many) - many, many)
    kind = np.where(~joined[turn] | (step == 1), _COMMIT, np.where(step == 0, _STABLE, _EMPTY))
    count = np.where(kind == _COMMIT, commits[turn], 1)
    nothing = np.zeros(len(turn), np.int64)
    base = np.cumsum(count) - count
    return _Batches(kind, groups[turn], nothing, count, rounds[turn], times[turn] + step, base, nothing)


def _sparse(log: Log, groups: Numbers, places: Numbers, times: Numbers, random: np.random.Generator) -> _Batches:
    """One record a batch, at random offsets; the last one is the last of the partition."""
    size, slots = len(groups), log.offsets // LOG_PARTITIONS // _BATCH_OFFSETS
    order = random.permutation(size)
    groups, places = groups[order], places[order]
    is_state = (groups % _JOINED_EVERY == _JOINED_EVERY // 2) & (places == PARTITIONS - 1)
    slot = np.sort(random.choice(slots, size, replace=False))
    delta = random.integers(0, _BATCH_OFFSETS, size)
    if size:
        slot[-1], delta[-1] = slots - 1, _BATCH_OFFSETS - 1
    nothing = np.zeros(size, np.int64)
    return _Batches(
        *(np.where(is_state, _EMPTY, _COMMIT), groups, np.where(is_state, 0, places), nothing + 1, nothing),
        *(np.repeat(times, PARTITIONS), slot * _BATCH_OFFSETS, delta),
    )


def _offsets(batches: _Batches) -> tuple[Numbers, Numbers]:
    """Per committed offset: its row among the batches, and the offset."""
    row = np.repeat(np.arange(len(batches)), np.where(batches.kind == _COMMIT, batches.count, 0))
    index = np.arange(len(row)) - np.searchsorted(row, row)
    return row, _committed(batches.group[row], batches.first[row] + index, batches.round[row])


def _committed(group: Numbers, partition: Numbers, turn: Numbers) -> Numbers:
    found: Numbers = group * 10 + partition + turn * 1_000
    return found


def _encoded(batches: _Batches, names: Sequence[str]) -> Iterator[bytes]:
    """The bytes of each batch. Batches whose fields have the same lengths are made at once."""
    name = np.array([len(names[group]) for group in batches.group], np.int64)
    topic = np.array([len(topic_name(int(group))) for group in batches.group], np.int64)
    shapes, which = np.unique(np.stack([batches.kind, name, topic, batches.count], axis=1), axis=0, return_inverse=True)
    found: list[bytes] = [b""] * len(batches)
    for number in range(len(shapes)):
        rows = np.flatnonzero(which.ravel() == number)
        for row, encoded in zip(rows, _same_shape(batches, rows, names), strict=True):
            found[row] = encoded
    return iter(found)


def _same_shape(batches: _Batches, rows: Numbers, names: Sequence[str]) -> Iterator[bytes]:
    kind, count, group = int(batches.kind[rows[0]]), int(batches.count[rows[0]]), batches.group[rows]
    records, fields = _template(kind, count, names[group[0]], topic_name(int(group[0])))
    size = _HEADER.size + len(records)
    header = _HEADER.pack(0, size - 12, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, count)
    made = np.tile(np.frombuffer(header + records, np.uint8), (len(rows), 1))

    def put(at: int, type_: str, values: Numbers) -> None:
        columns = np.ascontiguousarray(values.astype(type_)).view(np.uint8).reshape(len(rows), -1)
        made[:, at : at + columns.shape[1]] = columns

    put(_BASE_AT, ">i8", batches.base[rows])
    for at in (_TIME_AT, _LAST_TIME_AT):
        put(at, ">i8", batches.time[rows])
    # In a cleaned batch the last offset stays that of a record that is gone.
    sparse = batches.delta.any()
    last = np.full(len(rows), _BATCH_OFFSETS - 1 if sparse else count - 1)
    put(_LAST_DELTA_AT, ">i4", last)
    for index in range(count):
        for field, places in fields.items():
            at = _HEADER.size + places[index]
            if field == "delta":
                made[:, at] = 2 * (batches.delta[rows] + index)
            elif field == "name":
                put(at, "S", np.array([names[number] for number in group], "S"))
            elif field == "topic":
                put(at, "S", np.array([topic_name(int(number)) for number in group], "S"))
            elif field == "partition":
                put(at, ">i4", batches.first[rows] + index)
            elif field == "offset":
                put(at, ">i8", _committed(group, batches.first[rows] + index, batches.round[rows]))
            else:
                put(at, ">i8", batches.time[rows])
    sums = [crc32c(memoryview(row)) for row in np.ascontiguousarray(made[:, _CRC_FROM:])]
    put(_CRC_AT, ">u4", np.array(sums, np.int64))
    whole = made.tobytes()
    return (whole[at : at + size] for at in range(0, len(whole), size))


def _template(kind: int, count: int, name: str, topic: str) -> tuple[bytes, dict[str, list[int]]]:
    """The records of one batch; and where, in each of them, what is different in other batches of this shape."""
    found = b""
    fields: dict[str, list[int]] = {}
    for _ in range(count):
        key, value, places = _commit(name, topic) if kind == _COMMIT else _state(name, topic, kind == _STABLE)
        before = b"\0\0\0" + _varint(len(key))
        record = before + key + _varint(len(value)) + value + b"\0"
        start = len(found) + len(_varint(len(record)))
        found += _varint(len(record)) + record
        fields.setdefault("delta", []).append(start + 2)
        for field, (in_value, at) in places.items():
            skipped = len(key) + len(_varint(len(value))) if in_value else 0
            fields.setdefault(field, []).append(start + len(before) + skipped + at)
    return found, fields


_Places = dict[str, tuple[bool, int]]


def _commit(name: str, topic: str) -> tuple[bytes, bytes, _Places]:
    """OffsetCommitKey, OffsetCommitValue of version 3. Each place: whether in the value, and at which byte of it."""
    key = struct.pack(">h", 1) + _text(name) + _text(topic) + bytes(4)
    places = {"name": (False, 4), "topic": (False, 6 + len(name)), "partition": (False, len(key) - 4)}
    return key, _VALUE.pack(3, 0, -1, 0, 0), places | {"offset": (True, 2), "time": (True, 16)}


def _state(name: str, topic: str, has_member: bool) -> tuple[bytes, bytes, _Places]:
    """GroupMetadataKey, GroupMetadataValue of version 3: with one member, or Empty."""
    member = "member-" + "0" * 36
    value = struct.pack(">h", 3) + _text("consumer") + struct.pack(">i", 1)
    value += _text("range") + _text(member) if has_member else b"\xff\xff\xff\xff"
    at = len(value)
    value += bytes(8) + struct.pack(">i", has_member)
    if has_member:
        subscription = struct.pack(">hi", 0, 1) + _text(topic) + struct.pack(">i", -1)
        value += (
            _text(member) + b"\xff\xff" + _text("client") + _text("/10.1.2.3") + struct.pack(">ii", 300_000, 45_000)
        )
        value += struct.pack(">i", len(subscription)) + subscription + struct.pack(">i", 0)
    return struct.pack(">h", 2) + _text(name), value, {"name": (False, 4), "time": (True, at)}


def _text(words: str) -> bytes:
    return struct.pack(">h", len(words)) + words.encode("ascii")


def _varint(number: int) -> bytes:
    """A signed one, as in records."""
    left, encoded = number << 1, b""
    while left >= 0x80:
        encoded += bytes([left & 0x7F | 0x80])
        left >>= 7
    return encoded + bytes([left])


def main(name: str, records: str, folder: str) -> None:
    """Prints one line of JSON: the log, and the sum of its committed offsets."""
    log = log_of(name, int(records))
    print(json.dumps(asdict(log) | {"sum": write(log, Path(folder), int(time.time() * 1000))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
