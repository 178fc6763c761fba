"""The pure half of restores: no I/O, no clock.

Which offsets of a backup a restore may commit, and the results in words; the GroupRestore object: its request, and its
status by the results.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import reduce
from types import MappingProxyType
from typing import Any

import msgspec

from group_hygiene.engine.checks.offsets import unreadable as unreadable_offsets
from group_hygiene.model import reasons
from group_hygiene.model.entries import (
    Backup,
    HistoryEntry,
    OutcomeType,
    saved_offsets,
    whole,
    with_earlier,
    with_newer_offsets,
)
from group_hygiene.model.groups import NO_SUCH_TOPIC, Bounds, CommittedOffset, Fault, Offsets, Partition
from group_hygiene.spec.crds import judged
from group_hygiene.spec.fields import Decisive, ObjectRef, convert, timestamp

# The errors of OffsetCommit with generation -1, and of AlterShareGroupOffsets, if the group has members.
_ACTIVE = frozenset(
    {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "STALE_MEMBER_EPOCH", "NON_EMPTY_GROUP"}
)
_DENIED = "AUTHORIZATION_FAILED"
# The id of a deletion begins with its time, which is so known even if the backup can't be read.
_ID_TIME = "%Y%m%dT%H%M%S"
_NEVER, _UNKNOWN = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

# id of a backup -> its parts, None = one that can't be read.
Saved = Mapping[str, Sequence[Backup | None]]
# id of a backup -> recorded outcomes of its deletion; several if a late request deleted the group.
Ends = Mapping[str, Collection[OutcomeType]]
_NO_ENDS: Ends = MappingProxyType({})
_DELETIONS = frozenset({OutcomeType.DELETED, OutcomeType.OFFSETS_DELETED})


class ResultKind(StrEnum):
    """The result for one group. Waiting: a retry may help; Refused: only another request can."""

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
    """How to treat an offset outside of the log. Clamp: commit the nearest offset inside."""

    SKIP = "Skip"
    CLAMP = "Clamp"


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """What to restore: either `groups`, or all groups that `policy` (namespace/name) deleted since `deleted_after`.

    id: of the outcomes in the ledger; a group with an outcome of this id is done. origin: begins the ids of all objects
    with the same name and spec, and only the first of them restores anything; empty = a command. remembered: how long
    its outcome stays in the ledger at least. at: use no backup newer than this second. overwrite_later: replace
    committed offsets that are later than the saved ones; with `at`, also by offsets that such a restore replaced
    (`Backup.replaced`), whether they are earlier or later. granted: whether the connection allows to restore a group;
    nothing is read of other groups.
    """

    id: str
    origin: str = ""
    remembered: timedelta = timedelta()
    groups: tuple[str, ...] = ()
    policy: str | None = None
    deleted_after: datetime | None = None
    at: datetime | None = None
    out_of_range: OutOfRange = OutOfRange.SKIP
    allow_unknown_topic_identity: bool = False
    overwrite_later: bool = False
    granted: Callable[[str], bool] = lambda group: True

    def asks_for(self, group: str) -> bool:
        return (not self.groups or group in self.groups) and self.granted(group)

    def follows(self, id_: str) -> bool:
        """Whether an outcome with this id is of an earlier object with the same name and spec."""
        return bool(self.origin) and id_ != self.id and id_.startswith(self.origin)


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """saved: as in the backup. commit: the offset that is (to be) committed, None = none.

    present: the offset that the group has instead of the saved one; the commit replaces it.
    """

    partition: Partition
    saved: CommittedOffset
    reason: str
    message: str = ""
    commit: CommittedOffset | None = None
    present: CommittedOffset | None = None


@dataclass(frozen=True, slots=True)
class GroupResult:
    """saved_at: when the backup was taken; None if no backup is used."""

    group: str
    kind: ResultKind
    reason: str
    message: str
    saved_at: datetime | None = None
    partitions: tuple[PartitionResult, ...] = field(default=())

    @property
    def restored(self) -> int:
        """Number of partitions that have the right offset."""
        return sum(p.reason in _FINE for p in self.partitions)


def ran_before(group: str, earlier: Mapping[str, HistoryEntry | None]) -> GroupResult:
    """The result of an object that Git, for example, created again: it restores nothing, whatever was deleted since.

    earlier: group -> outcome of the objects before it with the same name and spec, None = unreadable.
    """
    outcome = earlier.get(group)
    kind, what = ResultKind.REFUSED, "ran, and did not restore this group"
    if outcome is not None:
        kind = ResultKind.RESTORED if outcome.reason == reasons.RESTORED else ResultKind.PARTLY
        began = outcome.what is OutcomeType.FAILED
        what = ("began to restore it" if began else "restored it") + f" at {timestamp(outcome.at)}"
    message = f"an earlier GroupRestore with this name and spec {what}: to run it again, give it another name"
    return GroupResult(group, kind, reasons.RAN_BEFORE, message)


def concerns(request: RestoreRequest, backups: Saved) -> bool:
    """Whether the request includes the group of these backups. An unreadable backup may be of any policy."""
    if request.policy is None:
        return True
    return any(
        _taken(id_, parts) >= (request.deleted_after or _NEVER).replace(microsecond=0)
        and all(part is None or part.policy == request.policy for part in parts)
        for id_, parts in _allowed(request, backups).items()
    )


def choose(request: RestoreRequest, name: str, backups: Saved, ends: Ends = _NO_ENDS) -> Backup | GroupResult:
    """The newest backup of a group, or why it can't be used: an older one is never used unless requested.

    If the group stayed and lost offsets of topics several times, the backups of all these deletions are combined.
    A newer backup by another policy than the request's is skipped if its deletion left the group in place
    (`OutcomeType.NOT_DELETED`); its offsets then replace those of the older backup, since they are newer. A deletion
    whose backup is not there at all, as its batch can't be read, counts as one with an unreadable backup.
    """
    lost = {id_: [None] for id_, found in ends.items() if id_ not in backups and _DELETIONS.intersection(found)}
    allowed = _allowed(request, {**backups, **lost})
    found = [(_taken(id_, parts), id_, _whole(parts)) for id_, parts in allowed.items()]
    # An unreadable backup counts as the last one of its second.
    by_age = sorted(found, key=lambda each: (each[0], each[2] is None, each[2].at if each[2] else _UNKNOWN, each[1]))
    passed: list[Backup] = []
    for at, id_, backup in reversed(by_age):
        if backup is None:
            message = (
                "a part of its newest backup is missing or can't be read; an older one is used only if `at` requests it"
            )
            return GroupResult(
                name, ResultKind.REFUSED, reasons.BACKUP_INCOMPLETE, message, None if at == _UNKNOWN else at
            )
        if request.policy in (None, backup.policy):
            if backup.replaced:
                return backup
            readable = [each for _, _, each in found if each is not None and not each.replaced]
            complete = _with_earlier_parts(request, backup, readable, ends)
            return reduce(with_newer_offsets, reversed(passed), complete)
        if set(ends.get(id_, ())) != {OutcomeType.NOT_DELETED}:
            message = f"it was deleted again at {timestamp(at)}, not by this policy: restore it by its name"
            return GroupResult(name, ResultKind.REFUSED, reasons.NO_BACKUP, message)
        passed.append(backup)
    return GroupResult(
        name,
        ResultKind.REFUSED,
        reasons.NO_BACKUP,
        "the ledger has no backup of it that fits: group-hygiene history shows its deletions",
    )


def _with_earlier_parts(request: RestoreRequest, backup: Backup, others: Sequence[Backup], ends: Ends) -> Backup:
    """The backup, and offsets of topics that the group lost in earlier deletions, back to the last one that deleted the
    whole group, as far as the request includes them.
    """
    deleted = {id_ for id_, found in ends.items() if OutcomeType.DELETED in found}
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
    """What a restore replaced was deleted by no policy: only another request for groups at a time may choose it."""
    at = request.at
    undoes = at is not None and request.overwrite_later and request.policy is None
    backups = {
        id_: parts
        for id_, parts in backups.items()
        if not any(part and part.replaced and (not undoes or part.continues == request.id) for part in parts)
    }
    return backups if at is None else {id_: parts for id_, parts in backups.items() if _taken(id_, parts) <= at}


def _taken(id_: str, parts: Sequence[Backup | None]) -> datetime:
    """When a backup was taken, in whole seconds, as users see it; by its id if it can't be read."""
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


def decide(
    backup: Backup,
    now: Offsets,
    ids: Mapping[str, str | Fault],
    bounds: Mapping[Partition, Bounds | Fault],
    request: RestoreRequest,
    own: Collection[Partition],
) -> list[PartitionResult]:
    """For each partition of a backup: WouldRestore with the offset to commit, or why it is left alone. Pure.

    now: the offsets that are committed now. ids: the topics' current ids. bounds: of partitions of existing topics.
    own: the partitions that the backup had itself; offsets that earlier deletions took replace none.
    """

    def replaces(place: Partition, offset: int, present: CommittedOffset) -> bool:
        is_other = offset < present.offset or (backup.replaced and offset != present.offset)
        return request.overwrite_later and place in own and is_other

    results: list[PartitionResult] = []
    for place, saved in sorted(saved_offsets(backup).items()):
        present = now.get(place)
        # First: of another topic, also the same offset means another record.
        doubt = _another_topic(backup.topic_ids.get(place.topic, ""), ids[place.topic], request)
        if doubt is not None:
            results.append(PartitionResult(place, saved, *doubt))
        elif present is not None and not replaces(place, saved.offset, present):
            results.append(held(place, saved, present))
        else:
            reason, message, commit = _in_range(saved, bounds[place], request.out_of_range)
            found = PartitionResult(place, saved, reason, message, commit)
            if present is not None and commit is not None and not replaces(place, commit.offset, present):
                found = held(place, saved, present)
            elif present is not None and commit is not None:
                again = f"records from {commit.offset} on are delivered again"
                effect = again if commit.offset < present.offset else f"records before {commit.offset} are skipped"
                text = "; ".join(filter(None, [message, f"in place of offset {present.offset}: {effect}"]))
                found = replace(found, message=text, present=present)
            results.append(found)
    return results


def held(partition: Partition, saved: CommittedOffset, present: CommittedOffset) -> PartitionResult:
    """The result for a partition that has a committed offset, which stays."""
    if present.offset == saved.offset:
        return PartitionResult(partition, saved, reasons.ALREADY_THERE)
    message = f"offset {present.offset} is committed now"
    return PartitionResult(partition, saved, reasons.ALREADY_COMMITTED, message, present=present)


def _another_topic(before: str, now: str | Fault, request: RestoreRequest) -> tuple[str, str] | None:
    if isinstance(now, Fault):
        if now.code == NO_SUCH_TOPIC:
            return reasons.TOPIC_MISSING, "the topic does not exist"
        return reasons.TOPICS_UNKNOWN, f"the topic could not be read: {now}"
    if before and now:
        if before == now:
            return None
        return reasons.TOPIC_RECREATED, "the topic was recreated since: the offset means another record"
    if request.allow_unknown_topic_identity:
        return None
    return reasons.TOPIC_IDENTITY_UNKNOWN, "without topic ids, it is unknown whether it is still the same topic"


def lost_topics(backup: Backup, ids: Mapping[str, str | Fault]) -> list[str] | Fault:
    """The internal topics of a Streams application that were deleted or recreated since the backup. ids: now."""
    lost = []
    for topic, before in backup.internal_topics.items():
        now = ids[topic]
        if isinstance(now, Fault) and now.code != NO_SUCH_TOPIC:
            return replace(now, message=f"topic {topic}: {now.message}")
        if now != before:
            lost.append(topic)
    return sorted(lost)


def warned(result: GroupResult, lost: Sequence[str]) -> GroupResult:
    """The result, with a warning about internal topics of Kafka Streams that were deleted or recreated."""
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
        return reasons.OFFSETS_UNKNOWN, f"its first and end offset could not be read: {bounds}", None
    start, end = bounds
    nearest = min(max(saved.offset, start), end)
    if nearest == saved.offset:
        return reasons.WOULD_RESTORE, "", saved
    message = f"offset {saved.offset} is not within {start} to {end}"
    if mode is OutOfRange.SKIP:
        return reasons.OUT_OF_RANGE, message, None
    # The leader epoch belongs to the record at the saved offset only.
    return reasons.WOULD_RESTORE, f"{message}: {nearest} instead", CommittedOffset(nearest, -1, saved.metadata)


def compared(decided: PartitionResult, answer: Fault | None, after: Offsets | Fault) -> PartitionResult:
    """The result for a partition, by the answer to its commit (None = no error) and the offsets committed after it."""
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
        return replace(decided, reason=reasons.CHANGED, message="the commit was confirmed, but its offset is gone")
    return replace(decided, reason=reasons.CHANGED, message="another client committed another offset since")


def unreadable(name: str, fault: Fault, saved_at: datetime | None = None) -> GroupResult:
    """The result for a group that could not be read."""
    return GroupResult(name, ResultKind.WAITING, unreadable_offsets(fault).reason, str(fault), saved_at)


def summed(request: RestoreRequest, backup: Backup, partitions: list[PartitionResult], preview: bool) -> GroupResult:
    """The result for a group, from those of its partitions. preview: nothing was committed."""
    fine = sum(p.reason in _FINE for p in partitions)
    counts = Counter(p.reason for p in partitions if p.reason not in _FINE)
    verb = "would have" if preview else "have"
    message = f"{fine} of {len(partitions)} partitions {verb} their offsets again"
    if counts:
        # A GroupRestore lists no partitions: one example per reason.
        examples = {p.reason: f" ({p.partition.topic}-{p.partition.partition}: {p.message})" for p in partitions}
        message += "; " + ", ".join(f"{count} {reason}{examples[reason]}" for reason, count in sorted(counts.items()))
    later = [p for p in partitions if p.present is not None and p.present.offset > p.saved.offset]
    replaced = [p for p in later if p.reason in _FINE]
    if replaced:
        message += f"; {len(replaced)} in place of later offsets ({replaced[0].partition}: {replaced[0].message})"
    if not request.overwrite_later and any(p.reason == reasons.ALREADY_COMMITTED for p in later):
        message += "; --overwrite-later (overwriteLater of a GroupRestore) replaces later offsets"
    passing = [p.reason for p in partitions if p.reason in _PASSING]
    if passing:
        kind, reason = ResultKind.WAITING, passing[0]
    elif not counts:
        kind, reason = ResultKind.RESTORED, reasons.WOULD_RESTORE if preview else reasons.RESTORED
    elif fine:
        kind, reason = ResultKind.PARTLY, reasons.PARTLY_RESTORED
    else:
        kind, reason = ResultKind.REFUSED, counts.most_common(1)[0][0]
    return GroupResult(backup.group, kind, reason, message, backup.at, tuple(partitions))


class _Spec(Decisive, frozen=True, kw_only=True):
    connection_ref: ObjectRef
    groups: tuple[str, ...] = ()
    policy_ref: ObjectRef | None = None
    deleted_after: datetime | None = None
    at: datetime | None = None
    out_of_range: OutOfRange = msgspec.field(name="outOfRangeOffsets")
    allow_unknown_topic_identity: bool
    overwrite_later: bool
    ttl_seconds_after_finished: int | None = None


# For this long after it was deleted, an object that is created again with the same name and spec restores nothing.
_REMEMBERED = timedelta(days=30)


def parse_restore(obj: Mapping[str, Any]) -> tuple[str, RestoreRequest]:
    """The connection's namespace/name and the request of a GroupRestore object. Raises SpecError."""
    metadata, spec = obj["metadata"], convert(judged("GroupRestore", obj), _Spec, "spec")
    here, ref, policy = metadata["namespace"], spec.connection_ref, spec.policy_ref
    asked = {key: value for key, value in obj["spec"].items() if key != "ttlSecondsAfterFinished"}
    text = json.dumps([here, metadata["name"], asked], sort_keys=True, default=str)
    origin = hashlib.sha256(text.encode()).hexdigest()[:16] + "."
    request = RestoreRequest(
        id=origin + metadata["uid"],
        origin=origin,
        # Git may create it again as soon as it is deleted.
        remembered=_REMEMBERED + timedelta(seconds=spec.ttl_seconds_after_finished or 0),
        groups=spec.groups,
        policy=f"{here}/{policy.name}" if policy else None,
        deleted_after=spec.deleted_after,
        at=spec.at,
        out_of_range=spec.out_of_range,
        allow_unknown_topic_identity=spec.allow_unknown_topic_identity,
        overwrite_later=spec.overwrite_later,
    )
    return f"{ref.namespace or here}/{ref.name}", request


def has_ttl(obj: Mapping[str, Any]) -> bool:
    """Whether it is a GroupRestore that is deleted some time after its end."""
    # One without room is stored without its spec.
    return isinstance((obj["spec"] or {}).get("ttlSecondsAfterFinished"), int)


def deletion_time(obj: Mapping[str, Any]) -> datetime | None:
    """When to delete a GroupRestore; None = it stays, or has not ended."""
    ended = (obj.get("status") or {}).get("completionTime")
    if not ended or not has_ttl(obj):
        return None
    return datetime.fromisoformat(ended) + timedelta(seconds=obj["spec"]["ttlSecondsAfterFinished"])
