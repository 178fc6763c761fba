"""Plans one run from verdicts and marks: the groups to mark, and those to delete in order. Pure.

A group is marked first and deleted only when its mark is older than the policy's grace period. A mark that is older
than the group's last use does not count, nor does one that no status or Event has shown: the group is marked again,
with a new date. A run that would delete more than
`maxPercent` of all groups deletes none, since a policy that suddenly matches half of a cluster is more likely a mistake
than half a cluster of unused groups.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain

from msgspec import structs

from group_hygiene.model import reasons
from group_hygiene.model.entries import Mark, OutcomeType
from group_hygiene.model.evidence import Activity, Outcome, Verdict
from group_hygiene.model.groups import GroupType
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import timestamp
from group_hygiene.spec.policy import Limits, Mode, Policy, next_open

# How many groups of each reason a status may name.
SHOWN = 20
_NEVER = datetime.max.replace(tzinfo=UTC)

# Reasons of groups that could not be judged or deleted, as opposed to those that must stay.
FAILURES = frozenset(
    {
        *(reasons.DENIED, reasons.OFFSETS_UNKNOWN, reasons.TOPICS_UNKNOWN, reasons.LAG_UNKNOWN),
        *(reasons.BACKUP_NOT_READABLE, reasons.DELETE_FAILED),
    }
)
# Reasons of groups that stay because a pipeline's tables don't answer what a policy asks.
EVIDENCE = frozenset(
    {
        *(reasons.EVIDENCE_NOT_CONFIGURED, reasons.EVIDENCE_MISSING, reasons.EVIDENCE_STALE),
        *(reasons.EVIDENCE_INCOMPLETE, reasons.EVIDENCE_OF_ANOTHER_CLUSTER, reasons.EVIDENCE_WENT_BACK),
        reasons.EVIDENCE_UNREADABLE,
    }
)
# Reasons of groups that could not be judged this time: their marks stay.
_NOT_KNOWN = (FAILURES | EVIDENCE - {reasons.EVIDENCE_NOT_CONFIGURED}) | {
    *(reasons.NO_START_OFFSET, reasons.SUBSCRIPTION_UNKNOWN, reasons.RECORD_UNREADABLE),
}
# Reasons for not marking: without a ledger a mark can't be written; a wrong clock gives it a wrong date; and another
# cluster has other groups.
_NO_MARKS = frozenset(
    {
        reasons.LEDGER_UNAVAILABLE,
        reasons.LEDGER_RESET,
        reasons.LEDGER_OWNED,
        reasons.LEDGER_CHANGED,
        reasons.LEDGER_FENCED,
        reasons.CLOCK_SKEW,
        reasons.CLUSTER_CHANGED,
    }
)


class Verdicts(dict[str, Verdict]):
    """A policy's verdicts of one scan, by group id. Each is counted, and those that the run or users need stay.

    These are the verdicts of matches and of `wanted` groups, and of each reason those of the first SHOWN ids; if
    `whole`, all. The order in which they are added does not matter. judged: how many there were. by_reason: how
    many groups don't match, by reason. unknown: ids of the groups that could not be judged now (`not_known`).
    general: of the groups whose refusal applies to all groups that the policy could delete (`is_general`), one with
    the first reason; None = there is none. evidenced: whether a pipeline's tables answer for any of them.
    """

    def __init__(self, wanted: Container[str] = (), whole: bool = False) -> None:
        super().__init__()
        self._wanted, self.whole = wanted, whole
        self._first: dict[str, list[str]] = {}
        self.judged = 0
        # The ids of all, slice by slice, and of the present slice.
        self._slices: list[tuple[str, ...]] = []
        self._names: list[str] = []
        self.by_reason: Counter[str] = Counter()
        self.unknown: list[str] = []
        self.general: Verdict | None = None
        self.evidenced = False

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Verdicts:
        """All of these verdicts, in their order."""
        every = cls(whole=True)
        for verdict in verdicts:
            every.add(verdict)
        return every

    def add(self, verdict: Verdict) -> None:
        name = verdict.group.id
        self.judged += 1
        self._names.append(name)
        reason = verdict.refusal.reason if verdict.refusal is not None else None
        self.evidenced |= isinstance(verdict.evidence.activity, Activity) and reason not in EVIDENCE
        if reason is None:
            self[name] = verdict
            return
        self.by_reason[reason] += 1
        if not_known(verdict):
            self.unknown.append(name)
        if is_general(verdict):
            self.general = min(filter(None, (self.general, verdict)), key=_reason)
        if self.whole or name in self._wanted:
            self[name] = verdict
            return
        first = self._first.setdefault(reason, [])
        if len(first) < SHOWN or name < first[-1]:
            insort(first, name)
            self[name] = verdict
            if len(first) > SHOWN:
                del self[first.pop()]

    @property
    def names(self) -> Iterator[str]:
        """All ids that were judged."""
        return chain(*self._slices, self._names)

    def end_slice(self, known: dict[tuple[str, ...], tuple[str, ...]]) -> None:
        """Hold the ids of a slice once for all policies. known: of other policies in this slice; gets these ids."""
        names = tuple(sorted(self._names))
        self._slices.append(known.setdefault(names, names))
        self._names = []

    def changed(self, change: Callable[[Verdict], Verdict], groups: Container[str] | None = None) -> Verdicts:
        """The same with each verdict changed, which may not change its reason. groups: only these."""
        made = Verdicts()
        made.evidenced, made.general = self.evidenced, None if self.general is None else change(self.general)
        made.update({name: change(each) for name, each in self.items() if groups is None or name in groups})
        if groups is None:
            made._slices, made._names, made.judged = self._slices, self._names, self.judged
        else:
            made._names = [name for name in self.names if name in groups]
            made.judged = len(made._names)
        made.unknown = self.unknown if groups is None else [name for name in self.unknown if name in groups]
        made.by_reason = (
            self.by_reason
            if groups is None
            else Counter(each.refusal.reason for each in made.values() if each.refusal is not None)
        )
        return made


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run of one policy."""

    policy: Policy
    verdicts: Verdicts
    # Groups that may be deleted now, oldest first, before limits: in Enforce those whose grace period is over, in
    # DryRun all that match.
    due: tuple[str, ...]
    # The groups that this run deletes, in that order; empty in DryRun, for Alert, and when refused.
    actions: tuple[str, ...]
    # Why no due group is deleted, or no match is marked.
    refusal: Refusal | None
    # Groups that get a new mark now.
    marking: frozenset[str] = frozenset()
    # Groups that lose their mark, and why.
    unmarking: Mapping[str, Refusal] = field(default_factory=dict)
    # The mark of each group that has one and retains it with its date.
    marks: Mapping[str, Mark] = field(default_factory=dict)
    # The time of the decision, and the date of the new marks.
    at: datetime = _NEVER
    # Why due groups wait: none of the policy's windows is open.
    outside: Refusal | None = None

    @property
    def blocked(self) -> Refusal | None:
        """The refusal, if the policy's mode lets it delete: a dry run deletes nothing anyway."""
        return self.refusal if self.policy.enforced else None

    @property
    def next_expiry(self) -> datetime | None:
        """When brokers delete the first offset of all groups that match, for `expiresWithin`; None = not known.

        Other policies have no such date: whether their verdicts know it depends on which other policies run at that
        time.
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

    @property
    def newest_mark(self) -> datetime | None:
        """The date of the newest mark after this run; None = no group is marked.

        Topics have the date of this run in marks that could not be written.
        """
        dates = [date for mark in self.marks.values() for date in mark.topics.values() or (mark.since,)]
        old = [date for date in dates if date != self.at]
        return max([*old, self.at] if self.marking else old, default=None)

    def counts(self, outcomes: Sequence[Outcome]) -> dict[str, int]:
        """The numbers of groups that statuses and metrics show after this run.

        due: groups that may be deleted now; in a dry run they are wouldDelete, which mode Enforce would mark.
        """
        deleted = sum(outcome.kind is OutcomeType.DELETED for outcome in outcomes)
        due = {"due" if self.policy.enforced else "wouldDelete": len(self.due)} if self.policy.action.changes else {}
        return {"matched": len(self.matched), "marked": len(self.marked) - deleted, **due, "deleted": deleted}

    def due_time(self, group: str) -> datetime | None:
        """When a marked group may be deleted at the earliest; None = it is not marked."""
        if group in self.marks:
            return self._in_window(self.marks[group].due)
        return self._in_window(self.at + self.policy.grace_period) if group in self.marking else None

    def _in_window(self, due: datetime) -> datetime:
        """The first time from `due` on in a window; if that has passed and none is open, the start of the next one."""
        opens = next_open(self.policy.windows, due)
        return opens if opens > self.at or self.outside is None else next_open(self.policy.windows, self.at)

    def first_topics(self, group: str) -> list[str]:
        """For DeleteOffsets, the topics whose offsets are due at `due_time`; all that match, if the group is
        unmarked.
        """
        mark, matching = self.marks.get(group), self.verdicts[group].topics
        return sorted(matching if mark is None else (t for t, since in mark.topics.items() if since == mark.since))

    def newest_due(self, group: str) -> datetime | None:
        """As `due_time`, for the topics that were marked last."""
        mark = self.marks.get(group)
        return self.due_time(group) if mark is None else mark.newest + (mark.due - mark.since)

    def at_turn(self, now: datetime, budget: int | None) -> Plan:
        """The plan when its policy's turn comes, after other policies of the connection deleted.

        Its new marks get the date `now`, as they are written then. budget: how many more groups this run of the
        connection may delete; None = no limit.
        """
        marks = dict(self.marks)
        for name, mark in self.marks.items():
            if self.at in mark.topics.values():
                topics = {topic: now if since == self.at else since for topic, since in mark.topics.items()}
                marks[name] = mark.of_topics(topics)
        actions = self.actions if budget is None else self.actions[: max(0, budget)]
        return replace(self, actions=actions, marks=marks, at=now)

    def halted(self, why: Refusal) -> Plan:
        """The plan if its marks can't be written: nothing is marked, nothing is deleted."""
        return replace(self, marking=frozenset(), actions=(), refusal=why)


@dataclass(frozen=True, slots=True)
class RunConditions:
    """The conditions of the cluster and the connection for all deletions of a run.

    limits: the connection's own. total: groups of the whole cluster, from one unfiltered list; None = not known.
    refusals: why no group may be deleted now (hidden topics, a ledger that can't be written, a wrong clock).
    complete: whether the snapshot is complete, so that a missing group is gone or in use.
    due_elsewhere: groups that count with the policy's due ones, which may be among them, against the connection's
    maxPercent.
    announced: the date of the newest mark that a status or an Event of the policy has shown; None = none has.
    """

    limits: Limits | None = None
    total: int | None = None
    refusals: Sequence[Refusal] = ()
    complete: bool = True
    due_elsewhere: Collection[str] = frozenset()
    announced: datetime | None = None

    @property
    def other_cluster(self) -> Refusal | None:
        """Why the scanned groups are not those of the connection's cluster; None = they are."""
        return next((refusal for refusal in self.refusals if refusal.reason == reasons.CLUSTER_CHANGED), None)

    @property
    def may_mark(self) -> bool:
        return not any(refusal.reason in _NO_MARKS for refusal in self.refusals)

    def has_shown(self, since: datetime) -> bool:
        """Whether users could see a mark of this date; statuses have whole seconds.

        Otherwise the process ended right after it wrote the mark, or the API server refused to show it.
        """
        return self.announced is not None and since.replace(microsecond=0) <= self.announced


def make_plan(
    policy: Policy,
    verdicts: Verdicts,
    marks: Mapping[str, Mark],
    conditions: RunConditions,
    now: datetime,
) -> Plan:
    """Mark matches, order due groups, ask each of VETOES, and decide.

    verdicts: of the groups that the policy selects. marks: the policy's, of each group that has one, as in the ledger.
    """
    ending = {name: _mark_refusal(policy, verdicts.get(name), conditions, mark) for name, mark in marks.items()}
    unmarking = {name: refusal for name, refusal in ending.items() if refusal is not None}
    # Without new marks nothing is deleted either, and the dates stay.
    new = now if conditions.may_mark else None
    standing = {
        name: _updated_mark(policy, mark, verdicts.get(name), new, conditions)
        for name, mark in marks.items()
        if policy.enforced and mark.digest == policy.digest and name not in unmarking
        if not is_outdated(policy, mark, verdicts.get(name))
    }
    valid_marks = {name: mark for name, mark in standing.items() if mark is not None}
    # Matches without a valid mark, and matches with topics that are marked now.
    marking = frozenset(
        name
        for name, verdict in verdicts.items()
        if policy.enforced and new is not None and verdict.matches
        if name not in valid_marks or valid_marks[name].topics.items() - marks[name].topics.items()
    )
    if new is not None:
        # The next announcement, of other groups, would cover these marks, whose dates no user could see.
        unseen = standing.keys() - valid_marks.keys() - marking
        unmarking |= {name: _never_shown(verdicts.get(name)) for name in unseen}
    due = due_groups(policy, verdicts, valid_marks, now)
    limits = policy.limits
    vetoes = (veto(limits, due, conditions) for veto in VETOES if due)
    refusal = next(filter(None, vetoes), None)
    if refusal is None and policy.enforced and any(verdict.matches for verdict in verdicts.values()):
        # Why no match is marked.
        refusal = next((each for each in conditions.refusals if each.reason in _NO_MARKS), None)
    outside = outside_window(policy, now) if due and policy.enforced else None
    may_delete = policy.enforced and refusal is None and outside is None
    return Plan(
        policy=policy,
        verdicts=verdicts,
        due=due,
        actions=tuple(due[: max_deletions(limits, conditions)]) if may_delete else (),
        refusal=refusal,
        marking=marking,
        unmarking=unmarking,
        marks=valid_marks,
        at=now,
        outside=outside,
    )


def _updated_mark(
    policy: Policy, mark: Mark, verdict: Verdict | None, new: datetime | None, conditions: RunConditions
) -> Mark | None:
    """The mark after this run; None = it was never shown. A topic that no longer matches, for which the group committed
    after it was marked, or whose mark was never shown, is removed; if it matches, it gets a new date.

    new: the date of newly matching topics; None = none may be marked.
    """
    if not policy.by_topic:
        return mark if conditions.has_shown(mark.since) else None
    topics = {topic: since for topic, since in mark.topics.items() if conditions.has_shown(since)}
    if verdict is not None and verdict.matches:
        topics = {topic: since for topic, since in topics.items() if _topic_stands(verdict, topic, since)}
        if new is not None:
            topics |= dict.fromkeys(verdict.topics.difference(topics), new)
    if not topics:
        return None
    since = min(topics.values())
    return structs.replace(mark, topics=topics, since=since, due=since + _announced_delay(policy, mark))


def _never_shown(verdict: Verdict | None) -> Refusal:
    """Why a mark ends that no status and no Event has shown, of a group that can't be judged now."""
    refusal = verdict.refusal if verdict is not None else None
    reason = reasons.SNAPSHOT_INCOMPLETE if refusal is None else refusal.reason
    unknown = "the list of groups is incomplete" if refusal is None else refusal.message
    return Refusal(
        reason, f"no status and no Event has shown its mark; it is marked again once it can be judged: {unknown}"
    )


def due_topics(policy: Policy, mark: Mark, verdict: Verdict, now: datetime) -> frozenset[str]:
    """The topics whose offsets may be deleted: they match, and their announced date has come."""
    delay = _announced_delay(policy, mark)
    return frozenset(
        topic
        for topic, since in mark.topics.items()
        if _topic_stands(verdict, topic, since) and since <= now and now >= since + delay
    )


def _announced_delay(policy: Policy, mark: Mark) -> timedelta:
    """From the mark of a topic to its date: the grace period, or longer if the mark waited for a window."""
    return max(policy.grace_period, mark.due - mark.since)


def _topic_stands(verdict: Verdict, topic: str, since: datetime) -> bool:
    """Whether a topic that was marked at `since` matches, and the group has not committed for it after that."""
    return topic in verdict.topics and not verdict.evidence.used_since(since, topic)


def is_outdated(policy: Policy, mark: Mark, verdict: Verdict | None) -> bool:
    """Whether the group matches, and was used after it was marked: the announcement was about its earlier state."""
    if policy.by_topic or verdict is None or not verdict.matches:
        return False
    return verdict.evidence.used_since(mark.since)


def due_groups(
    policy: Policy, verdicts: Mapping[str, Verdict], marks: Mapping[str, Mark], now: datetime
) -> tuple[str, ...]:
    """The matches that are due, oldest first: in DryRun all, in Enforce those whose grace period is over."""
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
        return grace_elapsed(policy, mark, now) and not (mark and is_outdated(policy, mark, verdict))
    return mark.digest == policy.digest and bool(due_topics(policy, mark, verdict, now))


def grace_elapsed(policy: Policy, mark: Mark | None, now: datetime) -> bool:
    """Whether a mark is of the current policy and its grace period has elapsed; never for a mark from the future."""
    if mark is None or mark.digest != policy.digest:
        return False
    return mark.since <= now and now >= max(mark.due, mark.since + policy.grace_period)


def _mark_refusal(policy: Policy, verdict: Verdict | None, conditions: RunConditions, mark: Mark) -> Refusal | None:
    """Why a mark ends; None = it stays, or a new one takes its place.

    Missing evidence ends no mark, and neither does a scan of another cluster.
    """
    if conditions.other_cluster is not None:
        return None
    if not policy.action.changes:
        return Refusal(reasons.POLICY_CHANGED, "the policy deletes nothing any more")
    if policy.mode is Mode.DRY_RUN:
        return Refusal(reasons.DRY_RUN, "the policy is a dry run now")
    if verdict is not None and verdict.refusal is not None and not not_known(verdict):
        return verdict.refusal
    if verdict is None and conditions.complete:
        return Refusal(reasons.GONE, "the policy no longer selects it: it is gone, in use again, or excluded")
    if mark.digest != policy.digest and (verdict is None or not verdict.matches):
        return Refusal(reasons.POLICY_CHANGED, "the policy was edited since it was marked")
    return None


def _reason(verdict: Verdict) -> str:
    return verdict.refusal.reason if verdict.refusal else ""


def not_known(verdict: Verdict) -> bool:
    """Whether the group is not deleted only because something could not be read this time."""
    reason = _reason(verdict)
    # A rebalance passes; a group that has lost its members is not selected any more.
    return reason in _NOT_KNOWN or reason == reasons.NOT_STABLE or _lacks_protections(verdict)


def is_general(verdict: Verdict) -> bool:
    """Whether the refusal applies to every group that the policy could delete, until something can be read again."""
    return _reason(verdict) == reasons.FAILOVER_TARGET or _lacks_protections(verdict)


def _lacks_protections(verdict: Verdict) -> bool:
    """Whether the group stays only because a protection could not be read, which concerns all groups alike."""
    reason, known = _reason(verdict), verdict.evidence.protections
    return (
        (reason == reasons.CLAIMED and isinstance(known.claimed, Refusal))
        or (reason == reasons.MIRROR_MAKER and known.mirrored is None)
        or (reason == reasons.STREAMS and known.streams is None and verdict.group.type is not GroupType.STREAMS)
        or (reason == reasons.STREAMS_STATE and known.streams is None)
    )


def max_deletions(limits: Limits, conditions: RunConditions) -> int:
    """The most groups that this run may delete. limits: the policy's."""
    return limits.stricter(conditions.limits).max_per_run


def forbidden(limits: Limits, due: Collection[str], conditions: RunConditions) -> Refusal | None:
    """Hidden topics, a ledger that can't be written, a wrong clock: nothing may be deleted now."""
    return next(iter(conditions.refusals), None)


def scan_incomplete(limits: Limits, due: Collection[str], conditions: RunConditions) -> Refusal | None:
    """A broker that did not answer may have other data about due groups."""
    if conditions.complete:
        return None
    return Refusal(reasons.SNAPSHOT_INCOMPLETE, "groups may be missing from the answers of the brokers")


def total_unknown(limits: Limits, due: Collection[str], conditions: RunConditions) -> Refusal | None:
    """Without the number of all groups there is no percentage."""
    if conditions.total is not None:
        return None
    return Refusal(
        reasons.TOTAL_UNKNOWN, "the number of groups in the cluster is not known, so maxPercent can't be checked"
    )


def too_many_of_policy(limits: Limits, due: Collection[str], conditions: RunConditions) -> Refusal | None:
    """A policy that suddenly matches a large share of the cluster is more likely a mistake."""
    return _too_many(len(due), conditions.total or 0, limits.max_percent, "maxPercent of the policy")


def too_many_of_connection(limits: Limits, due: Collection[str], conditions: RunConditions) -> Refusal | None:
    """The limit of the connection holds for all its policies together."""
    if conditions.limits is None:
        return None
    together, most = len({*due, *conditions.due_elsewhere}), conditions.limits.max_percent
    return _too_many(together, conditions.total or 0, most, "limits.maxPercent of the KafkaConnection")


def cluster_too_small(limits: Limits, due: Collection[str], conditions: RunConditions) -> Refusal | None:
    """A cluster with hardly any group is more likely another one, or one that lost its groups."""
    least, total = conditions.limits.min_groups if conditions.limits else 0, conditions.total or 0
    if total >= least:
        return None
    return Refusal(
        reasons.CLUSTER_TOO_SMALL,
        f"the cluster has {total} groups, fewer than {least}: none is deleted. Check whether it is the right cluster, "
        "and has lost groups; if it is right, lower limits.minGroups of the KafkaConnection in Git",
    )


def outside_window(policy: Policy, now: datetime) -> Refusal | None:
    """Asked when groups are due, and again before each batch. Nothing is wrong: a window will open."""
    opens = next_open(policy.windows, now)
    if opens <= now:
        return None
    return Refusal(reasons.OUTSIDE_WINDOW, f"no window of the policy is open; the next one opens at {timestamp(opens)}")


# Due groups are deleted if none of these refuses; the first Refusal counts. Those after `total_unknown` need the total.
VETOES: tuple[Callable[[Limits, Collection[str], RunConditions], Refusal | None], ...] = (
    forbidden,
    scan_incomplete,
    total_unknown,
    cluster_too_small,
    too_many_of_policy,
    too_many_of_connection,
)


def _too_many(due: int, total: int, percent: int, field_: str) -> Refusal | None:
    if due * 100 <= percent * total:
        return None
    share = due * 100 / total if total else 100
    return Refusal(
        reasons.LIMIT_EXCEEDED,
        f"{due} of {total} groups are due ({share:.1f}%), more than {percent}%: none is deleted. "
        f"Check them; if they are right, raise {field_} in Git",
    )
