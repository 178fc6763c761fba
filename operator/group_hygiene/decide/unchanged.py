"""Counts how long a policy's scans have seen a group unchanged, for `unchangedFor`. No I/O, no clock.

Watched time is counted, never computed from dates: it adds up the monotonic seconds between scans of one process, and a
restart adds nothing. So it is never longer than the time that has really passed, whatever the clock is set to. An
*epoch* is a series of scans without a missed one; observations of an earlier epoch don't count, since a group may have
been used in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from group_hygiene.model.entries import Seen, Watch
from group_hygiene.model.evidence import Unchanged
from group_hygiene.spec.policy import Policy

# If two scans are further apart than this many intervals, a scan was missed.
_INTERVALS = 2


@dataclass
class ScanHistory:
    """One process's memory of one policy's scans; empty after a restart.

    last: monotonic seconds of the last scan, None = none yet. max_gap: the most seconds between two reads of a group.
    missed: seconds between the last two scans, if too many; None = they weren't.
    floor: for groups that this process has not read yet, the lowest possible Watch.watched of their last read. read:
    group -> Watch.watched when it was last read. present: the groups that the current scan has read.
    """

    last: float | None = None
    max_gap: float = 0.0
    missed: float | None = None
    floor: float = 0.0
    read: dict[str, float] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)

    def stale(self, group: str, watch: Watch) -> bool:
        return watch.watched - self.read.get(group, self.floor) > self.max_gap


def record_scan(
    watch: Watch | None, policy: Policy, now: datetime, monotonic: float, history: ScanHistory, lost: bool = False
) -> Watch:
    """The policy's watch with another scan at `now`, noted in `history`. `end_scan` ends the scan.

    A missed scan, or another digest than the policy's, starts a new epoch. Within a process, monotonic seconds show a
    missed scan; after a restart the wall clock does, counted from the last complete scan, as it is not stored which
    groups a later one could not read. A clock that went back proves nothing, and starts a new epoch. lost: so do
    records of the offsets log that were lost before they were read.
    """
    history.max_gap = _INTERVALS * policy.interval.total_seconds()
    gap = None if history.last is None else monotonic - history.last
    history.last = monotonic
    history.missed = gap if gap is not None and gap > history.max_gap else None
    history.present.clear()
    if watch is None or watch.digest != policy.digest or lost:
        return _begin(watch, policy, now, history)
    if gap is not None:
        if not 0 <= gap <= history.max_gap:
            return _begin(watch, policy, now, history)
        return msgspec.structs.replace(watch, watched=watch.watched + gap, at=now)
    away = (now - watch.complete_at).total_seconds()
    if now < watch.at or not 0 <= away <= history.max_gap:
        return _begin(watch, policy, now, history)
    history.floor = watch.watched - away
    return msgspec.structs.replace(watch, at=now)


def seen_again(
    seen: Seen | None, watch: Watch, history: ScanHistory, group: str, fingerprint: bytes, now: datetime
) -> Seen | None:
    """The Seen to write for a group that this scan found Empty; None = nothing to write.

    The count starts again when the offsets changed, in a new epoch, and when the group was not read for too long.
    fingerprint: of its committed offsets.
    """
    stale = history.stale(group, watch)
    history.read[group] = watch.watched
    history.present.add(group)
    same = seen is not None and seen.epoch == watch.epoch and seen.fingerprint == fingerprint
    if same and not stale:
        return None
    return Seen(
        policy_uid=watch.policy_uid,
        group=group,
        epoch=watch.epoch,
        fingerprint=fingerprint,
        since=now,
        watched=watch.watched,
    )


def unchanged(seen: Seen | None, watch: Watch | None, history: ScanHistory | None = None) -> Unchanged | None:
    """How long the group is unchanged, by its Seen after this scan; None if it has none of this epoch."""
    if seen is None or watch is None or seen.epoch != watch.epoch:
        return None
    missed = None if history is None or history.missed is None else timedelta(seconds=history.missed)
    return Unchanged(seen.since, timedelta(seconds=max(0.0, watch.watched - seen.watched)), missed)


def assumed(seen: Seen | None, policy: Policy, now: datetime) -> Unchanged | None:
    """As `unchanged`, for a group that was unchanged for as long as the policy asks; None if no scan found it Empty."""
    wanted = policy.when.unchanged_for
    return None if seen is None or wanted is None else Unchanged(now - wanted, wanted)


def end_scan(
    watch: Watch, history: ScanHistory, seen: Mapping[str, Seen], unread: Collection[str]
) -> tuple[Watch, tuple[str, ...]]:
    """The watch to write after a scan, and the groups whose Seen ends with it.

    seen: all of this policy, after this scan. unread: groups that may be Empty and unchanged, but could not be read: no
    answer about their offsets, or absent from an incomplete snapshot. Their Seen may stay for a while; every other
    group that this scan did not read was in use, is gone, or is no longer selected.
    """
    ended = tuple(
        group
        for group, known in seen.items()
        if known.epoch != watch.epoch
        or (group not in history.present and (group not in unread or history.stale(group, watch)))
    )
    history.read = {group: at for group, at in history.read.items() if group in seen}
    for group in ended:
        history.read.pop(group, None)
    return (watch if unread else msgspec.structs.replace(watch, complete_at=watch.at)), ended


def _begin(watch: Watch | None, policy: Policy, now: datetime, history: ScanHistory) -> Watch:
    history.floor = 0.0
    history.read.clear()
    # A date rather than 1: if a watch is lost, its observations must not count under the next one.
    epoch = max(int(now.timestamp()), 0 if watch is None else watch.epoch + 1)
    first = Watch(policy_uid=policy.uid, digest=policy.digest, epoch=epoch, watched=0.0, at=now, complete_at=now)
    return first if watch is None else msgspec.structs.replace(first, log=watch.log, topic_id=watch.topic_id)
