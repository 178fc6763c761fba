"""The verdict on one group, and its outcome in a run: records, without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum

from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Evidence
from group_hygiene.model.groups import Fault, Group
from group_hygiene.model.refusal import Refusal


class Need(Enum):
    """The field of `Evidence` that must be read before a check can decide; until then its `refusal` counts."""

    ACTIVITY = Refusal(reasons.EVIDENCE_UNREADABLE, "the pipeline's tables were not read for it")
    OFFSETS = Refusal(reasons.OFFSETS_UNKNOWN, "its committed offsets were not read")
    MISSING_TOPICS = Refusal(reasons.TOPICS_UNKNOWN, "the existence of its topics was not read")
    BOUNDS = Refusal(reasons.LAG_UNKNOWN, "the bounds of its partitions were not read")
    RECORDS = Refusal(reasons.LAG_UNKNOWN, "whether it has unread records was not read")
    SUBSCRIBED = Refusal(reasons.SUBSCRIPTION_UNKNOWN, "the subscriptions of its members were not read")

    @property
    def refusal(self) -> Refusal:
        return self.value


@dataclass(frozen=True, slots=True)
class Verdict:
    """A policy's verdict on a group that its `match` selects. refusal: why it does not match; None = it matches.

    topics: for DeleteOffsets, those whose offsets are to be deleted. need: the missing evidence.
    """

    group: Group
    evidence: Evidence
    refusal: Refusal | None
    topics: frozenset[str] = frozenset()
    need: Need | None = None

    @property
    def matches(self) -> bool:
        return self.refusal is None

    @property
    def expires(self) -> datetime | None:
        """When brokers delete the first of the group's offsets; None = not known, or never."""
        activity, retention = self.evidence.activity, self.evidence.retention
        if not isinstance(activity, Activity) or retention is None or not activity.is_of(self.group):
            return None
        if not self.group.in_use:
            return activity.first_expiry(retention)
        subscribed = self.evidence.subscribed
        if subscribed is None or isinstance(subscribed, Fault):
            return None
        return activity.expiry_in_use(subscribed, retention)


class OutcomeKind(StrEnum):
    DELETED = "Deleted"
    NOT_DELETED = "NotDeleted"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one group in one run; for `NotDeleted` and `Failed` with the reason.

    topics: those whose offsets were deleted, if the group stays.
    """

    group: str
    kind: OutcomeKind
    reason: str
    message: str
    topics: tuple[str, ...] = ()
