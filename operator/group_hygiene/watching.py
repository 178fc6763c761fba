"""How long a policy's looks have seen a group unchanged: the count behind `unchangedFor`. No I/O, no clock.

Watched time is counted, never computed from dates: it adds up the monotonic seconds between looks of one process, and
a restart adds nothing. So it is never longer than the time that has really passed, whatever the clock is set to.
An *epoch* is a row of looks of which none was missed; what was seen in an earlier one counts no longer, since a group
may have been used and left in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from group_hygiene.entries import LogEnd, Seen, Watch
from group_hygiene.model import Unchanged
from group_hygiene.policy import Policy

# Looks that are further apart than this many intervals have missed one.
_INTERVALS = 2


class Observed(NamedTuple):
    """What a look found of an Empty group. fingerprint: of its committed offsets.

    log_end: of its partition of the offsets log, asked before the offsets; None = not known.
    """

    fingerprint: bytes
    log_end: LogEnd | None = None


@dataclass
class Looks:
    """What one process remembers of one policy's looks; a new one after a restart.

    last: monotonic seconds of the last look, None = none yet. patience: how many seconds a group may go unread.
    missed: seconds between the last two looks, where those were too many; None = they weren't.
    floor: for groups that this process has not read yet, the least at which they can have been (see Watch.watched).
    read: group -> Watch.watched when it was last read. present: the groups that the current look has read.
    """

    last: float | None = None
    patience: float = 0.0
    missed: float | None = None
    floor: float = 0.0
    read: dict[str, float] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)

    def stale(self, group: str, watch: Watch) -> bool:
        return watch.watched - self.read.get(group, self.floor) > self.patience


def look(watch: Watch | None, policy: Policy, now: datetime, monotonic: float, looks: Looks) -> Watch:
    """The policy's watch with a further look at `now`, noted in `looks`. `finish` ends the look.

    A missed look, or another digest than the policy's, starts a new epoch. A missed one is told by monotonic seconds
    within a process, and by the wall clock after a restart: there only from the last complete look on, as nobody
    remembers which groups a later one could not read. A clock that went back meanwhile tells nothing.
    """
    looks.patience = _INTERVALS * policy.interval.total_seconds()
    gap = None if looks.last is None else monotonic - looks.last
    looks.last = monotonic
    looks.missed = gap if gap is not None and gap > looks.patience else None
    looks.present.clear()
    if watch is None or watch.digest != policy.digest:
        return _begin(watch, policy, now, looks)
    if gap is not None:
        if not 0 <= gap <= looks.patience:
            return _begin(watch, policy, now, looks)
        return msgspec.structs.replace(watch, watched=watch.watched + gap, at=now)
    away = (now - watch.complete_at).total_seconds()
    if now < watch.at or not 0 <= away <= looks.patience:
        return _begin(watch, policy, now, looks)
    looks.floor = watch.watched - away
    return msgspec.structs.replace(watch, at=now)


def seen_again(
    seen: Seen | None, watch: Watch, looks: Looks, group: str, observed: Observed, now: datetime
) -> Seen | None:
    """What to write for a group that this look found Empty; None = nothing.

    It starts anew when something changed, in a new epoch, when it went unread for too long, and when nobody knows from
    where on the offsets log shows whether the group was used since.
    """
    stale = looks.stale(group, watch)
    looks.read[group] = watch.watched
    looks.present.add(group)
    same = seen is not None and seen.epoch == watch.epoch and seen.fingerprint == observed.fingerprint
    if seen is not None and same and not stale and (seen.log_end is not None or observed.log_end is None):
        return None
    return Seen(
        policy_uid=watch.policy_uid,
        group=group,
        epoch=watch.epoch,
        fingerprint=observed.fingerprint,
        since=now,
        watched=watch.watched,
        log_end=observed.log_end,
    )


def unchanged(seen: Seen | None, watch: Watch | None, looks: Looks | None = None) -> Unchanged | None:
    """What a Seen, as it is after this look, says now; None when it belongs to another epoch, or there is none."""
    if seen is None or watch is None or seen.epoch != watch.epoch:
        return None
    missed = None if looks is None or looks.missed is None else timedelta(seconds=looks.missed)
    return Unchanged(seen.since, timedelta(seconds=max(0.0, watch.watched - seen.watched)), missed)


def finish(
    watch: Watch, looks: Looks, seen: Mapping[str, Seen], unread: Collection[str]
) -> tuple[Watch, tuple[str, ...]]:
    """The watch to write after a look, and the groups whose Seen ends with it.

    seen: all that are known of this policy, after this look. unread: groups that may be Empty and unchanged, but could
    not be read: no answer about their offsets, or absent from an incomplete snapshot. They may stay so for a while;
    every other group that this look did not read was in use, is gone, or is not looked for any more.
    """
    ended = tuple(
        group
        for group, known in seen.items()
        if known.epoch != watch.epoch
        or (group not in looks.present and (group not in unread or looks.stale(group, watch)))
    )
    looks.read = {group: at for group, at in looks.read.items() if group in seen}
    for group in ended:
        looks.read.pop(group, None)
    return (watch if unread else msgspec.structs.replace(watch, complete_at=watch.at)), ended


def _begin(watch: Watch | None, policy: Policy, now: datetime, looks: Looks) -> Watch:
    looks.floor = 0.0
    looks.read.clear()
    # A date rather than 1: should a watch be lost, what was seen under it must not come to life under the next.
    epoch = max(int(now.timestamp()), 0 if watch is None else watch.epoch + 1)
    return Watch(policy_uid=policy.uid, digest=policy.digest, epoch=epoch, watched=0.0, at=now, complete_at=now)
