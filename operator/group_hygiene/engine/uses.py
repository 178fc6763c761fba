"""Uses of groups that the operator's scans did not see: the offsets log shows them. Changes no group.

Scans are some minutes apart. A consumer that joins, reads and dies between two of them, and never commits, leaves its
group Empty with the same offsets at each scan. Brokers write each membership, and each commit, to `__consumer_offsets`.
Compaction retains the last records of a group, which is enough.

Each scan reads on: a group with a new record, in whichever partition, counts from that scan on. So one place in each
partition is enough for all groups of a connection (`ScanClock.log`), and a run reads only what came since its scan.

The broker's check for members is the last one before a deletion, and a commit without joining passes it. So what was
committed between the read of a group's offsets and their deletion (`DeletionWindow`) is added to its backup.

Which groups Kafka Connect and Kafka Streams use is noted while these have members: the log shows members that came and
went since the last scan; a description finds those that were there before, and those of connections whose policies
don't read the log.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from group_hygiene.engine.context import Context, Observation
from group_hygiene.engine.plan import Plan
from group_hygiene.engine.settle import Done
from group_hygiene.kafka import brokers
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka.client import Client, Deadline, retrying_one
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.groups import describe_groups
from group_hygiene.kafka.offsets import end_offsets, is_cut_off, latest_times, offsets_at
from group_hygiene.kafka.offsets_log import Commit, StateRecord
from group_hygiene.kafka.offsets_topic import Found, LateCommits, Tail
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import SKEW_MAX
from group_hygiene.model import reasons
from group_hygiene.model.entries import (
    Backup,
    Change,
    HistoryEntry,
    Intent,
    Removal,
    UsedBy,
    in_parts,
    with_late_offsets,
)
from group_hygiene.model.groups import (
    ID_MAX,
    TOPIC_DENIED,
    Cluster,
    Fault,
    Group,
    GroupType,
    LogPlace,
    Partition,
    Sighting,
    program_of,
)
from group_hygiene.model.naming import truncated
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import format_duration, timestamp
from group_hygiene.spec.policy import Unprotect

_HINT = " (match.unprotect: [UnreadableOffsetsLog] to trust scans alone)"
_LATE = " (there may be more new records than scan.timeout has time for: a shorter interval leaves fewer)"
_LOST, _TIMED_OUT = "OFFSET_OUT_OF_RANGE", "REQUEST_TIMED_OUT"
# No broker is back so soon. Threads of one broker may append records in another order than that of their times.
_RESTART_MS = 1000

# How long to wait for brokers to show a deletion: their followers have it within replica.fetch.wait.max.ms, 500 by
# default.
_SHOWN_S, _AGAIN_S = 10.0, 0.1
_HIDDEN = f"brokers hide {OFFSETS_TOPIC}"

# Groups described at once, and the most time for that: the groups that are left wait for the next scan. Measured on one
# broker: 2,000 groups of one member take 0.15 s of CPU.
_GROUPS, _SECONDS, _WRITE_S = 5_000, 5.0, 2.0
_CLIENT_ID_MAX = 200


class Followed(NamedTuple):
    """What a scan read of the log. places: for `ScanClock.log`; empty = not known now.

    lost: records since the last scan may be lost, so every count must start again. used: groups with a record since.
    """

    places: Mapping[int, LogPlace]
    lost: bool = False
    used: Collection[str] = ()


NOT_FOLLOWED = Followed({})


def follow(context: Context, cluster: Cluster, deadline: Deadline) -> Followed:
    """Read the log on, from where the last scan that counted groups came to.

    Call this before groups and offsets are read: later records are found by the next scan.
    """
    contents, memory, leaders = context.journal.contents, context.memory, cluster.leaders
    tail = memory.tail if memory.tail is not None and memory.tail.leaders == leaders else None
    clock, seen = contents.clocks.get(context.connection.uid), contents.seen.get(context.connection.uid, {})
    # A recreated topic may have leaders of the same epochs.
    recreated = clock is not None and bool(clock.log) and clock.topic_id not in (None, cluster.topic_id)
    if recreated:
        tail = None
    memory.tail, before = None, tail
    if not leaders:
        return NOT_FOLLOWED
    # Where no group is counted, earlier records don't matter.
    log = clock.log if clock is not None and seen else {}
    lost = (recreated and bool(log)) or _cut_off(context.client, log, cluster, deadline)
    if isinstance(lost, Fault):
        # The next scan asks again. Until then the log is not known to be whole, and no deletion relies on it.
        return Followed(log)
    since = _offsets(log)
    if log and not lost:
        starts = {index: since.get(index, 0) for index in leaders}
        if tail is None or any(starts[index] < begun for index, begun in tail.begun.items()):
            tail = Tail(context.client, leaders, starts)
    if tail is not None and not lost:
        tail.retain(_wanted(contents))
        tail.read_on(_wanted(contents), deadline)
        # A leader that has shown these records lost them, if its log ends before; a new one hides its end for a moment.
        shown = {index for index, at in log.items() if at.leader_epoch == leaders[index][1]}
        faults = tail.faults.items()
        lost = any(fault.code == _LOST and (index in shown or not fault.retriable) for index, fault in faults)
    if tail is None or lost:
        ends = read_ends(context.client, cluster, deadline)
        if isinstance(ends, Fault):
            return NOT_FOLLOWED
        tail = Tail(context.client, leaders, ends)
    known = dict(tail.latest_ms) if tail is before else {}
    if not lost:
        known |= {i: at.time_ms for i, at in log.items() if at.leader_epoch == leaders[i][1] and at.time_ms >= 0}
    # Once for each leader: records of an earlier one may have later times than its own.
    unknown = [i for i, offset in tail.positions.items() if offset and known.get(i, -1) < 0]
    asked = [Partition(OFFSETS_TOPIC, index) for index in unknown]
    known |= {place.partition: at for place, at in latest_times(context.client, asked, deadline).ok.items()}
    for index, at in known.items():
        tail.latest_ms[index] = max(at, tail.latest_ms.get(index, -1))
    memory.tail = tail
    places = {
        index: LogPlace(offset, leaders[index][1], tail.latest_ms.get(index, -1))
        for index, offset in tail.positions.items()
    }
    # Without a place, uses before this scan are not known.
    used = [name for name in tail.used(since) if name in seen] if log else []
    return Followed(places, lost or (not log and bool(seen)), used)


def read_ends(client: Client, cluster: Cluster, deadline: Deadline) -> dict[int, int] | Fault:
    """The current end of each partition of the offsets log. Needs DESCRIBE on it."""
    answers = end_offsets(client, [Partition(OFFSETS_TOPIC, index) for index in cluster.leaders], deadline)
    ends: dict[int, int] = {}
    for place, answer in answers.items():
        if isinstance(answer, Fault):
            return answer
        ends[place.partition] = answer
    return ends


class Since(NamedTuple):
    """From which offset of each partition on the log shows uses, by the times of its records; empty = not known.

    read: where to begin to read; at most SKEW_MAX ago, so that records may show the leaders' clocks.
    doubtful: partitions whose leader may lead them only since then; an earlier one, with another clock, wrote what is
    before. They are read from their start. why: they are not known. unused_for: the time, if they are known.
    """

    uses: Mapping[int, int]
    read: Mapping[int, int]
    doubtful: Collection[int] = ()
    why: str = "from which offset on the log shows its uses is not known"
    unused_for: timedelta | None = None


class Uses:
    """Uses of the groups that a policy with `unchangedFor` is about to delete, since its last scan.

    For groups that a user names: from `since` on.

    Any record of a group counts. Records that no client causes (offsets expire, or their topic is deleted) also change
    the committed offsets, so that the count began again after them.
    """

    def __init__(self, context: Context, plan: Plan, cluster: Cluster, since: Since | None = None) -> None:
        """cluster: as in the scan. since: where to begin instead of at `ScanClock.log`."""
        policy, contents = plan.policy, context.journal.contents
        self._context, self._policy, self._hidden = context, policy, bool(cluster.samples)
        self._trusts_scans = Unprotect.UNREADABLE_OFFSETS_LOG in policy.match.unprotect
        self._names = plan.actions if since is not None or policy.when.unchanged_for is not None else ()
        self._again_text, self._period_text, self._hint_text = "it matches again", "between scans", _HINT
        self._wait = policy.when.unused_for
        self._by_time, self._why = since is not None, Since({}, {}).why
        self._tail: Tail | None = None
        self._before: Mapping[int, int] = {}
        if since is not None:
            self._before = {**since.uses, **dict.fromkeys(since.doubtful, 0)}
            self._again_text, self._period_text = "it is deleted without --force", "lately"
            self._wait = since.unused_for
            self._hint_text = " (--force deletes without this check)"
            self._since, self._why = since.uses, since.why
            self._tail = Tail(context.client, cluster.leaders, since.read) if since.uses else None
        elif self._names:
            clock = contents.clocks.get(context.connection.uid) if policy.uid in contents.watches else None
            self._since = _offsets(clock.log) if clock is not None else {}
            self._tail = context.memory.tail

    def read_on(self, deadline: Deadline) -> dict[str, Refusal]:
        """The groups that must not be deleted by the log up to now: used, or not known."""
        if not self._names:
            return {}
        problem = self._problem()
        if problem is not None or self._tail is None:
            return {} if problem is None else dict.fromkeys(self._names, problem)
        wanted, names = _wanted(self._context.journal.contents), frozenset(self._names)
        self._tail.read_on(lambda name: name in names or wanted(name), deadline, self._matters)
        if (grown := grown_refusal(self._tail.grown)) is not None:
            return dict.fromkeys(self._names, grown)
        refusals = {name: self._refusal(self._tail.answer(name, self._since)) for name in self._names}
        if self._by_time:
            unknown = self._clock_unknown(self._tail)
            refusals = {
                name: refusal or unknown or self._by_another_clock(self._tail.use(name, self._before))
                for name, refusal in refusals.items()
            }
        return {name: refusal for name, refusal in refusals.items() if refusal is not None}

    def _by_another_clock(self, found: Found | None) -> Refusal | None:
        """An earlier leader wrote this record, perhaps within `unused_for`, whatever its time says."""
        if found is None:
            return None
        return Refusal(
            reasons.CLOCK_UNKNOWN,
            f"whether it was used lately: {describe(found)}, by the clock of an earlier leader of the partition, and "
            f"its present leader has no record there that is old enough{self._hint_text}",
        )

    def _clock_unknown(self, tail: Tail) -> Refusal | None:
        """Why the offsets of `since` prove nothing: brokers looked for them by the times of records in their logs.

        No request returns a broker's time, so each leader needs a recent record. The ledger's stamp is a broker's, too.
        """
        now = self._context.journal.stamp or self._context.clock.now()
        proved = {
            tail.leaders[index][0]
            for index, time_ms in tail.last_ms.items()
            if abs(now.timestamp() - time_ms / 1000) <= SKEW_MAX.total_seconds()
        }
        unproved = sorted({broker for broker, _ in tail.leaders.values()} - proved)
        if not unproved:
            return None
        return Refusal(
            reasons.CLOCK_UNKNOWN,
            f"whether it was used lately: broker {unproved[0]} has written no record into {OFFSETS_TOPIC} within "
            f"{format_duration(SKEW_MAX)} of now, so its clock is not known{self._hint_text}",
        )

    def _matters(self, record: Commit | StateRecord) -> bool:
        # A group in use commits for other topics all the time; its members change only when it rebalances.
        others = isinstance(record, Commit) and not self._policy.match.covers(record.topic)
        return not (others and self._policy.by_topic)

    def _problem(self) -> Refusal | None:
        """Why the log can't show uses of any group; None also if that does not matter."""
        if self._hidden:
            message = f"whether it was used {self._period_text}: brokers hide {OFFSETS_TOPIC}{self._hint_text}"
            return None if self._trusts_scans else Refusal(reasons.EVIDENCE_UNREADABLE, message)
        if not self._since:
            return Refusal(reasons.EVIDENCE_INCOMPLETE, self._why + (self._hint_text if self._by_time else ""))
        if self._tail is None:
            return Refusal(reasons.EVIDENCE_UNREADABLE, f"the scan could not read {OFFSETS_TOPIC}")
        return None

    def _refusal(self, answer: Found | Fault | None) -> Refusal | None:
        if isinstance(answer, Found):
            return recently_active(answer, self._again_text, self._wait)
        if answer is None or (answer.code == TOPIC_DENIED and self._trusts_scans):
            return None
        hint = self._hint_text if answer.code == TOPIC_DENIED else _LATE if answer.code == _TIMED_OUT else ""
        return Refusal(
            reasons.EVIDENCE_INCOMPLETE if answer.code == _LOST else reasons.EVIDENCE_UNREADABLE,
            f"whether it was used {self._period_text}: {answer}{hint}",
        )


def find_growth(
    context: Context, cluster: Cluster, deadline: Deadline, *, records: bool, coordinators: bool
) -> Refusal | None:
    """Note which brokers compute partitions of the offsets log from an old number of them, as far as it shows.

    A restart elects leaders, so earlier findings count for the same leaders. records: the records of each partition
    since its leader leads it are read, once. coordinators: brokers are asked for the coordinators of groups. Both are
    done anyway once the number of partitions is another one.
    """
    memory, client, found = context.memory, context.client, dict[int, str]()
    changed = memory.grown_among is not None and len(memory.grown_among) != len(cluster.leaders)
    if memory.grown_among == cluster.leaders:
        found |= memory.grown
    elif records or changed:
        found |= brokers.since_elected(client, cluster, Deadline(deadline.left / 2)).grown
        memory.grown_among = cluster.leaders
    if coordinators or changed:
        found |= brokers.by_coordinators(client, cluster, Deadline(deadline.left / 2))
    memory.grown = found | (memory.tail.grown if memory.tail is not None else {})
    return grown_refusal(memory.grown)


def grown_refusal(grown: Mapping[int, str]) -> Refusal | None:
    """Why nothing may be deleted while brokers compute partitions of the log from an old number of them. See `Tail`."""
    if not grown:
        return None
    named = "; ".join(f"broker {broker}: {example}" for broker, example in sorted(grown.items())[:3])
    return Refusal(
        reasons.OFFSETS_TOPIC_GROWN,
        f"{OFFSETS_TOPIC} got more partitions, and {len(grown)} brokers must be restarted to use them: {named}",
    )


def recently_active(found: Found, again: str, wait: timedelta | None, note: str = "") -> Refusal:
    """The refusal of a group with this record. `again` holds when it was unused for `wait`, at the earliest."""
    return Refusal(reasons.RECENTLY_ACTIVE, describe(found) + note + earliest(again, _time_of(found), wait))


def earliest(again: str, used: datetime, wait: timedelta | None) -> str:
    """The end of a message on a use at that time: see `recently_active`."""
    return "" if wait is None else f": {again} at {timestamp(used + wait)} at the earliest"


def describe(found: Found) -> str:
    """A record of the offsets log in words, with its time and place."""
    record, place = found.record, f"(offset {found.offset} of {OFFSETS_TOPIC}-{found.partition})"
    where = f"at {timestamp(_time_of(found))} {place}"
    if record is None:
        return f"the log has a record of it that can't be read, written {where}"
    if not isinstance(record, Commit):
        return f"the log has a record of its members ({record.kind}), written {where}"
    partition = Partition(record.topic, record.partition)
    return (f"its offset of {partition} was deleted" if record.gone else f"it committed for {partition}") + f" {where}"


def _time_of(found: Found) -> datetime:
    """By the clock of the broker that led the partition then."""
    return datetime.fromtimestamp(found.time_ms / 1000, UTC)


def _wanted(contents: Contents) -> Callable[[str], bool]:
    """The groups that some policy counts: of these, records are remembered."""
    seen = list(contents.seen.values())
    return lambda name: any(name in each for each in seen)


def _offsets(log: Mapping[int, LogPlace]) -> dict[int, int]:
    return {index: place.offset for index, place in log.items()}


def _cut_off(client: Client, log: Mapping[int, LogPlace], cluster: Cluster, deadline: Deadline) -> bool | Fault:
    """Whether brokers may have lost records before these places, or the topic is new.

    By an unclean election (KIP-320). Or by a power failure: with ZooKeeper a broker may come back in the same leader
    epoch, and what it writes in the place of lost records has later times.
    """
    places = {Partition(OFFSETS_TOPIC, index): place for index, place in log.items() if place.offset}
    if any(place.partition not in cluster.leaders for place in places):
        return True
    led_before = {p: at for p, at in places.items() if at.leader_epoch != cluster.leaders[p.partition][1]}
    after = {p: at.time_ms + _RESTART_MS for p, at in places.items() if p not in led_before and at.time_ms >= 0}
    for partition, answer in offsets_at(client, after, deadline).items():
        if isinstance(answer, Fault):
            return answer
        if answer is not None and answer < places[partition].offset:
            return True
    return is_cut_off(client, led_before, deadline)


class DeletionWindow:
    """The windows of some deletions, one of a group, from their `log_ends` on. For one batch, or one recovery."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster | Fault,
        deletions: Iterable[Intent | HistoryEntry],
        wait: timedelta | None = None,
    ) -> None:
        """Of offsets of topics, only commits for these topics count. wait: how long a group must be unused to match."""
        of = {each.group: each for each in deletions}

        def matters(record: Commit | StateRecord) -> bool:
            topics = of[record.group].topics
            return not topics or (isinstance(record, Commit) and record.topic in topics)

        self._context, self._wait = context, wait
        self._hidden = {name for name, each in of.items() if not each.log_ends}
        self._unshown: Collection[str] = ()
        self._denied, self._unread = False, str(cluster) if isinstance(cluster, Fault) else ""
        starts = {name: each.log_ends for name, each in of.items() if name not in self._hidden}
        leaders = {} if isinstance(cluster, Fault) else cluster.leaders
        self._log = LateCommits(context.client, leaders, starts, matters)

    def read_on(self, names: Collection[str], deadline: Deadline) -> dict[str, Refusal]:
        """The groups that must not be deleted: used since the start, or not known. A hidden log refuses none."""
        self._note(self._log.read_on(deadline))
        if self._denied:
            # `Uses` refuses them, unless the policy trusts its scans.
            return {}
        if self._unread:
            why = Refusal(reasons.EVIDENCE_UNREADABLE, f"whether it was used just now: {self._unread}")
            return {name: why for name in names if name not in self._hidden}
        now = self._context.clock.now()
        message = f"it was used while it was saved, at {timestamp(now)}{earliest('it matches again', now, self._wait)}"
        used = Refusal(reasons.RECENTLY_ACTIVE, message)
        return {name: used for name in names if self._log.first(name) is not None}

    def close(self, deadline: Deadline, deleted: Mapping[str, Collection[Partition]] | None = None) -> None:
        """Read to the end of the log, after the offsets were deleted; again if leaders moved or a fault may pass.

        deleted: group -> the places whose offsets were just deleted, none = not known, or it had none. Brokers before
        4.0 answer before their followers have that, and until then it can't be read
        (GroupMetadataManager.cleanupGroupMetadata).
        """
        if self._unread:
            return
        left = {name: places for name, places in (deleted or {}).items() if name not in self._hidden}
        shown = Deadline(min(deadline.left, _SHOWN_S))
        self._read_to_end(deadline)
        while left := {name: places for name, places in left.items() if not self._log.shows(name, places)}:
            if self._unread or shown.left <= 0:
                break
            time.sleep(_AGAIN_S)
            self._read_to_end(deadline)
        self._unshown = left.keys()

    def _read_to_end(self, deadline: Deadline) -> None:

        def attempt() -> Fault | None:
            fault = self._log.read_on(deadline)
            if fault is not None:
                now = kafka_cluster.read_cluster(self._context.client, deadline)
                if not isinstance(now, Fault) and now.leaders.keys() == self._log.leaders.keys():
                    self._log.leaders = now.leaders
            return fault

        self._note(retrying_one(attempt, deadline))

    def _note(self, fault: Fault | None) -> None:
        self._unread = "" if fault is None else str(fault)
        self._denied = fault is not None and fault.code == TOPIC_DENIED

    def completed(self, done: Done, saved: Callable[[], Backup | None]) -> Done:
        """The end of a deletion, with what was committed in the window, in the backup and in words.

        saved: the backup of this deletion; None = it can't be read.
        """
        name = done.entry.group
        unread = _HIDDEN if name in self._hidden else self._unread
        if not unread and name in self._unshown:
            unread = f"{OFFSETS_TOPIC} does not show the deletion yet"
        if unread:
            return done.adding(f"whether it committed right before is not known: {unread}")
        late = self._log.late(name)
        if late.open:
            done = done.adding(f"{late.open} transaction(s) were open, whose offsets are not saved")
        backup = saved() if late.offsets else None
        if not late.offsets:
            return done
        if backup is None:
            return done.adding("it committed right before, and its backup can't be read")
        topics = {place.topic for place in late.offsets} - backup.offsets.keys()
        found = kafka_cluster.topic_ids(self._context.client, topics, self._context.deadline())
        ids = {topic: id_ for topic, id_ in found.items() if id_ and not isinstance(id_, Fault)}
        whole = with_late_offsets(backup, late.offsets, ids)
        if whole is None:
            return done
        return done.adding(f"offsets that it committed right before ({len(late.offsets)}) are saved", in_parts(whole))


def read_start(context: Context, cluster: Cluster, deadline: Deadline) -> dict[int, int] | Refusal:
    """The ends of the log now, where a window begins; empty if brokers hide it. A Refusal if they can't be read."""
    if cluster.samples:
        return {}
    ends = read_ends(context.client, cluster, deadline)
    if not isinstance(ends, Fault):
        return ends
    if ends.code == TOPIC_DENIED:
        return {}
    return Refusal(reasons.EVIDENCE_UNREADABLE, f"the end of {OFFSETS_TOPIC}: {ends}")


def note_programs(context: Context, observation: Observation) -> None:
    """Describe groups with members that were not described since they had none before, and note their programs.

    Only after a scan that listed all groups: one in ten minutes, and each one while groups match. A group is described
    once while it has members, so a scan costs the requests for at most _GROUPS new ones. They are chosen at random:
    those that can't be described don't keep the others waiting. A note ends when other clients use the group, or the
    group is gone.
    """
    groups, memory, noted = observation.all_groups, context.memory, context.journal.contents.used_by
    if groups is None:
        return
    living = {name: group for name, group in groups.items() if _shows_program(group)}
    memory.described &= living.keys()
    left = list(living.keys() - memory.described)
    chosen = {name: living[name] for name in random.sample(left, min(len(left), _GROUPS))}
    types = {name: group.type for name, group in chosen.items()}
    coordinators = {name: group.coordinator for name, group in chosen.items()}
    changes: list[Change] = []
    found: dict[str, Sighting] = {}
    for name, answer in describe_groups(context.client, types, coordinators, Deadline(_SECONDS)).items():
        if isinstance(answer, Fault) or not answer.members:
            continue
        memory.described.add(name)
        sighting = program_of((member.client_id for member in answer.members), answer.protocol)
        if sighting is not None:
            found[name] = sighting
        elif name in noted:
            changes.append(Removal(noted[name].key))
    changes += new_notes(noted, found, context.clock.now())
    if observation.snapshot.complete:
        changes += [Removal(noted[name].key) for name in noted.keys() - groups.keys()]
    if changes:
        context.journal.note(changes, Deadline(_WRITE_S))


def new_notes(noted: Mapping[str, UsedBy], found: Mapping[str, Sighting], now: datetime) -> list[Change]:
    """The notes of groups for which none names this program."""
    return [
        UsedBy(group=name, program=seen.program, client_id=truncated(seen.client_id, _CLIENT_ID_MAX), at=now)
        for name, seen in found.items()
        if name not in noted or noted[name].program is not seen.program
    ]


def _shows_program(group: Group) -> bool:
    """Whether its members may belong to one of the programs, and nothing else shows it."""
    consumers = group.type is GroupType.CONSUMER or (
        group.type is GroupType.CLASSIC and group.protocol_type == "consumer"
    )
    # Groups with longer ids are never deleted (`IdTooLong`).
    return group.in_use and consumers and len(group.id) <= ID_MAX
