"""Reads the pipeline's tables once for some groups, and checks that they describe the log as it is now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from group_hygiene.evidence.trust import Log, activity_of, next_mark, refusals_by_partition
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, topic_ids
from group_hygiene.kafka.offsets import epoch_ends
from group_hygiene.model import entries, reasons
from group_hygiene.model.evidence import Activity
from group_hygiene.model.groups import Cluster, Coverage, Fault, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.reconcile.context import Context


@dataclass(frozen=True, slots=True)
class TableEvidence:
    """The result of one read of the tables. mark: the new entry of the ledger, None = leave the ledger as it is.

    covered: partition of the log -> the offset up to which they have every record; only of partitions of this log.
    """

    groups: Mapping[str, Activity | Refusal]
    coverage: Coverage
    mark: entries.LargestCoverage | None = None
    covered: Mapping[int, int] = field(default_factory=dict)


def read_evidence(
    context: Context, cluster: Cluster, groups: Collection[str], deadline: Deadline, older: datetime | None = None
) -> TableEvidence:
    """Read the tables once for all these groups, in half of the time: the rest of the run needs the other half.

    older: see `reader.Tables.read`.
    """
    tables, partitions = context.tables, len(cluster.leaders)
    if tables is None:
        refusal = Refusal(
            reasons.EVIDENCE_NOT_CONFIGURED, "the KafkaConnection has no activity: when it was used is unknown"
        )
        return _nothing(groups, refusal, partitions)
    if isinstance(tables, Refusal):
        return _nothing(groups, tables, partitions)
    topic_id = topic_ids(context.client, [OFFSETS_TOPIC], Deadline(deadline.left / 2))[OFFSETS_TOPIC]
    if isinstance(topic_id, Fault):
        refusal = Refusal(reasons.EVIDENCE_UNREADABLE, f"the id of {OFFSETS_TOPIC}: {topic_id}")
        return _nothing(groups, refusal, partitions)
    reading = tables.read(groups, deadline.left / 2, older)
    if isinstance(reading, Refusal):
        return _nothing(groups, reading, partitions)
    epochs = {
        Partition(OFFSETS_TOPIC, index): place.leader_epoch
        for index, place in reading.covered.items()
        if place.leader_epoch is not None and index < partitions
    }
    ends = {p.partition: end for p, end in epoch_ends(context.client, epochs, Deadline(deadline.left / 2)).items()}
    log = Log(cluster.id, topic_id or None, partitions, ends)
    now, uid = context.clock.now(), context.connection.uid
    before = context.journal.contents.covered.get(uid)
    refusals = refusals_by_partition(reading, log, before, tables.spec.max_age, now)
    answers = {name: activity_of(name, reading, log, refusals) for name in groups}
    good = [place.read_at for partition, place in reading.covered.items() if partition not in refusals]
    problem = refusals[min(refusals)] if refusals else None
    coverage = Coverage(problem, partitions - len(refusals), partitions, min(good, default=None), tables.spec.max_age)
    # Old tables are a start, too.
    unusable = {partition for partition, why in refusals.items() if why.reason != reasons.EVIDENCE_STALE}
    covered = {p: place.to for p, place in reading.covered.items() if p < partitions and p not in unusable}
    return TableEvidence(answers, coverage, next_mark(reading, log, before, uid, now), covered)


def _nothing(groups: Collection[str], refusal: Refusal, partitions: int) -> TableEvidence:
    return TableEvidence(dict.fromkeys(groups, refusal), Coverage(refusal, 0, partitions, None))
