"""A list of groups that is too large loses the groups with very long ids, and nothing else."""

from __future__ import annotations

import struct
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaProtocolError
from kafka.protocol.admin import ListGroupsResponse

from group_hygiene.kafka import library
from group_hygiene.kafka.answers import listed
from group_hygiene.kafka.bounds import Rows
from group_hygiene.kafka.library import LargeList, RawListGroupsRequest
from group_hygiene.model.groups import ID_MAX, Fault
from tests.unit.test_answers import ROWS, ListedGroup

# Without tagged fields.
_HEADER = bytes(4) + b"\0"
_LONG = st.integers(1, 3).map(lambda count: "é" * (ID_MAX + count))


def _frame(rows: list[Any], version: int) -> bytes:
    response = ListGroupsResponse(throttle_time_ms=1, error_code=0, groups=rows)
    return _HEADER + bytes(response.encode(version=version))


def _received(frame: bytes, version: int, size: int) -> LargeList:
    """The frame, received so many bytes at a time."""
    large = LargeList(len(frame), version)
    for start in range(0, len(frame), size):
        large.write(frame[start : start + size])
    return large


@given(ROWS, st.lists(st.tuples(st.integers(0, 20), _LONG), max_size=5), st.sampled_from([3, 4, 5]), st.integers(1, 99))
def test_only_very_long_ids_are_left_out(rows: list[Any], long: list[tuple[int, str]], version: int, size: int) -> None:
    """Whatever the rows beside them, and in which pieces the answer arrives."""
    mixed = list(rows)
    for at, name in long:
        mixed.insert(at, ListedGroup(group_id=name, protocol_type="", group_state="Empty", group_type="Classic"))
    large = _received(_frame(mixed, version), version, size)
    answer = large.answer()
    assert answer == _frame(rows, version)
    assert large.left_out == len(long)
    groups = listed(answer[len(_HEADER) :], version, 1, Rows())
    assert not isinstance(groups, Fault)
    assert groups.keys() == {row.group_id for row in rows}


def test_what_is_held_stays_small() -> None:
    """600 ids of 32 KB are 19 MB; less than a MB is held while they arrive, as the rest was read and dropped."""
    name = "x" * 32_700
    rows = [ListedGroup(group_id=name, protocol_type="", group_state="Empty", group_type="Classic")] * 600
    frame = _frame([*rows, ListedGroup(group_id="short", protocol_type="")], 5)
    large, most, dropped = LargeList(len(frame), 5), 0, 0
    for start in range(0, len(frame), 1 << 16):
        dropped += large.write(frame[start : start + (1 << 16)])
        most = max(most, large.held)
    assert most < 1_000_000
    assert dropped > 19_000_000
    groups = listed(large.answer()[len(_HEADER) :], 5, 1, Rows())
    assert not isinstance(groups, Fault)
    assert list(groups) == ["short"]


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(_HEADER + bytes(6) + b"\0", id="no-list"),
        pytest.param(_HEADER + bytes(6) + b"\3\2a\1\1\1\0", id="ends-before-the-last-group"),
        pytest.param(_HEADER + bytes(6) + b"\2\3\xff\xff\1\1\1\0\0", id="an-id-that-is-no-text"),
        pytest.param(_HEADER + bytes(6) + b"\2\0\1\1\1\0\0", id="an-id-that-is-null"),
        pytest.param(bytes(4) + b"\xff" * 9, id="tagged-fields-without-an-end"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_another_layout_is_an_error(frame: bytes) -> None:
    """It never becomes a shorter list."""
    with pytest.raises(KafkaProtocolError):
        _received(frame, 5, 3).answer()


def _body(rows: list[Any], throttled: int = 0) -> bytes:
    return bytes(ListGroupsResponse(throttle_time_ms=throttled, error_code=0, groups=rows).encode(version=5))


@pytest.mark.parametrize("size", [1, 3, 4, 7, 1_000, 1 << 20])
def test_a_connection_reads_it_among_other_answers(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of any size: each request gets its own answer, and only a list that is too large loses ids."""
    monkeypatch.setattr(library, "LIST_BYTES", 2_000)
    monkeypatch.setattr(library, "_ROWS_AT_ONCE", 1_500)
    short, other, long = (
        ListedGroup(group_id=name, protocol_type="", group_state="Empty", group_type="Classic")
        for name in ("a", "b", "x" * (ID_MAX + 1))
    )
    sent = [[short, other], [short, other, long], [short, long, long, other], [other]]
    manager: Any = SimpleNamespace(
        config={"client_id": "a"}, weigh=lambda _: None, give_back=lambda _: None, decoding=nullcontext
    )
    parser, stream = library._Parser(manager), b""
    for number, rows in enumerate(sent):
        request = RawListGroupsRequest()
        request.API_VERSION = 5
        frame = struct.pack(">i", parser.send_request(request)) + b"\0" + _body(rows, number)
        stream += struct.pack(">i", len(frame)) + frame
    pieces = (stream[start : start + size] for start in range(0, len(stream), size))
    answers = [answer for piece in pieces for _, answer in parser.receive_bytes(piece)]
    assert [(answer.throttle_time_ms, answer.left_out) for answer in answers] == [(0, 0), (1, 0), (2, 2), (3, 0)]
    read = [[short, other], [short, other, long], [short, other], [other]]
    assert [answer.body for answer in answers] == [_body(rows, number) for number, rows in enumerate(read)]
