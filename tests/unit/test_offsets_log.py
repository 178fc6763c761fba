"""Bytes of `__consumer_offsets`: what each record says, and that nothing but BrokenRecord comes of any other bytes."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_hygiene.kafka.offsets_log import RECORD_TYPES, BrokenRecord, Commit, MemberClient, StateRecord, decode
from tests.log_records import COMMIT_V3, SAMPLES, Sample, commit_key, damaged, text

ANY = [pytest.param(sample, id=sample.name) for sample in SAMPLES]
# Beginnings of a value that are whole records of early-access versions.
SHORTER_LAYOUTS = {("consumer-member-of-the-classic-protocol", 36), ("share-epoch", 7), ("share-state", 68)}


def outcome(key: bytes | None, value: bytes | None) -> Commit | StateRecord | None:
    try:
        return decode(key, value)
    except BrokenRecord:
        return None


@pytest.mark.parametrize("sample", ANY)
def test_every_version_says_what_it_says(sample: Sample) -> None:
    """A record of each type, in each version of its value, and its tombstone."""
    assert decode(*sample.pair) == sample.record


def test_there_is_a_sample_of_each_kind() -> None:
    """Nothing that can be decoded goes untested."""
    kinds = {sample.record.kind for sample in SAMPLES if isinstance(sample.record, StateRecord)}
    assert kinds == set(RECORD_TYPES)


@pytest.mark.parametrize("sample", ANY)
def test_no_part_of_a_record_is_a_record(sample: Sample) -> None:
    """Every shorter key or value is broken, and so is one with a byte too many."""
    key, value = sample.pair
    broken = [(key[:size], value) for size in range(len(key))] + [(key + b"\0", value)]
    if value is not None:
        broken += [(key, value[:size]) for size in range(len(value))] + [(key, value + b"\0")]
    for pair in broken:
        # Early access wrote less, under the same version, and of that the record says the same.
        assert outcome(*pair) == (sample.record if (sample.name, len(pair[1] or b"")) in SHORTER_LAYOUTS else None)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        pytest.param(None, COMMIT_V3, "without a key", id="no-key"),
        pytest.param(None, None, "without a key", id="nothing"),
        pytest.param(b"", None, "do not fit", id="empty-key"),
        pytest.param(commit_key(), b"", "do not fit", id="empty-value"),
        pytest.param(b"\0\0\0\1", b"\0\0\0\0\0\0", "do not fit", id="a-transaction-marker"),
        pytest.param(b"\0\x18" + text("g"), None, "type 24", id="key-of-a-newer-kafka"),
        pytest.param(b"\0\x12" + text("g"), None, "type 18", id="key-that-no-release-wrote"),
        pytest.param(b"\xff\xff" + text("g"), None, "type -1", id="negative-type"),
        pytest.param(commit_key(), b"\0\5" + COMMIT_V3[2:], "version 5", id="commit-of-a-newer-kafka"),
        pytest.param(commit_key(), b"\xff\xff" + COMMIT_V3[2:], "version -1", id="negative-version"),
        pytest.param(b"\0\2" + text("g"), b"\0\5" + bytes(40), "version 5", id="classic-group-of-a-newer-kafka"),
        pytest.param(b"\0\3" + text("g"), b"\0\1" + bytes(5), "version 1", id="epoch-of-a-newer-kafka"),
        pytest.param(commit_key(b"\xff\xff"), COMMIT_V3, "negative", id="null-group"),
        pytest.param(commit_key(topic=b"\xff\xff"), COMMIT_V3, "too short", id="null-topic"),
        pytest.param(commit_key(b"\x7f\xffg"), COMMIT_V3, "do not fit", id="group-longer-than-its-key"),
        pytest.param(commit_key(b"\0\1\xff"), COMMIT_V3, "utf-8", id="group-that-is-no-text"),
        pytest.param(commit_key(b"\0\3\xed\xa0\x80"), COMMIT_V3, "utf-8", id="group-with-half-a-character"),
        pytest.param(commit_key(), COMMIT_V3.replace(b"m", b"\xff"), "utf-8", id="metadata-that-is-no-text"),
        pytest.param(commit_key(), COMMIT_V3.replace(b"\0\1m", b"\xff\xff"), "too", id="null-metadata"),
        pytest.param(
            *(b"\0\2" + text("g"), b"\0\0" + text("c") + bytes(4) + b"\xff\xff\xff\xff\x7f\xff\xff\xff", "array"),
            id="two-thousand-million-members",
        ),
        pytest.param(
            *(b"\0\3" + text("g"), b"\0\0\0\0\0\1\xff\xff\xff\xff\xff\xff", "five bytes"), id="tags-without-number"
        ),
    ],
)
def test_what_is_no_record_is_broken(key: bytes | None, value: bytes | None, why: str) -> None:
    """Unknown versions and bytes that fit no layout are refused, with the reason."""
    with pytest.raises(BrokenRecord, match=why):
        decode(key, value)


def test_fields_of_a_newer_version_are_passed_over() -> None:
    """KIP-915: a newer Kafka adds tagged fields to a version that we know."""
    key, value = next(sample.pair for sample in SAMPLES if sample.name == "commit-v4")
    assert value is not None
    assert value.endswith(b"\0")
    assert decode(key, value[:-1] + b"\1\x63\3new") == decode(key, value)
    with pytest.raises(BrokenRecord):
        decode(key, value[:-1] + b"\1\x63\4new")


@given(st.none() | st.binary(max_size=60), st.none() | st.binary(max_size=90))
def test_random_bytes_raise_nothing_else(key: bytes | None, value: bytes | None) -> None:
    """Whatever is in the log."""
    outcome(key, value)


@given(st.integers(0, 24), st.sampled_from([b"\0\1g", b"\0\1g\0\1m"]), st.integers(0, 5), st.binary(max_size=120))
def test_random_values_raise_nothing_else(number: int, names: bytes, version: int, value: bytes) -> None:
    """Whatever stands behind a key that is whole."""
    outcome(struct.pack(">h", number) + names, struct.pack(">h", version) + value)


@given(damaged())
def test_damaged_records_raise_nothing_else(pair: tuple[bytes | None, bytes | None]) -> None:
    """Records with some bytes changed, put in or taken out."""
    outcome(*pair)


@given(
    group=st.text(max_size=300),
    topic=st.text(max_size=40),
    partition=st.integers(-(2**31), 2**31 - 1),
    offset=st.integers(-(2**63), 2**63 - 1),
    metadata=st.text(max_size=300),
    version=st.integers(0, 3),
)
def test_what_is_written_is_read(
    group: str, topic: str, partition: int, offset: int, metadata: str, version: int
) -> None:
    """Any text, any number: against an encoder that shares nothing with the decoder."""
    key = commit_key(text(group), text(topic), partition)
    epoch = struct.pack(">i", 7) if version == 3 else b""
    expiry = struct.pack(">q", 9) if version == 1 else b""
    value = struct.pack(">hq", version, offset) + epoch + text(metadata) + struct.pack(">q", 8) + expiry
    expected = Commit(
        *(group, topic, partition, offset, 7 if epoch else -1, metadata, 8),
        expire_ms=9 if expiry else None,
    )
    assert decode(key, value) == expected


@given(
    members=st.lists(
        st.tuples(st.text(max_size=260), st.text(max_size=260), st.none() | st.text(max_size=9)), max_size=9
    ),
    version=st.integers(0, 3),
)
def test_the_first_clients_of_a_classic_group_are_read(
    members: list[tuple[str, str, str | None]], version: int
) -> None:
    """Any number of members with any texts, within bounds: against an encoder that shares nothing with the decoder."""
    written = b"".join(
        text("m") + (_or_null(instance) if version == 3 else b"") + text(client) + text(host)
        # Timeouts, subscription and assignment.
        + bytes(4 * (1 + (version >= 1))) + struct.pack(">i", 2) + b"su" + bytes(4)
        for client, host, instance in members
    )  # fmt: skip
    since = struct.pack(">q", 8) if version >= 2 else b""
    head = struct.pack(">h", version) + text("consumer") + struct.pack(">i", 7) + _or_null(None) * 2 + since
    found = decode(b"\0\2" + text("g"), head + struct.pack(">i", len(members)) + written)
    assert isinstance(found, StateRecord)
    assert found.members == len(members)
    assert found.clients == tuple(
        MemberClient(short(client), short(host).removeprefix("/"), instance if version == 3 else None)
        for client, host, instance in members[:5]
    )


@given(
    kind=st.sampled_from(["consumer", "share", "streams"]),
    client=st.text(max_size=260),
    host=st.text(max_size=40),
    instance=st.none() | st.text(max_size=260),
    rack=st.none() | st.text(max_size=9),
)
def test_the_client_of_a_member_is_read(
    kind: str, client: str, host: str, instance: str | None, rack: str | None
) -> None:
    """Of each type of group that has a record per member. A share group has no static members."""
    number = {"consumer": 5, "share": 10, "streams": 19}[kind]
    rest = {"consumer": b"\1\0" + bytes(4) + b"\0", "share": b"\1", "streams": bytes(8) + b"\1\xff\1"}[kind]
    start = b"" if kind == "share" else compact(instance)
    value = b"\0\0" + start + compact(rack) + compact(client) + compact(host) + rest + b"\0"
    found = decode(struct.pack(">h", number) + text("g") + text("m"), value)
    assert isinstance(found, StateRecord)
    known = None if kind == "share" or instance is None else short(instance)
    assert found.clients == (MemberClient(short(client), short(host).removeprefix("/"), known, rack),)


def short(value: str) -> str:
    """At most 100 bytes of whole characters."""
    while len(value.encode()) > 100:
        value = value[:-1]
    return value


def _or_null(value: str | None) -> bytes:
    return b"\xff\xff" if value is None else text(value)


def compact(value: str | None) -> bytes:
    """A text of KIP-482: its length + 1 in seven bits a byte."""
    if value is None:
        return b"\0"
    data, size = value.encode(), b""
    left = len(data) + 1
    while left >= 0x80:
        size, left = size + bytes([left & 0x7F | 0x80]), left >> 7
    return size + bytes([left]) + data


def test_it_drags_nothing_along() -> None:
    """Spark's workers import it, again and again: no client library, and no other room of this package."""
    program = "import sys, group_hygiene.kafka.offsets_log; print(*sorted(sys.modules))"
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in listed if name.startswith("group_hygiene")}
    assert ours == {
        *("group_hygiene", "group_hygiene.errors", "group_hygiene.kafka"),
        *("group_hygiene.kafka.encoding", "group_hygiene.kafka.offsets_log"),
    }
    assert not {"kafka", "pyspark", "pyarrow", "deltalake"} & set(listed)
