"""Records of `__consumer_offsets` of every type and version, each with what it says.

Written by Kafka's own generated classes (group-coordinator 4.3.0, from JSON), so that versions which no broker writes
any more are there too; `written_by` others: layouts of early access, which 4.3.0 does not read any more (those of 3.7.2
by hand, and read by its classes).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from hypothesis import strategies as st

from group_hygiene.kafka.offsets_log import Commit, MemberClient, StateRecord


class Sample(NamedTuple):
    """One record: key and value in hex (value None = a tombstone), and what it says."""

    name: str
    key: str
    value: str | None
    record: Commit | StateRecord
    written_by: str = "4.3.0"

    @property
    def pair(self) -> tuple[bytes, bytes | None]:
        return bytes.fromhex(self.key), None if self.value is None else bytes.fromhex(self.value)


C_1, C = MemberClient("c-1", "10.0.0.1"), MemberClient("c", "10.0.0.1")
_WRITTEN = (
    Sample(
        "commit-v0",
        "0001000a6bc3a473652df09fa78000066f726465727300000003",
        "0000000000000000002a0002c3a90000018bcfe5687b",
        Commit("käse-🧀", "orders", 3, 42, -1, "é", 1700000000123),
    ),
    Sample(
        "commit-v2",
        "0001000a6bc3a473652df09fa78000066f726465727300000003",
        "0002000000000000002a0002c3a90000018bcfe5687b",
        Commit("käse-🧀", "orders", 3, 42, -1, "é", 1700000000123),
    ),
    Sample(
        "commit-v1-expires",
        "0001000a6bc3a473652df09fa78000066f726465727300000003",
        "0001000000000000002a0002c3a90000018bcfe5687b0000018bcfe56880",
        Commit("käse-🧀", "orders", 3, 42, -1, "é", 1700000000123, 1700000000128),
    ),
    Sample(
        "commit-v1-without-expiry",
        "0001000a6bc3a473652df09fa78000066f726465727300000003",
        "0001000000000000002a00000000018bcfe5687bffffffffffffffff",
        Commit("käse-🧀", "orders", 3, 42, -1, "", 1700000000123),
    ),
    Sample(
        "commit-v3",
        "0001000a6bc3a473652df09fa78000066f726465727300000003",
        "0003000000000000002a000000050002c3a90000018bcfe5687b",
        Commit("käse-🧀", "orders", 3, 42, 5, "é", 1700000000123),
    ),
    Sample(
        "commit-v4",
        "0001000a6bc3a473652df09fa78000066f726465727300000003",
        "0004000000000000002a0000000503c3a90000018bcfe5687b00",
        Commit("käse-🧀", "orders", 3, 42, 5, "é", 1700000000123),
    ),
    Sample(
        "commit-v4-plain",
        "0001000a6bc3a473652df09fa78000066f726465727300000003",
        "0004000000000000002affffffff010000018bcfe5687b00",
        Commit("käse-🧀", "orders", 3, 42, -1, "", 1700000000123),
    ),
    Sample(
        "commit-v4-with-topic-id",
        "0001000a6bc3a473652df09fa78000066f726465727300000003",
        "0004000000000000002a0000000503c3a90000018bcfe5687b01001000000000000000000000000000000002",
        Commit("käse-🧀", "orders", 3, 42, 5, "é", 1700000000123),
    ),
    Sample(
        "commit-v4-long-metadata",
        "0001000a6bc3a473652df09fa78000066f726465727300000003",
        (
            "0004000000000000002a00000005c9017878787878787878787878787878787878787878787878787878787878787878"
            "787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
            "787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
            "787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
            "7878787878787878787878787878787878787878787878780000018bcfe5687b00"
        ),
        Commit("käse-🧀", "orders", 3, 42, 5, "x" * 200, 1700000000123),
    ),
    Sample(
        "commit-tombstone",
        "0001000a6bc3a473652df09fa78000066f726465727300000003",
        None,
        Commit("käse-🧀", "orders", 3),
    ),
    Sample(
        "legacy-commit",
        "0000000a6bc3a473652df09fa78000066f726465727300000003",
        "0000000000000000002a0002c3a90000018bcfe5687b",
        Commit("käse-🧀", "orders", 3, 42, -1, "é", 1700000000123, legacy=True),
    ),
    Sample(
        "legacy-commit-tombstone",
        "0000000a6bc3a473652df09fa78000066f726465727300000003",
        None,
        Commit("käse-🧀", "orders", 3, legacy=True),
    ),
    Sample(
        "classic-v0-stable",
        "0002000167",
        (
            "00000008636f6e73756d657200000007000572616e676500036d2d310000000200036d2d310003632d3100092f31302e"
            "302e302e310000afc8000000030001020000000300010300036d2d310003632d3100092f31302e302e302e310000afc8"
            "0000000300010200000003000103"
        ),
        StateRecord("g", "classic", False, "consumer", 7, None, 2, None, clients=(C_1, C_1)),
    ),
    Sample(
        "classic-v1-stable",
        "0002000167",
        (
            "00010008636f6e73756d657200000007000572616e676500036d2d310000000200036d2d310003632d3100092f31302e"
            "302e302e31000493e00000afc8000000030001020000000300010300036d2d310003632d3100092f31302e302e302e31"
            "000493e00000afc80000000300010200000003000103"
        ),
        StateRecord("g", "classic", False, "consumer", 7, None, 2, None, clients=(C_1, C_1)),
    ),
    Sample(
        "classic-v2-stable",
        "0002000167",
        (
            "00020008636f6e73756d657200000007000572616e676500036d2d310000018bcfe5687b0000000200036d2d31000363"
            "2d3100092f31302e302e302e31000493e00000afc8000000030001020000000300010300036d2d310003632d3100092f"
            "31302e302e302e31000493e00000afc80000000300010200000003000103"
        ),
        StateRecord("g", "classic", False, "consumer", 7, None, 2, 1700000000123, clients=(C_1, C_1)),
    ),
    Sample(
        "classic-v3-stable",
        "0002000167",
        (
            "00030008636f6e73756d657200000007000572616e676500036d2d310000018bcfe5687b0000000200036d2d31ffff00"
            "03632d3100092f31302e302e302e31000493e00000afc8000000030001020000000300010300036d2d320003692d3200"
            "03632d3100092f31302e302e302e31000493e00000afc80000000300010200000003000103"
        ),
        StateRecord(
            "g", "classic", False, "consumer", 7, None, 2, 1700000000123, clients=(C_1, C_1._replace(instance_id="i-2"))
        ),
    ),
    Sample(
        "classic-v4-stable",
        "0002000167",
        (
            "000409636f6e73756d6572000000070672616e6765046d2d310000018bcfe5687b03046d2d310004632d310a2f31302e"
            "302e302e31000493e00000afc8040001020400010300046d2d3204692d3204632d310a2f31302e302e302e31000493e0"
            "0000afc804000102040001030000"
        ),
        StateRecord(
            "g", "classic", False, "consumer", 7, None, 2, 1700000000123, clients=(C_1, C_1._replace(instance_id="i-2"))
        ),
    ),
    Sample(
        "classic-v2-empty",
        "0002000167",
        "00020008636f6e73756d657200000007ffffffff0000018bcfe5687b00000000",
        StateRecord("g", "classic", False, "consumer", 7, None, 0, 1700000000123),
    ),
    Sample(
        "classic-v4-empty",
        "0002000167",
        "000409636f6e73756d65720000000700000000018bcfe5687b0100",
        StateRecord("g", "classic", False, "consumer", 7, None, 0, 1700000000123),
    ),
    Sample(
        "classic-v4-connect",
        "0002000167",
        (
            "000408636f6e6e656374000000070672616e6765046d2d31ffffffffffffffff02046d2d310004632d310a2f31302e30"
            "2e302e31000493e00000afc804000102040001030000"
        ),
        StateRecord("g", "classic", False, "connect", 7, None, 1, None, clients=(C_1,)),
    ),
    Sample(
        "consumer-epoch",
        "0003000167",
        "00000000000900",
        StateRecord("g", "consumer-epoch", False, generation=9),
    ),
    Sample(
        "consumer-epoch-with-hash",
        "0003000167",
        "000000000009010008000000000000004d",
        StateRecord("g", "consumer-epoch", False, generation=9),
    ),
    Sample(
        "consumer-topics",
        "0004000167",
        ("00000200000000000000000000000000000002076f72646572730000000203000000000302610262000000000101000000"),
        StateRecord("g", "consumer-topics", False),
    ),
    Sample(
        "consumer-member",
        "000500016700036d2d31",
        "000000026102630a2f31302e302e302e3102076f726465727300000003e80000",
        StateRecord("g", "consumer-member", False, member_id="m-1", clients=(C._replace(rack_id="a"),)),
    ),
    Sample(
        "consumer-member-of-the-classic-protocol",
        "000500016700036d2d31",
        (
            "000000026102630a2f31302e302e302e3102076f726465727304612e2a000003e8000100120100000001020672616e67"
            "65040001020000"
        ),
        StateRecord("g", "consumer-member", False, member_id="m-1", clients=(C._replace(rack_id="a"),)),
    ),
    Sample(
        "consumer-target-epoch",
        "0006000167",
        "00000000000900",
        StateRecord("g", "consumer-target-epoch", False, generation=9),
    ),
    Sample(
        "consumer-target-epoch-with-time",
        "0006000167",
        "0000000000090100080000018bcfe5687b",
        StateRecord("g", "consumer-target-epoch", False, generation=9),
    ),
    Sample(
        "consumer-target-member",
        "000700016700036d2d31",
        "00000200000000000000000000000000000002040000000000000001000000020000",
        StateRecord("g", "consumer-target-member", False, member_id="m-1"),
    ),
    Sample(
        "consumer-assignment",
        "000800016700036d2d31",
        (
            "000000000009000000080102000000000000000000000000000000020400000000000000010000000201000d04000000"
            "0100000002000000030200000000000000000000000000000002040000000000000001000000020000"
        ),
        StateRecord("g", "consumer-assignment", False, generation=9, member_id="m-1"),
    ),
    Sample(
        "consumer-regex",
        "00100001670003612e2a",
        "000002076f726465727300000000000000010000018bcfe5687b00",
        StateRecord("g", "consumer-regex", False),
    ),
    Sample(
        "share-member",
        "000a00016700036d2d31",
        "00000002630a2f31302e302e302e3102076f726465727300",
        StateRecord("g", "share-member", False, member_id="m-1", clients=(C,)),
    ),
    Sample(
        "share-epoch",
        "000b000167",
        "000000000009000000000000004d00",
        StateRecord("g", "share-epoch", False, generation=9),
    ),
    Sample(
        "share-target-epoch",
        "000c000167",
        "00000000000900",
        StateRecord("g", "share-target-epoch", False, generation=9),
    ),
    Sample(
        "share-target-member",
        "000d00016700036d2d31",
        "00000200000000000000000000000000000002040000000000000001000000020000",
        StateRecord("g", "share-target-member", False, member_id="m-1"),
    ),
    Sample(
        "share-assignment",
        "000e00016700036d2d31",
        "00000000000900000008000200000000000000000000000000000002040000000000000001000000020000",
        StateRecord("g", "share-assignment", False, generation=9, member_id="m-1"),
    ),
    Sample(
        "share-state",
        "000f000167",
        (
            "00000200000000000000000000000000000002076f726465727303000000000000000100020000000000000000000000"
            "0000000002076f7264657273030000000000000001000200000000000000000000000000000002046f6c640000"
        ),
        StateRecord("g", "share-state", False),
    ),
    Sample(
        "streams-epoch",
        "0011000167",
        "000000000009000000000000004d00",
        StateRecord("g", "streams-epoch", False, generation=9),
    ),
    Sample(
        "streams-epoch-validated",
        "0011000167",
        "000000000009000000000000004d020004000000020119020f636c65616e75702e706f6c69637908636f6d7061637400",
        StateRecord("g", "streams-epoch", False, generation=9),
    ),
    Sample(
        "streams-member",
        "001300016700036d2d31",
        "0000000002630a2f31302e302e302e31000003e8000000010270ff0100",
        StateRecord("g", "streams-member", False, member_id="m-1", clients=(C,)),
    ),
    Sample(
        "streams-member-with-endpoint",
        "001300016700036d2d31",
        "0000000002630a2f31302e302e302e31000003e8000000010270010268ffff0002026b02760000",
        StateRecord("g", "streams-member", False, member_id="m-1", clients=(C,)),
    ),
    Sample(
        "streams-target-epoch",
        "0014000167",
        "00000000000900",
        StateRecord("g", "streams-target-epoch", False, generation=9),
    ),
    Sample(
        "streams-target-member",
        "001500016700036d2d31",
        "000002023003000000000000000100010202300300000000000000010000",
        StateRecord("g", "streams-target-member", False, member_id="m-1"),
    ),
    Sample(
        "streams-assignment",
        "001600016700036d2d31",
        ("0000000000090000000801020230030000000000000001010009030000000300000003010102023003000000000000000100010100"),
        StateRecord("g", "streams-assignment", False, generation=9, member_id="m-1"),
    ),
    Sample(
        "streams-topology",
        "0017000167",
        (
            "00000000000102023002076f72646572730204612e2a02106170702d782d6368616e67656c6f67000000020001020f63"
            "6c65616e75702e706f6c69637908636f6d70616374000002027202106170702d782d6368616e67656c6f670000000200"
            "01020f636c65616e75702e706f6c69637908636f6d7061637400000202000001020000000000"
        ),
        StateRecord("g", "streams-topology", False),
    ),
    Sample(
        "consumer-topics-3.7",
        "0004000167",
        ("0000000000090200000000000000000000000000000002076f72646572730000000203000000000302610262000000000101000000"),
        StateRecord("g", "consumer-topics", False),
        written_by="3.7.2",
    ),
    Sample(
        "consumer-member-3.7",
        "000500016700036d2d31",
        "000000026102630a2f31302e302e302e3102076f726465727300000003e80002026100000001000001040001020000",
        StateRecord("g", "consumer-member", False, member_id="m-1", clients=(C._replace(rack_id="a"),)),
        written_by="3.7.2",
    ),
    Sample(
        "consumer-target-member-3.7",
        "000700016700036d2d31",
        "0000000200000000000000000000000000000002040000000000000001000000020000010400010200",
        StateRecord("g", "consumer-target-member", False, member_id="m-1"),
        written_by="3.7.2",
    ),
    Sample(
        "consumer-assignment-3.7",
        "000800016700036d2d31",
        (
            "000000000009000000080000000902000000000000000000000000000000020400000000000000010000000200010200"
            "00000000000000000000000000000204000000000000000100000002000000010400010200"
        ),
        StateRecord("g", "consumer-assignment", False, generation=9, member_id="m-1"),
        written_by="3.7.2",
    ),
    Sample(
        "share-epoch-4.0",
        "000b000167",
        "00000000000900",
        StateRecord("g", "share-epoch", False, generation=9),
        written_by="4.0.0",
    ),
    Sample(
        "share-topics-4.0",
        "0009000167",
        ("00000200000000000000000000000000000002076f72646572730000000203000000000302610262000000000101000000"),
        StateRecord("g", "share-topics", False),
        written_by="4.0.0",
    ),
    Sample(
        "share-topics-3.9",
        "0009000167",
        (
            "00000200000000000000000000000000000002076f726465727303000000000000000100020000000000000000000000"
            "0000000002046f6c640000"
        ),
        StateRecord("g", "share-topics", False),
        written_by="3.9.1",
    ),
    Sample(
        "share-state-4.0",
        "000f000167",
        (
            "00000200000000000000000000000000000002076f726465727303000000000000000100020000000000000000000000"
            "0000000002046f6c640000"
        ),
        StateRecord("g", "share-state", False),
        written_by="4.0.0",
    ),
)

_STATES = {each.key: each.record for each in _WRITTEN if each.written_by == "4.3.0"}
_TOMBSTONES = (
    Sample(f"{state.kind}-tombstone", key, None, StateRecord(state.group, state.kind, True, member_id=state.member_id))
    for key, state in _STATES.items()
    if isinstance(state, StateRecord)
)
SAMPLES = (*_WRITTEN, *_TOMBSTONES)

COMMIT_V3 = struct.pack(">hqih", 3, 42, 5, 1) + b"m" + struct.pack(">q", 1_700_000_000_000)


def text(words: str) -> bytes:
    return struct.pack(">h", len(words.encode())) + words.encode()


def commit_key(group: bytes = text("g"), topic: bytes = text("t"), partition: int = 0) -> bytes:
    return b"\0\1" + group + topic + struct.pack(">i", partition)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes | None, bytes | None]:
    """A record with some bytes changed, put in or taken out."""
    key, value = draw(st.sampled_from(SAMPLES)).pair
    return draw(damage(key)), None if value is None else draw(damage(value))


@st.composite
def damage(draw: st.DrawFn, whole: bytes) -> bytes:
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)
