"""Where a run notes what must be remembered: in the ledger, or in memory only as long as there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from group_hygiene import reasons
from group_hygiene.contents import Contents
from group_hygiene.durations import format_duration
from group_hygiene.entries import Change, Entry, Key
from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.ledger import Ledger
from group_hygiene.model import Keep

# An operator and a broker whose clocks differ by more than this: one of them is wrong, and so is every date.
SKEW_MAX = timedelta(minutes=5)


class Journal:
    """One connection's memory, for one run.

    contents: what the ledger says, and what it would say had everything been written. problem: why nothing may be
    deleted; None = entries reach the ledger. writable False: a ledger that is only read, since no policy of the
    connection means to change anything in Kafka. unwritten: what is still to be written, kept from run to run.
    stamp: the broker's time of the last write; None = nothing was written yet, or its time is not told.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        contents: Contents,
        unwritten: dict[Key, Change],
        writable: bool = False,
        problem: Keep | None = None,
    ) -> None:
        self._ledger = ledger
        self._unwritten = unwritten
        self._writable = writable
        self.contents = contents
        self.problem = problem
        self.stamp: datetime | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a ledger, and it can be read."""
        return self._ledger is not None

    @property
    def writable(self) -> bool:
        """Whether what is recorded reaches the ledger."""
        return self._ledger is not None and self._writable and self.problem is None

    @property
    def writer(self) -> str:
        """Under which name this connection's processes write; empty without a ledger."""
        return "" if self._ledger is None else self._ledger.writer

    def skew(self, now: datetime) -> Keep | None:
        """Why no date can be trusted: our clock's `now` against the broker's time of the last write; None = it can."""
        if self.stamp is None:
            return Keep(reasons.CLOCK_SKEW, "the broker's time of a write to the ledger is not known")
        apart = abs(now - self.stamp)
        if apart <= SKEW_MAX:
            return None
        return Keep(
            reasons.CLOCK_SKEW,
            f"the clocks of the operator and of a broker are {format_duration(apart)} apart: no date can be trusted",
        )

    def read_on(self, deadline: Deadline) -> Keep | None:
        """Take in what others wrote since the last look: the reason why that failed, None when all is known."""
        if self._ledger is None or self.problem is not None:
            return self.problem
        try:
            self._ledger.read_on(deadline)
        except LedgerProblem as error:
            self.problem = Keep(error.reason, str(error))
        return self.problem

    def entries(self, wanted: Callable[[Key], bool], deadline: Deadline) -> list[Entry] | Keep:
        """Every readable entry whose key is wanted, from the whole ledger; else the reason why it could not be read."""
        if self._ledger is None or self.problem is not None:
            return self.problem or Keep(reasons.LEDGER_UNAVAILABLE, "there is no ledger")
        try:
            return list(self._ledger.entries(wanted, deadline))
        except LedgerProblem as error:
            self.problem = Keep(error.reason, str(error))
            return self.problem

    def note(self, changes: Sequence[Change], deadline: Deadline | None = None) -> datetime | None:
        """Remember; in memory only where the ledger can't be written. The broker's time of the write, if there was one.

        What a restart may forget at the cost of a delay goes this way, and nothing else does.
        """
        self.contents.apply(changes)
        self._unwritten.update((change.key, change) for change in changes)
        if not self._unwritten or not self.writable:
            return None
        stamp, _ = self._write([], deadline)
        return stamp

    def record(self, changes: Sequence[Change], deadline: Deadline | None = None) -> Keep | None:
        """Write what must not be lost, all of it or nothing: the reason why it is not written, None when it is."""
        if self.problem is not None:
            return self.problem
        if not self.writable:
            return Keep(
                reasons.LEDGER_UNAVAILABLE, "no policy of this connection may change Kafka, so nothing is written"
            )
        return self._write(changes, deadline)[1]

    def _write(self, changes: Sequence[Change], deadline: Deadline | None) -> tuple[datetime | None, Keep | None]:
        if self._ledger is None:
            return None, self.problem
        try:
            # What could not be written before comes first: an older entry must not come back by a restart.
            stamp = self._ledger.write([*self._unwritten.values(), *changes], deadline)
        except LedgerProblem as error:
            self.problem = Keep(error.reason, str(error))
            return None, self.problem
        self._unwritten.clear()
        self.stamp = stamp
        return stamp, None

    def sweep(self, now: datetime) -> bool:
        """Take out of the ledger what is past its time; whether that was done.

        By the broker's time of this run's last write, and only where our clock's `now` agrees: what is removed here is
        gone for good, backups too.
        """
        if self._ledger is None or not self.writable or self.stamp is None or self.skew(now) is not None:
            return False
        try:
            self._ledger.sweep(self.stamp)
        except LedgerProblem as error:
            self.problem = Keep(error.reason, str(error))
            return False
        return True
