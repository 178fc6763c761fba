"""Commits offsets again from the ledger, by `engine.executor`. Knows no Kubernetes.

The order for one group: read all evidence -> if something may be committed, ask the guard, and write the start into the
ledger, which a fenced process can't -> read all evidence again -> for a few partitions at a time: read their offsets,
ask the guard, check that the offsets are fresh and that this process still leads, send OffsetCommit, read again and
compare -> write the outcome into the ledger. A partition without evidence is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from msgspec import structs

from group_hygiene.engine.context import COMMITTING, RESTORABLE, current_offsets, read_bounds, restored_offsets
from group_hygiene.engine.deletion import new_id
from group_hygiene.engine.executor import MARGIN_S, Executor, Moment
from group_hygiene.engine.recheck import FRESH_S
from group_hygiene.engine.restorable import (
    GroupResult,
    PartitionResult,
    RestoreRequest,
    ResultKind,
    choose,
    compared,
    concerns,
    decide,
    held,
    lost_topics,
    ran_before,
    summed,
    unreadable,
    warned,
)
from group_hygiene.engine.uses import find_growth
from group_hygiene.kafka import brokers
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import look_up
from group_hygiene.kafka.offsets import WRITE_BYTES, write_chunks
from group_hygiene.ledger.contents import group_of
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.entries import (
    Backup,
    Change,
    HistoryEntry,
    Key,
    OutcomeType,
    Removal,
    SavedOffset,
    in_parts,
    saved_offsets,
)
from group_hygiene.model.groups import CommittedOffset, Fault, GroupState, GroupType, Partition
from group_hygiene.model.reasons import Refusal

# Partitions per commit: few, so that hardly any time passes between reading them and the commit.
_COMMIT_CHUNK = 1_000
# For so long a proof of the cluster and of clocks holds for restores: an operator's turn is no longer.
_PROVED_S = 10.0
# Outcomes of deletions that have a backup.
_ENDS = frozenset({OutcomeType.DELETED, OutcomeType.OFFSETS_DELETED, OutcomeType.NOT_DELETED})
_THERE = frozenset({reasons.ALREADY_THERE, reasons.ALREADY_COMMITTED})
_BEGUN = "begun; some of its offsets may be committed, as the process that restored it did not finish"


@dataclass
class SavedEntries:
    """The ledger's entries for some requests. backups: group -> id -> parts, None = an unreadable part.

    done: (id of the request, group) -> outcome. earlier: the same of earlier objects (`RestoreRequest.follows`), None =
    unreadable. begun: like done, of requests that began to restore the group, done or not. ends: group -> the `ends` of
    `choose`. stop: why none of these requests can be met now, and until when that holds, in monotonic time.
    """

    backups: dict[str, dict[str, list[Backup | None]]] = field(default_factory=dict)
    done: dict[tuple[str, str], HistoryEntry] = field(default_factory=dict)
    earlier: dict[tuple[str, str], HistoryEntry | None] = field(default_factory=dict)
    begun: set[tuple[str, str]] = field(default_factory=set)
    ends: dict[str, dict[str, set[OutcomeType]]] = field(default_factory=dict)
    stop: tuple[Refusal | None, float] = (None, 0.0)


def read_saved(journal: Journal, requests: Sequence[RestoreRequest], deadline: Deadline) -> SavedEntries:
    """The ledger's entries for all these requests, from one read of its whole log. Raises LedgerProblem."""
    ids = {each.id for each in requests}
    by_name: dict[str, list[RestoreRequest]] = {}
    for each in requests:
        for name in each.groups:
            by_name.setdefault(name, []).append(each)
    by_policy = [each for each in requests if not each.groups]

    def is_wanted(key: Key) -> bool:
        group = group_of(key)
        if group is None or key[0] not in ("backup", "outcome"):
            return False
        if key[0] == "outcome" and (len(key) < 4 or key[3] not in _ENDS):
            what = key[3] if len(key) > 3 else ""
            # A start without an end counts, too.
            return what in (OutcomeType.RESTORED, OutcomeType.FAILED) and any(
                each.id == key[2] or each.follows(key[2]) for each in requests if each.asks_for(group)
            )
        return any(each.granted(group) for each in (*by_name.get(group, ()), *by_policy))

    saved = SavedEntries()
    for key, entry in journal.latest(is_wanted, deadline):
        if key[0] == "backup":
            # A key that another program wrote may lack the id.
            id_ = key[2] if len(key) > 2 else ""
            parts = saved.backups.setdefault(key[1], {}).setdefault(id_, [])
            parts.append(entry if isinstance(entry, Backup) else None)
        elif key[3] in _ENDS:
            saved.ends.setdefault(key[1], {}).setdefault(key[2], set()).add(OutcomeType(key[3]))
        elif key[2] not in ids:
            # A start's entry with another reason: nothing was changed.
            ended = isinstance(entry, HistoryEntry) and entry.reason != reasons.INTERRUPTED
            if key[3] == OutcomeType.RESTORED or (not ended and (key[2], key[1]) not in saved.earlier):
                saved.earlier[key[2], key[1]] = entry if isinstance(entry, HistoryEntry) else None
        else:
            saved.begun.add((key[2], key[1]))
            if isinstance(entry, HistoryEntry) and entry.reason in (reasons.RESTORED, reasons.PARTLY_RESTORED):
                saved.done[key[2], entry.group] = entry
    return saved


class RestoreTurn:
    """The part of a round in which one request is processed. results: of the groups of its earlier turns.

    Each turn tries at least one group, and no group is tried twice, so a request completes however short its turns are.
    """

    def __init__(self, deadline: Deadline, results: dict[str, GroupResult]) -> None:
        """results: new results are added to it."""
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
    executor: Executor,
    request: RestoreRequest,
    preview: bool = False,
    saved: SavedEntries | None = None,
    turn: RestoreTurn | None = None,
) -> list[GroupResult]:
    """One result per group, in order. `preview` changes nothing, neither in Kafka nor in the ledger.

    saved: the ledger's entries, if they were already read together with other requests. turn: the time limit, with the
    results so far; groups for which no time is left wait. The ledger must be claimed unless it is a preview. Raises
    LedgerProblem if it can't be read, and LedgerFenced.
    """
    if saved is None:
        saved = read_saved(executor.context.journal, [request], executor.context.deadline())
    earlier = {group: outcome for (id_, group), outcome in saved.earlier.items() if request.follows(id_)}
    if earlier:
        wanted = executor.context.clock.now() + request.remembered
        late = [each for each in earlier.values() if each and each.expires < wanted - request.remembered / 2]
        if late and not preview:
            # Else an object that Git creates again restores once more when the outcome of the first one has expired.
            executor.record([structs.replace(each, expires=wanted) for each in late])
        return [ran_before(name, earlier) for name in request.groups or sorted(earlier)]
    concerned = (
        name for name, backups in saved.backups.items() if request.asks_for(name) and concerns(request, backups)
    )
    names = list(dict.fromkeys(request.groups or sorted(concerned)))
    results: dict[str, GroupResult] = {}
    for name in names:
        if not request.granted(name):
            message = "no entry of the connection's spec.access grants Restore for this group: its owner must add it"
            results[name] = GroupResult(name, ResultKind.REFUSED, reasons.ACTION_NOT_GRANTED, message)
        elif (done := saved.done.get((request.id, name))) is not None:
            kind = ResultKind.RESTORED if done.reason == reasons.RESTORED else ResultKind.PARTLY
            results[name] = GroupResult(name, kind, done.reason, done.message)
        elif turn is not None and name in turn.results:
            results[name] = turn.results[name]
        elif turn is not None and turn.is_over():
            message = "not tried yet: other restores and policies have their turn first"
            results[name] = GroupResult(name, ResultKind.WAITING, reasons.INTERRUPTED, message)
        elif name in saved.backups and (stop := _stop(executor, saved, preview)) is not None:
            results[name] = GroupResult(name, ResultKind.WAITING, stop.reason, stop.message)
        else:
            result = _restore_group(executor, request, name, saved, preview)
            if hidden := executor.context.journal.contents.hidden_summary:
                result = replace(result, message=f"{result.message}; {hidden}, which may be a newer backup of it")
            results[name] = result
            if turn is not None:
                turn.results[name] = result
    return [results[name] for name in names]


def _stop(executor: Executor, saved: SavedEntries, preview: bool) -> Refusal | None:
    """Why no group can be restored now. Writes to the ledger, to compare clocks, unless it is a preview."""
    context, deadline = executor.context, executor.context.deadline()
    known, until = saved.stop
    if context.clock.monotonic() < until:
        return known
    now = None if preview else executor.broker_time(deadline)
    if isinstance(now, Refusal):
        stop: Refusal | None = now
    else:
        cluster = kafka_cluster.read_cluster(context.client, deadline, context.connection.topics_attested)
        if isinstance(cluster, Fault):
            stop = Refusal(reasons.SNAPSHOT_INCOMPLETE, f"the cluster could not be read before the restore: {cluster}")
        else:
            find_growth(context, cluster, deadline, records=True, coordinators=True)
            stop = executor.refusal(deadline, Moment.RESTORE)
    saved.stop = stop, context.clock.monotonic() + _PROVED_S
    return stop


def _restore_group(
    executor: Executor, request: RestoreRequest, name: str, saved: SavedEntries, preview: bool
) -> GroupResult:
    backups = saved.backups.get(name, {})
    backup = choose(request, name, backups, saved.ends.get(name, {}))
    if isinstance(backup, GroupResult):
        return backup
    if backup.type not in RESTORABLE:
        message = f"offsets of a {backup.type} group can't be restored"
        return GroupResult(name, ResultKind.REFUSED, reasons.NOT_RESTORABLE, message, backup.at)
    if not backup.offsets:
        return GroupResult(name, ResultKind.REFUSED, reasons.NO_OFFSETS, "it had no committed offsets", backup.at)
    refused = _stops_loading(executor, backup)
    if refused is not None:
        return refused
    state = _state(executor, backup)
    if isinstance(state, GroupResult):
        return state
    first = _there_at_first(request, name, saved)
    parts = [part for part in backups[backup.id] if part is not None]
    found = _read(executor, request, backup, parts, first)
    if isinstance(found, GroupResult):
        return replace(found, saved_at=backup.at)
    if preview:
        return warned(summed(request, backup, found.decided, preview), state)
    begun = None
    if any(partition.commit is not None for partition in found.decided):
        begun = _outcome(executor, request, backup, OutcomeType.FAILED, reasons.INTERRUPTED, _BEGUN)
        # A later try replaces nothing else than the first one.
        replaced = _replaced(executor, request, backup, found.decided) if first is None else []
        entries = [begun, *replaced]
        # A fenced process can't write: LedgerFenced.
        stop = executor.refusal(executor.context.deadline(), Moment.REQUEST) or executor.record(entries)
        if stop is not None:
            return GroupResult(name, ResultKind.WAITING, stop.reason, stop.message, backup.at)
        # Whatever was committed since the first try stays.
        before = {p.partition: p.present for p in found.decided} if first is None else first
        found = _read(executor, request, backup, parts, before)
    if isinstance(found, GroupResult):
        result, was_there = replace(found, saved_at=backup.at), True
    else:
        result = warned(summed(request, backup, _commit(executor, backup, found.decided), preview), state)
        was_there = found.is_there
    outcome = _outcome(executor, request, backup, OutcomeType.RESTORED, result.reason, result.message)
    if proves_deletion(backup, parts, result, was_there):
        outcome = structs.replace(outcome, backup=backup.id)
    return _noted(executor, request, outcome, result, begun)


def _there_at_first(
    request: RestoreRequest, name: str, saved: SavedEntries
) -> Mapping[Partition, CommittedOffset | None] | None:
    """The offsets that this request may replace, as an earlier try of it has saved them; None = there was none."""
    parts = [part for parts in saved.backups.get(name, {}).values() for part in parts if part is not None]
    replaced = [part for part in parts if part.replaced and part.continues == request.id]
    if not replaced and (request.id, name) not in saved.begun:
        return None
    return {place: offset for part in replaced for place, offset in saved_offsets(part).items()}


def proves_deletion(backup: Backup, parts: Sequence[Backup], result: GroupResult, was_there: bool) -> bool:
    """Whether offsets were missing that the group had when this very backup was taken: then its deletion took them.

    Offsets that earlier deletions had taken don't count. A backup that continues an interrupted one does not say which
    these are; there, only a group that was gone as a whole proves the deletion.
    """
    had = {place for part in parts for place in saved_offsets(part)}
    if backup.continues and (was_there or any(p.reason in _THERE for p in result.partitions)):
        return False
    # An offset that was replaced was not missing.
    return any(p.reason == reasons.VERIFIED and p.present is None and p.partition in had for p in result.partitions)


class _Found(NamedTuple):
    """The decided partitions. is_there: whether the group exists in Kafka."""

    decided: list[PartitionResult]
    is_there: bool


def _read(
    executor: Executor,
    request: RestoreRequest,
    backup: Backup,
    parts: Sequence[Backup],
    before: Mapping[Partition, CommittedOffset | None] | None = None,
) -> _Found | GroupResult:
    """Read the evidence, and decide what may be committed now; a GroupResult if nothing may.

    parts: of this very backup, without offsets that earlier deletions took.
    before: the present offsets by an earlier read, as far as they matter. Another one was committed since, and stays.
    """
    client, deadline, saved = executor.context.client, executor.context.deadline(), saved_offsets(backup)
    ids = kafka_cluster.topic_ids(client, backup.offsets, deadline)
    there = [place for place in saved if not isinstance(ids[place.topic], Fault)]
    bounds = read_bounds(client, [there], deadline)
    is_there = _is_there(client, backup, deadline)
    if isinstance(is_there, GroupResult):
        return is_there
    now = current_offsets(client, backup.type, {backup.group: None}, list(saved), deadline)
    if isinstance(now, Fault):
        return unreadable(backup.group, now)
    own = {place for part in parts for place in saved_offsets(part)}
    decided = decide(backup, now, ids, bounds, request, own)
    if before is not None:
        decided = [
            held(p.partition, p.saved, p.present) if p.present not in (None, before.get(p.partition)) else p
            for p in decided
        ]
    return _Found(decided, is_there)


def _stops_loading(executor: Executor, backup: Backup) -> GroupResult | None:
    """Why a Streams group can't be restored on these brokers; None = it can."""
    if backup.type != GroupType.STREAMS:
        return None
    client, deadline = executor.context.client, executor.context.deadline()
    cluster = kafka_cluster.read_cluster(client, deadline)
    old = cluster if isinstance(cluster, Fault) else brokers.without_streams(client, cluster, deadline)
    if isinstance(old, Fault):
        return unreadable(backup.group, old, backup.at)
    if not old:
        return None
    message = (
        f"brokers of Kafka {', '.join(old)} may fail to load __consumer_offsets once the application has joined again "
        "(KAFKA-20254): upgrade all brokers to 4.3 first"
    )
    return GroupResult(backup.group, ResultKind.REFUSED, reasons.NOT_RESTORABLE, message, backup.at)


def _state(executor: Executor, backup: Backup) -> list[str] | GroupResult:
    """State topics of a Streams application that were deleted or recreated; a GroupResult if that forbids a restore.

    Only the topics of a Streams group are certainly its own: those of a Classic application are guessed by name.
    """
    ids = kafka_cluster.topic_ids(executor.context.client, backup.internal_topics, executor.context.deadline())
    lost = lost_topics(backup, ids)
    if isinstance(lost, Fault):
        return unreadable(backup.group, lost, backup.at)
    if lost and backup.type == GroupType.STREAMS:
        message = f"its state is gone, and without it these offsets skip records: {', '.join(lost[:3])}"
        return GroupResult(backup.group, ResultKind.REFUSED, reasons.NOT_RESTORABLE, message, backup.at)
    return lost


def _is_there(client: Client, backup: Backup, deadline: Deadline) -> bool | GroupResult:
    """Whether the group exists in Kafka; a GroupResult if nothing may be committed now."""
    name = backup.group
    found = kafka_groups.find_groups(client, [name], deadline)[name]
    if found is None:
        return False
    if isinstance(found, Fault):
        return unreadable(name, found)
    kind, state = found.group.type, found.group.state
    # OffsetCommit does not work for share groups, and AlterShareGroupOffsets only for them.
    if kind not in ({GroupType.SHARE} if backup.type == GroupType.SHARE else COMMITTING):
        return GroupResult(name, ResultKind.REFUSED, reasons.NOT_RESTORABLE, f"a {kind} group has its id now")
    if state is not GroupState.EMPTY:
        return GroupResult(
            name, ResultKind.WAITING, reasons.GROUP_ACTIVE, f"its state is {state}: stop its members first"
        )
    return True


def _commit(executor: Executor, backup: Backup, decided: Sequence[PartitionResult]) -> list[PartitionResult]:
    """Commit the decided offsets, a few partitions at a time."""
    name = backup.group
    results = {partition.partition: partition for partition in decided}
    wanted = [partition for partition in decided if partition.commit is not None]
    if not wanted:
        return list(decided)
    found = look_up(executor.context.client, [name], executor.context.deadline())[name]
    coordinator = found if isinstance(found, int) else None
    configured = kafka_cluster.offsets_write_bytes(executor.context.client, executor.context.deadline())
    size = WRITE_BYTES if configured is None else min(configured, WRITE_BYTES)
    metadata = {each.partition: each.commit.metadata for each in wanted if each.commit is not None}
    # The commits of a chunk fit into one write of the broker.
    for places in write_chunks(name, metadata, size):
        for at in range(0, len(places), _COMMIT_CHUNK):
            chunk = [results[place] for place in places[at : at + _COMMIT_CHUNK]]
            # The rate limit must not delay the commit after its partitions were read.
            with executor.context.client.burst():
                some = _commit_some(executor, backup, coordinator, chunk)
            results |= {partition.partition: partition for partition in some}
    return list(results.values())


def _commit_some(
    executor: Executor, backup: Backup, coordinator: int | None, wanted: Sequence[PartitionResult]
) -> list[PartitionResult]:
    """Read the offsets again, and commit at once where they are as decided; the result is what a third read returns."""
    client, clock = executor.context.client, executor.context.clock
    places, asked = [partition.partition for partition in wanted], {backup.group: coordinator}
    started = clock.monotonic()
    now = current_offsets(client, backup.type, asked, places, executor.context.deadline())
    if isinstance(now, Fault):
        why = unreadable(backup.group, now)
        return [replace(each, reason=why.reason, message=why.message, commit=None) for each in wanted]
    other = {p.partition: now[p.partition] for p in wanted if now.get(p.partition) not in (None, p.present)}
    results = [held(p.partition, p.saved, other[p.partition]) for p in wanted if p.partition in other]
    free = [partition for partition in wanted if partition.partition not in other]
    # Between two chunks the object may be edited, or a grant end.
    stop = executor.refusal(executor.context.deadline(), Moment.REQUEST)
    fresh = FRESH_S - (clock.monotonic() - started)
    lead = executor.seconds_left() - MARGIN_S
    if stop is None and fresh <= 0:
        stop = Refusal(reasons.OFFSETS_UNKNOWN, f"reading the committed offsets took more than {FRESH_S:.0f} s")
    if stop is not None:
        return results + [replace(each, reason=stop.reason, message=stop.message, commit=None) for each in free]
    commits = {partition.partition: partition.commit for partition in free if partition.commit is not None}
    answers = executor.restore_offsets(backup, coordinator, commits, Deadline(min(fresh, lead)))
    after = restored_offsets(client, backup, coordinator, list(commits), executor.context.deadline())
    return results + [compared(partition, answers[partition.partition], after) for partition in free]


def _replaced(
    executor: Executor, request: RestoreRequest, backup: Backup, decided: Sequence[PartitionResult]
) -> list[Backup]:
    """A backup of the offsets that are about to be replaced."""
    offsets: dict[str, list[SavedOffset]] = {}
    for each in decided:
        if each.commit is not None and each.present is not None:
            saved = SavedOffset(each.partition.partition, *each.present, None)
            offsets.setdefault(each.partition.topic, []).append(saved)
    if not offsets:
        return []
    now = executor.context.clock.now()
    changes = {"id": new_id(now), "at": now, "expires": now + (backup.expires - backup.at), "offsets": offsets}
    changes |= {"continues": request.id, "replaced": True, "evidence": "replaced by a restore"}
    return in_parts(structs.replace(backup, **changes))


def _noted(
    executor: Executor, request: RestoreRequest, outcome: HistoryEntry, result: GroupResult, begun: HistoryEntry | None
) -> GroupResult:
    """Write the outcome into the ledger, and remove the entry of the start; returns the result.

    If there is no outcome, a later try that may replace offsets needs the entry of the start (`SavedEntries.begun`).
    """
    # With an unfinished deletion, only a commit proves that the group was gone.
    proven = result.restored and (begun is not None or outcome.group not in executor.context.journal.contents.intents)
    changes: list[Change] = [outcome] if proven else []
    unsure = any(p.commit is not None and p.reason == reasons.OFFSETS_UNKNOWN for p in result.partitions)
    if begun is not None and not unsure:
        failed = structs.replace(begun, reason=result.reason, message=result.message)
        changes.append(failed if request.overwrite_later and not proven else Removal(begun.key))
    problem = executor.record(changes) if changes else None
    if problem is not None:
        return replace(result, message=f"{result.message}; not written into the ledger: {problem.reason}")
    return result


def _outcome(
    executor: Executor, request: RestoreRequest, backup: Backup, what: OutcomeType, reason: str, message: str
) -> HistoryEntry:
    now = executor.context.clock.now()
    return HistoryEntry(
        group=backup.group,
        id=request.id,
        at=now,
        what=what,
        reason=reason,
        message=message,
        policy=backup.policy,
        policy_uid=backup.policy_uid,
        generation=backup.generation,
        expires=now + max(backup.expires - backup.at, request.remembered),
    )
