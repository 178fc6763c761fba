"""The operator without some of its guards: `python -m faults.reckless GUARD[+GUARD...] operator ...`.

All the rest is the real thing, so what it destroys is what the guard is for. `clock` takes out nothing: it lets a
scenario set the process's clock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from group_hygiene import plan, reconcile
from group_hygiene.cli import main
from group_hygiene.clock import SystemClock
from group_hygiene.controller import guarding, leader
from group_hygiene.entries import Backup, Intent
from group_hygiene.kafka import transactions
from group_hygiene.kafka.client import Deadline
from group_hygiene.reconcile import deletion, journal, large_groups, rereading

_FOREVER = 1_000_000.0


def lease() -> None:
    """Who led once goes on as if it led, and never ends for having lost the Lease.

    Taken out alone it costs no group: what such a process has read is too old by the time that another one leads
    (`fresh`), and what it would begin then, the ledger refuses (`fence`).
    """

    def seconds_left(self: Any) -> float:
        return _FOREVER if self._until else 0.0

    _replace(leader.Leader, "seconds_left", seconds_left)


def fresh() -> None:
    """What was read is good for ever, and so is an intent."""
    _replace(rereading, "FRESH_S", _FOREVER)
    _replace(deletion, "FRESH_S", _FOREVER)
    _replace(large_groups, "FRESH_S", _FOREVER)
    _replace(deletion, "Deadline", lambda _: Deadline(_FOREVER))


def unedited() -> None:
    """What a run began with holds until its end, whatever was edited meanwhile.

    Taken out for `lease+fresh`: the runner makes policies run by edits, and any of them ends the run of who wakes up.
    """
    _replace(guarding.Guard, "refusal", lambda _: None)


def fence() -> None:
    """Who takes over fences nobody: each process writes the ledger under a transactional.id of its own."""
    begin = transactions.Writer.__init__

    def of_its_own(self: Any, place: Any, transactional_id: str, timeout: float) -> None:
        begin(self, place, f"{transactional_id}-{os.getpid()}", timeout)

    _replace(transactions.Writer, "__init__", of_its_own)


def re_read() -> None:
    """What the scan saw is taken for what is."""

    def believe(context: Any, decided: plan.Plan, _cluster: Any, batch: Sequence[str], *_: Any) -> rereading.Reread:
        ready = {}
        for name in batch:
            verdict = decided.verdicts[name]
            offsets = reconcile.context.readable(verdict.evidence.offsets)
            group = verdict.group
            ready[name] = rereading.Ready(
                group=group, coordinator=group.coordinator, offsets=offsets, lag={}, topic_ids={}, why=""
            )
        return rereading.Reread(ready, {}, context.clock.monotonic(), late=False)

    _replace(deletion, "read_again", believe)


def backup() -> None:
    """Nothing is saved."""
    record = journal.Journal.record

    def without(self: Any, changes: Sequence[Any], *rest: Any) -> Any:
        return record(self, [change for change in changes if not isinstance(change, Backup)], *rest)

    _replace(journal.Journal, "record", without)


def intent() -> None:
    """Nothing says beforehand what is about to be deleted."""
    record = journal.Journal.record

    def without(self: Any, changes: Sequence[Any], *rest: Any) -> Any:
        return record(self, [change for change in changes if not isinstance(change, Intent)], *rest)

    _replace(journal.Journal, "record", without)


def mark_date() -> None:
    """A mark is enough, whatever its date."""
    _replace(plan, "is_ripe", lambda policy, mark, now: mark is not None)
    _replace(rereading, "_no_longer_marked", lambda context, policy, name: None)


def max_percent() -> None:
    """No share of the cluster is too much."""
    _replace(plan, "_too_many", lambda *_: None)


def max_per_run() -> None:
    """A run deletes all that is due."""
    _replace(plan, "pace", lambda *_: sys.maxsize)


def clock() -> None:
    """The clock is ahead by the seconds in the file $FAULTS_CLOCK."""
    file = Path(os.environ["FAULTS_CLOCK"])

    def now(_: Any) -> datetime:
        ahead = float(file.read_text() or 0) if file.exists() else 0.0
        return datetime.now(UTC) + timedelta(seconds=ahead)

    _replace(SystemClock, "now", now)


def _replace(owner: Any, name: str, value: Any) -> None:
    """Put something in the place of what is there: a guard that has moved must not seem to be taken out."""
    getattr(owner, name)
    setattr(owner, name, value)


CHANGES: dict[str, Callable[[], None]] = {
    "lease": lease,
    "fresh": fresh,
    "unedited": unedited,
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
