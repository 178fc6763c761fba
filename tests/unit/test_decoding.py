"""A batch of the log, decoded as a whole: each row must say what `decode` says of its record alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_hygiene.kafka.offsets_log import BrokenRecord, Commit, decode
from group_hygiene.kafka.record_columns import Slices
from group_hygiene.pipeline.ingest.task import decode_all, read_classic_groups, read_commits
from group_hygiene.pipeline.tables import COMMITS, QUARANTINE
from tests.log_records import COMMIT_V3, SAMPLES, commit_key, damaged, text

Pair = tuple[bytes | None, bytes | None]
TIME = struct.pack(">q", 1_700_000_000_000)
COMMIT_V4 = struct.pack(">hqiB", 4, -42, -1, 3) + b"mm" + TIME
# As a broker of 4.3 or later writes it: one tagged field, the id of the topic.
WITH_TOPIC_ID = COMMIT_V4 + b"\1\0\x10" + bytes(range(16))
SAMPLE_PAIRS: list[Pair] = [sample.pair for sample in SAMPLES]


def rows(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """What each row says, without what it does not say."""
    keys, values = (Slices.of([pair[side] for pair in pairs]) for side in (0, 1))
    return [_without_none(row) for row in decoded(keys, values)]


def decoded(keys: Slices, values: Slices, hosts: bool = True) -> list[dict[str, Any]]:
    """The row of each record, in their order: of a commit as it is, of others as `state` or `aside`."""
    found = []
    for name, some, columns in decode_all(keys, values, hosts):
        cells = [cells.to_pylist() if isinstance(cells, pa.Array) else cells for cells in columns.values()]
        for number, *row in zip(some.tolist(), *cells, strict=True):
            found.append((number, _by_kind(name, dict(zip(columns, row, strict=True)))))
    assert sorted(number for number, _ in found) == list(range(len(keys.starts)))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def _by_kind(table: str, row: dict[str, Any]) -> dict[str, Any]:
    if table == COMMITS.name:
        return row
    if table == QUARANTINE.name:
        return {"aside": row}
    clients = [client if isinstance(client, dict) else client._asdict() for client in row.get("clients") or ()]
    row |= {"clients": clients or None}
    return {"group": row.pop("group"), "state": row}


def as_row(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """A record as the row that it must be."""
    try:
        record = decode(key, value)
    except BrokenRecord as broken:
        return {"aside": _without_none({"key": key, "value": value, "error": str(broken)})}
    if not isinstance(record, Commit):
        fields = record._asdict() | {"clients": [_without_none(client._asdict()) for client in record.clients] or None}
        return {"group": fields.pop("group"), "state": _without_none(fields)}
    row = {"group": record.group, "topic": record.topic, "partition": record.partition}
    if record.offset is None:
        return row
    fields = {"committed_offset": record.offset, "leader_epoch": record.leader_epoch, "metadata": record.metadata}
    return row | fields | {"commit_ms": record.commit_ms}


def _without_none(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(cell)
        if isinstance(cell, dict)
        else [_without_none(each) for each in cell]
        if isinstance(cell, list)
        else cell
        for name, cell in row.items()
        if cell is not None
    }


def test_each_row_is_its_record() -> None:
    """In order, each row with what its record tells and nothing of another one."""
    pairs = SAMPLE_PAIRS * 2
    assert rows(pairs) == [as_row(*pair) for pair in pairs]


@pytest.mark.parametrize("pair", [(None, None), (b"", b""), (commit_key(), b"\0\x09"), (b"\0\x63", COMMIT_V3)])
def test_what_is_kept_aside_leaves_its_neighbours_alone(pair: Pair) -> None:
    """With its bytes and the reason."""
    found = rows([(commit_key(), COMMIT_V3), pair, (commit_key(), None)])
    assert found == [as_row(commit_key(), COMMIT_V3), as_row(*pair), as_row(commit_key(), None)]
    assert set(found[1]) == {"aside"}


def test_hosts_are_left_out() -> None:
    """On request no row has one, nor the bytes of a record that could not be decoded; all else is the same."""
    pairs = [*SAMPLE_PAIRS, (b"\0\2" + text("g"), b"\0\5" + text("/10.0.0.1"))]
    keys, values = (Slices.of([pair[side] for pair in pairs]) for side in (0, 1))
    with_hosts, without = (decoded(keys, values, hosts) for hosts in (True, False))
    assert "10.0.0.1" in str(with_hosts)
    assert "10.0.0.1" not in str(without)
    for row in with_hosts:
        for client in row.get("state", {}).get("clients") or ():
            client["host"] = None
        if "aside" in row:
            row["aside"]["value"] = None
    assert [_without_none(row) for row in with_hosts] == [_without_none(row) for row in without]


@pytest.mark.parametrize("few", [[], [(commit_key(), None)], [(b"\0\2" + text("g"), None)]])
def test_batches_of_few(few: list[Pair]) -> None:
    """An answer may hold no record, or only such in which nothing is a live commit, or nothing a commit at all."""
    assert rows(few) == [as_row(*pair) for pair in few]


@pytest.mark.parametrize("value", [COMMIT_V3, COMMIT_V4 + b"\0", WITH_TOPIC_ID, None])
def test_what_brokers_write_today_is_read_all_at_once(value: bytes | None) -> None:
    """None of it goes through the decoder of single records, which is ten times slower."""
    taken, _ = read_commits(Slices.of([commit_key()] * 3), Slices.of([value, COMMIT_V3, value]))
    assert taken.all()


def classic(members: int, version: int = 3, words: Sequence[bytes | None] = (), since: int = 5) -> Pair:
    """A Classic group. words: of its members and then of itself, in turn; None only for instance ids and protocols."""
    of = iter(words or [b"member", None, b"client", b"/host"] * members + [b"consumer", b"range", b"leader", b"g"])

    def word() -> bytes:
        found = next(of)
        return b"\xff\xff" if found is None else _sized(found)

    each = b""
    for _ in range(members):
        member, instance, rest = word(), word(), word() + word()
        each += member + instance * (version >= 3) + rest + struct.pack(">iii", 1, 2, 3) + b"sub" + struct.pack(">i", 0)
    start = struct.pack(">h", version) + word() + struct.pack(">i", 7) + word() + word() + struct.pack(">q", since)
    return b"\0\2" + word(), start + struct.pack(">i", members) + each


def _sized(data: bytes) -> bytes:
    return struct.pack(">h", len(data)) + data


@pytest.mark.parametrize("members", range(6))
def test_groups_of_few_members_are_read_all_at_once(members: int) -> None:
    """All but the second one, which is of an older version."""
    pairs = [classic(members), classic(members, version=2), classic(0)]
    keys, values = (Slices.of([pair[side] for pair in pairs]) for side in (0, 1))
    taken, _ = read_classic_groups(keys, values, hosts=True)
    assert taken.tolist() == [True, False, True]
    assert rows(pairs) == [as_row(*pair) for pair in pairs]


GROUP = classic(1)[1] or b""


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(GROUP.replace(_sized(b"client"), b"\xff\xff"), id="client-is-null"),
        pytest.param(GROUP.replace(_sized(b"client"), b"\xff\xfe"), id="client-of-negative-length"),
        pytest.param(GROUP.replace(_sized(b"consumer"), b"\xff\xff"), id="protocol-type-is-null"),
        pytest.param(GROUP.replace(b"sub" + bytes(4), b"sub" + b"\xff" * 4), id="assignment-is-null"),
        pytest.param(GROUP.replace(b"sub" + bytes(4), b"sub" + b"\0\0\0\1"), id="assignment-cut-off"),
        pytest.param(GROUP + b"\0", id="more-behind"),
        pytest.param(GROUP.replace(b"\5\0\0\0\1", b"\5\xff\xff\xff\xff"), id="fewer-than-no-members"),
        pytest.param(GROUP.replace(_sized(b"client"), _sized(b"x" * 101)), id="a-long-client-id"),
        pytest.param(GROUP.replace(_sized(b"/host"), _sized(b"/" * 101)), id="a-long-host"),
    ],
)
def test_what_only_likely_program_a_group_of_few_members(value: bytes) -> None:
    """Lengths that can't be, and texts that a table takes only in part."""
    assert value != GROUP
    assert rows([(b"\0\2" + text("g"), value)]) == [as_row(b"\0\2" + text("g"), value)]


def test_a_text_that_is_left_out_must_be_one_too() -> None:
    """The ids of members and the leader are in no row; a host may be left out."""
    for word in (b"range", b"leader", b"member", b"client", b"host", b"consumer"):
        assert word in GROUP
        pair = b"\0\2" + text("g"), GROUP.replace(word, b"\xff" * len(word))
        keys, values = Slices.of([pair[0], commit_key()]), Slices.of([pair[1], COMMIT_V3])
        row, other = decoded(keys, values, hosts=False)
        assert set(row) == {"aside"}
        assert other["group"] == "g"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(b"\0\1\xff\xfc\0\0\0", COMMIT_V3, id="group-of-negative-length"),
        pytest.param(b"\0\1\0\1g\xff\xfe\0\0", COMMIT_V3, id="topic-of-negative-length"),
        pytest.param(commit_key(), COMMIT_V4[:14] + b"\x83" + b"\1" * 130 + TIME + b"\0", id="length-of-two-bytes"),
        pytest.param(commit_key(), COMMIT_V4[:14] + b"\0" + TIME + b"\0", id="no-metadata-at-all"),
        pytest.param(commit_key(), WITH_TOPIC_ID[:-1], id="topic-id-cut-off"),
        pytest.param(commit_key(), WITH_TOPIC_ID + b"\0", id="more-behind-the-topic-id"),
        pytest.param(commit_key(), COMMIT_V4 + b"\2\0\x10" + bytes(16), id="two-tags-announced"),
        pytest.param(commit_key(), COMMIT_V4 + b"\1\0\x11" + bytes(16), id="topic-id-of-seventeen-bytes"),
    ],
)
def test_what_only_likely_program_a_commit(key: bytes, value: bytes) -> None:
    """Lengths that fit by chance, each of which a reader of whole columns could take for a record."""
    assert set(rows([(key, value)])[0]) == {"aside"}
    assert rows([(key, value)]) == [as_row(key, value)]


def test_a_part_of_a_longer_buffer() -> None:
    """An answer holds more than the records that are decoded: before, between and behind them."""
    pairs = [(commit_key(text(f"group-{row}"), partition=row), COMMIT_V3) for row in range(6)]
    keys, values = (Slices.of(column).take(slice(1, 5, 2)) for column in zip(*pairs, strict=True))
    assert [row["group"] for row in decoded(keys, values)] == ["group-1", "group-3"]


def test_bytes_behind_a_null_are_none() -> None:
    """Whatever the buffer holds where a key would be."""
    keys = Slices.of([commit_key()] * 2)
    keys = keys._replace(valid=np.array([False, True]))
    found = decoded(keys, Slices.of([COMMIT_V3] * 2))
    assert [row.get("group") for row in found] == [None, "g"]


@st.composite
def classics(draw: st.DrawFn) -> Pair:
    """Up to more members than are read at once, with any texts, also longer ones than a table takes."""
    members, version = draw(st.integers(0, 7)), draw(st.sampled_from([3, 3, 3, 2]))
    words = st.text(max_size=120).map(str.encode) | st.sampled_from([b"", b"/", b"a/10.0.0.1"]) | st.binary(max_size=3)
    nullable = words | st.none()
    texts = [draw(each) for _ in range(members) for each in (words, nullable, words, words)]
    texts += [draw(each) for each in (words, nullable, nullable, words)]
    key, value = classic(members, version, texts, draw(st.sampled_from([-1, 0, 2**62])))
    return key, draw(st.sampled_from([value] * 4 + [None]))


@given(st.lists(classics() | st.just((commit_key(), COMMIT_V3)), max_size=6), st.randoms())
def test_groups_of_any_content(pairs: list[Pair], random: Random) -> None:
    """Also with a byte changed, put in or taken out."""
    assert rows(pairs) == [as_row(*pair) for pair in pairs]
    for number, (key, value) in enumerate(pairs):
        if value:
            at = random.randrange(len(value))
            pairs[number] = key, value[:at] + random.choice([b"", b"\0", b"\x7f", b"ab"]) + value[at + 1 :]
    assert rows(pairs) == [as_row(*pair) for pair in pairs]


@given(st.lists(damaged() | st.sampled_from([(commit_key(), COMMIT_V3), (commit_key(), WITH_TOPIC_ID)]), max_size=6))
def test_damaged_records(pairs: list[Pair]) -> None:
    """Whatever bytes are changed, put in or taken out."""
    assert rows(pairs) == [as_row(*pair) for pair in pairs]


@st.composite
def commits(draw: st.DrawFn) -> Pair:
    """A commit of any text and numbers, some of whose bytes may be no UTF-8."""
    words = st.text(max_size=200).map(str.encode) | st.binary(max_size=4)
    group, topic, metadata = (draw(words) for _ in range(3))
    numbers = struct.pack(">qi", draw(st.integers(-(2**63), 2**63 - 1)), draw(st.integers(-(2**31), 2**31 - 1)))
    key = commit_key(_sized(group), _sized(topic), draw(st.integers(-(2**31), 2**31 - 1)))
    time = struct.pack(">q", draw(st.integers(-(2**63), 2**63 - 1)))
    newer = b"\0\4" + numbers + bytes([(len(metadata) + 1) % 256]) + metadata + time
    tags = draw(st.sampled_from([b"\0", WITH_TOPIC_ID[-19:], b"\1\7\2ab"]))
    return key, draw(st.sampled_from([b"\0\3" + numbers + _sized(metadata) + time, newer + tags, None]))


@given(st.lists(commits(), max_size=6))
def test_commits_of_any_content(pairs: list[Pair]) -> None:
    """Any text, any number, in each layout."""
    assert rows(pairs) == [as_row(*pair) for pair in pairs]
