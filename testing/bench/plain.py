"""`python -m testing.bench.plain SERVERS FOLDER`: what the pipeline is compared with. One process, without Spark.

It fetches the offsets log over a socket, decodes it by numpy, folds it by DuckDB, and writes one row a group as a Delta
table: its last commit, its offsets, its commits by day, and since when it is Empty. Whatever belongs to a group is in
one partition of the log, so each partition is folded by itself, two at a time. It shares no code with the pipeline, and
knows no more than what the bench's logs hold: anything else in them ends it. It keeps no record, reads no log a second
time, and survives no kill.
"""

import json
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from group_hygiene.kafka.client import Deadline, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets_topic import read_log_bounds
from group_hygiene.model.groups import Fault
from group_hygiene.spec.client_settings import Settings
from testing.bench.errors import BenchError

Numbers = np.ndarray[Any, np.dtype[Any]]

_SECONDS = 60.0
_WORKERS = 2
_FETCH_BYTES = 8 * 1024**2
# Fetch of version 4, the oldest that Kafka 4 supports: nothing in it has a variable length.
_REQUEST = struct.Struct(f">ihhih5siiiibih{len(OFFSETS_TOPIC)}siiqi")
_ANSWER = struct.Struct(f">iiih{len(OFFSETS_TOPIC)}siihqqi")
_BATCH_BYTES = 61
_INT32, _INT64 = struct.Struct(">i"), struct.Struct(">q")
_CONTROL, _CODEC = 0x20, 0x07
_FOLD = """
    WITH latest AS (SELECT max(log_offset) AS log_offset FROM commits GROUP BY "group", topic, "partition"),
    offsets AS (
        SELECT "group", list(struct_pack(
            topic := topic, "partition" := "partition", "offset" := committed, leader_epoch := leader_epoch,
            metadata := '', commit_time := commit_time
        )) AS offsets
        FROM commits SEMI JOIN latest USING (log_offset) GROUP BY "group"
    ),
    days AS (
        SELECT "group", max(commit_time) AS last_commit, histogram("day")::MAP(DATE, BIGINT) AS commits_by_day
        FROM commits GROUP BY "group"
    ),
    last AS (SELECT "group", arg_max(empty_since, log_offset) AS empty_since FROM states GROUP BY "group")
    SELECT "group", last_commit, len(offsets)::INTEGER AS partitions, offsets, commits_by_day, empty_since
    FROM days JOIN offsets USING ("group") LEFT JOIN last USING ("group")
"""


@dataclass
class Counts:
    """What was read. offsets: the sum of all committed ones. cpu: seconds; peak_mb: resident memory in MiB."""

    seconds: float = 0.0
    cpu: float = 0.0
    peak_mb: float = 0.0
    records: int = 0
    commits: int = 0
    states: int = 0
    offsets: int = 0
    groups: int = 0


class Source:
    """A connection that fetches from the only broker."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _SECONDS)
        self._answers = self._socket.makefile("rb")

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def read(self, partition: int, position: int, end: int) -> Iterator[tuple[memoryview, Numbers]]:
        """Batches from `position` to `end`: bytes, and where in them each whole batch begins."""
        while position < end:
            data = self._fetch(partition, position)
            starts = whole_batches(data)
            if not starts.size:
                raise BenchError(f"{OFFSETS_TOPIC}-{partition} ends at offset {position}, before {end}")
            yield data, starts
            last = int(starts[-1])
            position = _INT64.unpack_from(data, last)[0] + _INT32.unpack_from(data, last + 23)[0] + 1

    def _fetch(self, partition: int, position: int) -> memoryview:
        topic = OFFSETS_TOPIC.encode()
        # Read committed; waits for nothing.
        asked = (-1, 0, 1, _FETCH_BYTES, 1, 1, len(topic), topic, 1, partition, position, _FETCH_BYTES)
        self._socket.sendall(_REQUEST.pack(_REQUEST.size - 4, 1, 4, 1, 5, b"bench", *asked))
        (size,) = _INT32.unpack(self._answers.read(4))
        answer = self._answers.read(size)
        *_, error, _, _, aborted = _ANSWER.unpack_from(answer)
        if error or aborted > 0:
            raise BenchError(f"{OFFSETS_TOPIC}-{partition}: error {error}, {aborted} aborted transactions")
        return memoryview(answer)[_ANSWER.size + 4 :]


def whole_batches(data: memoryview) -> Numbers:
    """Where each begins; the last one may be cut off."""
    found, at, size = [], 0, len(data)
    length = _INT32.unpack_from
    while at + _BATCH_BYTES <= size:
        following = at + 12 + length(data, at + 8)[0]
        if following > size:
            break
        found.append(at)
        at = following
    return np.array(found, np.int64)


class _Fields:
    """Numbers at any byte of a buffer, big-endian."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.bytes = np.frombuffer(data, np.uint8)

    def __call__(self, kind: str, at: Numbers) -> Numbers:
        size = np.dtype(kind).itemsize
        view = np.ndarray((len(self._data) - size + 1,), f">{kind}", self._data, 0, (1,))
        return view[at].astype(np.int64)

    def varints(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """Their values, and where each ends."""
        byte = self.bytes[at].astype(np.int64)
        value, at, shift = byte & 0x7F, at + 1, 0
        while (more := np.flatnonzero(byte & 0x80)).size:
            shift += 7
            byte = np.zeros_like(byte)
            byte[more] = self.bytes[at[more]]
            value[more] |= (byte[more] & 0x7F) << shift
            at[more] += 1
        return (value >> 1) ^ -(value & 1), at

    def texts(self, at: Numbers, sizes: Numbers) -> pa.Array:
        """One text for each of these places, which are in order: of all pieces of the buffer, every other one."""
        ends = np.empty(2 * len(at), np.int32)
        ends[0::2], ends[1::2] = at, at + sizes
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(self._data)]
        pieces = pa.Array.from_buffers(pa.string(), max(0, len(ends) - 1), buffers)
        return pieces.take(pa.array(np.arange(0, len(ends), 2, dtype=np.int32)))


def decoded(data: memoryview, batches: Numbers, end: int) -> tuple[pa.Table, pa.Table]:
    """The commits and the records of groups in these batches, up to the offset `end`."""
    field = _Fields(data)
    offset, key, value = _records(field, batches)
    wanted = offset < end
    offset, key, value = offset[wanted], key[wanted], value[wanted]
    type_, version = field("i2", key), field("i2", value)
    commit = type_ == 1
    # Of commits, the bench writes version 3, and its broker version 4.
    known = (commit & (version == 4)) | (np.isin(type_, (1, 2)) & (version == 3))
    if not known.all():
        other = int(np.flatnonzero(~known)[0])
        raise BenchError(
            f"the bench's logs have no key of type {type_[other]} with a value of version {version[other]}"
        )
    return _commits(field, offset[commit], key[commit], value[commit]), _states(
        field, offset[~commit], key[~commit], value[~commit]
    )


def _records(field: _Fields, batch: Numbers) -> tuple[Numbers, ...]:
    """Per record, in order: its offset, and where its key and its value begin."""
    attributes, count = field("i2", batch + 21), field("i4", batch + 57)
    if (attributes & _CODEC).any() or (attributes & _CONTROL).any():
        raise BenchError("a batch is compressed, or a transaction's marker: the bench's logs have neither")
    base, at = field("i8", batch), batch + _BATCH_BYTES
    found: list[tuple[Numbers, ...]] = []
    left = np.arange(len(batch))
    for number in range(int(count.max(initial=0))):
        left = left[count[left] > number]
        size, begin = field.varints(at[left])
        # After the attributes, and the time: a commit has one of its own.
        _, following = field.varints(begin + 1)
        delta, following = field.varints(following)
        key_size, key = field.varints(following)
        value_size, value = field.varints(key + key_size)
        if (key_size < 0).any() or (value_size < 0).any():
            raise BenchError("a record has no key, or no value")
        at[left] = begin + size
        found.append((base[left] + delta, key, value))
    offset, key, value = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(key)
    return offset[order], key[order], value[order]


def _commits(field: _Fields, offset: Numbers, key: Numbers, value: Numbers) -> pa.Table:
    name = field("i2", key + 2)
    topic_at = key + 6 + name
    topic = field("i2", topic_at - 2)
    # In version 4, the length of the metadata has one byte, and is one more.
    flexible = field("i2", value) == 4
    metadata = np.where(flexible, field.bytes[value + 14] - 1, field("i2", value + 14))
    if metadata.any():
        raise BenchError("a commit has metadata, and the bench's logs have none")
    commit_ms = field("i8", value + np.where(flexible, 15, 16))
    return pa.table(
        {
            "group": field.texts(key + 4, name),
            "topic": field.texts(topic_at, topic),
            "partition": field("i4", topic_at + topic).astype(np.int32),
            "log_offset": offset,
            "committed": field("i8", value + 2),
            "leader_epoch": field("i4", value + 10).astype(np.int32),
            "commit_time": pa.array(commit_ms * 1000, pa.timestamp("us", "UTC")),
            "day": pa.array((commit_ms // 86_400_000).astype(np.int32), pa.date32()),
        }
    )


def _states(field: _Fields, offset: Numbers, key: Numbers, value: Numbers) -> pa.Table:
    """Of Classic groups. empty_since: null = it has members."""
    # After the protocol's type and the generation: the assignor and the leader, and then since when it is so.
    at = value + 4 + field("i2", value + 2) + 4
    for _ in range(2):
        at = at + 2 + np.maximum(field("i2", at), 0)
    since, members = field("i8", at), field("i4", at + 8)
    return pa.table(
        {
            "group": field.texts(key + 4, field("i2", key + 2)),
            "log_offset": offset,
            "empty_since": pa.array(since * 1000, pa.timestamp("us", "UTC"), mask=members > 0),
        }
    )


def fold(server: str, folder: str) -> Counts:
    """Read all of the log, and write the table. Raises BenchError if the log holds what it does not know."""
    counts, started, used = Counts(), time.perf_counter(), time.process_time()
    client = connect(Settings((server,)))
    try:
        bounds = read_log_bounds(client, Deadline(_SECONDS))
    finally:
        client.close()
    if isinstance(bounds, Fault):
        raise BenchError(f"the log's ends are not known: {bounds}")
    database = duckdb.connect()
    # Arrow's times are in UTC.
    database.execute("SET TimeZone = 'UTC'")

    def partition(number: int) -> pa.Table:
        return _partition(server, number, (bounds.starts[number], bounds.ends[number]), database.cursor())

    with ThreadPoolExecutor(_WORKERS) as pool:
        parts = [part for part in pool.map(partition, bounds.ends) if part is not None]
    for _, commits, states, offsets in parts:
        counts.commits += commits
        counts.states += states
        counts.offsets += offsets
    table = pa.concat_tables([part[0] for part in parts])
    write_deltalake(folder, table)
    counts.records, counts.groups = counts.commits + counts.states, len(table)
    counts.seconds, counts.cpu = time.perf_counter() - started, time.process_time() - used
    counts.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return counts


def _partition(
    server: str, number: int, bounds: tuple[int, int], database: Any
) -> tuple[pa.Table, int, int, int] | None:
    """One row a group; numbers of commits and of other records; the sum of committed offsets. None = it is empty."""
    source = Source(server)
    try:
        found = [decoded(*part, bounds[1]) for part in source.read(number, *bounds)]
    finally:
        source.close()
    if not found:
        return None
    commits, states = (pa.concat_tables(tables) for tables in zip(*found, strict=True))
    database.register("commits", commits)
    database.register("states", states)
    rows = database.sql(_FOLD).to_arrow_table()
    return rows, len(commits), len(states), int(np.asarray(commits["committed"]).sum())


if __name__ == "__main__":
    print(json.dumps(asdict(fold(*sys.argv[1:]))))
