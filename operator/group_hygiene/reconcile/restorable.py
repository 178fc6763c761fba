"""What a restore may commit of a backup, and what became of it in words: the judgement. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import reduce
from types import MappingProxyType

from group_hygiene import reasons
from group_hygiene.durations import timestamp
from group_hygiene.entries import Backup, SavedOffset, What, whole, with_earlier, with_newer_offsets
from group_hygiene.model import NO_SUCH_TOPIC, Bounds, CommittedOffset, Fault, Offsets, Partition

# What OffsetCommit of generation -1, or AlterShareGroupOffsets, gets from a group that has members, by its protocol.
_ACTIVE = frozenset(
    {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "STALE_MEMBER_EPOCH", "NON_EMPTY_GROUP"}
)
_DENIED = "AUTHORIZATION_FAILED"
# Ids of deletions begin with the time: what can't be read still tells when it was.
_ID_TIME = "%Y%m%dT%H%M%S"
_NEVER, _UNKNOWN = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

# id of a backup -> its parts, None = one that can't be read.
Saved = Mapping[str, Sequence[Backup | None]]
# id of a backup -> how the deletion ended for which it was taken, as is recorded; several where a late request did it.
Ends = Mapping[str, Collection[What]]
_NO_ENDS: Ends = MappingProxyType({})


class Kind(StrEnum):
    """What became of one group. Waiting: another try may help; Refused: only another request can."""

    RESTORED = "Restored"
    PARTLY = "Partly"
    REFUSED = "Refused"
    WAITING = "Waiting"


_FINE = frozenset({reasons.VERIFIED, reasons.ALREADY_THERE, reasons.WOULD_RESTORE})
_PASSING = frozenset(
    {
        reasons.GROUP_ACTIVE,
        reasons.PENDING_TRANSACTION,
        reasons.COMMIT_FAILED,
        reasons.DENIED,
        reasons.TOPICS_UNKNOWN,
        reasons.OFFSETS_UNKNOWN,
        reasons.NOT_LEADER,
        reasons.STOPPING,
        reasons.POLICY_CHANGED,
        reasons.API_SERVER_ERROR,
    }
)


class OutOfRange(StrEnum):
    """What happens to an offset that the log has no more, or not yet. Clamp: the nearest that it has."""

    SKIP = "Skip"
    CLAMP = "Clamp"


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """What is to be restored. Either `groups`, or all that `policy` (namespace/name) deleted since `deleted_after`.

    id: of the outcomes in the ledger; a group that has one of this id is done. at: no backup that is newer, by seconds.
    """

    id: str
    groups: tuple[str, ...] = ()
    policy: str | None = None
    deleted_after: datetime | None = None
    at: datetime | None = None
    out_of_range: OutOfRange = OutOfRange.SKIP
    allow_unknown_topic_identity: bool = False


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """saved: as in the backup. commit: what is (to be) committed, None = nothing is."""

    partition: Partition
    saved: CommittedOffset
    reason: str
    message: str = ""
    commit: CommittedOffset | None = None


@dataclass(frozen=True, slots=True)
class GroupResult:
    """saved_at: when the backup was taken; None where none is used."""

    group: str
    kind: Kind
    reason: str
    message: str
    saved_at: datetime | None = None
    partitions: tuple[PartitionResult, ...] = field(default=())

    @property
    def restored(self) -> int:
        """Partitions that have the offset that they should."""
        return sum(p.reason in _FINE for p in self.partitions)


def concerns(request: RestoreRequest, backups: Saved) -> bool:
    """Whether the request asks for the group of these backups. One that can't be read may be of any policy."""
    if request.policy is None:
        return True
    return any(
        _taken(id_, parts) >= (request.deleted_after or _NEVER).replace(microsecond=0)
        and all(part is None or part.policy == request.policy for part in parts)
        for id_, parts in _allowed(request, backups).items()
    )


def choose(request: RestoreRequest, name: str, backups: Saved, ends: Ends = _NO_ENDS) -> Backup | GroupResult:
    """The newest backup of a group, or why it can't be used: an older one never stands in for it unasked.

    Of a group that stayed and lost offsets of topics at several times, what it lost at each of them. One that another
    policy took than the request asks for is passed over where the group stayed, as is recorded; but its offsets are
    newer, should some of them be gone.
    """
    allowed = _allowed(request, backups)
    passed: list[Backup] = []
    by_age = sorted(allowed, key=lambda id_: (_taken(id_, allowed[id_]), _whole(allowed[id_]) is None, id_))
    for id_ in reversed(by_age):
        backup, at = _whole(allowed[id_]), _taken(id_, allowed[id_])
        if backup is None:
            message = (
                "of its newest backup a part is missing or can't be read; an older one is taken only where `at` asks"
            )
            return GroupResult(name, Kind.REFUSED, reasons.BACKUP_INCOMPLETE, message, None if at == _UNKNOWN else at)
        if request.policy in (None, backup.policy):
            readable = [found for parts in allowed.values() if (found := _whole(parts)) is not None]
            complete = _with_earlier_parts(request, backup, readable, ends)
            return reduce(with_newer_offsets, reversed(passed), complete)
        if set(ends.get(id_, ())) != {What.KEPT}:
            message = f"it was deleted once more at {timestamp(at)}, not by this policy: restore it by its name"
            return GroupResult(name, Kind.REFUSED, reasons.NO_BACKUP, message)
        passed.append(backup)
    return GroupResult(name, Kind.REFUSED, reasons.NO_BACKUP, "the ledger has no backup of it that fits")


def _with_earlier_parts(request: RestoreRequest, backup: Backup, others: Sequence[Backup], ends: Ends) -> Backup:
    """Of a group that stayed and lost offsets of topics one after the other, all of them since it was last deleted, as
    far as the request asks for them.
    """
    deleted = {id_ for id_, found in ends.items() if What.DELETED in found}
    if backup.id in deleted:
        return backup
    first = (request.deleted_after or _NEVER).replace(microsecond=0)
    complete = backup
    for other in sorted(others, key=lambda each: each.at, reverse=True):
        if other.at > backup.at or other.id == backup.id:
            continue
        if other.id in deleted or other.at.replace(microsecond=0) < first:
            break
        if request.policy not in (None, other.policy):
            continue
        complete = with_earlier(complete, other)
    return complete


def _allowed(request: RestoreRequest, backups: Saved) -> Saved:
    if request.at is None:
        return backups
    return {id_: parts for id_, parts in backups.items() if _taken(id_, parts) <= request.at}


def _taken(id_: str, parts: Sequence[Backup | None]) -> datetime:
    """When a backup was taken, in whole seconds, as people see it; of one that can't be read, by its id."""
    for part in parts:
        if part is not None:
            return part.at.replace(microsecond=0)
    try:
        return datetime.strptime(id_.partition("-")[0], _ID_TIME).replace(tzinfo=UTC)
    except ValueError:
        return _UNKNOWN


def _whole(parts: Sequence[Backup | None]) -> Backup | None:
    readable = [part for part in parts if part is not None]
    return whole(readable) if len(readable) == len(parts) else None


def saved_offsets(backup: Backup) -> dict[Partition, SavedOffset]:
    return {Partition(topic, row.partition): row for topic, rows in backup.offsets.items() for row in rows}


def decide(
    backup: Backup,
    now: Offsets,
    ids: Mapping[str, str | Fault],
    bounds: Mapping[Partition, Bounds | Fault],
    request: RestoreRequest,
) -> list[PartitionResult]:
    """Each partition of a backup, WouldRestore with what to commit, or why it is left alone. Pure.

    now: committed at the moment. ids: of the topics as they are now. bounds: of the partitions of those that are there.
    """
    results: list[PartitionResult] = []
    for place, row in sorted(saved_offsets(backup).items()):
        saved = CommittedOffset(row.offset, row.leader_epoch, row.metadata)
        present = now.get(place)
        if present is not None:
            results.append(held(place, saved, present))
            continue
        doubt = _another_topic(backup.topic_ids.get(place.topic, ""), ids[place.topic], request)
        reason, message, commit = (*doubt, None) if doubt else _in_range(saved, bounds[place], request.out_of_range)
        results.append(PartitionResult(place, saved, reason, message, commit))
    return results


def held(partition: Partition, saved: CommittedOffset, present: CommittedOffset) -> PartitionResult:
    """A partition for which something is committed: that stays."""
    if present.offset == saved.offset:
        return PartitionResult(partition, saved, reasons.ALREADY_THERE)
    return PartitionResult(partition, saved, reasons.ALREADY_COMMITTED, f"offset {present.offset} is committed now")


def _another_topic(before: str, now: str | Fault, request: RestoreRequest) -> tuple[str, str] | None:
    if isinstance(now, Fault):
        if now.code == NO_SUCH_TOPIC:
            return reasons.TOPIC_MISSING, "the topic does not exist"
        return reasons.TOPICS_UNKNOWN, f"the topic could not be read: {now}"
    if before and now:
        if before == now:
            return None
        return reasons.TOPIC_RECREATED, "the topic was made anew since: its offsets are others"
    if request.allow_unknown_topic_identity:
        return None
    return reasons.TOPIC_IDENTITY_UNKNOWN, "without topic ids nobody knows whether it is still the same topic"


def lost_topics(backup: Backup, ids: Mapping[str, str | Fault]) -> list[str] | Fault:
    """The internal topics in a backup of a Streams application that are gone since, or made anew. ids: as they are."""
    lost = []
    for topic, before in backup.internal_topics.items():
        now = ids[topic]
        if isinstance(now, Fault) and now.code != NO_SUCH_TOPIC:
            return replace(now, message=f"topic {topic}: {now.message}")
        if now != before:
            lost.append(topic)
    return sorted(lost)


def warned(result: GroupResult, lost: Sequence[str]) -> GroupResult:
    """The result, with a word on internal topics of Kafka Streams that are not what they were."""
    if not lost:
        return result
    shown = ", ".join(lost[:3])
    return replace(result, message=f"{result.message}; if it is a Streams application, its state is gone: {shown}")


def _in_range(
    saved: CommittedOffset, bounds: Bounds | Fault, mode: OutOfRange
) -> tuple[str, str, CommittedOffset | None]:
    if isinstance(bounds, Fault):
        if bounds.code == NO_SUCH_TOPIC:
            return reasons.TOPIC_MISSING, "the topic has no such partition", None
        return reasons.OFFSETS_UNKNOWN, f"where it begins and ends could not be read: {bounds}", None
    start, end = bounds
    nearest = min(max(saved.offset, start), end)
    if nearest == saved.offset:
        return reasons.WOULD_RESTORE, "", saved
    message = f"offset {saved.offset} is not within {start} to {end}"
    if mode is OutOfRange.SKIP:
        return reasons.OUT_OF_RANGE, message, None
    # The epoch belongs to the record at the saved offset, and to no other one.
    return reasons.WOULD_RESTORE, f"{message}: {nearest} instead", CommittedOffset(nearest, -1, saved.metadata)


def compared(decided: PartitionResult, answer: Fault | None, after: Offsets | Fault) -> PartitionResult:
    """What became of a partition, by the answer to its commit (None = no error) and what is committed afterwards."""
    if not isinstance(after, Fault) and after.get(decided.partition) == decided.commit:
        return replace(decided, reason=reasons.VERIFIED)
    if answer is not None:
        reason = reasons.GROUP_ACTIVE if answer.code in _ACTIVE else reasons.COMMIT_FAILED
        if answer.code.endswith(_DENIED):
            reason = reasons.DENIED
        return replace(decided, reason=reason, message=str(answer), commit=None)
    if isinstance(after, Fault):
        return replace(decided, reason=reasons.OFFSETS_UNKNOWN, message=f"could not be read again: {after}")
    if decided.partition not in after:
        return replace(decided, reason=reasons.CHANGED, message="the commit was confirmed, and is not there any more")
    return replace(decided, reason=reasons.CHANGED, message="another offset is committed now: somebody was faster")


def unreadable(name: str, fault: Fault) -> GroupResult:
    """The result for a group that could not be read."""
    reason = reasons.OFFSETS_UNKNOWN
    if fault.code == "UNSTABLE_OFFSET_COMMIT":
        reason = reasons.PENDING_TRANSACTION
    elif fault.code.endswith(_DENIED):
        reason = reasons.DENIED
    return GroupResult(name, Kind.WAITING, reason, str(fault))


def summed(name: str, backup: Backup, partitions: list[PartitionResult], preview: bool) -> GroupResult:
    """The result for a group, of what became of its partitions. preview: nothing was committed."""
    fine = sum(p.reason in _FINE for p in partitions)
    counts = Counter(p.reason for p in partitions if p.reason not in _FINE)
    verb = "would have" if preview else "have"
    message = f"{fine} of {len(partitions)} partitions {verb} their offsets again"
    if counts:
        # A GroupRestore tells of no single partition: one of each kind must stand for the others.
        examples = {p.reason: f" ({p.partition.topic}-{p.partition.partition}: {p.message})" for p in partitions}
        message += "; " + ", ".join(f"{count} {reason}{examples[reason]}" for reason, count in sorted(counts.items()))
    passing = [p.reason for p in partitions if p.reason in _PASSING]
    if passing:
        kind, reason = Kind.WAITING, passing[0]
    elif not counts:
        kind, reason = Kind.RESTORED, reasons.WOULD_RESTORE if preview else reasons.RESTORED
    elif fine:
        kind, reason = Kind.PARTLY, reasons.PARTLY_RESTORED
    else:
        kind, reason = Kind.REFUSED, counts.most_common(1)[0][0]
    return GroupResult(name, kind, reason, message, backup.at, tuple(partitions))
