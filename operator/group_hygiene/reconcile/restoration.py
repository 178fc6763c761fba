"""Bring committed offsets back from the ledger. With `deletion`, all that changes groups; knows no Kubernetes client.

The order for one group: all that decides is read -> if something may be committed, the guard agrees and the ledger
says that it begins, which a process that was replaced can't write -> all is read again -> a few partitions at a time:
their offsets are read once more, the guard agrees once more, it is still fresh and we still lead, OffsetCommit, read
again and compared -> the outcome is in the ledger. Missing evidence leaves a partition alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from msgspec import structs

from group_hygiene import reasons
from group_hygiene.entries import Backup, Change, Key, Outcome, Removal, What, group_of
from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka import brokers
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.coordinators import look_up
from group_hygiene.kafka.ledger import Ledger
from group_hygiene.kafka.offsets import WRITE_BYTES, write_chunks
from group_hygiene.model import Fault, Group, GroupState, GroupType, Keep
from group_hygiene.reconcile.context import Clock, read_bounds
from group_hygiene.reconcile.deletion import MARGIN_S, Guard
from group_hygiene.reconcile.rereading import FRESH_S
from group_hygiene.reconcile.restorable import (
    GroupResult,
    Kind,
    PartitionResult,
    RestoreRequest,
    choose,
    compared,
    concerns,
    decide,
    held,
    lost_topics,
    saved_offsets,
    summed,
    unreadable,
    warned,
)
from group_hygiene.reconcile.saving import COMMITTING, RESTORABLE, bring_back, brought_back, read_back

_ABSENT = frozenset({"GROUP_ID_NOT_FOUND", "UNSUPPORTED_VERSION"})
# Partitions between one look and its commit: so few that nothing has time to change.
_COMMIT_CHUNK = 1_000
# Outcomes of deletions that leave a backup.
_ENDS = frozenset({What.DELETED, What.OFFSETS_DELETED, What.KEPT})
_THERE = frozenset({reasons.ALREADY_THERE, reasons.ALREADY_COMMITTED})
_BEGUN = "begun; some of its offsets may be committed, as whoever restored it came to no end"


@dataclass(frozen=True)
class Restorer:
    """What a restore works with. guard: asked right before each change.

    granted: groups outside are refused as such, and nothing is read of them.
    """

    client: Client
    ledger: Ledger
    clock: Clock
    guard: Guard
    seconds: float = 30.0
    granted: Callable[[str], bool] = lambda group: True

    def deadline(self) -> Deadline:
        return Deadline(self.seconds)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, and the groups for which it is granted."""

    request: RestoreRequest
    granted: Callable[[str], bool] = lambda group: True

    def asks_for(self, group: str) -> bool:
        return (not self.request.groups or group in self.request.groups) and self.granted(group)


@dataclass
class Saved:
    """What the ledger has of some requests. backups: group -> id -> parts, None = one that can't be read.

    done: by the request's id and the group, the outcome of what it is done with. ends: group -> as `choose` takes them.
    """

    backups: dict[str, dict[str, list[Backup | None]]] = field(default_factory=dict)
    done: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    ends: dict[str, dict[str, set[What]]] = field(default_factory=dict)


def read_saved(ledger: Ledger, wanted: Sequence[Wanted], deadline: Deadline) -> Saved:
    """What the ledger has of all these requests, from one reading of its whole log. Raises LedgerProblem."""
    by_id = {each.request.id: each for each in wanted}
    by_name: dict[str, list[Wanted]] = {}
    for each in wanted:
        for name in each.request.groups:
            by_name.setdefault(name, []).append(each)
    by_policy = [each for each in wanted if not each.request.groups]

    def is_wanted(key: Key) -> bool:
        group = group_of(key)
        if group is None or key[0] not in ("backup", "outcome"):
            return False
        if key[0] == "outcome" and (len(key) < 4 or key[3] not in _ENDS):
            return len(key) > 3 and key[3] == What.RESTORED and key[2] in by_id and by_id[key[2]].asks_for(group)
        return any(each.granted(group) for each in (*by_name.get(group, ()), *by_policy))

    saved = Saved()
    for key, entry in ledger.latest(is_wanted, deadline):
        if key[0] == "backup":
            # A key that is none of ours may lack the id.
            id_ = key[2] if len(key) > 2 else ""
            parts = saved.backups.setdefault(key[1], {}).setdefault(id_, [])
            parts.append(entry if isinstance(entry, Backup) else None)
        elif key[3] in _ENDS:
            saved.ends.setdefault(key[1], {}).setdefault(key[2], set()).add(What(key[3]))
        elif isinstance(entry, Outcome) and entry.reason in (reasons.RESTORED, reasons.PARTLY_RESTORED):
            saved.done[key[2], entry.group] = entry
    return saved


class Turn:
    """How long one request may take of a round. results: of the groups that were tried in its earlier turns.

    At least one group is tried in each turn, and none twice, so that a request comes to its end however little time
    there is.
    """

    def __init__(self, deadline: Deadline, results: dict[str, GroupResult]) -> None:
        """results: what is found is added to it."""
        self._deadline, self.results = deadline, results
        self._tried = False
        self.is_complete = True

    def is_over(self) -> bool:
        """Whether the next group must wait for another turn."""
        if self._tried and self._deadline.left <= 0:
            self.is_complete = False
        self._tried = True
        return not self.is_complete


def restore(
    restorer: Restorer,
    request: RestoreRequest,
    preview: bool = False,
    saved: Saved | None = None,
    turn: Turn | None = None,
) -> list[GroupResult]:
    """One result per group, in order. `preview` changes nothing, in Kafka as in the ledger.

    saved: what the ledger has of it, where that was read together with other requests. turn: for how long, and what is
    known already; groups for which no time is left wait. The ledger must be claimed unless it is a preview. Raises
    LedgerProblem when it can't be read, and LedgerFenced.
    """
    wanted = Wanted(request, restorer.granted)
    if saved is None:
        saved = read_saved(restorer.ledger, [wanted], restorer.deadline())
    concerned = (
        name for name, backups in saved.backups.items() if wanted.asks_for(name) and concerns(request, backups)
    )
    names = list(dict.fromkeys(request.groups or sorted(concerned)))
    results: dict[str, GroupResult] = {}
    for name in names:
        if not restorer.granted(name):
            message = "the connection does not grant to restore this group"
            results[name] = GroupResult(name, Kind.REFUSED, reasons.ACTION_NOT_GRANTED, message)
        elif (done := saved.done.get((request.id, name))) is not None:
            kind = Kind.RESTORED if done.reason == reasons.RESTORED else Kind.PARTLY
            results[name] = GroupResult(name, kind, done.reason, done.message)
        elif turn is not None and name in turn.results:
            results[name] = turn.results[name]
        elif turn is not None and turn.is_over():
            message = "not tried yet: other restores and policies have their turn first"
            results[name] = GroupResult(name, Kind.WAITING, reasons.INTERRUPTED, message)
        else:
            results[name] = _restore_group(restorer, request, name, saved, preview)
            if turn is not None:
                turn.results[name] = results[name]
    return [results[name] for name in names]


def _restore_group(
    restorer: Restorer,
    request: RestoreRequest,
    name: str,
    saved: Saved,
    preview: bool,
) -> GroupResult:
    backups = saved.backups.get(name, {})
    backup = choose(request, name, backups, saved.ends.get(name, {}))
    if isinstance(backup, GroupResult):
        return backup
    if backup.type not in RESTORABLE:
        message = f"offsets of a {backup.type} group can't be brought back"
        return GroupResult(name, Kind.REFUSED, reasons.NOT_RESTORABLE, message, backup.at)
    if not backup.offsets:
        return GroupResult(name, Kind.REFUSED, reasons.NO_OFFSETS, "it had no committed offsets", backup.at)
    refused = _stops_loading(restorer, backup)
    if refused is not None:
        return refused
    state = _state(restorer, backup)
    if isinstance(state, GroupResult):
        return state
    found = _look(restorer, request, backup)
    if isinstance(found, GroupResult):
        return replace(found, saved_at=backup.at)
    if preview:
        return warned(summed(name, backup, found.decided, preview), state)
    begun = None
    if any(partition.commit is not None for partition in found.decided):
        begun = _outcome(restorer, request, backup, What.FAILED, reasons.INTERRUPTED, _BEGUN)
        stop = _begin(restorer, begun)
        if stop is not None:
            return GroupResult(name, Kind.WAITING, stop.reason, stop.message, backup.at)
        found = _look(restorer, request, backup)
    if isinstance(found, GroupResult):
        result, was_there = replace(found, saved_at=backup.at), True
    else:
        result = warned(summed(name, backup, _commit(restorer, backup, found.decided), preview), state)
        was_there = found.is_there
    outcome = _outcome(restorer, request, backup, What.RESTORED, result.reason, result.message)
    parts = [part for part in backups[backup.id] if part is not None]
    if _proves_deletion(backup, parts, result, was_there):
        outcome = structs.replace(outcome, backup=backup.id)
    return _noted(restorer, outcome, result, begun)


def _proves_deletion(backup: Backup, parts: Sequence[Backup], result: GroupResult, was_there: bool) -> bool:
    """Whether offsets were missing that the group had when this very backup was taken.

    Not those that were missing then already, as earlier deletions had taken them: a backup that continues an
    interrupted one does not tell which these are, and only a group that was gone as a whole shows that it was deleted.
    """
    had = {place for part in parts for place in saved_offsets(part)}
    if backup.continues and (was_there or any(p.reason in _THERE for p in result.partitions)):
        return False
    return any(p.reason == reasons.VERIFIED and p.partition in had for p in result.partitions)


class _Found(NamedTuple):
    """What may be committed. is_there: whether Kafka knows the group."""

    decided: list[PartitionResult]
    is_there: bool


def _look(restorer: Restorer, request: RestoreRequest, backup: Backup) -> _Found | GroupResult:
    """What may be committed of a backup now; a GroupResult where that is nothing at all."""
    client, deadline, saved = restorer.client, restorer.deadline(), saved_offsets(backup)
    ids = kafka_cluster.topic_ids(client, backup.offsets, deadline)
    there = [place for place in saved if not isinstance(ids[place.topic], Fault)]
    bounds = read_bounds(client, [there], deadline)
    is_there = _is_there(client, backup, deadline)
    if isinstance(is_there, GroupResult):
        return is_there
    now = read_back(client, backup.type, {backup.group: None}, list(saved), deadline)
    if isinstance(now, Fault):
        return unreadable(backup.group, now)
    return _Found(decide(backup, now, ids, bounds, request), is_there)


def _stops_loading(restorer: Restorer, backup: Backup) -> GroupResult | None:
    """Why a Streams group can't come back on these brokers."""
    if backup.type != GroupType.STREAMS:
        return None
    client, deadline = restorer.client, restorer.deadline()
    cluster = kafka_cluster.read_cluster(client, deadline)
    old = cluster if isinstance(cluster, Fault) else brokers.without_streams(client, cluster, deadline)
    if isinstance(old, Fault):
        return replace(unreadable(backup.group, old), saved_at=backup.at)
    if not old:
        return None
    message = (
        f"brokers of Kafka {', '.join(old)} may not load __consumer_offsets any more once the application has joined "
        "again (KAFKA-20254): upgrade all brokers to 4.3 first"
    )
    return GroupResult(backup.group, Kind.REFUSED, reasons.NOT_RESTORABLE, message, backup.at)


def _state(restorer: Restorer, backup: Backup) -> list[str] | GroupResult:
    """Which topics of a Streams application's state are gone since, or made anew; a GroupResult where that forbids it.

    Only of a Streams group it is sure that they are its own: names are all that tells of a Classic application.
    """
    ids = kafka_cluster.topic_ids(restorer.client, backup.internal_topics, restorer.deadline())
    lost = lost_topics(backup, ids)
    if isinstance(lost, Fault):
        return replace(unreadable(backup.group, lost), saved_at=backup.at)
    if lost and backup.type == GroupType.STREAMS:
        message = f"its state is gone, and without it these offsets skip records: {', '.join(lost[:3])}"
        return GroupResult(backup.group, Kind.REFUSED, reasons.NOT_RESTORABLE, message, backup.at)
    return lost


def _is_there(client: Client, backup: Backup, deadline: Deadline) -> bool | GroupResult:
    """Whether Kafka knows the group; a GroupResult where nothing may be committed now.

    Each protocol tells of its own groups only, so all are asked.
    """
    name, is_there = backup.group, False
    fitting = {GroupType.SHARE} if backup.type == GroupType.SHARE else COMMITTING
    for kind in (GroupType.CLASSIC, GroupType.CONSUMER, GroupType.SHARE, GroupType.STREAMS):
        group = Group(name, kind, "", GroupState.UNKNOWN, -1)
        described = kafka_groups.describe_groups(client, [group], deadline)[name]
        if isinstance(described, Fault):
            if described.code in _ABSENT:
                continue
            return unreadable(name, described)
        state = described.group.state
        if state is GroupState.DEAD:
            continue
        # OffsetCommit reaches no share group, and start offsets no other one.
        if kind not in fitting:
            return GroupResult(name, Kind.REFUSED, reasons.NOT_RESTORABLE, f"a {kind} group has its id now")
        if state is not GroupState.EMPTY:
            return GroupResult(
                name, Kind.WAITING, reasons.GROUP_ACTIVE, f"its state is {state}: stop its members first"
            )
        is_there = True
    return is_there


def _commit(restorer: Restorer, backup: Backup, decided: Sequence[PartitionResult]) -> list[PartitionResult]:
    """Commit what is decided, a few partitions at a time."""
    name = backup.group
    results = {partition.partition: partition for partition in decided}
    wanted = [partition for partition in decided if partition.commit is not None]
    if not wanted:
        return list(decided)
    found = look_up(restorer.client, [name], restorer.deadline()).get(name)
    home = found if isinstance(found, int) else None
    told = kafka_cluster.offsets_write_bytes(restorer.client, restorer.deadline())
    for chunk in _commit_chunks(name, wanted, WRITE_BYTES if told is None else min(told, WRITE_BYTES)):
        # Nothing may come between a look and its commit, however few requests a second the connection allows.
        with restorer.client.burst():
            some = _commit_some(restorer, backup, home, chunk)
        results |= {partition.partition: partition for partition in some}
    return list(results.values())


def _commit_chunks(
    group: str, wanted: Sequence[PartitionResult], write_bytes: int
) -> Iterator[Sequence[PartitionResult]]:
    """A few partitions at a time, whose commits fit into one write of the broker."""
    by_place = {each.partition: each for each in wanted}
    metadata = {each.partition: each.commit.metadata for each in wanted if each.commit is not None}
    for chunk in write_chunks(group, metadata, write_bytes):
        for at in range(0, len(chunk), _COMMIT_CHUNK):
            yield [by_place[place] for place in chunk[at : at + _COMMIT_CHUNK]]


def _commit_some(
    restorer: Restorer, backup: Backup, home: int | None, wanted: Sequence[PartitionResult]
) -> list[PartitionResult]:
    """Look once more, and commit at once what has no offset, or not at all; only what is there afterwards counts."""
    client, clock, guard = restorer.client, restorer.clock, restorer.guard
    places, asked = [partition.partition for partition in wanted], {backup.group: home}
    started = clock.monotonic()
    now = read_back(client, backup.type, asked, places, restorer.deadline())
    if isinstance(now, Fault):
        why = unreadable(backup.group, now)
        return [_left_alone(partition, why.reason, why.message) for partition in wanted]
    results = [held(p.partition, p.saved, now[p.partition]) for p in wanted if p.partition in now]
    free = [partition for partition in wanted if partition.partition not in now]
    # A restore takes as many requests as it has chunks, and an object may be edited, or a grant end, between any two.
    stop = guard.refusal()
    fresh, lead = FRESH_S - (clock.monotonic() - started), guard.seconds_left() - MARGIN_S
    if stop is None and lead <= 0:
        stop = Keep(reasons.NOT_LEADER, "this process does not lead any more, or not for long enough")
    if stop is None and fresh <= 0:
        stop = Keep(reasons.OFFSETS_UNKNOWN, f"reading what is committed took more than {FRESH_S:.0f} s")
    if stop is not None:
        return results + [_left_alone(partition, stop.reason, stop.message) for partition in free]
    commits = {partition.partition: partition.commit for partition in free if partition.commit is not None}
    answers = bring_back(client, backup, home, commits, Deadline(min(fresh, lead)))
    after = brought_back(client, backup, home, list(commits), restorer.deadline())
    return results + [compared(partition, answers[partition.partition], after) for partition in free]


def _left_alone(partition: PartitionResult, reason: str, message: str) -> PartitionResult:
    return replace(partition, reason=reason, message=message, commit=None)


def _begin(restorer: Restorer, begun: Outcome) -> Keep | None:
    """Say in the ledger that it begins; why it may not. Raises LedgerFenced when another process took over."""
    try:
        stop = restorer.guard.refusal()
        if stop is None:
            restorer.ledger.write([begun])
        return stop
    except LedgerProblem as error:
        return Keep(error.reason, str(error))


def _noted(restorer: Restorer, outcome: Outcome, result: GroupResult, begun: Outcome | None) -> GroupResult:
    """The result, once the ledger tells of it, and of the beginning no more."""
    # Where a deletion has not come to its end, only what was committed tells that the group was gone.
    told = result.restored and (begun is not None or outcome.group not in restorer.ledger.contents.intents)
    changes: list[Change] = [outcome] if told else []
    unsure = any(p.commit is not None and p.reason == reasons.OFFSETS_UNKNOWN for p in result.partitions)
    if begun is not None and not unsure:
        changes.append(Removal(begun.key))
    try:
        restorer.ledger.write(changes)
    except LedgerProblem as error:
        return replace(result, message=f"{result.message}; not noted in the ledger: {error.reason}")
    return result


def _outcome(
    restorer: Restorer, request: RestoreRequest, backup: Backup, what: What, reason: str, message: str
) -> Outcome:
    now = restorer.clock.now()
    return Outcome(
        group=backup.group,
        id=request.id,
        at=now,
        what=what,
        reason=reason,
        message=message,
        policy=backup.policy,
        policy_uid=backup.policy_uid,
        generation=backup.generation,
        expires=now + (backup.expires - backup.at),
    )
