"""From verdicts and marks to what one run will do: whom to warn, whom to delete, in which order, or why nobody. Pure.

A group is marked first and deleted only when its mark is older than the policy's grace period. A mark that is older
than the group's last use does not count: the group is marked again, with a new date. Limits abort, they do not slice: a
run that would delete more than `maxPercent` of all groups deletes none, since a policy that suddenly matches half of a
cluster is more likely a mistake than half a cluster of unused groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from msgspec import structs

from group_hygiene import reasons
from group_hygiene.entries import Mark
from group_hygiene.model import Fault, GroupType, Keep, Verdict
from group_hygiene.policy import Limits, Mode, Policy

_NEVER = datetime.max.replace(tzinfo=UTC)

# A group that could not be judged or deleted, as opposed to one that is kept on purpose.
FAILURES = frozenset(
    {reasons.DENIED, reasons.OFFSETS_UNKNOWN, reasons.TOPICS_UNKNOWN, reasons.LAG_UNKNOWN, reasons.DELETE_FAILED}
)
# What says that a group could not be judged this time: its mark stays, and waits.
_NOT_KNOWN = FAILURES | {
    reasons.OFFSETS_NOT_READ,
    reasons.TOPICS_NOT_READ,
    reasons.LAG_NOT_READ,
    reasons.RECORDS_NOT_READ,
    reasons.SUBSCRIPTION_NOT_READ,
    reasons.SUBSCRIPTION_UNKNOWN,
    reasons.RECORD_UNREADABLE,
    reasons.EVIDENCE_NOT_READ,
    reasons.EVIDENCE_MISSING,
    reasons.EVIDENCE_STALE,
    reasons.EVIDENCE_INCOMPLETE,
    reasons.EVIDENCE_OF_ANOTHER_CLUSTER,
    reasons.EVIDENCE_WENT_BACK,
    reasons.EVIDENCE_UNREADABLE,
}
# Without a ledger a mark can't be written; by a clock that is wrong it would bear a wrong date; and what stands in
# another cluster is not what the policy means.
_NO_MARKS = frozenset(
    {
        reasons.LEDGER_UNAVAILABLE,
        reasons.LEDGER_RESET,
        reasons.LEDGER_OWNED,
        reasons.LEDGER_FENCED,
        reasons.CLOCK_SKEW,
        reasons.CLUSTER_CHANGED,
    }
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run of one policy will do.

    due: what may be deleted now, oldest first, before limits pace or refuse it: in Enforce the groups whose grace
    period is over, in DryRun all that match. actions: the groups that this run deletes, in that order; empty in
    DryRun, for Alert, and when refused. refusal: why none of the due is deleted, or no match is marked.
    marking: groups that get a new mark now. unmarking: groups that lose theirs, and why. marked: mark of each group
    that has one already and keeps it (its date stands). at: when this was decided, the date of the new marks.
    untold: those of the marked that no status shows yet, since their run came to no end: due or not, they wait.
    """

    policy: Policy
    scanned: int
    verdicts: Mapping[str, Verdict]
    due: tuple[str, ...]
    actions: tuple[str, ...]
    refusal: Keep | None
    marking: frozenset[str] = frozenset()
    unmarking: Mapping[str, Keep] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    at: datetime = _NEVER
    untold: tuple[str, ...] = ()

    @property
    def next_expiry(self) -> datetime | None:
        """When brokers drop the first offset of all groups that match, if the policy asks; None = of none is it known.

        Other policies have no such date: what their groups' verdicts know of it hangs on who else runs at that time.
        """
        if self.policy.when.expires_within is None:
            return None
        return min(filter(None, (self.verdicts[name].expires for name in self.matched)), default=None)

    @property
    def matched(self) -> tuple[str, ...]:
        return tuple(sorted(group for group, verdict in self.verdicts.items() if verdict.matches))

    @property
    def marked(self) -> tuple[str, ...]:
        """All groups that are marked after this run."""
        return tuple(sorted({*self.marks, *self.marking}))

    def due_time(self, group: str) -> datetime | None:
        """When a marked group may be deleted at the earliest; None = it is not marked."""
        if group in self.marks:
            return self.marks[group].due
        return self.at + self.policy.grace_period if group in self.marking else None

    def first_topics(self, group: str) -> list[str]:
        """Of a match of DeleteOffsets, the topics whose offsets go at `due_time`; all that match, if it is unmarked."""
        mark, matching = self.marks.get(group), self.verdicts[group].topics
        return sorted(matching if mark is None else (t for t, since in mark.topics.items() if since == mark.since))

    def newest_due(self, group: str) -> datetime | None:
        """As `due_time`, of what of the group was marked last."""
        mark = self.marks.get(group)
        return self.due_time(group) if mark is None else mark.newest + (mark.due - mark.since)

    def halted(self, why: Keep) -> Plan:
        """What is left of it when its marks can't be written: nothing is marked, nothing is deleted."""
        return replace(self, marking=frozenset(), actions=(), refusal=why)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the cluster and the installation say about deleting at all.

    limits: the connection's own. total: groups of the whole cluster, from one unfiltered list; None = not known.
    refusals: what forbids any deletion now (hidden topics, a ledger that can't be written, a wrong clock).
    complete: whether the snapshot is, so that a group which it lacks is gone or in use.
    budget: how many more groups this run of the connection may delete; None = only the policy's own limit.
    due_elsewhere: groups that are due by other policies of this connection: its maxPercent holds for all together.
    told: the date of the newest mark that the policy's status shows; None = it shows none.
    """

    limits: Limits | None = None
    total: int | None = None
    refusals: Sequence[Keep] = ()
    complete: bool = True
    budget: int | None = None
    due_elsewhere: Collection[str] = frozenset()
    told: datetime | None = None

    @property
    def may_mark(self) -> bool:
        return not any(refusal.reason in _NO_MARKS for refusal in self.refusals)


def make_plan(
    policy: Policy,
    scanned: int,
    verdicts: Mapping[str, Verdict],
    conditions: Conditions,
    marks: Mapping[str, Mark],
    now: datetime,
) -> Plan:
    """Mark what matches, order what is due, hold it against the limits, and decide.

    scanned: how many groups were looked at. marks: group -> the policy's mark of it, as the ledger has them.
    """
    enforced = policy.enforced
    unmarking = _unmarking(policy, verdicts, conditions, marks)
    held = {
        name: _carried_on(policy, mark, verdicts.get(name), now if conditions.may_mark else None)
        for name, mark in marks.items()
        if enforced and mark.digest == policy.digest and name not in unmarking
        if not is_outdated(policy, mark, verdicts.get(name))
    }
    marking: frozenset[str] = frozenset()
    if enforced and conditions.may_mark:
        matching = (name for name, verdict in verdicts.items() if verdict.matches)
        new = (name for name in matching if name not in held or held[name].topics.items() - marks[name].topics.items())
        marking = frozenset(new)
    due = due_groups(policy, verdicts, held, now)
    refusal = _refusal(policy, due, conditions)
    if refusal is None and enforced and not conditions.may_mark and any(v.matches for v in verdicts.values()):
        refusal = next(refusal for refusal in conditions.refusals if refusal.reason in _NO_MARKS)
    untold = {name for name, mark in held.items() if _untold(mark, conditions.told)}
    ready = [name for name in due if name not in untold]
    actions = tuple(ready[: pace(policy, conditions)]) if enforced and refusal is None else ()
    return Plan(policy, scanned, verdicts, due, actions, refusal, marking, unmarking, held, now, tuple(sorted(untold)))


def _carried_on(policy: Policy, mark: Mark, verdict: Verdict | None, new: datetime | None) -> Mark:
    """The mark after this run. A topic that matches no more leaves it, and comes back with another date.

    So does a topic for which the group committed after it was marked.

    new: the date of topics that match since this run; None = none may be marked.
    """
    if not policy.by_topic or verdict is None or not verdict.matches:
        return mark
    topics = {topic: since for topic, since in mark.topics.items() if _topic_stands(verdict, topic, since)}
    if new is not None:
        topics |= dict.fromkeys(verdict.topics.difference(topics), new)
    since = min(topics.values(), default=mark.since)
    return structs.replace(mark, topics=topics, since=since, due=since + policy.grace_period)


def due_topics(policy: Policy, mark: Mark, verdict: Verdict, now: datetime) -> frozenset[str]:
    """Of which topics the offsets may go: those that are marked for as long as the grace period, and match."""
    return frozenset(
        topic
        for topic, since in mark.topics.items()
        if _topic_stands(verdict, topic, since) and since <= now and now >= since + policy.grace_period
    )


def _topic_stands(verdict: Verdict, topic: str, since: datetime) -> bool:
    """Whether a topic that was marked at `since` matches, and the group has not committed for it after that."""
    return topic in verdict.topics and not verdict.evidence.used_since(since, topic)


def is_outdated(policy: Policy, mark: Mark, verdict: Verdict | None) -> bool:
    """Whether the group matches, and was used after it was marked: then nobody was warned about it as it is now."""
    if policy.by_topic or verdict is None or not verdict.matches:
        return False
    return verdict.evidence.used_since(mark.since)


def _untold(mark: Mark, told: datetime | None) -> bool:
    """Whether nobody was warned: the process died after it wrote the mark, or the API server refused the status."""
    return told is None or mark.newest.replace(microsecond=0) > told


def due_groups(
    policy: Policy, verdicts: Mapping[str, Verdict], marks: Mapping[str, Mark], now: datetime
) -> tuple[str, ...]:
    """What of a policy's matches is due, oldest first: in DryRun all, in Enforce those whose grace period is over."""
    if not policy.action.changes:
        return ()
    matching = [verdict for verdict in verdicts.values() if verdict.matches]
    if policy.mode is Mode.ENFORCE:
        matching = [verdict for verdict in matching if _is_due(policy, verdict, marks.get(verdict.group.id), now)]

    def age(verdict: Verdict) -> tuple[datetime, datetime, str]:
        mark = marks.get(verdict.group.id)
        return (mark.since if mark else _NEVER, verdict.evidence.idle_since or _NEVER, verdict.group.id)

    return tuple(verdict.group.id for verdict in sorted(matching, key=age))


def _is_due(policy: Policy, verdict: Verdict, mark: Mark | None, now: datetime) -> bool:
    if mark is None or not policy.by_topic:
        return is_ripe(policy, mark, now) and not (mark and is_outdated(policy, mark, verdict))
    return mark.digest == policy.digest and bool(due_topics(policy, mark, verdict, now))


def is_ripe(policy: Policy, mark: Mark | None, now: datetime) -> bool:
    """Whether a mark is of the policy as it is now, and has stood for its grace period; one from the future has not."""
    if mark is None or mark.digest != policy.digest:
        return False
    return mark.since <= now and now >= max(mark.due, mark.since + policy.grace_period)


def _unmarking(
    policy: Policy, verdicts: Mapping[str, Verdict], conditions: Conditions, marks: Mapping[str, Mark]
) -> dict[str, Keep]:
    """Which marks end, and why. What can't be known now ends none; nor does a look at another cluster."""
    if any(refusal.reason == reasons.CLUSTER_CHANGED for refusal in conditions.refusals):
        return {}
    ending: dict[str, Keep] = {}
    for name, mark in marks.items():
        keep = _no_longer(policy, verdicts.get(name), conditions, mark)
        if keep is not None:
            ending[name] = keep
    return ending


def _no_longer(policy: Policy, verdict: Verdict | None, conditions: Conditions, mark: Mark) -> Keep | None:
    """Why a mark ends; None = it stays, or a new one takes its place."""
    if not policy.action.changes:
        return Keep(reasons.POLICY_CHANGED, "the policy deletes nothing any more")
    if policy.mode is Mode.DRY_RUN:
        return Keep(reasons.DRY_RUN, "the policy is a dry run now")
    if verdict is not None and verdict.keep is not None and not not_known(verdict):
        return verdict.keep
    if verdict is None and conditions.complete:
        return Keep(reasons.GONE, "it is not among the groups that the policy selects: gone, in use again, or excluded")
    if mark.digest != policy.digest and (verdict is None or not verdict.matches):
        return Keep(reasons.POLICY_CHANGED, "the policy was edited since it was marked")
    return None


def not_known(verdict: Verdict) -> bool:
    """Whether the group is kept only because something could not be read this time."""
    reason = verdict.keep.reason if verdict.keep else None
    known = verdict.evidence.protections
    return (
        reason in _NOT_KNOWN
        # A rebalance passes; a group that has lost its members is not selected any more.
        or reason == reasons.NOT_STABLE
        or (reason == reasons.CLAIMED and isinstance(known.claimed, Fault))
        or (reason == reasons.MIRROR_MAKER and known.mirrored is None)
        or (reason == reasons.STREAMS and known.streams is None and verdict.group.type is not GroupType.STREAMS)
        or (reason == reasons.STREAMS_STATE and known.streams is None)
    )


def pace(policy: Policy, conditions: Conditions) -> int:
    """How many groups this run may delete at most."""
    most = policy.limits.stricter(conditions.limits).max_per_run
    return most if conditions.budget is None else max(0, min(most, conditions.budget))


def _refusal(policy: Policy, due: Sequence[str], conditions: Conditions) -> Keep | None:
    if not due:
        return None
    if conditions.refusals:
        return conditions.refusals[0]
    if not conditions.complete:
        return Keep(reasons.SNAPSHOT_INCOMPLETE, "groups may be missing from the answers of the brokers")
    if conditions.total is None:
        return Keep(reasons.TOTAL_UNKNOWN, "how many groups the cluster has is not known, so maxPercent can't be held")
    refusal = _too_many(len(due), conditions.total, policy.limits.max_percent, "delete.maxPercent of the policy")
    if refusal is None and conditions.limits is not None:
        together = len({*due, *conditions.due_elsewhere})
        refusal = _too_many(
            together, conditions.total, conditions.limits.max_percent, "limits.maxPercent of the KafkaConnection"
        )
    return refusal


def _too_many(due: int, total: int, percent: int, field_: str) -> Keep | None:
    if due * 100 <= percent * total:
        return None
    share = due * 100 / total if total else 100
    return Keep(
        reasons.LIMIT_EXCEEDED,
        f"{due} of {total} groups are due ({share:.1f}%), more than {percent}%: none is deleted. "
        f"Look at them; if that is right, raise {field_} in Git",
    )
