"""How many entries the objects of a namespace may add to a ledger that other namespaces use, too.

Compaction removes what was replaced or ended, but only after a day. So the log would grow by what one namespace marks
and keeps again and again, until it can't be read in time.
"""

from __future__ import annotations

from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal

# So many at once, and again in an hour. What has begun is finished, even if it is more.
ENTRIES, _HOUR_S = 10_000, 3600.0


class Allowance:
    """Of the namespaces that use one connection. Only in memory: a new process counts from nothing."""

    def __init__(self) -> None:
        # What a namespace still has, and when that was so, in monotonic seconds.
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, namespace: str, entries: int, now: float) -> Refusal | None:
        """Count entries that the namespace is about to write; a Refusal: it must not. now: in monotonic seconds."""
        left, at = self._left.get(namespace, (ENTRIES, now))
        left = min(ENTRIES, left + (now - at) * ENTRIES / _HOUR_S)
        if left <= 0:
            wait = -left * _HOUR_S / ENTRIES / 60
            return Refusal(
                reasons.TOO_MANY_CHANGES,
                f"the policies and GroupKeeps of namespace {namespace} have written more than {ENTRIES:,} marks and "
                f"requests in an hour to the ledger that others use, too: they go on in {wait:.0f} minutes",
            )
        self._left[namespace] = left - entries, now
        return None
