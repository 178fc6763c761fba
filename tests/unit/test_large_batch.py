"""A batch that is too large to be held: all of its keys are read, and no value of it becomes a tombstone."""

from __future__ import annotations

import struct
from unittest import mock

import pytest

from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.offsets_log import BrokenRecord, decode
from group_hygiene.kafka.offsets_topic import Found, LateCommits, Tail
from group_hygiene.kafka.partition import SKIPPED, Fetched, LargeBatchRow, Record, read_rows
from group_hygiene.model.groups import Fault
from group_hygiene.process.memory import TooMuch
from tests.packing import Pairs, body_of

_LARGE, _KiB = bytes(100_000), 1 << 10


def read(body: bytes, count: int, most: int = 1 << 20, size: int = 7, seconds: float = 60) -> list[LargeBatchRow]:
    """In parts of so many bytes."""
    parts = iter([body[at : at + size] for at in range(0, len(body), size)])
    return list(read_rows(parts, count, most, Deadline(seconds)))


@pytest.mark.parametrize("size", [1, 7, 64 * _KiB])
def test_a_large_value_is_no_tombstone(size: int) -> None:
    """All other fields are read, wherever a part ends."""
    pairs: Pairs = [(b"a", b"1"), (b"b", _LARGE), (b"c", None), (None, b"2"), (b"", b""), (b"e", b"3")]
    rows = read(body_of(pairs), 6, size=size)
    assert [row.key for row in rows] == [b"a", b"b", b"c", None, b"", b"e"]
    assert [row.value for row in rows] == [b"1", SKIPPED, None, b"2", b"", b"3"]
    assert [(row.later_ms, row.delta) for row in rows] == [(number, number) for number in range(6)]


def test_values_have_a_limit_together() -> None:
    """Small values behind it are skipped, too; keys have a limit of their own."""
    rows = read(body_of([(b"key", bytes(400))] * 5), 5, most=1_000)
    assert [len(row.value or b"") for row in rows] == [400, 400, 0, 0, 0]
    assert all(row.value is not None for row in rows)


@pytest.mark.parametrize(
    ("key", "most"),
    [pytest.param(bytes(200 * _KiB), 1 << 20, id="one-key"), pytest.param(bytes(300), 1_000, id="all-keys")],
)
def test_keys_that_are_too_large(key: bytes, most: int) -> None:
    """Their groups are not known."""
    with pytest.raises(TooMuch, match="too large"):
        read(body_of([(key, b"")] * 4), 4, most=most)


@pytest.mark.parametrize("cut", [1, 10, 300, 100_000])
def test_records_that_end_early(cut: int) -> None:
    """Also within a value that is skipped, or a header."""
    body = body_of([(b"a", b"1"), (b"b", _LARGE)])
    with pytest.raises(ValueError, match="end early"):
        read(body[:-cut], 2)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_records(count: int) -> None:
    """More or fewer than the header of the batch says."""
    with pytest.raises(ValueError, match=r"bytes behind|end early"):
        read(body_of([(b"a", b"1"), (b"b", b"2")]), count)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(b"\x00", id="a-record-of-nothing"),
        pytest.param(b"\x0a\x00\x00\x00\x7e", id="a-long-key"),
        pytest.param(b"\x0a\x00\x00\x00\x01\x7e", id="a-long-value"),
        pytest.param(b"\x02\x00\x00\x00\x01\x01\x00", id="a-short-record"),
        pytest.param(b"\xff" * 11, id="a-long-number"),
    ],
)
def test_lengths_that_do_not_fit(fields: bytes) -> None:
    with pytest.raises(ValueError, match=r"longer|number|[Oo]ut of|early|int64|[Vv]arint"):
        read(fields + bytes(100), 1)


def test_time_is_bounded() -> None:
    """A batch of any size ends at the deadline."""
    with pytest.raises(TooMuch, match="too long"):
        read(body_of([(b"a", _LARGE)]), 1, seconds=0)


@pytest.mark.parametrize("number", range(24))
def test_the_content_of_a_skipped_value_is_not_guessed(number: int) -> None:
    """Records of no type have an empty value: such a record counts for its group, and nothing is read from it."""
    texts = {0: "gt", 1: "gt"}.get(number, "gm" if number in (5, 7, 8, 10, 13, 14, 16, 19, 21, 22) else "g")
    key = struct.pack(">h", number) + b"".join(struct.pack(">h", 1) + text.encode() for text in texts)
    key += struct.pack(">i", 0) if number < 2 else b""
    with pytest.raises(BrokenRecord, match=r"layout|not known"):
        decode(key, SKIPPED)
    if number != 18:
        assert decode(key, None).gone


_COMMIT = struct.pack(">hh1sh1si", 1, 1, b"g", 1, b"t", 0)
_STATE = struct.pack(">hh1s", 2, 1, b"g")


@pytest.mark.parametrize("key", [pytest.param(_COMMIT, id="commit"), pytest.param(_STATE, id="members")])
def test_a_skipped_value_counts_for_its_group_alone(key: bytes) -> None:
    """As a use, also where only commits for some topics matter; and no deletion relies on a backup without it."""
    record = Record(0, key, SKIPPED, 3, 1_000)
    answer = Fetched([record], 1, 1, 1, [], [], 0, None)
    tail = Tail(mock.Mock(), {0: (1, 3)}, {})
    late = LateCommits(mock.Mock(), {0: (1, 3)}, {"g": {}, "other": {}})
    others = LateCommits(mock.Mock(), {0: (1, 3)}, {"other": {}})
    with mock.patch("group_hygiene.kafka.offsets_topic.fetch_all", return_value={0: answer}):
        tail.read_on(lambda group: True, Deadline(60), lambda record: False)
        assert isinstance(late.read_on(Deadline(60)), Fault)
        assert others.read_on(Deadline(60)) is None
    assert tail.answer("g", {}) == Found(0, 0, 1_000, None)
    assert tail.answer("other", {}) is None
    assert (late.first("g"), late.shows("g", [])) == (None, False)
