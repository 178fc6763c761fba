"""How a deletion ends: each combination of facts meets one row, and no outcome contradicts what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from group_hygiene.engine import recovery
from group_hygiene.engine.settle import (
    ROWS,
    UNCLEAR,
    Answer,
    DeletionFacts,
    DeletionState,
    Done,
    Open,
    Presence,
    Remains,
    RequestState,
    Target,
    settle,
)
from group_hygiene.ledger.contents import Contents
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, Intent, Mark, OutcomeType, Removal
from group_hygiene.model.entries import HistoryEntry as OutcomeEntry
from group_hygiene.model.evidence import Outcome
from tests.unit.make import NOW

INTENT = Intent(
    group="g",
    id="id",
    type="Classic",
    policy="kafka/unused",
    policy_uid="uid-1",
    generation=1,
    at=NOW,
    deadline=NOW,
    expires=NOW + timedelta(days=1),
    marked_since=NOW - timedelta(days=1),
    writer="operator",
)
TARGETS: dict[Target, dict[str, Any]] = {
    Target.GROUP: {},
    Target.LARGE: {"partitions": 9},
    Target.SHARE: {"type": "Share"},
    Target.TOPICS: {"topics": ("a", "b")},
}
BACKUP = ("backup", "g", "id", "0")
_DOUBT = (DeletionState.IN_DOUBT, DeletionState.DOUBT_OVER)
_FIELDS = ("group", "id", "type", "policy", "policy_uid", "generation", "expires", "topics", "partitions", "writer")


def in_doubt(intent: Intent) -> OutcomeEntry:
    fields = {name: getattr(intent, name) for name in _FIELDS}
    what = OutcomeType.NOT_DELETED
    return OutcomeEntry(at=NOW, what=what, reason=reasons.INTERRUPTED, message="interrupted", **fields)


def facts(state: DeletionState, target: Target, request: RequestState, found: Presence) -> DeletionFacts:
    deletion: Intent | OutcomeEntry = structs.replace(INTENT, **TARGETS[target])
    if state in _DOUBT:
        deletion = in_doubt(cast("Intent", deletion))
    answer = Outcome("g", OutcomeType.NOT_DELETED, reasons.BECAME_ACTIVE, "answered")
    if request is RequestState.CONFIRMED:
        answer = Outcome("g", OutcomeType.DELETED, reasons.DELETED, "deleted", deletion.topics)
    topics = {Presence.GONE: deletion.topics, Presence.SOME_TOPICS: deletion.topics[:1]}.get(found, ())
    now = NOW + timedelta(minutes=1)
    remains = Remains(found, frozenset(topics), 4)
    return DeletionFacts(deletion, state, Answer(request, answer), remains, now, backup=[BACKUP])


ALL = [facts(*each) for each in product(DeletionState, Target, RequestState, Presence)]


def test_each_combination_of_facts_meets_exactly_one_row() -> None:
    """And each row is met by some."""
    met = [
        [row for row in ROWS if row.is_met(*each)] for each in product(DeletionState, Target, RequestState, Presence)
    ]
    assert {len(rows) for rows in met} == {1}
    assert {rows[0].name for rows in met} == {row.name for row in ROWS}
    assert len({row.name for row in ROWS}) == len(ROWS)


def removed(result: Done) -> set[str]:
    return {change.key[0] for change in result.changes if isinstance(change, Removal)}


def test_a_backup_goes_only_if_nothing_was_deleted() -> None:
    """Nothing was sent, or a code proves the refusal and the broker erases nothing before it refuses."""
    results = [(each, settle(each)) for each in ALL]
    useless = [each for each, result in results if isinstance(result, Done) and "backup" in removed(result)]
    assert {(each.state, each.request) for each in useless} == {
        (DeletionState.INTENT, RequestState.NOT_SENT),
        (DeletionState.INTENT, RequestState.REFUSED),
    }
    assert Target.SHARE not in {each.target for each in useless if each.request is RequestState.REFUSED}


def test_an_intent_ends_only_with_its_outcome() -> None:
    """In one transaction; and the intent of another process stays."""
    for case in ALL:
        result = settle(case)
        if isinstance(result, Done):
            assert result.changes[0] is result.entry
            assert (result.entry.group, result.entry.id) == (case.deletion.group, case.deletion.id)
            assert ("intent" in removed(result)) is (case.state is DeletionState.INTENT)


@pytest.mark.parametrize("waiting", [0, 1_500])
def test_a_deletion_says_what_waited_for_the_group(waiting: int) -> None:
    """By its intent, also if another process records it; not if it was restored since, or nothing was deleted."""
    said = set()
    for case in ALL:
        given = case
        if isinstance(case.deletion, Intent):
            given = replace(case, deletion=structs.replace(case.deletion, waiting=waiting))
        result = settle(given)
        if isinstance(result, Done):
            says = "1,500 records waited for it" in result.outcome.message
            deleted = result.outcome.kind is OutcomeType.DELETED and isinstance(given.deletion, Intent)
            assert says is bool(waiting and deleted and "restored since" not in result.outcome.message)
            assert result.entry.message == result.outcome.message
            said.add(says)
    assert said == ({True, False} if waiting else {False})


def test_what_is_not_known_is_open() -> None:
    """Without proof, by an answer or by what Kafka has, the group is not recorded as deleted, and stays in doubt."""
    for case in ALL:
        _claims_no_more_than_is_known(case, settle(case))


def _claims_no_more_than_is_known(case: DeletionFacts, result: Done | Open) -> None:
    proven = (
        case.request in (RequestState.NOT_SENT, RequestState.REFUSED, RequestState.CONFIRMED)
        and case.state not in _DOUBT
    )
    if case.remains.found is Presence.UNKNOWN and not proven:
        assert isinstance(result, Open)
    if isinstance(result, Open) or proven:
        return
    if result.outcome.kind is OutcomeType.DELETED:
        assert case.remains.found in (Presence.GONE, Presence.SOME_TOPICS, Presence.RESTORED)
        assert set(result.entry.topics) == case.remains.topics
    elif case.state not in _DOUBT:
        assert case.request is RequestState.UNKNOWN
        assert (result.entry.type, result.entry.writer) == (case.deletion.type, "operator")


@pytest.mark.parametrize(
    ("topics", "left"),
    [
        pytest.param(("a",), {"b": NOW, "c": NOW + timedelta(hours=1)}, id="some"),
        pytest.param(("a", "b", "c"), None, id="all"),
        pytest.param((), None, id="the-group"),
    ],
)
def test_a_mark_ends_with_what_was_deleted(topics: tuple[str, ...], left: dict[str, Any] | None) -> None:
    """A mark of other topics stays, with the dates of the first of them."""
    marked = {"a": NOW - timedelta(hours=1), "b": NOW, "c": NOW + timedelta(hours=1)} if topics else {}
    since, due = NOW - timedelta(hours=1), NOW + timedelta(hours=1)
    mark = Mark(policy_uid="uid-1", group="g", policy="p", digest="d", since=since, due=due, topics=marked)
    case = facts(DeletionState.INTENT, Target.TOPICS if topics else Target.GROUP, RequestState.UNKNOWN, Presence.GONE)
    result = settle(replace(case, remains=Remains(Presence.GONE, frozenset(topics)), mark=mark))
    assert isinstance(result, Done)
    if left is None:
        assert "mark" in removed(result)
    else:
        expected = structs.replace(mark, topics=left, since=NOW, due=NOW + timedelta(hours=2))
        assert expected in result.changes


# What happens, in any order.


@dataclass
class World:
    """A group, the requests to delete it, and the ledger. No other client deletes.

    sent: of how many requests; the first of several takes a part. done: how many were carried out. is_sender: this
    process sent them; else another one, whose intent was there first. request: how this process's own request ended;
    None = not known yet.
    """

    intent: Intent
    sent: int
    is_sender: bool = True
    request: RequestState | None = None
    done: int = 0
    left: Presence = Presence.THERE
    log: list[Sequence[Change]] = field(default_factory=list)

    def carry_out(self) -> None:
        """The broker carries out the next request, at once or late."""
        if self.done < self.sent:
            self.done += 1
            self.left = Presence.GONE if self.is_deleted else Presence.PART

    @property
    def is_deleted(self) -> bool:
        return self.done == (2 if self.intent.partitions else 1)

    def answer(self) -> None:
        """This process gets its answer, or finds that another one was first; it writes the outcome, and ends."""
        if self.request is not None or (self.done and not self.is_deleted):
            return
        self.request = RequestState.NOT_SENT
        if self.is_sender and self.sent:
            self.request = RequestState.CONFIRMED if self.done else RequestState.REFUSED
            self.sent = self.done
        contents = read(self.log)
        is_ours = contents.intents.get("g") == self.intent and "g" not in contents.contested
        target = facts(DeletionState.INTENT, Target.GROUP, self.request, self.left)
        state = DeletionState.INTENT if is_ours else DeletionState.CONTESTED
        result = settle(replace(target, deletion=self.intent, state=state))
        if isinstance(result, Done):
            self.log.append(result.changes)

    def come_back(self) -> None:
        """Consumers join again."""
        self.left = {Presence.GONE: Presence.THERE, Presence.PART: Presence.PART_IN_USE}.get(self.left, self.left)

    def restore(self) -> None:
        """A restore finds offsets missing, and proves it in the ledger."""
        if self.left is not Presence.THERE:
            self.left = Presence.THERE
            entry = in_doubt(self.intent)
            changes = {"id": "a-restore", "what": OutcomeType.RESTORED, "type": "", "backup": "id"}
            self.log.append([structs.replace(entry, **changes)])

    def resolve(self) -> None:
        """A process reads the ledger to its end, and writes what it finds."""
        for over in (False, True):
            result = resolved(self.log, self.left, over)
            if isinstance(result, Done):
                self.log.append(result.changes)
                return


def read(log: Sequence[Sequence[Change]]) -> Contents:
    contents = Contents()
    for changes in log:
        contents.apply(changes)
    return contents


def resolved(log: Sequence[Sequence[Change]], left: Presence, over: bool) -> Done | Open | None:
    """What a process finds that read this part of the log. None = no deletion is open."""
    contents = read(log)
    deletion = (contents.unresolved | contents.intents).get("g")
    if deletion is None:
        return None
    clock = SimpleNamespace(now=lambda: NOW)
    context: Any = SimpleNamespace(
        journal=SimpleNamespace(contents=contents), memory=SimpleNamespace(unrecorded={}, unsent={}), clock=clock
    )
    topics = frozenset(deletion.topics) if left is Presence.GONE else frozenset[str]()
    return settle(recovery._facts(context, deletion, Remains(left, topics, 4), over))


EVENTS = st.lists(st.sampled_from(["carry_out", "answer", "come_back", "restore", "resolve"]), max_size=7)


@given(st.sampled_from(list(TARGETS.values())), st.integers(0, 2), st.sampled_from(["", "before", "after"]), EVENTS)
def test_any_part_of_the_log_gives_the_same_answer_or_none(
    target: dict[str, Any], sent: int, others: str, events: list[str]
) -> None:
    """Whenever a process died, and however little of the log another one had read: `Deleted` is true, and restorable.

    others: another process wrote an intent for the same group at the same moment, before this one's or after it.
    """
    intent = structs.replace(INTENT, **target)
    other = structs.replace(intent, id="others", writer="another")
    intents = {"": [intent], "before": [other, intent], "after": [intent, other]}[others]
    is_sender = others != "before"
    world = World(intent, min(sent, 2 if intent.partitions else 1), is_sender, log=[[each] for each in intents])
    readings = [(0, world.left, world.is_deleted)]
    for event in events:
        getattr(world, event)()
        readings.append((len(world.log), world.left, world.is_deleted))
    for length in range(1, len(world.log) + 1):
        recorded = [change for changes in world.log[:length] for change in changes]
        for known, left, is_deleted in readings:
            if known < length:
                continue
            for over in (False, True):
                result = resolved(world.log[:length], left, over)
                if isinstance(result, Done) and result.outcome.kind is OutcomeType.DELETED:
                    assert is_deleted
        deleted = [each for each in recorded if isinstance(each, OutcomeEntry) and each.what is OutcomeType.DELETED]
        assert not deleted or world.is_deleted
        if Removal(BACKUP) in recorded:
            assert intent.id not in {each.id for each in deleted}
            assert (is_sender, world.done) == (True, 0)
            # Brokers erase start offsets before they refuse.
            assert (intent.type, world.request) != ("Share", RequestState.REFUSED)


def test_an_answer_that_proves_nothing_is_no_answer() -> None:
    """Right after the request, only a group that is gone counts as deleted; a later run may find more."""
    for case in (each for each in ALL if each.request in UNCLEAR):
        now, later = settle(case), settle(replace(case, answer=None))
        if isinstance(now, Done):
            assert isinstance(later, Done)
            assert now.outcome.kind is later.outcome.kind
