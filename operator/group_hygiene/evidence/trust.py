"""Whether the pipeline's tables may be used to judge a group: fresh, complete, of this log, not older than before.

Pure: `engine.context` reads the tables, and the scan writes the largest coverage into the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from group_hygiene.evidence.reader import CoveredPartition, Reading
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.model import entries, reasons
from group_hygiene.model.evidence import Activity
from group_hygiene.model.groups import NO_LEADER_EPOCH, Fault
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import format_duration, timestamp

# If the clocks of pipeline and operator differ by more, no age can be trusted.
_SKEW_MAX = timedelta(minutes=5)
# After it was last renewed: by then the tables are long out of date.
_COVERAGE_RETENTION = timedelta(days=30)
_WAY_OUT = "If that is intended, delete the KafkaConnection and apply it again"


@dataclass(frozen=True, slots=True)
class Log:
    """The offsets log as it is now. topic_id: None = the brokers have no topic ids (below 2.8).

    epoch_ends: by partition, the current end offset of the leader epoch in which the pipeline read it
    (`kafka.offsets`).
    """

    cluster: str
    topic_id: str | None
    partitions: int
    epoch_ends: Mapping[int, int | Fault] = field(default_factory=dict)


def refusals_by_partition(
    reading: Reading, log: Log, before: entries.LargestCoverage | None, max_age: timedelta, now: datetime
) -> dict[int, Refusal]:
    """Why the tables may not be used, by partition of the log. Partitions that they may be used for are absent.

    before: how far they reached at an earlier read, None = there was none.
    """
    if reading.cluster != log.cluster:
        refusal = Refusal(
            reasons.EVIDENCE_OF_ANOTHER_CLUSTER,
            f"the tables are of cluster {reading.cluster}, and this is {log.cluster}: correct spec.activity.uri",
        )
        return dict.fromkeys(range(log.partitions), refusal)
    if before is not None and _older(reading, log, before):
        refusal = Refusal(
            reasons.EVIDENCE_WENT_BACK,
            f"the activity table is at version {reading.version} and was at {before.version} before: "
            f"an older one replaced it. {_WAY_OUT}, or let the pipeline catch up and read on",
        )
        return dict.fromkeys(range(log.partitions), refusal)
    found = {p: _refusal_of(p, reading.covered.get(p), log, before, max_age, now) for p in range(log.partitions)}
    return {partition: why for partition, why in found.items() if why is not None}


def activity_of(group: str, reading: Reading, log: Log, refusals: Mapping[int, Refusal]) -> Activity | Refusal:
    """The activity of one group, or why the tables may not be used for it."""
    if not log.partitions:
        return Refusal(reasons.EVIDENCE_INCOMPLETE, f"there is no topic {OFFSETS_TOPIC}")
    partition = partition_of(group, log.partitions)
    if partition in refusals:
        return refusals[partition]
    activity = reading.groups.get(group)
    if activity is None:
        read_at = reading.covered[partition].read_at
        return Refusal(
            reasons.EVIDENCE_MISSING,
            f"the tables do not contain it: the log had no record of it at {timestamp(read_at)}",
        )
    if activity.log_partition != partition:
        return Refusal(
            reasons.EVIDENCE_INCOMPLETE,
            f"its records were read from partition {activity.log_partition} of {OFFSETS_TOPIC}, but now "
            f"they belong to {partition}",
        )
    return activity


def largest_coverage(
    reading: Reading, log: Log, before: entries.LargestCoverage | None, uid: str, now: datetime
) -> entries.LargestCoverage | None:
    """The furthest that the tables ever reached, this read included; None = they are of another cluster."""
    if reading.cluster != log.cluster:
        return None
    here, known = _reached(reading, log), _known(log, before)
    return entries.LargestCoverage(
        connection_uid=uid,
        topic_id=log.topic_id,
        to={p: max(known.get(p, 0), here.get(p, 0)) for p in sorted({*known, *here})},
        table=reading.table,
        version=before.version if before is not None and _older(reading, log, before) else reading.version,
        at=now,
        expires=now + _COVERAGE_RETENTION,
    )


def _older(reading: Reading, log: Log, before: entries.LargestCoverage) -> bool:
    """Whether its version is lower than before, unless it reaches further than ever: then a pipeline continued from an
    older copy. A table that reaches only as far as before may be that older copy.
    """
    if before.table != reading.table or reading.version >= before.version:
        return False
    here, known = _reached(reading, log), _known(log, before)
    behind = any(here.get(partition, 0) < to for partition, to in known.items())
    return behind or all(to <= known.get(partition, 0) for partition, to in here.items())


def _reached(reading: Reading, log: Log) -> dict[int, int]:
    """By partition, the offset up to which the tables cover the log as it is now."""
    return {p: place.to for p, place in reading.covered.items() if _same_log(place, log) and p < log.partitions}


def _known(log: Log, before: entries.LargestCoverage | None) -> Mapping[int, int]:
    """The same at an earlier read; empty if the topic was recreated since."""
    return before.to if before is not None and before.topic_id == log.topic_id else {}


def _refusal_of(
    partition: int,
    place: CoveredPartition | None,
    log: Log,
    before: entries.LargestCoverage | None,
    max_age: timedelta,
    now: datetime,
) -> Refusal | None:
    topic = f"partition {partition} of {OFFSETS_TOPIC}"
    if place is None:
        return Refusal(reasons.EVIDENCE_INCOMPLETE, f"the tables do not cover {topic}")
    if not _same_log(place, log):
        return Refusal(
            reasons.EVIDENCE_INCOMPLETE,
            f"the tables cover {topic} as it was before the topic was recreated: run the pipeline",
        )
    if place.to < (known := _known(log, before).get(partition, 0)):
        return Refusal(
            reasons.EVIDENCE_WENT_BACK,
            f"the tables cover {topic} up to {place.to}, and covered it up to {known} before: "
            f"older ones replaced them. {_WAY_OUT}, or let the pipeline catch up",
        )
    return _cut_off(topic, place, log.epoch_ends.get(partition)) or _old(topic, place, max_age, now)


def _cut_off(topic: str, place: CoveredPartition, end: int | Fault | None) -> Refusal | None:
    """An unclean leader election may lose records that were read; other records then get their offsets."""
    if place.leader_epoch == NO_LEADER_EPOCH:
        return None
    if place.leader_epoch is None:
        return Refusal(
            reasons.EVIDENCE_INCOMPLETE,
            f"the tables lack the leader epoch in which {topic} was read: run the pipeline again",
        )
    if end is None or isinstance(end, Fault):
        return Refusal(
            reasons.EVIDENCE_UNREADABLE,
            f"leader epoch {place.leader_epoch} of {topic}: {end or 'its end was not requested'}",
        )
    if end < place.to:
        return Refusal(
            reasons.EVIDENCE_INCOMPLETE,
            f"the tables cover {topic} up to {place.to} in leader epoch {place.leader_epoch}, and brokers have lost "
            "the last of these records (an unclean leader election): run the pipeline, which says what to do",
        )
    return None


def _old(topic: str, place: CoveredPartition, max_age: timedelta, now: datetime) -> Refusal | None:
    age = now - place.read_at
    if age < -_SKEW_MAX:
        return Refusal(
            reasons.EVIDENCE_STALE,
            f"by the tables, {topic} was read at {timestamp(place.read_at)}, which is in the future: the clock of the "
            "pipeline or of the operator is wrong",
        )
    if age > max_age:
        return Refusal(
            reasons.EVIDENCE_STALE,
            f"{topic} was read up to {timestamp(place.read_at)}, longer ago than activity.maxAge "
            f"({format_duration(max_age)}): check the pipeline, and look for a transaction that stays open",
        )
    return None


def _same_log(place: CoveredPartition, log: Log) -> bool:
    return log.topic_id is None or place.topic_id is None or place.topic_id == log.topic_id
