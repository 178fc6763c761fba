"""The operator without some of its guards: `python -m testing.faults.reckless GUARD[+GUARD...] operator ...`.

Everything else is unchanged, so the damage shows what the guard prevents. `clock` removes no guard: it lets a scenario
set the process's clock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from group_hygiene.cli import main
from group_hygiene.controller import admission, leader
from group_hygiene.engine import deletion, plan, recheck, uses
from group_hygiene.engine.context import Context, known_offsets_or_empty
from group_hygiene.engine.executor import Executor
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger import topic
from group_hygiene.model.entries import Backup, Intent
from group_hygiene.process.clock import SystemClock

_FOREVER = 1_000_000.0


def lease() -> None:
    """A former leader continues as if it led, and never ends because of a lost Lease.

    Removed alone, it costs no group: the evidence of such a process is too old when another one leads (`fresh`), and
    the ledger refuses its later writes (`fence`).
    """

    def seconds_left(self: Any) -> float:
        return _FOREVER if self._until else 0.0

    _replace(leader.Candidate, "seconds_left", seconds_left)


def fresh() -> None:
    """Evidence and intents never expire."""
    _replace(recheck, "FRESH_S", _FOREVER)
    _replace(deletion, "FRESH_S", _FOREVER)
    _replace(deletion, "Deadline", lambda _: Deadline(_FOREVER))


def window() -> None:
    """The offsets log is not read again right before a deletion: it shows what `fresh` alone would miss."""
    _replace(uses.DeletionWindow, "read_on", lambda *_: {})


def unedited() -> None:
    """A run ignores edits of its policy until its end.

    Removed for `lease+fresh`: the runner triggers runs by edits, and each would end the run of a process that resumes.
    """
    _replace(admission.ObjectGuard, "refusal", lambda _: None)


def sole() -> None:
    """A deletion continues although its intent is gone from the ledger, or replaced that of another process.

    Removed for `lease+fresh+unedited`: a successor resolves the intent of the process that resumes.
    """
    _replace(deletion, "_is_ours", lambda *_: True)


def fence() -> None:
    """A new leader does not fence its predecessor: each process writes the ledger with its own transactional.id."""
    begin = topic.Writer.__init__

    def of_its_own(self: Any, place: Any, transactional_id: str, timeout: float) -> None:
        begin(self, place, f"{transactional_id}-{os.getpid()}", timeout)

    _replace(topic.Writer, "__init__", of_its_own)


def re_read() -> None:
    """The scan's evidence is not read again."""

    def believe(
        context: Context, decided: plan.Plan, _cluster: Any, batch: Sequence[str], *_: Any
    ) -> recheck.Rechecked:
        ready = {}
        for name in batch:
            verdict = decided.verdicts[name]
            offsets = known_offsets_or_empty(verdict.evidence.offsets)
            group = verdict.group
            ready[name] = recheck.Ready(
                group=group, coordinator=group.coordinator, offsets=offsets, lag={}, topic_ids={}, why=""
            )
        return recheck.Rechecked(ready, {}, context.clock.monotonic(), late=False, log_ends={})

    _replace(deletion, "recheck", believe)


def backup() -> None:
    """No backup is written."""
    record = Executor.record

    def without(self: Any, changes: Sequence[Any], *rest: Any, **limits: Any) -> Any:
        return record(self, [change for change in changes if not isinstance(change, Backup)], *rest, **limits)

    _replace(Executor, "record", without)


def intent() -> None:
    """No intent is written before a deletion, and none is missed."""
    sole()
    record = Executor.record

    def without(self: Any, changes: Sequence[Any], *rest: Any, **limits: Any) -> Any:
        return record(self, [change for change in changes if not isinstance(change, Intent)], *rest, **limits)

    _replace(Executor, "record", without)


def mark_date() -> None:
    """A mark's date is ignored."""
    _replace(plan, "grace_elapsed", lambda policy, mark, now: mark is not None)
    _replace(recheck, "VETOES", tuple(veto for veto in recheck.VETOES if veto is not recheck.mark_ended))


def max_percent() -> None:
    """maxPercent is ignored."""
    _replace(plan, "_too_many", lambda *_: None)


def max_per_run() -> None:
    """maxPerRun is ignored."""
    at_turn = plan.Plan.at_turn
    _replace(plan, "max_deletions", lambda *_: sys.maxsize)
    _replace(plan.Plan, "at_turn", lambda self, now, _: at_turn(self, now, None))


def clock() -> None:
    """The clock is ahead by the seconds in the file $FAULTS_CLOCK."""
    file = Path(os.environ["FAULTS_CLOCK"])

    def now(_: Any) -> datetime:
        ahead = float(file.read_text() or 0) if file.exists() else 0.0
        return datetime.now(UTC) + timedelta(seconds=ahead)

    _replace(SystemClock, "now", now)


def _replace(owner: Any, name: str, value: Any) -> None:
    """Replace an existing attribute; fails if the guard has moved, instead of removing nothing."""
    getattr(owner, name)
    setattr(owner, name, value)


CHANGES: dict[str, Callable[[], None]] = {
    "lease": lease,
    "fresh": fresh,
    "window": window,
    "unedited": unedited,
    "sole": sole,
    "fence": fence,
    "re-read": re_read,
    "backup": backup,
    "intent": intent,
    "mark-date": mark_date,
    "max-percent": max_percent,
    "max-per-run": max_per_run,
    "clock": clock,
}

if __name__ == "__main__":
    for guard in sys.argv.pop(1).split("+"):
        CHANGES[guard]()
    main()
