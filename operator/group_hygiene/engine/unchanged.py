"""Counts how long scans have seen a group unchanged, for `unchangedFor`. No I/O, no clock.

Watched time is counted, never computed from dates: it adds up the monotonic seconds between scans of one process, and a
restart adds nothing. So it is never longer than the time that has really passed, whatever the clock is set to. All
policies of a connection share it (`ScanClock`), and what is known of a group (`Seen`).

A policy counts from its own *epoch* on, a series of its scans without a missed one (`Watch`), and from the first scan
that found the group as it is now; the later of the two. If a group was not read for longer than a policy tolerates,
although its scans went on, the policy counts from the next read. Gaps that it tolerates don't matter to it, whatever
other policies tolerate.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from group_hygiene.model.entries import Gap, ScanClock, Seen, Watch
from group_hygiene.model.evidence import Unchanged
from group_hygiene.model.groups import Group
from group_hygiene.spec.policy import Match, Policy

# If two scans are further apart than this many intervals, a scan was missed.
_INTERVALS = 2
# Shorter than any scan.
_TICK = 1e-6
# Seconds. An unknown gap counts as one of this length, which no policy tolerates.
_LONG = 1e9
# The most gaps of a group. If there are more, the two of the most similar lengths become one.
_GAPS = 8


@dataclass
class ScanHistory:
    """One process's memory of one policy's scans; empty after a restart.

    last: monotonic seconds of the last scan, None = none yet. max_gap: the most seconds between two reads of a group.
    match: the groups that the policy selects; None = no scan yet.
    missed: seconds between the last two scans, if too many; None = they weren't.
    floor: what `ScanClock.seconds` would be at the policy's last complete scan before this process, which read all its
    groups, if the clock had gone on since then; -inf = there was none, or it does not count.
    """

    last: float | None = None
    max_gap: float = 0.0
    match: Match | None = None
    missed: float | None = None
    floor: float = -math.inf


@dataclass
class ScanTime:
    """The time of one scan. watched: `ScanClock.seconds` with it. now: wall clock. monotonic: seconds of this process.

    first: `ScanClock.seconds` of the first scan of this process.
    tolerated: for each policy whose count a gap could restart, the longest one that it tolerates, and its groups.
    """

    watched: float
    now: datetime
    monotonic: float
    first: float = 0.0
    tolerated: tuple[tuple[float, Match], ...] = ()


def max_gap(policy: Policy) -> float:
    """The most seconds between two reads of a group that the policy tolerates."""
    return _INTERVALS * policy.interval.total_seconds()


def advance(known: ScanClock | None, connection_uid: str, monotonic: float, last: float | None) -> ScanClock:
    """The connection's clock with another scan. last: monotonic seconds of the one before it in this process."""
    if known is None:
        return ScanClock(connection_uid=connection_uid, seconds=0.0)
    # So that no two scans have the same time.
    gap = _TICK if last is None else max(_TICK, monotonic - last)
    return msgspec.structs.replace(known, seconds=known.seconds + gap)


def _epoch_digest(policy: Policy) -> str:
    """The digest of the policy and of its grant, which `Policy.digest` is without.

    Gaps are noted for the policies that select a group, so none of them may count from before it selected the group.
    """
    within = policy.match.within
    if within is None:
        return policy.digest
    text = repr((policy.digest, sorted(within.sources)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def record_scan(watch: Watch | None, policy: Policy, time: ScanTime, history: ScanHistory) -> Watch:
    """The policy's watch with another scan, noted in `history`.

    A missed scan, another digest than the watch's, or a lost ScanClock starts a new epoch. Within a process, monotonic
    seconds show a missed scan; after a restart the wall clock does, counted from the last complete scan, as it is not
    stored which groups a later one could not read. A clock that went back proves nothing, and starts a new epoch.
    """
    history.max_gap, history.match = max_gap(policy), policy.match
    digest = _epoch_digest(policy)
    gap = None if history.last is None else time.monotonic - history.last
    history.last = time.monotonic
    history.missed = gap if gap is not None and gap > history.max_gap else None
    if watch is not None and watch.digest == digest and watch.watched <= time.watched:
        if gap is not None and 0 <= gap <= history.max_gap:
            return msgspec.structs.replace(watch, at=time.now)
        away = (time.now - watch.complete_at).total_seconds()
        if gap is None and time.now >= watch.at and 0 <= away <= history.max_gap:
            history.floor = time.watched - away
            return msgspec.structs.replace(watch, at=time.now)
    history.floor = -math.inf
    return Watch(
        policy_uid=policy.uid,
        digest=digest,
        watched=time.watched,
        since=time.now,
        at=time.now,
        complete_at=time.now,
    )


def tolerated(
    watches: Mapping[str, Watch], histories: Mapping[str, ScanHistory], time: ScanTime
) -> tuple[tuple[float, Match], ...]:
    """`ScanTime.tolerated`, of the policies that have scanned in this process, also of those that are not due now.

    Without those whose epoch begins at this scan, or with their next one as they missed one, whatever is read.
    """
    return tuple(
        (history.max_gap, history.match)
        for uid, history in histories.items()
        if uid in watches and watches[uid].watched < time.watched
        if history.last is not None and time.monotonic - history.last <= history.max_gap
        if history.match is not None
    )


def seen_again(
    seen: Seen | None, connection_uid: str, group: Group, fingerprint: bytes, time: ScanTime, read: float
) -> Seen | None:
    """The Seen to write for a group that this scan found Empty; None = nothing to write.

    The count starts again when the offsets changed, for all policies; and when the group was not read for too long, for
    the policies that select it and do not tolerate that. fingerprint: of its committed offsets. read: when it was read
    last; if not by this process, the largest floor of the policies that select it.
    """
    if seen is None or seen.fingerprint != fingerprint:
        return Seen(
            connection_uid=connection_uid,
            group=group.id,
            type=group.type.value,
            fingerprint=fingerprint,
            since=time.now,
            watched=time.watched,
        )
    gap = min(time.watched - read, _LONG)
    if not any(gap > most + _TICK and match.selects(group) for most, match in time.tolerated):
        return None
    return msgspec.structs.replace(seen, gaps=_with_gap(seen.gaps, Gap(gap, time.watched, time.now)))


def _with_gap(gaps: Iterable[Gap], new: Gap) -> tuple[Gap, ...]:
    """`Seen.gaps` with another one, that ends last. At most _GAPS of them, and none is shorter or ends earlier."""
    found = [*(each for each in gaps if each.seconds > new.seconds), new]
    if len(found) > _GAPS:
        second = min(range(1, len(found)), key=lambda index: found[index - 1].seconds / found[index].seconds)
        found[second - 1 : second + 1] = [found[second]._replace(seconds=found[second - 1].seconds)]
    return tuple(found)


def unchanged(
    seen: Seen | None, watch: Watch | None, clock: ScanClock | None, history: ScanHistory | None, policy: Policy
) -> Unchanged | None:
    """How long the policy counts the group as unchanged, after this scan; None if no scan found it Empty."""
    if seen is None or watch is None or clock is None:
        return None
    began, since = max((seen.watched, seen.since), (watch.watched, watch.since))
    for gap in seen.gaps:
        if gap.seconds > max_gap(policy) + _TICK:
            began, since = max((began, since), (gap.end_watched, gap.end))
    missed = None if history is None or history.missed is None else timedelta(seconds=history.missed)
    return Unchanged(since, timedelta(seconds=max(0.0, clock.seconds - began)), missed)


def assumed(seen: Seen | None, policy: Policy) -> Unchanged | None:
    """As `unchanged`, for a group that was unchanged for as long as the policy asks; None if no scan found it Empty."""
    wanted = policy.when.unchanged_for
    return None if seen is None or wanted is None else Unchanged(seen.since, wanted)


def ended(
    groups: Iterable[str], reads: Mapping[str, float], time: ScanTime, longest: float, is_used: Callable[[str], bool]
) -> list[str]:
    """Of the groups with a Seen, those for which it ends with this scan: that are in use or gone, or were not read for
    so long that no policy may count on.

    reads: when this process read a group last. longest: see `longest_gap`.
    """
    found = []
    for name in groups:
        read = reads.get(name)
        if read != time.watched and (is_used(name) or time.watched - (time.first if read is None else read) > longest):
            found.append(name)
    return found


def longest_gap(watches: Mapping[str, Watch], histories: Mapping[str, ScanHistory]) -> float:
    """The most seconds after which some policy may count on from the last read of a group."""
    if watches.keys() - histories.keys():
        # A policy that has not run since the restart may tolerate more.
        return math.inf
    return max((history.max_gap for history in histories.values()), default=0.0)
