"""What the ledger holds: its JSON, what entries add up to, and that nothing unreadable is guessed or forgotten."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_hygiene.ledger.contents import (
    Contents,
    Unreadable,
    decode,
    decode_key,
    encode_key,
    encode_value,
    expires,
    group_of,
)
from group_hygiene.model.entries import (
    Backup,
    Delivered,
    Entry,
    Firing,
    Gap,
    HistoryEntry,
    Intent,
    KeepRequest,
    Key,
    LargestCoverage,
    Mark,
    Notice,
    OutcomeType,
    Owner,
    PolicyAlerts,
    Removal,
    SavedOffset,
    ScanClock,
    Seen,
    UsedBy,
    Watch,
    in_parts,
    whole,
)
from group_hygiene.model.evidence import Deletion
from group_hygiene.model.groups import LogPlace, Program
from tests.backups import backup

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
KINDS: tuple[type[Entry], ...] = (
    *(Owner, Watch, ScanClock, Seen, LargestCoverage, Mark, KeepRequest, Intent, Backup, HistoryEntry),
    *(PolicyAlerts, UsedBy),
)

# Text as Kafka has it: any but lone surrogates, which no UTF-8 holds.
# Few of them again and again, so that entries meet under one key.
texts = st.sampled_from("ab") | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
whole_numbers = st.integers(0, 2**62)
times = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
rows = st.builds(
    SavedOffset,
    partition=st.integers(0, 2**31 - 1),
    offset=whole_numbers,
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=texts,
    lag=st.none() | whole_numbers,
)
fields: dict[Any, Any] = {
    "texts": texts,
    "since": times,
    "at": times,
    "complete_at": times,
    "due": times,
    "until": times,
    "deadline": times,
    "expires": times,
    "marked_since": st.none() | times,
    "after": st.none() | times,
    "generation": whole_numbers,
    "part": whole_numbers,
    "parts": whole_numbers,
    **dict.fromkeys(("watched", "seconds"), st.floats(0, 1e12)),
    "gaps": st.lists(st.builds(Gap, st.floats(0, 1e12), st.floats(0, 1e12), times), max_size=3).map(tuple),
    "fingerprint": st.binary(max_size=32),
    "log": st.dictionaries(
        st.integers(0, 2**31 - 1), st.builds(LogPlace, whole_numbers, st.integers(-1, 2**31 - 1)), max_size=4
    ),
    "program": st.sampled_from(Program),
    "what": st.sampled_from(OutcomeType),
    "offsets": st.dictionaries(texts, st.lists(rows, max_size=4), max_size=4),
    "log_ends": st.dictionaries(st.integers(0, 2**31 - 1), whole_numbers, max_size=4),
    "to": st.dictionaries(st.integers(0, 2**31 - 1), whole_numbers, max_size=4),
    "start": whole_numbers,
    "version": whole_numbers,
    "partitions": whole_numbers,
    "waiting": whole_numbers,
    "partial": st.booleans(),
    "replaced": st.booleans(),
    "topic_id": st.none() | texts,
    "topic_ids": st.dictionaries(texts, texts, max_size=4),
    "internal_topics": st.dictionaries(texts, texts, max_size=4),
    "topics": st.lists(texts, max_size=3).map(tuple),
    "firing": st.dictionaries(
        texts,
        st.builds(
            Firing,
            since=times,
            digests=st.binary(max_size=32),
            total=whole_numbers,
            reported=whole_numbers,
            new=whole_numbers,
            groups=st.dictionaries(texts, texts, max_size=3),
            detail=texts,
            first_due=st.none() | times,
        ),
        max_size=3,
    ),
    "delivered": st.dictionaries(
        texts,
        st.builds(
            Delivered,
            digest=texts,
            since=st.dictionaries(texts, times, max_size=3),
            deleted=st.none() | st.builds(Notice, times, whole_numbers, st.dictionaries(texts, texts, max_size=3)),
            unconfirmed=st.booleans(),
        ),
        max_size=3,
    ),
}


def _of(kind: type[Entry]) -> st.SearchStrategy[Entry]:
    names = [name for name in kind.__struct_fields__ if name != "v"]
    known = fields | ({"topics": st.dictionaries(texts, times, max_size=3)} if kind is Mark else {})
    return st.builds(kind, **{name: known.get(name, texts) for name in names})


entries = st.one_of([_of(kind) for kind in KINDS])
keys = st.lists(texts, max_size=4).map(tuple)


def mark(group: str = "g", uid: str = "u", digest: str = "d") -> Mark:
    return Mark(policy_uid=uid, group=group, policy="ns/tidy", digest=digest, since=NOW, due=NOW + DAY)


def outcome(
    what: OutcomeType = OutcomeType.DELETED, at: datetime = NOW, until: datetime = NOW + DAY, **changes: Any
) -> HistoryEntry:
    made = HistoryEntry(
        group="g",
        id="id-1",
        at=at,
        what=what,
        reason="Deleted",
        message="",
        policy="ns/tidy",
        policy_uid="u",
        generation=1,
        expires=until,
    )
    return msgspec.structs.replace(made, **changes)


def intent(id: str = "id") -> Intent:
    return Intent(
        group="g",
        id=id,
        type="Classic",
        policy="ns/tidy",
        policy_uid="u",
        generation=1,
        at=NOW,
        deadline=NOW,
        expires=NOW + DAY,
    )


def take(contents: Contents, entry: Entry) -> None:
    contents.take(encode_key(entry.key), encode_value(entry))


# The codec.


@given(entries)
def test_what_is_encoded_is_decoded(entry: Entry) -> None:
    """Every kind with any values comes back equal, under its own key and as its own type."""
    key = decode_key(encode_key(entry.key))
    assert key == entry.key
    decoded = decode(key, encode_value(entry))
    assert decoded == entry
    assert type(decoded) is type(entry)


def test_a_value_larger_than_any_entry_is_not_decoded() -> None:
    """A ledger that a team names may hold any bytes, which take many times their size as an entry."""
    request = KeepRequest(group="g", until=NOW, why="x" * (4 << 20), by="me", at=NOW)
    with pytest.raises(Unreadable, match="more than any entry"):
        decode(request.key, encode_value(request))


@given(st.none() | st.binary(max_size=100))
def test_any_bytes_are_a_key_or_unreadable(data: bytes | None) -> None:
    """Nothing else is raised, and what is a key is one of texts."""
    try:
        key = decode_key(data)
    except Unreadable:
        return
    assert all(isinstance(part, str) for part in key)


@given(keys, st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_unreadable(key: Key, data: bytes) -> None:
    """Nothing else is raised, and an entry is what its key says."""
    try:
        assert decode(key, data).key == key
    except Unreadable:
        return


@given(entries, st.data())
def test_one_damaged_byte_is_another_entry_or_unreadable(entry: Entry, data: st.DataObject) -> None:
    """Closer to what is right than random bytes are."""
    value = bytearray(encode_value(entry))
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert decode(entry.key, bytes(value)).key == entry.key
    except Unreadable:
        return


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(("mark", "u", "g"), b"", id="empty"),
        pytest.param(("mark", "u", "g"), b"null", id="null"),
        pytest.param(("mark", "u", "g"), encode_value(mark())[:-1], id="cut-off"),
        pytest.param(("mark", "u", "g"), encode_value(mark()).replace(b'"v":1', b'"v":2'), id="version-2"),
        pytest.param(("mark", "u", "g"), encode_value(mark()).replace(b'"v":1', b'"v":"1"'), id="version-text"),
        pytest.param(("mark", "u", "g"), encode_value(mark()).replace(b'"mark"', b'"blessing"'), id="unknown-kind"),
        pytest.param(("mark", "u", "g"), encode_value(mark()).replace(b'"kind":"mark",', b""), id="no-kind"),
        pytest.param(("mark", "u", "g"), encode_value(mark()).replace(b'"digest":"d",', b""), id="field-missing"),
        pytest.param(("mark", "u", "g"), encode_value(mark()).replace(b'"digest":"d"', b'"digest":1'), id="field-type"),
        pytest.param(("mark", "u", "g"), encode_value(mark("other")), id="another-group's"),
        pytest.param(("keep", "g"), encode_value(mark()), id="another-kind's"),
        pytest.param(("mark", "u", "g"), encode_value(mark()).replace(b"Z", b""), id="time-without-a-zone"),
        pytest.param(("mark", "u", "g"), b'{"kind":"mark","x":' + b"[" * 100_000, id="nested-too-deep"),
        pytest.param(("mark", "u", "g"), encode_value(mark("\xff")).replace(b"\xc3", b""), id="no-utf-8"),
    ],
)
def test_what_is_none_of_ours_is_unreadable(key: Key, value: bytes) -> None:
    """Another version, kind, form or place: never guessed."""
    with pytest.raises(Unreadable):
        decode(key, value)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(None, id="none"),
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="no-list"),
        pytest.param(b"[1]", id="no-texts"),
        pytest.param(b'["mark"', id="cut-off"),
        pytest.param(b'["\xff"]', id="no-utf-8"),
        pytest.param(b'["\\ud800"]', id="half-a-character"),
        pytest.param(b"[" * 100_000, id="nested-too-deep"),
    ],
)
def test_a_key_that_is_none_of_ours_is_unreadable(key: bytes | None) -> None:
    """Whatever is wrong with it."""
    with pytest.raises(Unreadable):
        decode_key(key)


def alerts(deleted: Notice | None = None) -> PolicyAlerts:
    firing = {"GroupsMarked": Firing(NOW, b"", total=1, reported=1, new=1, groups={"g": ""}, first_due=NOW)}
    delivered = {"r": Delivered("d", {"GroupsMatched": NOW}, deleted)}
    ids: Any = {"connection_uid": "c", "policy_uid": "u", "policy": "ns/tidy"}
    return PolicyAlerts(**ids, firing=firing, delivered=delivered, expires=NOW)


@pytest.mark.parametrize("year", [1, 1969, 2300, 9999])
@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=14)), timezone(-timedelta(hours=14))])
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(alerts(), id="alerts"),
        pytest.param(alerts(Notice(NOW, 1, {"g": ""})), id="alerts-with-deletions"),
        pytest.param(mark(), id="mark"),
        pytest.param(msgspec.structs.replace(mark(), topics={"t": NOW}), id="mark-of-a-topic"),
        pytest.param(outcome(), id="outcome"),
        pytest.param(intent(), id="intent"),
    ],
)
def test_a_time_out_of_range_is_unreadable(entry: Entry, zone: tzinfo, year: int) -> None:
    """Wherever it stands, so that no sum with it ends beyond what a time can be; else the entry is as it was."""
    far, value = datetime(year, 6, 1, tzinfo=zone).isoformat().encode(), encode_value(entry)
    now = b"2026-03-01T12:00:00Z"
    assert decode(entry.key, value) == entry
    for at in range(value.count(now)):
        before, after = now.join(value.split(now)[: at + 1]), now.join(value.split(now)[at + 1 :])
        with pytest.raises(Unreadable):
            decode(entry.key, before + far + after)


def test_a_duration_out_of_range_is_unreadable() -> None:
    """What no timedelta holds."""
    seen = Seen(connection_uid="u", group="g", type="", fingerprint=b"", since=NOW, watched=1e13)
    with pytest.raises(Unreadable):
        decode(seen.key, encode_value(seen))


def test_unreadable_says_why() -> None:
    """In words that a status can show."""
    with pytest.raises(Unreadable, match="its value belongs under another key"):
        decode(mark().key, encode_value(mark("other")))
    with pytest.raises(Unreadable, match="its key is not an entry's"):
        decode_key(b"{}")


@pytest.mark.parametrize(
    ("key", "group"),
    [
        (("owner",), None),
        (("watch", "u"), None),
        (("scan-clock", "u"), None),
        (("seen", "u", "g"), "g"),
        (("mark", "u", "g"), "g"),
        (("keep", "g"), "g"),
        (("intent", "g"), "g"),
        (("backup", "g", "id", "0"), "g"),
        (("outcome", "g", "id", "Deleted"), "g"),
        (("mark", "u"), None),
        (("blessing", "g"), None),
        ((), None),
    ],
)
def test_a_key_tells_its_group(key: Key, group: str | None) -> None:
    """Also where the value can't be read; a key that is too short tells none."""
    assert group_of(key) == group


@given(entries)
def test_each_entry_has_the_group_of_its_key(entry: Entry) -> None:
    """So that a record that can't be read holds the very group that it was about."""
    assert group_of(entry.key) == getattr(entry, "group", None)


# Backups in parts.


@given(
    st.dictionaries(texts, st.lists(rows, min_size=1, max_size=8), max_size=6),
    st.integers(60, 600),
    st.randoms(use_true_random=False),
)
def test_a_backup_in_parts_is_whole_again(offsets: dict[str, list[SavedOffset]], chunk: int, random: Any) -> None:
    """In whatever order and however often the parts are found; and none without each of them."""
    saved = backup("g", offsets)
    parts = in_parts(saved, chunk)
    assert [part.part for part in parts] == list(range(len(parts)))
    assert {part.parts for part in parts} == {len(parts)}
    assert len({part.key for part in parts}) == len(parts)
    found = parts * 2
    random.shuffle(found)
    assert whole(found) == saved
    for missing in parts:
        assert whole([part for part in parts if part is not missing]) is None


def test_a_backup_that_is_written_again_in_fewer_parts() -> None:
    """The last parts of before stay in the ledger, and none of their offsets is restored."""
    long, short = (backup("g", {"t": [SavedOffset(i, 7, 1, "m" * size, None) for i in range(9)]}) for size in (99, 0))
    before, now = in_parts(long, 400), in_parts(short, 400)
    assert len(before) > len(now)
    parts = {part.key: part for part in [*before, *now]}
    assert whole(list(parts.values())) == whole(list(reversed(parts.values()))) == short
    assert whole([part for part in parts.values() if part != now[-1]]) is None
    longest = in_parts(long, 200)
    assert whole(list({part.key: part for part in [*now, *longest]}.values())) == long


def test_an_invented_number_of_parts_takes_no_memory() -> None:
    """A ledger on a tenant's Kafka says what the tenant wrote."""
    tracemalloc.start()
    try:
        assert whole([msgspec.structs.replace(backup("g", {}), parts=2_000_000)]) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_no_part_is_larger_than_a_broker_takes() -> None:
    """Not even where each partition has all the metadata that Kafka allows, and JSON must escape it."""
    for metadata in ("", "x" * 4096, "ü" * 2048, '"' * 4096, "\x01" * 4096):
        wide = [SavedOffset(index, 2**62, 2**31 - 1, metadata, 2**62) for index in range(3_000)]
        parts = in_parts(backup("g", {"t" * 249: wide, "orders": wide}))
        assert max(len(encode_value(part)) for part in parts) < 900_000
        assert whole(parts) is not None


def test_nothing_saved_is_a_backup_too() -> None:
    """A group without offsets has one, of one part; and no parts are none."""
    assert in_parts(backup("g", {})) == [backup("g", {})]
    assert whole([backup("g", {})]) == backup("g", {})
    assert whole([]) is None


def test_topic_ids_go_with_their_topics() -> None:
    """Each part says of which topics it speaks, so none is lost and none told twice."""
    rows = [SavedOffset(index, 1, -1, "", 0) for index in range(10)]
    parts = in_parts(backup("g", {"a": rows, "b": rows}), 480)
    assert len(parts) > 1
    for part in parts:
        assert part.topic_ids.keys() == part.offsets.keys()


# Contents.


@given(st.lists(st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=80)), max_size=10))
def test_contents_take_anything(records: list[tuple[bytes | None, bytes | None]]) -> None:
    """Never an error, whatever is in the log; what can't be read is counted once for each key."""
    contents = Contents()
    for key, value in records:
        contents.take(key, value)
    assert contents.unreadable <= len({key for key, value in records if value is not None})


@given(st.lists(entries | keys.map(Removal), max_size=12))
def test_reading_is_the_same_as_applying(changes: list[Entry | Removal]) -> None:
    """Who wrote the entries and who reads them remember the same."""
    read, applied = Contents(), Contents()
    for change in changes:
        read.take(encode_key(change.key), None if isinstance(change, Removal) else encode_value(change))
    applied.apply(changes)
    assert read == applied


@given(st.lists(entries, max_size=12))
def test_compaction_changes_nothing(log: list[Entry]) -> None:
    """The last entry of each key alone adds up to the same, as that is all that Kafka may leave."""
    # An outcome is written once.
    log = [
        entry
        for index, entry in enumerate(log)
        if not isinstance(entry, HistoryEntry) or entry.key not in {other.key for other in log[:index]}
    ]
    latest = {entry.key: index for index, entry in enumerate(log)}
    every, last = Contents(), Contents()
    every.apply(log)
    last.apply(entry for index, entry in enumerate(log) if latest[entry.key] == index)
    assert every == last


@given(st.lists(entries, max_size=12))
def test_what_is_removed_is_gone(log: list[Entry]) -> None:
    """Every entry, whatever its kind; only deletions are remembered until they expire."""
    contents = Contents()
    contents.apply(log)
    contents.apply(Removal(entry.key) for entry in log)
    assert contents.owner is None
    assert not contents.watches
    assert not contents.clocks
    assert not any(contents.seen.values())
    assert not any(contents.marks.values())
    assert not contents.keeps
    assert not contents.intents
    assert not contents.alerts


def test_damage_holds_its_group_until_it_is_mended() -> None:
    """By a readable entry or by a tombstone in its place, and not by one of two."""
    contents = Contents()
    take(contents, mark("fine"))
    contents.take(encode_key(mark().key), b"?")
    contents.take(encode_key(("keep", "g")), b"?")
    assert contents.damaged.keys() == {"g"}
    assert contents.unreadable == 2
    take(contents, mark())
    assert contents.damaged.keys() == {"g"}
    assert contents.unreadable == 1
    contents.take(encode_key(("keep", "g")), None)
    assert not contents.damaged
    assert contents.unreadable == 0
    assert contents.marks == {"u": {"fine": mark("fine"), "g": mark()}}


def test_a_tombstone_ends_what_has_no_readable_key() -> None:
    """Else it would be counted until the next start, and not after it."""
    contents = Contents()
    contents.take(b"\xff", b"?")
    contents.take(None, b"?")
    assert contents.unreadable == 2
    assert not contents.damaged
    contents.take(b"\xff", None)
    assert contents.unreadable == 1


def test_damage_takes_nothing_away() -> None:
    """An entry that was read stays as it was; its group is held beside it."""
    contents = Contents()
    take(contents, mark())
    contents.take(encode_key(mark().key), encode_value(mark()).replace(b'"v":1', b'"v":2'))
    assert contents.marks == {"u": {"g": mark()}}
    assert contents.damaged == {"g": "it is of version 2, and this program knows version 1: upgrade it"}


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        pytest.param([outcome()], Deletion(NOW, "ns/tidy", NOW + DAY), id="deleted"),
        pytest.param([outcome(OutcomeType.NOT_DELETED)], None, id="kept"),
        pytest.param([outcome(OutcomeType.FAILED)], None, id="failed"),
        pytest.param([outcome(OutcomeType.UNMARKED)], None, id="unmarked"),
        pytest.param([outcome(OutcomeType.RESTORED)], None, id="restored"),
        pytest.param(
            [outcome(), outcome(at=NOW + DAY, until=NOW + 2 * DAY, id="id-2")],
            Deletion(NOW + DAY, "ns/tidy", NOW + 2 * DAY),
            id="twice",
        ),
        pytest.param(
            [outcome(at=NOW + DAY, until=NOW + 2 * DAY, id="id-2"), outcome()],
            Deletion(NOW + DAY, "ns/tidy", NOW + 2 * DAY),
            id="the-later-one-counts",
        ),
    ],
)
def test_deletions_are_remembered(outcomes: list[HistoryEntry], expected: Deletion | None) -> None:
    """The last one of a group, by its own time; nothing else counts as one."""
    contents = Contents()
    contents.apply(outcomes)
    assert contents.deletions.get("g") == expected


def interrupted(id: str = "id", kind: str = "Classic") -> HistoryEntry:
    return outcome(OutcomeType.NOT_DELETED, id=id, type=kind)


@pytest.mark.parametrize(
    ("log", "unresolved"),
    [
        pytest.param([interrupted()], True, id="interrupted"),
        pytest.param([interrupted(), outcome(id="id")], False, id="deleted-after-all"),
        pytest.param([interrupted(), interrupted(kind="")], False, id="doubt-ended"),
        pytest.param([interrupted(), outcome(OutcomeType.NOT_DELETED, id="another")], True, id="another-one-was-kept"),
        pytest.param([interrupted(), Removal(interrupted().key)], False, id="expired"),
        pytest.param([interrupted(), Removal(interrupted("earlier").key)], True, id="an-earlier-one-expired"),
    ],
)
def test_doubt_ends_with_its_own_deletion(log: list[Entry | Removal], unresolved: bool) -> None:
    """Not with what is told of another deletion of the same group."""
    contents = Contents()
    contents.apply(log)
    assert ("g" in contents.unresolved) is unresolved


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param([intent(), outcome(OutcomeType.RESTORED, backup="id")], {"id"}, id="of-its-backup"),
        pytest.param([outcome(OutcomeType.RESTORED, backup="id")], {"id"}, id="compacted"),
        pytest.param(
            [intent(), outcome(OutcomeType.RESTORED, backup="id"), Removal(intent().key), interrupted("id")],
            {"id"},
            id="in-doubt",
        ),
        pytest.param([intent(), outcome(OutcomeType.RESTORED, backup="older")], {"older"}, id="of-another-backup"),
        pytest.param([intent(), outcome(OutcomeType.RESTORED)], set(), id="proves-nothing"),
        pytest.param([intent(), outcome(OutcomeType.UNMARKED)], set(), id="something-else"),
    ],
)
def test_a_restore_proves_a_deletion(log: list[Entry | Removal], expected: set[str]) -> None:
    """By its id, until the restore's outcome expires: a deletion in doubt may be carried out and restored."""
    contents = Contents()
    contents.apply(log)
    assert contents.restored.keys() == expected
    contents.forget_expired(NOW + DAY)
    assert not contents.restored


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param([intent(), intent()], set(), id="read-again"),
        pytest.param([intent(), intent("later")], {"g"}, id="two"),
        pytest.param([intent(), Removal(intent().key), intent("later")], set(), id="one-after-the-other"),
        pytest.param([intent(), intent("later"), Removal(intent().key)], set(), id="resolved"),
    ],
)
def test_two_open_intents_of_a_group_are_contested(log: list[Entry | Removal], expected: set[str]) -> None:
    """The later one replaces the earlier one, whose process may act on it."""
    contents = Contents()
    contents.apply(log)
    assert contents.contested == expected


def test_what_expired_is_forgotten() -> None:
    """At its very time; marks and the rest have none."""
    contents = Contents()
    keep = KeepRequest(group="g", until=NOW + DAY, why="", by="", at=NOW)
    contents.apply([outcome(), keep, mark()])
    contents.forget_expired(NOW)
    assert contents.deletions.keys() == contents.keeps.keys() == {"g"}
    contents.forget_expired(NOW + DAY)
    assert not contents.deletions
    assert not contents.keeps
    assert contents.marks == {"u": {"g": mark()}}


@pytest.mark.parametrize(
    ("entry", "until"),
    [
        (outcome(), NOW + DAY),
        (backup("g", {}, expires=NOW + DAY), NOW + DAY),
        (KeepRequest(group="g", until=NOW + DAY, why="", by="", at=NOW), NOW + DAY),
        (mark(), None),
        (Owner(installation="i", ledger="l", since=NOW), None),
    ],
)
def test_until_when_an_entry_is_kept(entry: Entry, until: datetime | None) -> None:
    """What ends by itself says when; nothing else is ever swept by its age."""
    assert expires(entry) == until


def test_what_scans_saw_takes_little_memory() -> None:
    """The entries of one scan share its objects; those of different scans stay apart."""
    contents, uid = Contents(), "0b5d3d7e-2f5b-4a3a-9a55-1a2b3c4d5e6f"
    entries = [
        Seen(
            connection_uid=uid,
            group=f"g{n}",
            type=kind,
            fingerprint=b"",
            since=NOW + timedelta(days=n // 2),
            watched=n // 2,
        )
        for n, kind in enumerate(("Classic", "Classic", "Consumer", "Classic"))
    ]
    for entry in entries:
        contents.take(encode_key(entry.key), encode_value(entry))
    assert list(contents.seen[uid].values()) == entries
    first, second, third, fourth = contents.seen[uid].values()
    for name in ("connection_uid", "type", "since", "watched"):
        assert getattr(first, name) is getattr(second, name)
    assert third.since is fourth.since
    assert third.since is not second.since


def test_the_id_of_a_group_is_held_once() -> None:
    """By the entry of its scans, a later one, and the rows of a list; what is read again replaces nothing."""
    contents, uid = Contents(), "u"
    first = Seen(connection_uid=uid, group="some.group", type="Classic", fingerprint=b"1", since=NOW, watched=1.0)
    later = msgspec.structs.replace(first, fingerprint=b"2", watched=2.0)
    contents.take(encode_key(first.key), encode_value(first))
    known = contents.seen[uid]["some.group"]
    contents.take(encode_key(first.key), encode_value(first))
    assert contents.seen[uid]["some.group"] is known
    contents.take(encode_key(later.key), encode_value(later))
    (name, entry), *_ = contents.seen[uid].items()
    assert entry == later
    assert entry.group is name
    held = contents.held_ids(uid)
    assert held("".join(["some", ".group"])) is name
    assert held("another") == "another"
    assert contents.held_ids("another")("some.group") == "some.group"
