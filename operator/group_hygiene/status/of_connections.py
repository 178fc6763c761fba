"""The status of a `KafkaConnection` after a scan. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from group_hygiene import reasons
from group_hygiene.durations import timestamp
from group_hygiene.model import NEVER, Group, Keep
from group_hygiene.snapshot import Coverage, Snapshot
from group_hygiene.status.conditions import Conditions, Problem, Status


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What is known of a connection's ledger. id: None = not known. problem: why nothing may be written to it."""

    topic: str
    id: str | None
    unreadable: int
    problem: Keep | None = None


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """What a connection's status shows beside its conditions.

    retention: the brokers' offsets.retention.minutes, None = not known. all_groups: None = no full list in this run.
    ledger: None = no policy needs one. has_activity: whether its spec names the tables of a pipeline.
    """

    snapshot: Snapshot
    features: Sequence[str]
    retention: timedelta | None
    all_groups: Mapping[str, Group] | None
    problem: Problem | None = None
    ledger: LedgerFacts | None = None
    has_activity: bool = False


def build_connection_status(generation: int, previous: Mapping[str, Any], facts: ConnectionFacts) -> Status:
    """A connection's status after a scan."""
    snapshot = facts.snapshot
    now = snapshot.taken_at
    conditions = Conditions(previous, generation, now)
    brokers = {"answered": snapshot.answered, "expected": len(snapshot.cluster.brokers)}
    if facts.problem is not None:
        conditions.not_ready(facts.problem.reason, facts.problem.message, stalled=facts.problem.stalled)
    elif not snapshot.complete:
        conditions.not_ready(reasons.SNAPSHOT_INCOMPLETE, "; ".join(snapshot.incomplete[:3]))
    else:
        notes = "".join(f"; {note}" for note in snapshot.notes)
        conditions.ready(reasons.CONNECTED, f"{brokers['answered']} of {brokers['expected']} brokers answer{notes}")
    if facts.ledger is not None:
        why = facts.ledger.problem or Keep(reasons.LEDGER_READY, f"topic {facts.ledger.topic}")
        conditions.set("LedgerReady", facts.ledger.problem is None, why.reason, why.message)
    if facts.has_activity:
        if snapshot.coverage is not None:
            conditions.evidence(snapshot.coverage)
        else:
            conditions.leave("EvidenceReady")
    status: Status = {
        **previous,
        "observedGeneration": generation,
        "conditions": conditions.result(),
        "clusterId": previous.get("clusterId") or snapshot.cluster.id,
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
            "byState": dict(sorted(Counter(str(group.state) for group in groups).items())),
            "byType": dict(sorted(Counter(str(group.type) for group in groups).items())),
            "asOf": timestamp(now),
        }
    return status


def _ledger(facts: LedgerFacts, before: Mapping[str, Any]) -> dict[str, Any]:
    """The id stays while there is a problem: another ledger must not become ours by being looked at."""
    id_ = before.get("id") if facts.problem is not None else facts.id or before.get("id")
    return {"topic": facts.topic, "unreadableRecords": facts.unreadable, **({"id": id_} if id_ else {})}


def _evidence(coverage: Coverage) -> dict[str, Any]:
    as_of = {} if coverage.as_of is None else {"asOf": timestamp(coverage.as_of)}
    return {"coveredPartitions": coverage.covered, "partitions": coverage.partitions, **as_of}
