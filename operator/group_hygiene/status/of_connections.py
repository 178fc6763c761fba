"""The status of a `KafkaConnection` after a scan. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from group_hygiene.decide.pattern_notes import PatternNote, unused_refusal
from group_hygiene.model import reasons
from group_hygiene.model.evidence import NEVER
from group_hygiene.model.groups import Coverage, Group, Snapshot
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import timestamp
from group_hygiene.status.conditions import Conditions, Status, counted


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
