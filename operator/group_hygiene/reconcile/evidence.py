"""Whether the pipeline's tables may decide about a group: fresh, complete, of this log, not behind what they were.

Reads only, through `activity`; what is to be remembered of a look is handed back to be written.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from group_hygiene import entries, reasons
from group_hygiene.activity import Covered, Reading
from group_hygiene.durations import format_duration, timestamp
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.leader_epochs import epoch_ends
from group_hygiene.kafka.loaded import partition_of
from group_hygiene.model import NO_LEADER_EPOCH, Activity, Fault, Keep, Partition
from group_hygiene.reconcile.context import Context
from group_hygiene.snapshot import Cluster, Coverage

# Clocks of a pipeline and of the operator that are further apart make every age wrong.
_SKEW_MAX = timedelta(minutes=5)
# A mark that nothing has renewed for so long: the tables are out of date long before.
_MARK_KEPT = timedelta(days=30)
_WAY_OUT = "If that is meant, delete the KafkaConnection and apply it again"


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the tables says: of each group that was asked for, of the whole, and what to remember of it."""

    groups: Mapping[str, Activity | Fault]
    coverage: Coverage
    mark: entries.Covered | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """The offsets log as it is now. topic_id: None = brokers that know none (below 2.8).

    epoch_ends: by partition, where the leader epoch ends now in which it was read (`kafka.leader_epochs`).
    """

    cluster: str
    topic_id: str | None
    partitions: int
    epoch_ends: Mapping[int, int | Fault] = field(default_factory=dict)


def look(
    context: Context, cluster: Cluster, groups: Collection[str], deadline: Deadline, older: datetime | None = None
) -> Look:
    """Read the tables once for all these groups. Half of the time is left for what must be read after it.

    older: see `activity.Tables.read`.
    """
    tables, partitions = context.tables, len(cluster.leaders)
    if tables is None:
        fault = Fault(
            reasons.EVIDENCE_NOT_CONFIGURED, "the KafkaConnection has no activity: nothing says when it was used"
        )
        return _nothing(groups, fault, partitions)
    if isinstance(tables, Fault):
        return _nothing(groups, tables, partitions)
    topic = kafka_cluster.OFFSETS_TOPIC
    topic_id = kafka_cluster.topic_ids(context.client, [topic], Deadline(deadline.left / 2))[topic]
    if isinstance(topic_id, Fault):
        return _nothing(groups, Fault(reasons.EVIDENCE_UNREADABLE, f"the id of {topic}: {topic_id}"), partitions)
    reading = tables.read(groups, deadline.left / 2, older)
    if isinstance(reading, Fault):
        return _nothing(groups, reading, partitions)
    log = Log(cluster.id, topic_id or None, partitions, _epoch_ends(context, reading, partitions, deadline))
    now, uid = context.clock.now(), context.connection.uid
    before = context.journal.contents.covered.get(uid)
    faults = faults_by_partition(reading, log, before, tables.spec.max_age, now)
    answers = {name: told_of(name, reading, log, faults) for name in groups}
    good = [place.read_at for partition, place in reading.covered.items() if partition not in faults]
    first = min(faults.items(), default=None)
    problem = None if first is None else Keep(first[1].code, first[1].message)
    coverage = Coverage(problem, partitions - len(faults), partitions, min(good, default=None), tables.spec.max_age)
    return Look(answers, coverage, remembered(reading, log, before, uid, now))


def _epoch_ends(context: Context, reading: Reading, partitions: int, deadline: Deadline) -> dict[int, int | Fault]:
    epochs = {
        Partition(kafka_cluster.OFFSETS_TOPIC, index): place.leader_epoch
        for index, place in reading.covered.items()
        if place.leader_epoch is not None and index < partitions
    }
    answers = epoch_ends(context.client, epochs, Deadline(deadline.left / 2))
    return {place.partition: answer for place, answer in answers.items()}


def faults_by_partition(
    reading: Reading, log: Log, before: entries.Covered | None, max_age: timedelta, now: datetime
) -> dict[int, Fault]:
    """Why the tables may not decide, for each partition of the log of whose groups that holds.

    before: how far an earlier look saw them, None = there was none.
    """
    if reading.cluster != log.cluster:
        fault = Fault(
            reasons.EVIDENCE_OF_ANOTHER_CLUSTER,
            f"the tables tell of cluster {reading.cluster}, and this is {log.cluster}: correct spec.activity.uri",
        )
        return dict.fromkeys(range(log.partitions), fault)
    if before is not None and _older(reading, log, before):
        fault = Fault(
            reasons.EVIDENCE_WENT_BACK,
            f"the activity table is at version {reading.version} and was at {before.version} before: "
            f"it was replaced by an older one. {_WAY_OUT}, or let the pipeline catch up and read on",
        )
        return dict.fromkeys(range(log.partitions), fault)
    found = {p: _fault_of(p, reading.covered.get(p), log, before, max_age, now) for p in range(log.partitions)}
    return {partition: fault for partition, fault in found.items() if fault is not None}


def told_of(group: str, reading: Reading, log: Log, faults: Mapping[int, Fault]) -> Activity | Fault:
    """What the tables say of one group, where they may."""
    if not log.partitions:
        return Fault(reasons.EVIDENCE_INCOMPLETE, f"there is no topic {kafka_cluster.OFFSETS_TOPIC}")
    partition = partition_of(group, log.partitions)
    if partition in faults:
        return faults[partition]
    activity = reading.groups.get(group)
    if activity is None:
        read_at = reading.covered[partition].read_at
        return Fault(
            reasons.EVIDENCE_MISSING,
            f"the tables do not know it: the log had no record of it at {timestamp(read_at)}",
        )
    if activity.log_partition != partition:
        return Fault(
            reasons.EVIDENCE_INCOMPLETE,
            f"its records were read from partition {activity.log_partition} of {kafka_cluster.OFFSETS_TOPIC}, and now "
            f"they would be written to {partition}",
        )
    return activity


def remembered(
    reading: Reading, log: Log, before: entries.Covered | None, uid: str, now: datetime
) -> entries.Covered | None:
    """How far the tables were seen at most, this look included; None = they are another cluster's."""
    if reading.cluster != log.cluster:
        return None
    here, known = _reached(reading, log), _known(log, before)
    return entries.Covered(
        connection_uid=uid,
        topic_id=log.topic_id,
        to={p: max(known.get(p, 0), here.get(p, 0)) for p in sorted({*known, *here})},
        table=reading.table,
        version=before.version if before is not None and _older(reading, log, before) else reading.version,
        at=now,
        expires=now + _MARK_KEPT,
    )


def _older(reading: Reading, log: Log, before: entries.Covered) -> bool:
    """By its version, unless it has read further than was ever seen: then it was put back, and a pipeline went on.

    What is only as far as before may be a state of then.
    """
    if before.table != reading.table or reading.version >= before.version:
        return False
    here, known = _reached(reading, log), _known(log, before)
    behind = any(here.get(partition, 0) < to for partition, to in known.items())
    return behind or all(to <= known.get(partition, 0) for partition, to in here.items())


def _reached(reading: Reading, log: Log) -> dict[int, int]:
    """Up to where the tables cover each partition of the log as it is now."""
    return {p: place.to for p, place in reading.covered.items() if _same_log(place, log) and p < log.partitions}


def _known(log: Log, before: entries.Covered | None) -> Mapping[int, int]:
    """Up to where an earlier look saw them cover it; nothing of a log that was made anew since."""
    return before.to if before is not None and _uuid(before.topic_id) == _uuid(log.topic_id) else {}


def _fault_of(
    partition: int,
    place: Covered | None,
    log: Log,
    before: entries.Covered | None,
    max_age: timedelta,
    now: datetime,
) -> Fault | None:
    topic = f"partition {partition} of {kafka_cluster.OFFSETS_TOPIC}"
    if place is None:
        return Fault(reasons.EVIDENCE_INCOMPLETE, f"the tables do not cover {topic}")
    if not _same_log(place, log):
        return Fault(
            reasons.EVIDENCE_INCOMPLETE,
            f"the tables cover {topic} as it was before the topic was made anew: run the pipeline",
        )
    if place.to < (known := _known(log, before).get(partition, 0)):
        return Fault(
            reasons.EVIDENCE_WENT_BACK,
            f"the tables cover {topic} up to {place.to}, and covered it up to {known} before: "
            f"they were replaced by older ones. {_WAY_OUT}, or let the pipeline catch up",
        )
    return _cut_off(topic, place, log.epoch_ends.get(partition)) or _old(topic, place, max_age, now)


def _cut_off(topic: str, place: Covered, end: int | Fault | None) -> Fault | None:
    """An unclean leader election may lose records that were read; the log goes on with others of the same offsets."""
    if place.leader_epoch == NO_LEADER_EPOCH:
        return None
    if place.leader_epoch is None:
        return Fault(
            reasons.EVIDENCE_INCOMPLETE,
            f"the tables do not say who led {topic} when it was read, as they are of an older release: upgrade the "
            "pipeline, and let it run",
        )
    if end is None or isinstance(end, Fault):
        return Fault(
            reasons.EVIDENCE_UNREADABLE,
            f"leader epoch {place.leader_epoch} of {topic}: {end or 'it was not asked for'}",
        )
    if end < place.to:
        return Fault(
            reasons.EVIDENCE_INCOMPLETE,
            f"the tables cover {topic} up to {place.to} in leader epoch {place.leader_epoch}, and brokers have lost "
            "the end of that (an unclean leader election): run the pipeline, which says what to do",
        )
    return None


def _old(topic: str, place: Covered, max_age: timedelta, now: datetime) -> Fault | None:
    age = now - place.read_at
    if age < -_SKEW_MAX:
        return Fault(
            reasons.EVIDENCE_STALE,
            f"the tables say that {topic} was read at {timestamp(place.read_at)}, which has not come yet: the "
            "clock of the pipeline or of the operator is wrong",
        )
    if age > max_age:
        return Fault(
            reasons.EVIDENCE_STALE,
            f"{topic} was read up to {timestamp(place.read_at)}, longer ago than activity.maxAge "
            f"({format_duration(max_age)}): look after the pipeline, or a transaction that stays open",
        )
    return None


def _same_log(place: Covered, log: Log) -> bool:
    return log.topic_id is None or place.topic_id is None or _uuid(place.topic_id) == _uuid(log.topic_id)


def _uuid(topic_id: str | None) -> str | None:
    """One spelling for a topic id: Kafka prints it in base64, its clients in Python as a UUID."""
    if topic_id is not None and len(topic_id) == 22:
        try:
            return str(uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "==")))
        except (binascii.Error, ValueError):
            return topic_id
    return topic_id


def _nothing(groups: Collection[str], fault: Fault, partitions: int) -> Look:
    return Look(dict.fromkeys(groups, fault), Coverage(Keep(fault.code, fault.message), 0, partitions, None))
