"""From verdicts to what one run will do: the order, the limits, or why nothing is deleted. Pure.

Limits abort, they do not slice: a run that would delete more than `maxPercent` of all groups deletes none, since a
policy that suddenly matches half of a cluster is more likely a mistake than half a cluster of litter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from group_hygiene import reasons
from group_hygiene.model import Keep, Unchanged, Verdict
from group_hygiene.policy import Action, Limits, Mode, Policy

_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run of one policy will do.

    due: every group that Enforce would delete, oldest first, before `maxPerRun` paces them.
    actions: the groups that this run deletes, in that order; empty in DryRun, for Alert, and when refused.
    refusal: why none of the due may be deleted, in Enforce as in DryRun.
    """

    policy: Policy
    scanned: int
    verdicts: Mapping[str, Verdict]
    due: tuple[str, ...]
    actions: tuple[str, ...]
    refusal: Keep | None

    @property
    def matched(self) -> tuple[str, ...]:
        return tuple(sorted(group for group, verdict in self.verdicts.items() if verdict.matches))


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the cluster and the installation say about deleting at all.

    total: groups of the whole cluster, from one unfiltered list; None = not known.
    refusals: what forbids any deletion now (an incomplete snapshot, hidden topics, no place for backups).
    """

    limits: Limits | None = None
    total: int | None = None
    refusals: Sequence[Keep] = ()


def make_plan(policy: Policy, scanned: int, verdicts: Mapping[str, Verdict], conditions: Conditions) -> Plan:
    """Order what matches, hold it against the limits, and decide. `scanned` is how many groups were looked at."""
    due: tuple[str, ...] = ()
    if policy.action is Action.DELETE:
        matching = [verdict for verdict in verdicts.values() if verdict.matches]
        due = tuple(verdict.group.id for verdict in sorted(matching, key=_oldest_first))
    limits = policy.limits.stricter(conditions.limits)
    refusal = _refusal(due, limits, conditions) if due else None
    enforced = policy.mode is Mode.ENFORCE and refusal is None
    return Plan(policy, scanned, verdicts, due, due[: limits.max_per_run] if enforced else (), refusal)


def seen_again(
    before: Unchanged | None, fingerprint: bytes, now: datetime, monotonic: float, interval: timedelta
) -> Unchanged:
    """What a further look at an Empty group adds: time since the last one, if nothing changed and no look was missed.

    Looks more than two intervals apart start anew, since the group may have been used and left in between.
    """
    if (
        before is None
        or before.fingerprint != fingerprint
        or monotonic - before.last_seen > 2 * interval.total_seconds()
    ):
        return Unchanged(fingerprint, now, timedelta(0), monotonic)
    gap = timedelta(seconds=max(0.0, monotonic - before.last_seen))
    return Unchanged(fingerprint, before.since, before.observed + gap, monotonic)


def _oldest_first(verdict: Verdict) -> tuple[datetime, str]:
    seen = verdict.evidence.unchanged
    return (seen.since if seen else _NEVER, verdict.group.id)


def _refusal(due: Sequence[str], limits: Limits, conditions: Conditions) -> Keep | None:
    if conditions.refusals:
        return conditions.refusals[0]
    if conditions.total is None:
        return Keep(reasons.TOTAL_UNKNOWN, "how many groups the cluster has is not known, so maxPercent can't be held")
    if len(due) * 100 > limits.max_percent * conditions.total:
        share = len(due) * 100 / conditions.total if conditions.total else 100
        return Keep(
            reasons.LIMIT_EXCEEDED,
            f"{len(due)} of {conditions.total} groups are due ({share:.1f}%), more than maxPercent "
            f"{limits.max_percent}: none is deleted. Look at them; if that is right, raise maxPercent",
        )
    return None
