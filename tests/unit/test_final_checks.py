"""Two processes that begin to delete one group at the same moment: which of them may, and what the ledger retains."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from msgspec import structs

from group_hygiene.engine import deletion
from group_hygiene.engine.context import Context, Memory
from group_hygiene.engine.deletion import ToSave
from group_hygiene.engine.executor import Executor
from group_hygiene.engine.plan import RunConditions, Verdicts, make_plan
from group_hygiene.engine.recheck import Rechecked
from group_hygiene.engine.recovery import Earlier
from group_hygiene.engine.settle import Answer, RequestState
from group_hygiene.errors import LedgerProblem
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, HistoryEntry, Intent, OutcomeType, Removal, ScanClock
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import parse_connection
from tests.backups import backup
from tests.unit.make import NOW, delete

_CONNECTION = parse_connection(
    {
        "metadata": {"namespace": "kafka", "name": "main", "uid": "uid-c", "generation": 1},
        "spec": {"bootstrapServers": ["kafka-0:9092"]},
    }
)
_OURS = Intent(
    group="g",
    id="ours",
    type="Classic",
    policy="kafka/unused",
    policy_uid="uid-1",
    generation=1,
    at=NOW,
    deadline=NOW,
    expires=NOW + timedelta(days=1),
)
_THEIRS = structs.replace(_OURS, id="theirs", writer="command-1")
_ENDED = Removal(_OURS.key)
_EDITED = Refusal(reasons.POLICY_CHANGED, "edited")


class _Clock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


class _Client:
    """No group's deletion is unresolved, so nothing is sent."""

    def supports(self, *_: Any) -> bool:
        return True

    def send_each(self, *_: Any) -> dict[Any, Any]:
        return {}


class _Window:
    """No group was used."""

    def read_on(self, *_: Any) -> dict[str, Refusal]:
        return {}

    def completed(self, done: Any, _: Any) -> Any:
        return done


class _Ledger:
    """Our intent is in `contents`. others: what the read-back finds after the last read, our own intent among it."""

    def __init__(self, others: Sequence[Change]) -> None:
        self.contents, self.written, self._others = Contents(), list[Change](), list(others)
        self.contents.apply([_OURS])

    def read_on(self, deadline: Any) -> None:
        self.contents.apply(self._others)
        self._others = []

    def write(self, changes: Sequence[Change], *_: Any) -> datetime:
        self.contents.apply(changes)
        self.written += changes
        return datetime.now(UTC)


class _Guard:
    def __init__(self, refusal: Refusal | None = None) -> None:
        self._refusal = refusal

    def refusal(self) -> Refusal | None:
        return self._refusal

    def seconds_left(self) -> float:
        return 60.0


def _run(ledger: _Ledger, guard: _Guard) -> Any:
    journal = Journal(cast("Any", ledger), ledger.contents, {}, writable=True)
    journal.stamp = NOW
    context = Context(cast("Any", _Client()), _CONNECTION, Memory(), cast("Any", _Clock()), journal)
    plan = make_plan(structs.replace(delete(), uid=_OURS.policy_uid), Verdicts(), {}, RunConditions(), NOW)
    return deletion._Run(Executor(context, guard), plan, cast("Any", None), {}, cast("Any", None))


_SAVED = {"g": ToSave(_OURS, [], ())}
_WINDOW: Any = _Window()
_READ = Rechecked({}, {}, 0.0, late=False, log_ends={})


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        pytest.param([], None, id="alone"),
        pytest.param([_OURS], None, id="own-intent-read-again"),
        pytest.param([_THEIRS, _OURS], reasons.INTERRUPTED, id="theirs-came-first"),
        pytest.param([_OURS, _THEIRS], reasons.INTERRUPTED, id="theirs-came-later"),
        pytest.param([_OURS, _ENDED], reasons.INTERRUPTED, id="ours-was-resolved"),
    ],
)
@pytest.mark.parametrize("guard", [None, _EDITED], ids=["may-go-on", "edited"])
def test_a_contested_group_is_not_deleted_and_its_intent_stays(
    others: list[Change], reason: str | None, guard: Refusal | None
) -> None:
    """The intent that replaced the other process's one is the only trace of that deletion, whatever refuses ours."""
    ledger = _Ledger(others)
    run = _run(ledger, _Guard(guard))
    ledger.read_on(None)
    stops = deletion._final_checks(run, _READ, _SAVED, _WINDOW)
    assert stops.get("g") == (guard or (stops["g"] if reason else None))
    assert reason is None or guard or stops["g"].reason == reason
    before = dict(ledger.contents.intents)
    refused = {"g": stops.get("g") or _EDITED}
    (outcome,) = deletion._record_outcomes(run, _SAVED, refused, {}, {}, _WINDOW).outcomes
    assert outcome.kind is OutcomeType.NOT_DELETED
    assert (ledger.written == [], ledger.contents.intents == before) == ((True, True) if reason else (False, False))


@pytest.mark.parametrize("is_continued", [False, True], ids=["read-later", "continued"])
def test_a_backup_continues_the_deletion_that_the_ledger_knows(is_continued: bool) -> None:
    """What another process's deletion took is not in a backup that was made before that one ended."""
    fields = {name: getattr(_OURS, name) for name in ("group", "at", "policy", "policy_uid", "generation", "expires")}
    ended = HistoryEntry(id="theirs", what=OutcomeType.NOT_DELETED, reason=reasons.INTERRUPTED, message="", **fields)
    ledger = _Ledger([ended, _OURS])
    run = _run(ledger, _Guard())
    if is_continued:
        run = run._replace(earlier={"g": Earlier(backup("g", {}, id="theirs"), ())})
    ledger.read_on(None)
    stops = deletion._final_checks(run, _READ, _SAVED, _WINDOW)
    assert [each.reason for each in stops.values()] == ([] if is_continued else [reasons.CHANGED])
    deletion._record_outcomes(run, _SAVED, {"g": stops.get("g") or _EDITED}, {}, {}, _WINDOW)
    # A later run continues that one.
    assert {each.id for each in ledger.contents.unfinished["g"].values()} == {"theirs"}


def test_a_deletion_that_was_carried_out_leaves_the_other_intent() -> None:
    """A later run resolves that one."""
    ledger = _Ledger([_THEIRS])
    ledger.read_on(None)
    done = Answer(RequestState.CONFIRMED, Outcome("g", OutcomeType.DELETED, reasons.DELETED, "deleted"))
    deletion._record_outcomes(_run(ledger, _Guard()), _SAVED, {}, {"g": done}, {}, _WINDOW)
    assert ledger.contents.deletions.keys() == {"g"}
    assert ledger.contents.intents == {"g": _THEIRS}


def test_a_place_in_the_log_is_written_last() -> None:
    """Of what waits for the ledger, too: if half of it is written, a successor reads on before what was found."""
    written: list[list[Any]] = []

    class Failing(_Ledger):
        def note(self, changes: list[Any], deadline: Any = None) -> None:
            written.append([change.key for change in changes])
            raise LedgerProblem("no time")

    ledger = Failing([])
    journal = Journal(cast("Any", ledger), ledger.contents, {}, writable=True)
    clock = ScanClock(connection_uid="uid", seconds=1.0)
    journal.note([clock])
    journal.problem = None
    journal.note([Removal(("seen", "uid", "g")), clock])
    assert written[-1] == [("seen", "uid", "g"), clock.key]
