"""Writes what a change of Kafka depends on: backups, intents, outcomes, marks, keep requests.

Only `engine.executor` imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence

from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change
from group_hygiene.model.reasons import Refusal


def record(
    journal: Journal, changes: Sequence[Change], deadline: Deadline | None = None, until: Deadline | None = None
) -> Refusal | None:
    """Write changes that must not be lost, all or none, and read them back; None = `contents` has them.

    Else why not. With the reason BackupNotReadable or OffsetsUnknown they are in the log, or may be, which a later read
    shows: see `Ledger.write`, also for `until`.
    """
    if journal.problem is not None:
        return journal.problem
    if not journal.writable:
        return Refusal(
            reasons.LEDGER_UNAVAILABLE, "no policy of this connection may change Kafka, so nothing is written"
        )
    return journal._record(changes, deadline, until)


def end(journal: Journal, changes: Sequence[Change]) -> None:
    """Apply changes that end entries: they count at once, and are written as soon as the ledger can be."""
    journal._note(changes, None)
