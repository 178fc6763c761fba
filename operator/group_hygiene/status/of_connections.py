"""The statuses of a `KafkaConnection` after a scan, and of a `GroupKeep`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from group_hygiene.decide.pattern_notes import PatternNote, unused_refusal
from group_hygiene.model import reasons
from group_hygiene.model.evidence import NEVER
from group_hygiene.model.group_keep import KeptGroup
from group_hygiene.model.groups import Coverage, Group, Snapshot
from group_hygiene.model.naming import id_shown, message_shown
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import timestamp
from group_hygiene.status.conditions import Conditions, Status, counted

# Only a user of the object's namespace can help, by a restore or fewer groups. A grant comes by an edit of the
# connection: as for policies, the operator waits for it.
_FOR_USERS = frozenset({reasons.ALREADY_DELETED, reasons.TOO_MANY_KEEPS})


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
