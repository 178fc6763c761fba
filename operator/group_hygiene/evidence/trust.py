"""Whether the pipeline's tables may be used to judge a group: fresh, complete, of this log, not older than before.

Reads only, through `reader`; the caller writes the returned mark into the ledger.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from group_hygiene.evidence.reader import CoveredPartition, Reading, Tables
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.offsets import epoch_ends
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import entries, reasons
from group_hygiene.model.evidence import Activity
from group_hygiene.model.groups import NO_LEADER_EPOCH, Fault, Partition
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Cluster, Coverage
from group_hygiene.process.clock import Clock
from group_hygiene.spec.connection import Connection
from group_hygiene.spec.durations import format_duration, timestamp

# If the clocks of pipeline and operator differ by more, no age can be trusted.
_SKEW_MAX = timedelta(minutes=5)
# After it was last renewed: by then the tables are long out of date.
_MARK_RETENTION = timedelta(days=30)
_WAY_OUT = "If that is intended, delete the KafkaConnection and apply it again"


class Run(Protocol):
    """The attributes of `reconcile.Context` that are needed here."""

    @property
    def client(self) -> Client: ...

    @property
    def connection(self) -> Connection: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def tables(self) -> Tables | Refusal | None: ...


@dataclass(frozen=True, slots=True)
class TableEvidence:
    """The result of one read of the tables. mark: the new entry of the ledger, None = leave the ledger as it is.

    covered: partition of the log -> the offset up to which they have every record; only of partitions of this log.
    """

    groups: Mapping[str, Activity | Refusal]
    coverage: Coverage
    mark: entries.LargestCoverage | None = None
    covered: Mapping[int, int] = field(default_factory=dict)


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


def read_evidence(
    run: Run, cluster: Cluster, groups: Collection[str], deadline: Deadline, older: datetime | None = None
) -> TableEvidence:
    """Read the tables once for all these groups, in half of the time: the rest of the run needs the other half.

    older: see `reader.Tables.read`.
    """
    tables, partitions = run.tables, len(cluster.leaders)
    if tables is None:
        refusal = Refusal(
            reasons.EVIDENCE_NOT_CONFIGURED, "the KafkaConnection has no activity: when it was used is unknown"
        )
        return _nothing(groups, refusal, partitions)
    if isinstance(tables, Refusal):
        return _nothing(groups, tables, partitions)
    topic = kafka_cluster.OFFSETS_TOPIC
    topic_id = kafka_cluster.topic_ids(run.client, [topic], Deadline(deadline.left / 2))[topic]
    if isinstance(topic_id, Fault):
        return _nothing(groups, Refusal(reasons.EVIDENCE_UNREADABLE, f"the id of {topic}: {topic_id}"), partitions)
    reading = tables.read(groups, deadline.left / 2, older)
    if isinstance(reading, Refusal):
        return _nothing(groups, reading, partitions)
    log = Log(cluster.id, topic_id or None, partitions, _epoch_ends(run, reading, partitions, deadline))
    now, uid = run.clock.now(), run.connection.uid
    before = run.journal.contents.covered.get(uid)
    refusals = refusals_by_partition(reading, log, before, tables.spec.max_age, now)
    answers = {name: activity_of(name, reading, log, refusals) for name in groups}
    good = [place.read_at for partition, place in reading.covered.items() if partition not in refusals]
    problem = refusals[min(refusals)] if refusals else None
    coverage = Coverage(problem, partitions - len(refusals), partitions, min(good, default=None), tables.spec.max_age)
    # Old tables are a start, too.
    unusable = {partition for partition, why in refusals.items() if why.reason != reasons.EVIDENCE_STALE}
    covered = {p: place.to for p, place in reading.covered.items() if p < partitions and p not in unusable}
    return TableEvidence(answers, coverage, next_mark(reading, log, before, uid, now), covered)


def _epoch_ends(run: Run, reading: Reading, partitions: int, deadline: Deadline) -> dict[int, int | Fault]:
    epochs = {
        Partition(kafka_cluster.OFFSETS_TOPIC, index): place.leader_epoch
        for index, place in reading.covered.items()
        if place.leader_epoch is not None and index < partitions
    }
    answers = epoch_ends(run.client, epochs, Deadline(deadline.left / 2))
    return {place.partition: answer for place, answer in answers.items()}


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
        return Refusal(reasons.EVIDENCE_INCOMPLETE, f"there is no topic {kafka_cluster.OFFSETS_TOPIC}")
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
            f"its records were read from partition {activity.log_partition} of {kafka_cluster.OFFSETS_TOPIC}, but now "
            f"they belong to {partition}",
        )
    return activity


def next_mark(
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
        expires=now + _MARK_RETENTION,
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
    return before.to if before is not None and _uuid(before.topic_id) == _uuid(log.topic_id) else {}


def _refusal_of(
    partition: int,
    place: CoveredPartition | None,
    log: Log,
    before: entries.LargestCoverage | None,
    max_age: timedelta,
    now: datetime,
) -> Refusal | None:
    topic = f"partition {partition} of {kafka_cluster.OFFSETS_TOPIC}"
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
    return log.topic_id is None or place.topic_id is None or _uuid(place.topic_id) == _uuid(log.topic_id)


def _uuid(topic_id: str | None) -> str | None:
    """A topic id in one form: Kafka prints it in base64, kafka-python as a UUID."""
    if topic_id is not None and len(topic_id) == 22:
        try:
            return str(uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "==")))
        except (binascii.Error, ValueError):
            return topic_id
    return topic_id


def _nothing(groups: Collection[str], refusal: Refusal, partitions: int) -> TableEvidence:
    return TableEvidence(dict.fromkeys(groups, refusal), Coverage(refusal, 0, partitions, None))
