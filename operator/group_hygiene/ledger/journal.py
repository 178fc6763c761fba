"""Records the changes of one run: in the ledger, or only in memory while there is none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, Entry, Key
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import format_duration

R = TypeVar("R")

# If the clocks of the operator and a broker differ by more than this, one of them is wrong, and so are dates.
SKEW_MAX = timedelta(minutes=5)
_NO_LEDGER = Refusal(reasons.LEDGER_UNAVAILABLE, "there is no ledger")
# The types of entries that are notes.
_NOTES = frozenset({"watch", "scan-clock", "seen", "covered", "policy-alerts", "used-by"})
# After these, other changes can still be written.
NOT_READ_BACK = frozenset({reasons.BACKUP_NOT_READABLE, reasons.OFFSETS_UNKNOWN})


class Journal:
    """One connection's state, for one run.

    contents: of the ledger, with all unwritten changes applied. problem: why no group may be deleted; None = writes
    reach the ledger. writable False: a ledger that is only read, since no policy of the connection may change Kafka.
    unwritten: changes still to be written, shared between runs. stamp: the broker's time of the last write; None =
    nothing was written yet (`has_written`), or its time is not known.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        contents: Contents,
        unwritten: dict[Key, Change],
        writable: bool = False,
        problem: Refusal | None = None,
    ) -> None:
        self._ledger = ledger
        self._unwritten = unwritten
        self._writable = writable
        self.contents = contents
        self.problem = problem
        self.stamp: datetime | None = None
        self.has_written = False

    @property
    def exists(self) -> bool:
        """Whether there is a ledger, and it can be read."""
        return self._ledger is not None

    @property
    def writable(self) -> bool:
        """Whether writes reach the ledger."""
        return self._ledger is not None and self._writable and self.problem is None

    @property
    def writer(self) -> str:
        """The transactional.id of this connection's processes; empty without a ledger."""
        return "" if self._ledger is None else self._ledger.writer

    def skew(self, now: datetime) -> Refusal | None:
        """Why dates can't be trusted, by the operator's `now` and the broker's time of the last write, or None."""
        if self.stamp is None:
            return Refusal(reasons.CLOCK_SKEW, "the broker's time of a write to the ledger is not known")
        apart = abs(now - self.stamp)
        if apart <= SKEW_MAX:
            return None
        return Refusal(
            reasons.CLOCK_SKEW,
            f"the clocks of the operator and of a broker are {format_duration(apart)} apart: no date can be trusted",
        )

    def read_on(self, deadline: Deadline) -> Refusal | None:
        """Read what other processes have written since the last read; returns why that failed, None = it succeeded."""
        if self._ledger is None:
            return self.problem
        problem = self._tried(lambda ledger: ledger.read_on(deadline))
        # What was read may be older than changes that could not be written.
        self.contents.apply(self._unwritten.values())
        return problem

    def entries(self, wanted: Callable[[Key], bool], deadline: Deadline) -> list[Entry] | Refusal:
        """Every readable entry of the whole ledger whose key is wanted; a Refusal if it can't be read."""
        return self._tried(lambda ledger: list(ledger.entries(wanted, deadline)))

    def latest(self, wanted: Callable[[Key], bool], deadline: Deadline) -> Iterator[tuple[Key, Entry | None]]:
        """As `entries`, with their keys; unreadable entries are None. Raises LedgerProblem."""
        if self._ledger is None or self.problem is not None:
            why = self.problem or _NO_LEDGER
            raise LedgerProblem(why.message, why.reason)
        return self._ledger.latest(wanted, deadline)

    def append_times(self, keys: Collection[Key], deadline: Deadline) -> dict[Key, datetime] | Refusal:
        """The broker's time of the latest record of each key; without those of unknown time."""
        return self._tried(lambda ledger: ledger.append_times(keys, deadline))

    def _tried(self, call: Callable[[Ledger], R]) -> R | Refusal:
        if self._ledger is None or self.problem is not None:
            return self.problem or _NO_LEDGER
        try:
            return call(self._ledger)
        except LedgerProblem as error:
            problem = Refusal.of(error)
            if problem.reason not in NOT_READ_BACK:
                self.problem = problem
            return problem

    def note(self, changes: Sequence[Change], deadline: Deadline | None = None) -> None:
        """Apply changes, only in memory if the ledger can't be written.

        Only for notes of scans and alerts, whose loss at a restart merely causes a delay. `engine.executor` writes
        all other entries.
        """
        others = {change.key[0] for change in changes} - _NOTES
        if others:
            raise ValueError(f"not a note: {', '.join(sorted(others))}")
        self._note(changes, deadline)

    def _note(self, changes: Sequence[Change], deadline: Deadline | None) -> None:
        self.contents.apply(changes)
        for change in changes:
            # At the end, also if an earlier one waits: of many changes some may be written, and a place in the offsets
            # log must not be, before what was found up to it.
            self._unwritten.pop(change.key, None)
            self._unwritten[change.key] = change
        if self._unwritten and self.writable:
            self._write(lambda ledger: ledger.note(list(self._unwritten.values()), deadline))

    def _record(self, changes: Sequence[Change], deadline: Deadline | None, until: Deadline | None) -> Refusal | None:
        # Changes that could not be written before come first: a restart must not bring back an older entry.
        every = [*self._unwritten.values(), *changes]
        return self._write(lambda ledger: ledger.write(every, deadline, until)) if every else None

    def _write(self, write: Callable[[Ledger], datetime | None]) -> Refusal | None:
        stamp = self._tried(write)
        if isinstance(stamp, Refusal):
            return stamp
        self._unwritten.clear()
        self.stamp, self.has_written = stamp, True
        return None

    def sweep(self, now: datetime) -> bool:
        """Remove expired entries from the ledger; returns whether that was done.

        By the broker's time of this run's last write, and only if the operator's `now` agrees: the removal is final,
        also of backups.
        """
        stamp = self.stamp
        if not self.writable or stamp is None or self.skew(now) is not None:
            return False
        return not isinstance(self._tried(lambda ledger: ledger.sweep(stamp)), Refusal)
