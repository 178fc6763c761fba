"""Deletions that came to no end, and entries past their time: each is recorded once, by the right clock."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from group_hygiene.engine import recovery
from group_hygiene.engine.context import Context, Memory
from group_hygiene.engine.executor import open_ledger
from group_hygiene.engine.restorable import RestoreRequest
from group_hygiene.engine.restoration import restore
from group_hygiene.engine.settle import (
    Answer,
    DeletionFacts,
    DeletionState,
    Done,
    Presence,
    Remains,
    RequestState,
    settle,
)
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import topic_ids
from group_hygiene.ledger.contents import COMMAND_WRITER, LedgerSettings, group_of
from group_hygiene.ledger.journal import Journal
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.ledger.records import record
from group_hygiene.model import reasons
from group_hygiene.model.entries import (
    Backup,
    HistoryEntry,
    Intent,
    KeepRequest,
    OutcomeType,
    Removal,
    SavedOffset,
    in_parts,
)
from group_hygiene.model.evidence import Outcome as GroupOutcome
from group_hygiene.model.reasons import Refusal
from tests.backups import backup as backup_of
from tests.kafka.books import LosingClient, backup, restorer
from tests.kafka.makers import Maker, at
from tests.kafka.scene import Guard, Scene, policy

TIDY = policy("tidy-*")


@pytest.fixture
def topic(make: Maker) -> str:
    """A topic of one partition with records."""
    return make.topic(records=5)


def outcome(of: Intent, what: OutcomeType, **changes: Any) -> HistoryEntry:
    names = ("group", "id", "at", "policy", "policy_uid", "generation", "expires")
    fields = {name: getattr(of, name) for name in names}
    return HistoryEntry(what=what, message="by another user", **fields | {"reason": str(what)} | changes)


def known_for(scene: Scene, seconds: float) -> None:
    """As if this process had known of everything that is open for so long."""
    contents = scene.context.journal.contents
    since = scene.clock.monotonic() - seconds
    scene.memory.intents = {each.id: since for each in contents.intents.values()}
    scene.memory.intents |= {each.id: since for each in contents.unresolved.values()}


def another_process(scene: Scene) -> Ledger:
    """The same ledger, written by another program."""
    settings = LedgerSettings(installation=None, writer=f"other-{scene.ledger}", topic=scene.ledger)
    ledger = open_ledger(scene.client, settings, Deadline(60), create=False, claim=True)
    assert ledger is not None
    return ledger


def recorded(scene: Scene, group: str) -> list[HistoryEntry]:
    """The history of a group, in its order."""
    entries = another_process(scene).entries(lambda key: group_of(key) == group, Deadline(60))
    return sorted((e for e in entries if isinstance(e, HistoryEntry)), key=lambda entry: entry.at)


def test_it_is_settled_whatever_became_of_its_policy(client: Client, scene: Scene, make: Maker, topic: str) -> None:
    """A suspended or deleted policy enforces nothing any more: the next process still tells what the last one did."""
    group = make.abandoned(make.name("old"), topic)
    assert record(scene.context.journal, [scene.intent(group, TIDY)]) is None
    make.delete_group(group)
    successor = Scene(client, ledger=scene.ledger, need=recovery.LedgerNeed.READ)
    known_for(successor, 60)
    assert recovery.recover_intents(successor.context) == {TIDY.uid: 1}
    assert [each.what for each in recorded(scene, group)] == [OutcomeType.DELETED]
    # And from then on it writes no more than any dry run.
    assert not successor.open().journal.writable


def test_a_group_that_a_new_coordinator_does_not_show_yet_was_not_deleted(
    scene: Scene, make: Maker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DescribeGroups answers as for a group that does not exist; its committed offsets tell that it does."""
    deletion = scene.intent(make.abandoned(make.name("old"), topic), TIDY)
    monkeypatch.setattr(kafka_groups, "find_groups", lambda client, names, deadline: dict.fromkeys(names))
    remains = recovery.read_remains(scene.context, [deletion], Deadline(60))
    assert remains[deletion.group].found is Presence.UNKNOWN
    make.delete_group(deletion.group)
    remains = recovery.read_remains(scene.context, [deletion], Deadline(60))
    assert remains[deletion.group].found is Presence.GONE


def test_what_was_restored_had_been_deleted(scene: Scene, make: Maker, topic: str) -> None:
    """A restore between a crash and its settling: history tells of both, in order, and the group is left alone."""
    group = make.abandoned(make.name("old"), topic)
    deletion = scene.intent(group, TIDY)
    assert record(scene.context.journal, [deletion]) is None
    make.delete_group(group)
    make.simple(group, at(topic))
    later = scene.clock.now()
    changes: dict[str, Any] = {"id": "a-restore", "at": later, "reason": reasons.RESTORED, "backup": deletion.id}
    another_process(scene).write([outcome(deletion, OutcomeType.RESTORED, **changes)])
    assert scene.context.journal.read_on(Deadline(60)) is None
    known_for(scene, 60)
    assert recovery.recover_intents(scene.context) == {TIDY.uid: 1}
    assert [each.what for each in recorded(scene, group)] == [OutcomeType.DELETED, OutcomeType.RESTORED]
    contents = scene.context.journal.contents
    assert group in contents.deletions
    assert (contents.intents, contents.unresolved) == ({}, {})


@pytest.mark.parametrize("of", ["an-older-backup", "its-backup", "its-backup-after-an-interrupted-deletion"])
def test_a_restore_of_what_was_missing_before_proves_no_deletion(scene: Scene, make: Maker, of: str) -> None:
    """A deletion that never happened is not recorded, though a restore brought back what an earlier one had taken."""
    topic = make.topic(partitions=2, records=5)
    group = make.abandoned(make.name("old"), topic, commit=at(topic))
    intent, now = scene.intent(group, TIDY), scene.clock.now()
    ids = {topic: str(topic_ids(scene.client, [topic], Deadline(60))[topic])}
    lost, left = SavedOffset(1, 0, -1, "", None), SavedOffset(0, 2, -1, "", None)
    older = backup_of(group, {topic: [left, lost]}, id="20260101T000000-x", at=now - timedelta(days=2), topic_ids=ids)
    own = replace(older, id=intent.id, at=now)
    if of == "its-backup":
        older, own = replace(older, partial=True), replace(own, offsets={topic: [left]}, partial=True)
    elif of == "its-backup-after-an-interrupted-deletion":
        own = replace(own, continues=older.id)
    assert record(scene.context.journal, [older, own, intent]) is None
    asked = RestoreRequest(id="a-restore", groups=(group,), at=now - timedelta(days=1))
    if of != "an-older-backup":
        asked = dataclasses.replace(asked, at=None)
    ours = restorer(scene.client, another_process(scene), scene.clock, Guard())
    (result,) = restore(ours, asked)
    assert reasons.VERIFIED in {partition.reason for partition in result.partitions}
    assert scene.context.journal.read_on(Deadline(60)) is None
    known_for(scene, 60)
    assert recovery.recover_intents(scene.context) == {}
    assert {each.what for each in recorded(scene, group)} == {OutcomeType.RESTORED, OutcomeType.NOT_DELETED}
    assert group not in scene.context.journal.contents.deletions


@pytest.mark.parametrize("left", ["nothing", "an-offset", "another-offset"])
def test_a_restore_after_two_interrupted_deletions(scene: Scene, make: Maker, left: str) -> None:
    """The second is proven by a group that was not there at all, but not by what the first may have taken."""
    topic = make.topic(partitions=2, records=5)
    other = make.topic(records=5)
    group = make.abandoned(make.name("old"), topic, commit=at(topic))
    intent, now = scene.intent(group, TIDY), scene.clock.now()
    ids = {topic: str(topic_ids(scene.client, [topic], Deadline(60))[topic])}
    rows = {topic: [SavedOffset(0, 2, -1, "", None), SavedOffset(1, 0, -1, "", None)]}
    older = backup_of(group, rows, id="20260101T000000-x", at=now - timedelta(hours=2), topic_ids=ids)
    own = replace(older, id=intent.id, at=now, continues=older.id)
    assert record(scene.context.journal, [older, own, intent]) is None
    make.delete_group(group)
    if left != "nothing":
        make.simple(group, at(topic if left == "an-offset" else other, 2))
    ours = restorer(scene.client, another_process(scene), scene.clock, Guard())
    (result,) = restore(ours, RestoreRequest(id="a-restore", groups=(group,)))
    assert reasons.VERIFIED in {partition.reason for partition in result.partitions}
    assert scene.context.journal.read_on(Deadline(60)) is None
    known_for(scene, 60)
    is_proven = left == "nothing"
    assert recovery.recover_intents(scene.context) == ({TIDY.uid: 1} if is_proven else {})
    assert [each.what for each in recorded(scene, group)][:1] == (
        [OutcomeType.DELETED] if is_proven else [OutcomeType.RESTORED]
    )
    assert (group in scene.context.journal.contents.deletions) is is_proven


@pytest.mark.parametrize(
    ("ended", "restored"),
    [(OutcomeType.NOT_DELETED, {0, 1}), (None, {0, 1}), (OutcomeType.DELETED, {0})],
    ids=["kept", "open", "deleted"],
)
def test_a_deletion_that_never_happened_hides_no_earlier_backup(
    scene: Scene, make: Maker, ended: OutcomeType | None, restored: set[int]
) -> None:
    """Of offsets that one took before. What a group had lost already when it was deleted stays away."""
    topic = make.topic(partitions=2, records=5)
    group, now = make.name("old"), scene.clock.now()
    make.simple(group, at(topic))
    ids = {topic: str(topic_ids(scene.client, [topic], Deadline(60))[topic])}
    lost, left = SavedOffset(1, 0, -1, "", None), SavedOffset(0, 1, -1, "", None)
    changes = {"topic_ids": ids, "expires": now + timedelta(days=5)}
    taken = backup_of(group, {topic: [lost]}, id="id-1", partial=True, at=now - timedelta(hours=2), **changes)
    intent = replace(scene.intent(group, TIDY), at=now - timedelta(hours=1))
    whole = backup_of(group, {topic: [left]}, id=intent.id, at=intent.at, **changes)
    ends = [outcome(intent, ended, reason=reasons.INTERRUPTED)] if ended else [intent]
    assert record(scene.context.journal, [taken, whole, *ends]) is None
    if ended is OutcomeType.DELETED:
        make.delete_group(group)
    ours = restorer(scene.client, another_process(scene), scene.clock, Guard())
    (result,) = restore(ours, RestoreRequest(id="a-restore", groups=(group,)))
    assert {partition.partition.partition for partition in result.partitions} == restored
    assert result.partitions[-1].reason == reasons.VERIFIED


def test_a_deletion_that_never_happened_hides_no_backup_of_another_policy(scene: Scene, make: Maker) -> None:
    """What the ledger has of its outcome tells; before, nobody knows."""
    topic = make.topic(partitions=2, records=5)
    group, now = make.name("old"), scene.clock.now()
    make.simple(group, at(topic))
    ids = {topic: str(topic_ids(scene.client, [topic], Deadline(60))[topic])}
    rows = {topic: [SavedOffset(1, 0, -1, "", None)]}
    own = backup_of(group, rows, id="id-1", partial=True, at=now - timedelta(hours=2), topic_ids=ids)
    intent = scene.intent(group, TIDY)
    other = backup_of(group, {topic: [SavedOffset(0, 1, -1, "", None)]}, id=intent.id, at=now, policy=TIDY.key)
    expires = now + timedelta(days=5)
    assert (
        record(scene.context.journal, [replace(own, expires=expires), replace(other, expires=expires), intent]) is None
    )
    ours = restorer(scene.client, another_process(scene), scene.clock, Guard())
    asked = RestoreRequest(id="a-restore", policy=own.policy, deleted_after=now - timedelta(hours=3))
    (refused,) = restore(ours, asked)
    assert refused.reason == reasons.NO_BACKUP
    ours.record([outcome(intent, OutcomeType.NOT_DELETED, reason=reasons.INTERRUPTED)])
    (result,) = restore(ours, asked)
    assert [(place.partition.partition, place.reason) for place in result.partitions] == [(1, reasons.VERIFIED)]


@pytest.mark.parametrize(
    ("seconds", "settled"), [pytest.param(60, False, id="at-first"), pytest.param(200, True, id="nobody-else-did")]
)
def test_what_another_connection_began_is_left_to_it(
    scene: Scene, make: Maker, topic: str, seconds: float, settled: bool
) -> None:
    """Its process may be amid it. A connection that is gone settles nothing, so in the end anybody does."""
    group = make.abandoned(make.name("old"), topic)
    assert record(scene.context.journal, [scene.intent(group, TIDY, writer="another-connection")]) is None
    make.delete_group(group)
    known_for(scene, seconds)
    assert recovery.recover_intents(scene.context) == ({TIDY.uid: 1} if settled else {})
    assert (group in scene.context.journal.contents.intents) is not settled


def test_an_outcome_that_its_writer_recorded_is_not_reported_again(scene: Scene, make: Maker, topic: str) -> None:
    """What was open a moment ago is looked up once more: the writer's own word stands."""
    group = make.abandoned(make.name("old"), topic)
    deletion = scene.intent(group, TIDY, writer="another-connection")
    assert record(scene.context.journal, [deletion]) is None
    known_for(scene, 200)
    make.delete_group(group)
    writer = another_process(scene)
    outcome = GroupOutcome(group, OutcomeType.DELETED, reasons.DELETED, "by its writer")
    answer = Answer(RequestState.CONFIRMED, outcome)
    facts = DeletionFacts(deletion, DeletionState.INTENT, answer, Remains(Presence.GONE), scene.clock.now())
    done = settle(facts)
    assert isinstance(done, Done)
    writer.write(done.changes)
    assert group in scene.context.journal.contents.intents, "not read on yet"
    assert recovery.recover_intents(scene.context) == {}
    assert [each.message for each in recorded(scene, group)] == ["by its writer"]


@pytest.mark.parametrize("loses", ["requests", "answers"])
@pytest.mark.parametrize("comes_back", [pytest.param(False, id="stays-away"), pytest.param(True, id="comes-back")])
def test_a_deletion_is_counted_once(client: Client, make: Maker, topic: str, loses: str, comes_back: bool) -> None:
    """Whether its outcome could not be written, or was written and nobody said so; whether it is there again or not."""
    losing = LosingClient(client)
    scene = Scene(losing)  # type: ignore[arg-type]
    group = make.abandoned(make.name("old"), topic)
    tidy = policy(group)
    observation, plan = scene.plan(tidy)
    assert plan.actions == (group,)
    asked: list[float] = []

    class LosesTheOutcome(Guard):
        """It is asked for the fourth time right before the request."""

        def seconds_left(self) -> float:
            asked.append(60.0)
            losing.loses = loses if len(asked) == 4 else ""
            return 60.0

    outcomes = scene.apply(plan, observation, LosesTheOutcome())
    losing.loses = ""
    assert [(each.kind, each.reason) for each in outcomes] == [(OutcomeType.NOT_DELETED, reasons.INTERRUPTED)]
    assert group not in make.groups()
    if comes_back:
        make.simple(group, at(topic))
    scene.context = scene.open()
    known_for(scene, 60)
    assert recovery.recover_intents(scene.context) == {tidy.uid: 1}
    assert recovery.recover_intents(scene.context) == {}
    assert [each.what for each in recorded(scene, group)] == [OutcomeType.DELETED]
    assert group in scene.context.journal.contents.deletions


@pytest.mark.parametrize(
    ("minutes", "blamed"), [pytest.param(50, True, id="a-late-request"), pytest.param(70, False, id="somebody-else")]
)
def test_doubt_ends(scene: Scene, make: Maker, topic: str, minutes: float, blamed: bool) -> None:
    """A group that outlived the interruption of its deletion by an hour is like any other: who deletes it is not us."""
    group = make.abandoned(make.name("old"), topic)
    assert record(scene.context.journal, [scene.intent(group, TIDY)]) is None
    known_for(scene, 60)
    assert recovery.recover_intents(scene.context) == {}
    contents = scene.context.journal.contents
    assert contents.unresolved.keys() == {group}
    scene.clock.pass_minutes(minutes)
    assert recovery.recover_intents(scene.context) == {}
    make.delete_group(group)
    assert recovery.recover_intents(scene.context) == ({TIDY.uid: 1} if blamed else {})
    assert (group in contents.deletions) is blamed
    assert contents.unresolved == {}
    assert another_process(scene).contents.unresolved == {}


@pytest.mark.parametrize("in_doubt", [pytest.param(False, id="intent"), pytest.param(True, id="in-doubt")])
def test_a_group_that_comes_back_with_another_protocol_was_not_deleted(
    scene: Scene, make: Maker, topic: str, in_doubt: bool
) -> None:
    """Describe answers for groups of one type only: a group in use is not recorded as deleted."""
    group = make.abandoned(make.name("old"), topic)
    assert record(scene.context.journal, [scene.intent(group, TIDY)]) is None
    known_for(scene, 60)
    if in_doubt:
        assert recovery.recover_intents(scene.context) == {}
    make.join(group, topic, "consumer")
    assert recovery.recover_intents(scene.context) == {}
    make.leave(group)
    assert {each.what for each in recorded(scene, group)} == {OutcomeType.NOT_DELETED}
    assert group not in scene.context.journal.contents.deletions


def test_a_late_deletion_that_was_restored_is_recorded(scene: Scene, make: Maker, topic: str) -> None:
    """The broker carries out the request after all; a restore comes before the next run. The group is left alone."""
    group = make.abandoned(make.name("old"), topic)
    deletion = scene.intent(group, TIDY)
    assert record(scene.context.journal, [deletion]) is None
    known_for(scene, 60)
    assert recovery.recover_intents(scene.context) == {}
    make.delete_group(group)
    make.simple(group, at(topic))
    changes: dict[str, Any] = {"id": "a-restore", "at": scene.clock.now(), "backup": deletion.id}
    another_process(scene).write([outcome(deletion, OutcomeType.RESTORED, **changes)])
    assert recovery.recover_intents(scene.context) == {TIDY.uid: 1}
    assert group in scene.context.journal.contents.deletions
    assert scene.context.journal.contents.unresolved == {}


def command(scene: Scene, name: str) -> Context:
    """The context of a command on the same ledger."""
    settings = LedgerSettings(installation=None, writer=f"{COMMAND_WRITER}{name}", topic=scene.ledger)
    ledger = open_ledger(scene.client, settings, Deadline(60), create=False)
    assert ledger is not None
    ledger.claim(Deadline(60))
    journal = Journal(ledger, ledger.contents, {}, writable=True)
    return dataclasses.replace(scene.context, journal=journal, memory=Memory(contents=ledger.contents))


_COMMAND, _OPERATOR = f"{COMMAND_WRITER}killed", "an-operator"


class Left(NamedTuple):
    """What a killed process left. writers: of its intents. seconds: after which a later command resolves them."""

    writers: list[str]
    gone: bool = True
    seconds: float = 0.0
    is_edited: bool = False


@pytest.mark.parametrize(
    ("left", "settled"),
    [
        pytest.param(Left([_COMMAND]), OutcomeType.DELETED, id="deleted"),
        pytest.param(Left([_COMMAND], gone=False), OutcomeType.NOT_DELETED, id="not-deleted"),
        pytest.param(Left([_COMMAND], seconds=recovery.OTHERS_S), None, id="just-now"),
        pytest.param(Left([_COMMAND], is_edited=True), None, id="after-an-edit-of-the-connection"),
        pytest.param(Left([_OPERATOR]), None, id="by-the-operator"),
        pytest.param(Left([_OPERATOR, _COMMAND]), OutcomeType.DELETED, id="contested-by-a-command"),
        pytest.param(Left([_COMMAND, _OPERATOR]), None, id="contested-by-the-operator"),
    ],
)
def test_a_later_command_settles_what_a_killed_one_began(
    scene: Scene, make: Maker, topic: str, left: Left, settled: str | None
) -> None:
    """Without an operator, too; not while the killed one could still act, by the times in the ledger."""
    group = make.abandoned(make.name("old"), topic)
    for number, writer in enumerate(left.writers):
        intent = scene.intent(group, TIDY, writer=writer)
        assert record(scene.context.journal, [replace(intent, id=f"{intent.id}-{number}")]) is None
    if left.gone:
        make.delete_group(group)
    edited = Refusal(reasons.POLICY_CHANGED, "the connection was edited")
    guard = Guard(stop=lambda: edited if left.is_edited else None)
    recovery.recover_commands(command(scene, "later"), guard, left.seconds)
    assert [each.what for each in recorded(scene, group)] == ([settled] if settled else [])
    contents = command(scene, "latest").journal.contents
    assert (group in contents.intents) is (settled is None)
    assert (group in contents.deletions) is (settled == OutcomeType.DELETED)


# By which clock.


def test_a_clock_that_is_set_amid_a_run_deletes_nothing(scene: Scene, make: Maker, topic: str) -> None:
    """Also when that is after the scan, which found that both clocks agree."""
    group = make.abandoned(make.name("old"), topic)
    observation, plan = scene.plan(policy(group))
    assert plan.actions == (group,)
    scene.clock.moved += timedelta(hours=2)
    assert [outcome.reason for outcome in scene.apply(plan, observation)] == [reasons.CLOCK_SKEW]
    assert group in make.groups()


@pytest.mark.parametrize(
    ("ahead", "swept"), [pytest.param(timedelta(), True, id="agrees"), pytest.param(timedelta(31), False, id="ahead")]
)
def test_nothing_expires_by_a_clock_that_is_ahead(scene: Scene, ahead: timedelta, swept: bool) -> None:
    """What is removed is gone for good: backups, requests to keep a group, history. What expired goes if both agree."""
    now = scene.clock.now()
    keep = KeepRequest(group="kept", until=now + timedelta(days=1), why="", by="ann", at=now)
    past = KeepRequest(group="past", until=now - timedelta(hours=1), why="", by="ann", at=now)
    saved = in_parts(backup("deleted", expires=now + timedelta(days=30)))
    deleted = outcome(scene.intent("deleted", TIDY), OutcomeType.DELETED, expires=now + timedelta(days=30))
    journal = scene.context.journal
    assert record(journal, [keep, past, *saved, deleted]) is None
    scene.clock.moved += ahead
    assert journal.sweep(scene.clock.now()) is swept
    assert journal.contents.keeps.keys() == ({"kept"} if swept else {"kept", "past"})
    assert journal.contents.deletions.keys() == {"deleted"}
    left = {entry.key for entry in another_process(scene).entries(lambda key: key[0] != "owner", Deadline(60))}
    stays = {keep.key, deleted.key, *(part.key for part in saved)}
    assert left == (stays if swept else stays | {past.key})


def test_a_run_that_wrote_nothing_sweeps_nothing(client: Client, scene: Scene) -> None:
    """It knows no broker's time."""
    now = scene.clock.now()
    past = KeepRequest(group="kept", until=now - timedelta(days=1), why="", by="ann", at=now)
    assert record(scene.context.journal, [past]) is None
    successor = Scene(client, ledger=scene.ledger)
    assert not successor.context.journal.sweep(successor.clock.now())
    assert successor.context.journal.contents.keeps.keys() == {"kept"}


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        pytest.param({}, False, id="the-next-has-it-all"),
        pytest.param({"offset": 1}, True, id="another-offset"),
        pytest.param({"partition": 1}, True, id="one-more-partition"),
        pytest.param({"topic_id": "another"}, True, id="another-topic"),
        pytest.param({"days": 9}, True, id="kept-for-longer"),
        pytest.param({"parts": 2}, True, id="not-whole"),
    ],
)
def test_a_backup_ends_early_only_where_the_next_has_all_of_it(
    scene: Scene, make: Maker, topic: str, changes: dict[str, Any], stays: bool
) -> None:
    """Deletions that fail at every run don't fill the ledger; what only an older backup has stays restorable."""
    group, now = make.abandoned(make.name("old"), topic, commit=at(topic, 3)), scene.clock.now()

    def saved(id_: str, offset: int = 3, partition: int = 0, topic_id: str = "", days: int = 2, parts: int = 1) -> Any:
        rows = {topic: [SavedOffset(partition, offset, -1, "", None)]}
        made = backup_of(group, rows, id=id_, at=now, expires=now + timedelta(days=days), topic_ids={topic: topic_id})
        return replace(made, parts=parts)

    older, newer = saved("1", **changes), replace(saved("2"), continues="1")
    interrupted = outcome(scene.intent(group, TIDY), OutcomeType.NOT_DELETED, id="2", reason=reasons.INTERRUPTED)
    assert record(scene.context.journal, [older, newer, interrupted]) is None
    observation, plan = scene.plan(policy(group))
    (done,) = scene.apply(plan, observation)
    assert done.kind is OutcomeType.DELETED, done.message
    found = another_process(scene).entries(lambda key: key[0] == "backup" and key[1] == group, Deadline(60))
    ids = {entry.id for entry in found if isinstance(entry, Backup)}
    assert ("1" in ids) is stays
    assert len(ids - {"1"}) == 2


def test_one_unreadable_backup_does_not_hold_up_the_others(scene: Scene, make: Maker, topic: str) -> None:
    """A group whose interrupted deletion left no readable backup stays; the run goes on batch after batch."""
    groups = {make.abandoned(make.name("old"), topic) for _ in range(4)}
    held = min(groups)
    interrupted = outcome(scene.intent(held, TIDY), OutcomeType.NOT_DELETED, reason=reasons.INTERRUPTED)
    assert record(scene.context.journal, [interrupted]) is None
    observation, plan = scene.plan(policy(f"{make.tag}old*"))
    assert set(plan.actions) == groups
    scene.memory.batch = 1
    outcomes = {each.group: each for each in scene.apply(plan, observation)}
    assert {name for name, each in outcomes.items() if each.kind is OutcomeType.DELETED} == groups - {held}
    assert outcomes[held].reason == reasons.INTERRUPTED


def test_a_deletion_that_another_process_ends_during_a_run_is_continued_by_the_next(
    scene: Scene, make: Maker, topic: str
) -> None:
    """The run began when that one was still open, so what it would save lacks the offsets that are gone already."""
    groups = {make.abandoned(make.name("old"), topic, commit=at(topic, 3)) for _ in range(2)}
    observation, plan = scene.plan(policy(f"{make.tag}old*"))
    assert set(plan.actions) == groups
    first, later = plan.actions
    other, intent = another_process(scene), scene.intent(later, TIDY, writer=COMMAND_WRITER)
    rows = {topic: [SavedOffset(0, 3, -1, "", None), SavedOffset(1, 3, -1, "", None)]}
    ids = {topic: str(topic_ids(scene.client, [topic], Deadline(60))[topic])}
    older = backup_of(later, rows, id=intent.id, at=intent.at, expires=intent.at + timedelta(days=9), topic_ids=ids)
    other.write([older, intent])
    ended = outcome(intent, OutcomeType.NOT_DELETED, reason=reasons.INTERRUPTED)
    guard = Guard(at_lease=lambda: other.write([ended, Removal(intent.key)]), nth=1)
    scene.memory.batch = 1
    outcomes = {each.group: each for each in scene.apply(plan, observation, guard)}
    assert outcomes[first].kind is OutcomeType.DELETED
    assert (outcomes[later].reason, later in make.groups()) == (reasons.CHANGED, True)
    assert "has just ended" in outcomes[later].message

    scene.memory.batch = 1
    observation, plan = scene.plan(policy(later))
    (done,) = scene.apply(plan, observation)
    assert done.kind is OutcomeType.DELETED, done.message
    entries = another_process(scene).entries(lambda key: key[0] == "backup" and key[1] == later, Deadline(60))
    assert [len(each.offsets[topic]) for each in entries if isinstance(each, Backup)] == [2, 2]
