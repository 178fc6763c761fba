"""The statuses of policies and restores after a run, of connections after a scan, and of GroupKeeps. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from group_hygiene.engine.checks.lag import lag_summary_of
from group_hygiene.engine.checks.used import latest
from group_hygiene.engine.pattern_notes import PatternNote, unused_refusal
from group_hygiene.engine.plan import EVIDENCE, FAILURES, SHOWN, Plan
from group_hygiene.engine.restorable import GroupResult, ResultKind
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import NEVER, Activity, Outcome, Verdict
from group_hygiene.model.group_keep import KeptGroup
from group_hygiene.model.groups import Bounds, Coverage, Group, GroupState, GroupType, Snapshot
from group_hygiene.model.naming import id_shown, message_shown
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.conditions import (
    OWN,
    Conditions,
    Status,
    condition_of,
    counted,
    in_order,
    is_stalled,
    public_message,
)
from group_hygiene.spec.fields import format_duration, timestamp
from group_hygiene.spec.policy import Action, Mode, Policy

# Each reason's first SHOWN groups are known.
SAMPLE_SIZE = SHOWN
_TOPICS_SHOWN, _OFFSETS_SHOWN = 10, 3
# The reasons against judging or deleting that may end without an edit.
PASSING = frozenset(
    {
        *(reasons.SNAPSHOT_INCOMPLETE, reasons.OFFSETS_TOPIC_GROWN, reasons.TOTAL_UNKNOWN, reasons.TOPICS_UNKNOWN),
        *(reasons.LEDGER_UNAVAILABLE, reasons.LEDGER_FENCED),
        *(reasons.EVIDENCE_MISSING, reasons.EVIDENCE_STALE, reasons.EVIDENCE_INCOMPLETE, reasons.EVIDENCE_UNREADABLE),
        reasons.EVIDENCE_WENT_BACK,
    }
)
# Nothing is wrong if many groups are abandoned: those reasons leave a policy Ready.
LIMITS = frozenset({reasons.LIMIT_EXCEEDED, reasons.TOO_MANY_CHANGES})
_URGENT = (ResultKind.WAITING, ResultKind.REFUSED, ResultKind.PARTLY, ResultKind.RESTORED)
# Groups in the status of a restore.
RESULTS_MAX = 100
# Reasons whose messages concern only the group, its backup and its partitions.
OWN_RESULTS = OWN | {
    *(reasons.RESTORED, reasons.PARTLY_RESTORED, reasons.VERIFIED, reasons.ALREADY_THERE, reasons.ALREADY_COMMITTED),
    *(reasons.NO_BACKUP, reasons.BACKUP_INCOMPLETE, reasons.NOT_RESTORABLE, reasons.OUT_OF_RANGE),
    *(reasons.GROUP_ACTIVE, reasons.WOULD_RESTORE, reasons.RAN_BEFORE),
    *(reasons.TOPIC_MISSING, reasons.TOPIC_RECREATED, reasons.TOPIC_IDENTITY_UNKNOWN, reasons.ACTION_NOT_GRANTED),
}

ALERTING, DELIVERED = "Alerting", "AlertsDelivered"

# Only a user of the object's namespace can help, by a restore or fewer groups. A grant comes by an edit of the
# connection: as for policies, the operator waits for it.
_FOR_USERS = frozenset({reasons.ALREADY_DELETED, reasons.TOO_MANY_KEEPS})


def build_status(
    policy: Policy,
    previous: Mapping[str, Any],
    plan: Plan,
    outcomes: Sequence[Outcome],
    snapshot: Snapshot,
    unreported: int = 0,
) -> Status:
    """A policy's status after a run that scanned the cluster.

    previous: the object's current status. unreported: deletions of earlier runs whose status could not be written.
    """
    now = snapshot.taken_at
    by_group = {outcome.group: outcome for outcome in outcomes}
    counts = plan.counts(outcomes)
    failed = sum(count for reason, count in plan.verdicts.by_reason.items() if reason in FAILURES)
    failed_outcomes = [outcome for outcome in outcomes if outcome.kind is OutcomeType.FAILED]
    unjudged = {name: v.refusal for name, v in plan.verdicts.items() if v.refusal and v.refusal.reason in FAILURES}
    failure = _first({**unjudged, **_whys(failed_outcomes)}, failed + len(failed_outcomes))
    inability = _inability(plan, unjudged, failed, outcomes)
    conditions = Conditions(previous, policy.generation, now)
    blocked = plan.blocked
    lacking = lacking_evidence(plan, snapshot)
    if not snapshot.complete:
        conditions.not_ready(snapshot.refusal)
    elif blocked is not None and blocked.reason not in LIMITS:
        conditions.not_ready(blocked, stalled=blocked.reason not in PASSING)
    elif inability is not None:
        conditions.not_ready(inability, stalled=inability.reason == reasons.FAILOVER_TARGET)
    elif lacking is not None and lacking.of_all:
        conditions.not_ready(lacking.why, stalled=lacking.why.reason not in PASSING)
    else:
        reason, message = _success(plan, outcomes, snapshot, counts)
        conditions.ready(reason, message if failure is None else f"{message}; {failure.message}")
    if policy.enforced:
        # To wait for a window is no problem.
        why = blocked or plan.outside
        reason, message = (why.reason, why.message) if why else (reasons.NOT_BLOCKED, "")
        conditions.set("DeletionBlocked", blocked is not None, reason, message)
    if lacking is not None:
        conditions.set("EvidenceReady", False, lacking.why.reason, lacking.why.message)
    elif policy.when.asks_evidence and snapshot.coverage is not None:
        conditions.evidence(snapshot.coverage)
    never = may_never_match(plan)
    if never is not None:
        conditions.set("MayNeverMatch", True, never.reason, never.message)
    sample, next_due = _sample(plan, by_group), _next_due(plan)
    shown = max(filter(None, (plan.newest_mark, last_marked(previous, policy))), default=None)
    return {
        "observedGeneration": policy.generation,
        "lastRunTime": timestamp(now),
        "conditions": conditions.result(),
        "groups": {
            "scanned": policy.match.visible(snapshot.groups),
            **counts,
            "skipped": plan.verdicts.by_reason.total() - failed,
            "failed": failed + len(failed_outcomes),
        },
        "totals": {"deleted": int((previous.get("totals") or {}).get("deleted", 0)) + unreported + counts["deleted"]},
        # What `last_marked` reads at the next run. The date stays when marks end, and never moves back.
        **(
            {} if shown is None else {"lastMarkedTime": timestamp(shown), "lastMarkedConnection": policy.connection_key}
        ),
        **({} if next_due is None else {"nextDueTime": timestamp(next_due)}),
        **({} if plan.next_expiry is None else {"nextExpiryTime": timestamp(plan.next_expiry)}),
        "groupsByReason": counted(
            "reason", plan.verdicts.by_reason + Counter(outcome.reason for outcome in by_group.values())
        ),
        "sample": sample,
        "truncated": plan.verdicts.judged > len(sample),
    }


def last_marked(status: Mapping[str, Any], policy: Policy) -> datetime | None:
    """The date of the newest mark in a policy's status; None = missing, malformed, or of another connection.

    The API server accepts any `date-time` of RFC 3339: lower case, and second 60, which Python does not parse.
    """
    if status.get("lastMarkedConnection") != policy.connection_key:
        return None
    try:
        date = datetime.fromisoformat(str(status.get("lastMarkedTime")).upper())
        return date.astimezone(UTC) if date.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Lacking:
    """Why groups of a policy lack the tables' evidence. of_all: of all groups that need it, so that none can match."""

    why: Refusal
    of_all: bool


def lacking_evidence(plan: Plan, snapshot: Snapshot) -> Lacking | None:
    """Why the tables can't answer what the policy asks about its groups; None = it asks nothing, or they can.

    Groups that stay for another reason need no evidence.
    """
    coverage = snapshot.coverage
    if not plan.policy.when.asks_evidence or coverage is None:
        return None
    if coverage.problem is not None and not coverage.covered:
        return Lacking(coverage.problem, of_all=True)
    verdicts = plan.verdicts
    lacking = sum(verdicts.by_reason[reason] for reason in EVIDENCE)
    if not lacking:
        return None if coverage.problem is None else Lacking(coverage.problem, of_all=False)
    found = [
        (name, each.refusal) for name, each in verdicts.items() if each.refusal and each.refusal.reason in EVIDENCE
    ]
    name, first = min(found, key=lambda one: one[0])
    others = f" (and {lacking - 1} more groups)" if lacking > 1 else ""
    return Lacking(Refusal(first.reason, f"group {name!r}: {first.message}{others}"), of_all=not verdicts.evidenced)


def has_evidence(plan: Plan, snapshot: Snapshot) -> bool | None:
    """Whether the tables can answer what the policy asks about any group; None = it asks nothing, or was not read."""
    if not plan.policy.when.asks_evidence or snapshot.coverage is None:
        return None
    lacking = lacking_evidence(plan, snapshot)
    return lacking is None or not lacking.of_all


def may_never_match(plan: Plan) -> Refusal | None:
    """Why brokers remove the offsets of unused groups before the policy acts; None = they don't, or it is not known.

    Not of share groups, which brokers never remove.
    """
    policy, when = plan.policy, plan.policy.when
    wanted = when.unused_for
    known = [each.evidence.retention for each in plan.verdicts.values() if each.group.type is not GroupType.SHARE]
    retention = max(filter(None, known), default=NEVER)
    if wanted is None or policy.by_topic or policy.counts_commits or wanted + latest(policy) <= retention:
        return None
    name = "unchangedFor" if wanted == when.unchanged_for else "idleFor"
    return Refusal(
        reasons.EXPIRES_FIRST,
        f"with {name}, the policy acts {format_duration(wanted + latest(policy))} after a group's last use, and "
        f"brokers delete its offsets after {format_duration(retention)} (offsets.retention.minutes)",
    )


def warns_late(plan: Plan, snapshot: Snapshot) -> str | None:
    """Why offsets may expire before `expiresWithin` reports them; None = it reports them in time.

    A group that becomes Empty right after the log was read is found at the next read, and reported by the next run.
    """
    policy, within = plan.policy, plan.policy.when.expires_within
    if within is None:
        return None
    # No offset has more time left than the retention.
    warning = min([within, *filter(None, (verdict.evidence.retention for verdict in plan.verdicts.values()))])
    max_age = snapshot.coverage.max_age if snapshot.coverage is not None else None
    if warning > policy.interval + (max_age or timedelta()):
        return None
    what = "expiresWithin" if warning == within else "offsets.retention.minutes"
    age = "" if max_age is None else f" and activity.maxAge ({format_duration(max_age)}) together"
    return (
        f"{what} ({format_duration(warning)}) is not longer than interval ({format_duration(policy.interval)}){age}: "
        "offsets may be gone before they are reported"
    )


def _success(plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot, counts: Mapping[str, int]) -> tuple[str, str]:
    """Reason and message of a successful run: its counts, and limits that the policy's own spec causes."""
    beyond, match = "", plan.policy.match
    if match.ungranted:
        granted = ", ".join(map(repr, match.within.sources)) if match.within else ""
        beyond = (
            f"{', '.join(map(repr, match.ungranted))} reaches beyond what the KafkaConnection grants to namespace "
            f"{plan.policy.namespace} ({granted}): other groups are ignored"
        )
    stricter, late = plan.policy.stricter_note, warns_late(plan, snapshot)
    reason = reasons.ACCESS_LIMITED if beyond or stricter else reasons.MAY_WARN_LATE if late else reasons.SUCCEEDED
    return reason, "; ".join(filter(None, (_summary(plan, outcomes, counts), beyond, stricter, late)))


def _summary(plan: Plan, outcomes: Sequence[Outcome], counts: Mapping[str, int]) -> str:
    text = f"{counts['matched']} of {plan.verdicts.judged} groups match"
    if plan.policy.action is Action.ALERT or not counts["matched"]:
        return text
    if plan.policy.mode is Mode.DRY_RUN:
        refused = "" if plan.refusal is None else f", but for this: {plan.refusal.message}"
        grace = format_duration(plan.policy.grace_period)
        them = plan.policy.action.describe_targets("them")
        return f"{text}; dry run: mode Enforce would mark them, and delete {them} {grace} later{refused}"
    deleted, marked, next_due = counts["deleted"], counts["marked"], _next_due(plan)
    if marked:
        text += f"; {marked} marked"
    if next_due is not None and not plan.due:
        text += f", the first is due at {timestamp(next_due)}"
    if plan.refusal is not None:
        return f"{text}; {plan.refusal.message}"
    if not plan.due:
        return text
    waiting = len(plan.due) - len(plan.actions)
    later = f", {waiting} wait for the next run (maxPerRun)" if waiting else ""
    not_deleted = f", {len(outcomes) - deleted} not deleted" if deleted < len(outcomes) else ""
    return f"{text}; {plan.policy.action.describe_targets(str(deleted))} deleted{not_deleted}{later}"


def _next_due(plan: Plan) -> datetime | None:
    """When the first of the marked groups may be deleted."""
    return min(filter(None, map(plan.due_time, (*plan.marks, *plan.marking))), default=None)


def _inability(plan: Plan, unjudged: Mapping[str, Refusal], failed: int, outcomes: Sequence[Outcome]) -> Refusal | None:
    """Why the policy can do nothing now; None = it can delete or report some group, or there is none.

    unjudged: the first groups that could not be judged; failed: how many these are. Any client of Kafka can make one
    such group, or one that can't be deleted, beside others.
    """
    verdicts = plan.verdicts
    if outcomes:
        unable = [each for each in outcomes if each.reason in FAILURES | EVIDENCE]
        single = len(unable) == 1 and unable[0].reason in FAILURES and len(plan.matched) > 1
        return None if single or len(unable) < len(outcomes) else _first(_whys(unable), len(unable) + failed)
    if plan.matched:
        return None
    if verdicts.general is not None:
        return verdicts.general.refusal
    return None if any(verdicts.by_reason[reason] for reason in reasons.UNMET) else _first(unjudged, failed)


def _whys(outcomes: Sequence[Outcome]) -> dict[str, Refusal]:
    return {outcome.group: Refusal(outcome.reason, outcome.message) for outcome in outcomes}


def _first(failures: Mapping[str, Refusal], total: int) -> Refusal | None:
    """The most urgent failure: a denied permission, which a user must grant, comes before failures that may pass.

    total: of how many groups these are the first ones. None = there are none.
    """
    if not failures:
        return None
    name, why = min(failures.items(), key=lambda one: (one[1].reason != reasons.DENIED, one[0]))
    others = f" (and {total - 1} more groups)" if total > 1 else ""
    return Refusal(why.reason, f"group {name!r}: {why.message}{others}")


def _sample(plan: Plan, outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """First groups that match, in the order of deletion or expiry; then others, in turn one of each reason."""
    due = set(plan.due)
    matched = [*plan.due, *sorted(set(plan.matched) - due, key=lambda name: (plan.due_time(name) or plan.at, name))]
    if plan.policy.when.asks_expiry_only:
        matched.sort(key=lambda name: plan.verdicts[name].expires or plan.at)
    by_reason: dict[str, list[str]] = {}
    for name, verdict in sorted(plan.verdicts.items()):
        if verdict.refusal is not None:
            by_reason.setdefault(verdict.refusal.reason, []).append(name)
    skipped: list[str] = []
    for turn in range(SAMPLE_SIZE):
        skipped += [names[turn] for _, names in sorted(by_reason.items()) if turn < len(names)]
    return [_entry(plan, plan.verdicts[name], outcomes.get(name)) for name in [*matched, *skipped][:SAMPLE_SIZE]]


def _entry(plan: Plan, verdict: Verdict, outcome: Outcome | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "group": id_shown(verdict.group.id),
        "state": str(verdict.group.state),
        "type": str(verdict.group.type),
        "verdict": "Match" if verdict.matches else "Skip",
    }
    if verdict.evidence.owner:
        entry["owner"] = verdict.evidence.owner
    if verdict.topics:
        entry["topics"] = [id_shown(topic) for topic in plan.first_topics(verdict.group.id)[:_TOPICS_SHOWN]]
    why = outcome or verdict.refusal
    if why is not None:
        entry |= {"reason": why.reason, "message": message_shown(why.message)}
    if verdict.evidence.unchanged is not None:
        entry["unchangedSince"] = timestamp(verdict.evidence.unchanged.since)
    activity = verdict.evidence.activity
    if isinstance(activity, Activity):
        # The last commit of a group in use changes often, so it is shown only where it matters.
        shows_commit = verdict.matches and plan.policy.counts_commits and plan.policy.when.idle_for is not None
        since = activity.committed_last if shows_commit else activity.idle_since
        entry |= {} if since is None else {"idleSince": timestamp(since)}
    if isinstance(activity, Activity) and activity.last_client is not None:
        entry["lastClient"] = str(activity.last_client)
    if verdict.matches or plan.policy.when.asks_bounds or verdict.group.state is GroupState.EMPTY:
        # A group in use would change the status at every scan.
        entry |= lag_entry(verdict) | _offsets_entry(verdict)
    if verdict.expires is not None:
        entry["expiresTime"] = timestamp(verdict.expires)
    due_time, mark = plan.due_time(verdict.group.id), plan.marks.get(verdict.group.id)
    deleted = outcome is not None and outcome.kind is OutcomeType.DELETED
    if due_time is not None and not deleted:
        entry |= {"markedSince": timestamp(mark.since if mark else plan.at), "dueTime": timestamp(due_time)}
    return entry


def _offsets_entry(verdict: Verdict) -> dict[str, Any]:
    """How many partitions have a committed offset, and the first of them, with their ends as far as these are known."""
    offsets, bounds = verdict.evidence.offsets, verdict.evidence.bounds or {}
    if not isinstance(offsets, Mapping) or not offsets:
        return {}
    shown: list[dict[str, Any]] = []
    for place in sorted(offsets)[:_OFFSETS_SHOWN]:
        found = bounds.get(place)
        end = {"endOffset": found.end} if isinstance(found, Bounds) else {}
        topic = id_shown(place.topic)
        shown.append({"topic": topic, "partition": place.partition, "committedOffset": offsets[place].offset} | end)
    return {"partitions": len(offsets), "offsets": shown}


def lag_entry(verdict: Verdict) -> dict[str, int]:
    """`lag` in records, and `outOfRangePartitions` if not 0; empty if not read, or not completely known."""
    found = lag_summary_of(verdict.evidence) if verdict.evidence.offsets else None
    if found is None or found.fault is not None:
        return {}
    return {"lag": found.unread} | ({"outOfRangePartitions": found.outside} if found.outside else {})


def with_alerting(new: Status, previous: Mapping[str, Any], plan: Plan, at: datetime, goes_on: bool) -> Status:
    """The status of a run with the condition Alerting, which only policies with action Alert have.

    goes_on: whether an alert that fired before goes on because some groups could not be judged now.
    """
    if plan.policy.action is not Action.ALERT:
        return new
    conditions = Conditions(previous, new["observedGeneration"], at)
    matched, wanted = len(plan.matched), plan.policy.alert.groups_at_least
    if matched >= wanted:
        conditions.set(ALERTING, True, reasons.GROUPS_MATCHED, _groups_match(matched))
    elif is_alerting(previous) and goes_on:
        conditions.leave(ALERTING)
    elif matched:
        few = f"{_groups_match(matched)}; notify.groupsAtLeast is {wanted}"
        conditions.set(ALERTING, False, reasons.TOO_FEW_GROUPS, few)
    else:
        conditions.set(ALERTING, False, reasons.NO_GROUPS_MATCHED, "no group matches")
    return _put(new, ALERTING, conditions)


def with_delivery(
    new: Status, previous: Mapping[str, Any], failures: Mapping[str, Refusal | None], now: datetime
) -> Status:
    """The status with the condition AlertsDelivered. failures: by receiver; empty = the condition is left out."""
    conditions = Conditions(previous, new["observedGeneration"], now)
    failing = [failure for _, failure in sorted(failures.items()) if failure is not None]
    if failing:
        more = f" (and {len(failing) - 1} more of {len(failures)} receivers)" if len(failing) > 1 else ""
        conditions.set(DELIVERED, False, failing[0].reason, failing[0].message + more)
    elif failures:
        count = f"{len(failures)} receiver{'s' if len(failures) != 1 else ''}"
        conditions.set(DELIVERED, True, reasons.ALL_DELIVERED, f"{count}, no message that could not be delivered")
    return _put(new, DELIVERED, conditions)


def is_alerting(status: Mapping[str, Any]) -> bool | None:
    """Whether the policy alerts, by its status; None = the status does not have the condition."""
    found = condition_of(status, ALERTING)
    return None if found is None else found["status"] == "True"


def _put(new: Status, kind: str, conditions: Conditions) -> Status:
    others = [condition for condition in new.get("conditions") or [] if condition["type"] != kind]
    return {**new, "conditions": in_order([*others, *conditions.result()])}


def _groups_match(groups: int) -> str:
    return f"{groups} group{'s' if groups != 1 else ''} match{'' if groups != 1 else 'es'}"


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The state of a connection's ledger. id: None = unknown. problem: why it may not be written.

    few_replicas: a note that its topic has fewer replicas than the spec asks for; None = it has enough.
    """

    topic: str
    id: str | None
    unreadable: int
    problem: Refusal | None = None
    few_replicas: Refusal | None = None


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """The input of a connection's status.

    retention: the brokers' offsets.retention.minutes, None = unknown. all_groups: None = this run did not list all.
    ledger: None = no policy needs one. has_activity: whether the spec names the tables of a pipeline. attests: whether
    the spec states that all topics are visible. topics: what the scan found about that, None = it did not check it.
    patterns: of its patterns, None = this scan did not compare them with all groups.
    """

    snapshot: Snapshot
    features: Sequence[str]
    retention: timedelta | None
    all_groups: Mapping[str, Group] | None
    problem: Refusal | None = None
    ledger: LedgerFacts | None = None
    has_activity: bool = False
    attests: bool = False
    topics: Refusal | None = None
    patterns: Sequence[PatternNote] | None = None


def build_connection_status(generation: int, previous: Mapping[str, Any], facts: ConnectionFacts) -> Status:
    """A connection's status after a scan."""
    snapshot = facts.snapshot
    now = snapshot.taken_at
    conditions = Conditions(previous, generation, now)
    brokers = {"answered": snapshot.answered, "expected": len(snapshot.cluster.brokers)}
    if facts.problem is not None:
        conditions.not_ready(facts.problem)
    elif not snapshot.complete:
        conditions.not_ready(snapshot.refusal)
    else:
        notes = "".join(f"; {note}" for note in snapshot.notes)
        conditions.ready(reasons.CONNECTED, f"{brokers['answered']} of {brokers['expected']} brokers answer{notes}")
    _set_conditions(conditions, facts)
    status: Status = {
        **previous,
        "observedGeneration": generation,
        "conditions": conditions.result(),
        # Of the cluster that the spec or the first answer names: not of another one that the address leads to now.
        "clusterID": (previous.get("clusterID") if facts.problem is not None else None) or snapshot.cluster.id,
        "brokers": brokers,
        "features": list(facts.features),
        "lastScanTime": timestamp(now),
    }
    if facts.ledger is not None:
        status["ledger"] = _ledger(facts.ledger, previous.get("ledger") or {})
    if not facts.has_activity:
        status.pop("evidence", None)
    elif snapshot.coverage is not None:
        status["evidence"] = _evidence(snapshot.coverage)
    if facts.retention is not None and facts.retention != NEVER:
        status["offsetsRetentionMinutes"] = facts.retention // timedelta(minutes=1)
    if facts.all_groups is not None and snapshot.complete:
        groups = facts.all_groups.values()
        status["groups"] = {
            "total": len(groups),
            "states": counted("state", (group.state for group in groups)),
            "types": counted("type", (group.type for group in groups)),
            "asOf": timestamp(now),
        }
    return status


def _set_conditions(conditions: Conditions, facts: ConnectionFacts) -> None:
    """The conditions of the ledger, the tables and the visibility of topics, each if the connection has it."""
    if facts.ledger is not None:
        few = facts.ledger.few_replicas
        why = facts.ledger.problem or few or Refusal(reasons.LEDGER_READY, f"topic {facts.ledger.topic}")
        conditions.set("LedgerReady", facts.ledger.problem is None, why.reason, why.message)
    if facts.has_activity and facts.snapshot.coverage is not None:
        conditions.evidence(facts.snapshot.coverage)
    elif facts.has_activity:
        conditions.leave("EvidenceReady")
    if facts.attests and facts.topics is not None:
        visible = facts.topics.reason in (reasons.TOPICS_VISIBLE, reasons.TOPICS_ATTESTED)
        conditions.set("TopicsVisible", visible, facts.topics.reason, facts.topics.message)
    elif facts.attests:
        conditions.leave("TopicsVisible")
    if facts.patterns is None:
        conditions.leave("PatternsMatch")
    else:
        why = unused_refusal(facts.patterns)
        conditions.set("PatternsMatch", not facts.patterns, why.reason, why.message)


def _ledger(facts: LedgerFacts, before: Mapping[str, Any]) -> dict[str, Any]:
    """Topic and id stay while there is a problem: reading another ledger must not replace them."""
    id_, topic = facts.id or before.get("id"), facts.topic
    if facts.problem is not None:
        id_, topic = before.get("id"), before.get("topic", topic)
    return {"topic": topic, "unreadableRecords": facts.unreadable, **({"id": id_} if id_ else {})}


def _evidence(coverage: Coverage) -> dict[str, Any]:
    as_of = {} if coverage.as_of is None else {"asOf": timestamp(coverage.as_of)}
    return {"coveredPartitions": coverage.covered, "partitions": coverage.partitions, **as_of}


def build_keep_status(obj: Mapping[str, Any], found: Sequence[KeptGroup] | Refusal, now: datetime) -> Status:
    """The status of a GroupKeep after its requests were read back, or why they were not. obj: the current object.

    Kept and Ready are True if no policy and no command deletes any of its groups from now on. A group that does not
    exist is most often a typing error, so Kept is False unless the object says so, also while that can't be read; one
    that the operator deleted needs a restore first. An object that is over is Ready, as nothing is wrong with it.
    """
    conditions = Conditions(obj.get("status") or {}, obj["metadata"]["generation"], now)
    status: Status = {"observedGeneration": obj["metadata"]["generation"]}
    if isinstance(found, Refusal):
        bad: Refusal | None = found
    else:
        lost = [each for each in found if not each.protected]
        absent = [each for each in found if each.reason == reasons.GROUP_UNKNOWN]
        unread = [each for each in found if each.reason == reasons.GROUP_UNREADABLE]
        message = f"{len(found) - len(lost)} of {len(found)} groups are protected"
        bad = Refusal(lost[0].reason, f"{message}; group {lost[0].group!r}: {lost[0].message}") if lost else None
        if absent:
            message += f"; {len(absent)} of the ids are of no group, like {absent[0].group!r}"
        if unread:
            message += f"; whether {len(unread)} of them exist could not be read, like {unread[0].group!r}"
        reason, protected = next((each.reason for each in absent + unread), reasons.KEPT), message
        if reason != reasons.KEPT and bad is None and not obj["spec"].get("ignoreNotFound"):
            advice = ". Correct its id, or set ignoreNotFound if it is yet to appear" if absent else ""
            bad = Refusal(reason, message + advice)
        status |= {
            "counts": {"groups": len(found), "protected": len(found) - len(lost)},
            "results": [_group_entry(each) for each in sorted(found, key=lambda each: (each.protected, each.group))],
        }
    if bad is None:
        conditions.ready(reason, protected)
        conditions.set("Kept", True, reason, protected)
    else:
        if bad.reason == reasons.KEEP_ENDED:
            conditions.ready(bad.reason, bad.message)
        else:
            conditions.not_ready(bad, stalled=not isinstance(found, Refusal) and bad.reason in _FOR_USERS)
        conditions.set("Kept", False, bad.reason, bad.message)
    return status | {"conditions": conditions.result()}


def _group_entry(of: KeptGroup) -> dict[str, Any]:
    entry: dict[str, Any] = {"group": id_shown(of.group), "protected": of.protected}
    if of.reason:
        entry |= {"reason": of.reason, "message": message_shown(". ".join(filter(None, (of.message, of.remedy))))}
    if of.state is not None:
        entry |= {"exists": bool(of.state)} | ({"state": of.state} if of.state else {})
    if of.unchanged_since is not None:
        entry["unchangedSince"] = timestamp(of.unchanged_since)
    if of.idle_since is not None:
        entry["idleSince"] = timestamp(of.idle_since)
    if of.client:
        entry["lastClient"] = of.client
    if of.until is not None:
        entry["until"] = timestamp(of.until)
    if of.due is not None:
        entry |= {"dueTime": timestamp(of.due)} | ({"policy": of.policy} if of.policy else {})
    if of.due_reason is not None:
        entry["dueReason"] = str(of.due_reason)
    return entry


def build_restore_status(obj: Mapping[str, Any], results: Sequence[GroupResult] | Refusal, now: datetime) -> Status:
    """The status of a GroupRestore after an attempt, or why there was none. Pure. obj: the current object.

    Ready = every group is restored. Reconciling: some groups wait for a retry. Stalled: only a new object helps.
    """
    previous = obj.get("status") or {}
    if isinstance(results, Refusal):
        ready, stalled, reason, message = False, is_stalled(results), results.reason, results.message
        status: Status = {key: previous[key] for key in ("counts", "results", "truncated") if key in previous}
        over = stalled
    else:
        counts = Counter(result.kind for result in results)
        by_urgency = sorted(results, key=lambda result: (_URGENT.index(result.kind), result.group))
        bad = [result for result in by_urgency if result.kind is not ResultKind.RESTORED]
        waiting = bool(counts[ResultKind.WAITING])
        ready, over, stalled = not bad and bool(results), not waiting, not waiting
        reason = reasons.RESTORED if ready else reasons.NO_BACKUP
        message = (
            f"{counts[ResultKind.RESTORED]} of {len(results)} groups are restored" if results else "no backup fits"
        )
        if shown := bad or [result for result in results if result.reason == reasons.RAN_BEFORE]:
            reason, message = shown[0].reason, f"{message}; group {shown[0].group!r}: {shown[0].message}"
        status = {
            "counts": {"groups": len(results)} | {kind.lower(): counts[kind] for kind in ResultKind},
            "results": [_result_entry(result) for result in by_urgency[:RESULTS_MAX]],
            "truncated": len(results) > RESULTS_MAX,
        }
    conditions = Conditions(previous, obj["metadata"]["generation"], now)
    if ready:
        conditions.ready(reason, message)
    else:
        conditions.not_ready(Refusal(reason, message), stalled)
    status |= {
        "observedGeneration": obj["metadata"]["generation"],
        "startTime": previous.get("startTime") or timestamp(now),
        "conditions": conditions.result(),
    }
    return status | ({"completionTime": previous.get("completionTime") or timestamp(now)} if over else {})


def observed_again(obj: Mapping[str, Any]) -> Status | None:
    """The status of a restore that ended, after an edit of `ttlSecondsAfterFinished`; None = there was no edit.

    Else tools that follow kstatus would wait for the operator. Pure.
    """
    status, generation = obj["status"], obj["metadata"].get("generation")
    if status.get("observedGeneration") == generation:
        return None
    conditions = [{**each, "observedGeneration": generation} for each in status.get("conditions") or []]
    return {**status, "observedGeneration": generation, "conditions": conditions}


def redact_results(results: Iterable[GroupResult], namespace: str, connection: str) -> list[GroupResult]:
    """The results, redacted for an object of that namespace. connection: its namespace/name.

    A result's message contains those of its partitions, so their reasons count, too.
    """

    def redacted(result: GroupResult) -> GroupResult:
        found = {result.reason, *(partition.reason for partition in result.partitions)}
        shown = result.message if found <= OWN_RESULTS else public_message(result.reason, connection)
        return replace(result, message=shown)

    return list(results) if connection.partition("/")[0] == namespace else [redacted(result) for result in results]


def _result_entry(result: GroupResult) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "group": id_shown(result.group),
        "result": str(result.kind),
        "reason": str(result.reason),
        "message": message_shown(result.message),
        "partitions": len(result.partitions),
        "restoredPartitions": result.restored,
    }
    return entry | ({"backupTime": timestamp(result.saved_at)} if result.saved_at else {})
