"""A batch of the log, decoded as a whole: each row must say what `decode` says of its record alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_hygiene.kafka.offsets_log import BrokenRecord, Commit, decode
from group_hygiene.kafka.record_columns import Slices
from group_hygiene.pipeline.ingest.columns import read_commits
from group_hygiene.pipeline.ingest.decoder import decode_all
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
    """The row of each record, in their order."""
    found = [
        pair for some, batch in decode_all(keys, values, hosts) for pair in zip(some, batch.to_pylist(), strict=True)
    ]
    assert sorted(number for number, _ in found) == list(range(len(keys.starts)))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


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
        for client in (row["state"] or {}).get("clients") or ():
            client["host"] = None
        if row["aside"] is not None:
            row["aside"]["value"] = None
    assert with_hosts == without


@pytest.mark.parametrize("few", [[], [(commit_key(), None)], [(b"\0\2" + text("g"), None)]])
def test_batches_of_few(few: list[Pair]) -> None:
    """An answer may hold no record, or only such in which nothing is a live commit, or nothing a commit at all."""
    assert rows(few) == [as_row(*pair) for pair in few]


@pytest.mark.parametrize("value", [COMMIT_V3, COMMIT_V4 + b"\0", WITH_TOPIC_ID, None])
def test_what_brokers_write_today_is_read_all_at_once(value: bytes | None) -> None:
    """None of it goes through the decoder of single records, which is ten times slower."""
    assert read_commits(Slices.of([commit_key()] * 3), Slices.of([value, COMMIT_V3, value])).taken.all()


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
def test_what_only_looks_like_a_commit(key: bytes, value: bytes) -> None:
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
    assert [row["group"] for row in found] == [None, "g"]


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


def _sized(data: bytes) -> bytes:
    return struct.pack(">h", len(data)) + data


@given(st.lists(commits(), max_size=6))
def test_commits_of_any_content(pairs: list[Pair]) -> None:
    """Any text, any number, in each layout."""
    assert rows(pairs) == [as_row(*pair) for pair in pairs]
