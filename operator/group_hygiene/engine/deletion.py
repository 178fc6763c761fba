"""The second half of a run: reads each group again and deletes it. Changes go through `Executor`.

DeleteOffsets deletes some offsets of a group in use, which are read again, saved, deleted and recorded in the same way.

The order of a deletion: ask the guard -> read the group again -> write its backup and the intent, and read them back
with all that others wrote into the ledger -> read the offsets log on -> ask the guard again -> check that all reads are
fresh and this process still leads -> send the request -> read the offsets log on -> write the outcome, and into the
backup what was committed in between.
A process that dies in between leaves an intent, which `recover_intents` resolves.

The coordinator appends the tombstones of a request as one batch of at most `max.message.bytes`, or none of them. So a
group whose tombstones exceed that is deleted by several requests, under one intent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from group_hygiene.engine.context import BATCH, Context, Observation
from group_hygiene.engine.executor import MARGIN_S, NOT_LEADER, Executor, Moment
from group_hygiene.engine.plan import FAILURES, Plan, outside_window
from group_hygiene.engine.recheck import (
    FRESH_S,
    Ready,
    Rechecked,
    leaders_moved,
    partitions_of,
    pending_commits,
    recheck,
)
from group_hygiene.engine.recovery import (
    INTENT_S,
    Earlier,
    interrupted_before,
    is_used_since,
    read_remains,
    record_ends,
    unfinished_before,
)
from group_hygiene.engine.settle import (
    UNCLEAR,
    Answer,
    DeletionFacts,
    DeletionState,
    Done,
    Presence,
    Remains,
    RequestState,
    settle,
)
from group_hygiene.engine.uses import DeletionWindow, Since, Uses
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.offsets import WRITE_BYTES
from group_hygiene.ledger.journal import NOT_READ_BACK
from group_hygiene.model import reasons
from group_hygiene.model.entries import (
    Backup,
    Change,
    Intent,
    Key,
    OutcomeType,
    Removal,
    SavedOffset,
    in_parts,
    whole,
    with_earlier,
)
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.groups import NO_SUCH_TOPIC, Cluster, Fault, GroupState, GroupType, Offsets, Partition
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.reasons import Refusal

_UNSENT = Refusal(reasons.OFFSETS_UNKNOWN, "not sent: there was no time left")
_UNANSWERED = frozenset({"NETWORK_EXCEPTION", "REQUEST_TIMED_OUT", "NO_ANSWER"})
# A coordinator answers these, and AUTHORIZATION_FAILED, only if it wrote nothing. All others may follow a write that is
# in the log: NOT_COORDINATOR when the coordinator unloads before the write is replicated, COORDINATOR_NOT_AVAILABLE
# when that takes too long (CoordinatorRuntime of Kafka 4), and any code that a later version adds.
_REFUSALS = frozenset({"NON_EMPTY_GROUP", "INVALID_GROUP_ID", "GROUP_SUBSCRIBED_TO_TOPIC"})
_DENIED = "AUTHORIZATION_FAILED"
_NAMES = 5
# At most this many records belong to a group without members, beside its offsets.
_GROUP_RECORDS = 8


class _Run(NamedTuple):
    """One call of `apply`. cluster: as the scan saw it. earlier: by group; uses: of all groups of the plan."""

    executor: Executor
    plan: Plan
    cluster: Cluster
    earlier: Mapping[str, Earlier]
    uses: Uses

    @property
    def context(self) -> Context:
        return self.executor.context


class ToSave(NamedTuple):
    """The changes to write before a group is deleted. parts: of its backup. superseded: see `Earlier`."""

    intent: Intent
    parts: list[Backup]
    superseded: tuple[Key, ...]


class BatchResult(NamedTuple):
    """The outcomes of a few groups. is_stuck: a request got no answer in time, or an outcome could not be written."""

    outcomes: list[Outcome]
    is_stuck: bool = False


def apply(executor: Executor, plan: Plan, observation: Observation, since: Since | None = None) -> list[Outcome]:
    """Delete `plan.actions`, a few at a time, each read again right before; one outcome per group.

    The executor's guard is asked before each batch, where a Refusal ends the run, and again right before the request. A
    group that changed since the scan is not deleted; the broker's own check comes last. since: see `Uses`.

    Raises LedgerFenced when another process took over.
    """
    context, actions, cluster = executor.context, list(plan.actions), observation.snapshot.cluster
    if actions:
        limit = kafka_cluster.offsets_write_bytes(context.client, context.deadline())
        context.memory.write_bytes = WRITE_BYTES if limit is None else min(limit, WRITE_BYTES)
    context.journal.read_on(context.deadline())
    earlier, refused = interrupted_before(context, plan.policy, actions)
    outcomes = [not_deleted(name, why) for name, why in refused.items()]
    actions = [name for name in actions if name not in refused]
    # Here there is time to read a long log; right before each request only newer records are read.
    uses = Uses(context, plan, cluster, since)
    uses.read_on(context.deadline())
    run = _Run(executor, plan, cluster, earlier, uses)
    context.journal.read_on(context.deadline())
    while actions:
        stop = _may_not_begin(run) or context.journal.problem
        if stop is not None:
            outcomes += [not_deleted(name, stop) for name in actions]
            break
        size = context.memory.batch
        batch, actions = actions[:size], actions[size:]
        done = _delete_batch(run, batch)
        outcomes += done.outcomes
        if done.is_stuck:
            # Some broker hangs, or the ledger is not reachable: each other deletion would wait as long.
            why = Refusal(reasons.INTERRUPTED, "not tried: an earlier deletion of this run did not finish")
            return outcomes + [not_deleted(name, why) for name in actions]
    return outcomes


def _delete_batch(run: _Run, batch: Sequence[str]) -> BatchResult:
    """Read these groups again; save, delete and record those that may be deleted."""
    context, earlier = run.context, run.earlier
    moved = leaders_moved(context, run.cluster, context.deadline())
    if moved is not None:
        return BatchResult([not_deleted(name, moved) for name in batch])
    # The deletion must follow the reads quickly, however few requests per second the connection allows.
    with context.client.burst():
        read = recheck(context, run.plan, run.cluster, batch, run.uses, context.deadline())
        _adjust_batch(context, len(batch), read.late)
        why = Refusal(reasons.REAPPEARED, "an interrupted deletion took a part of it, and it has been used since")
        again = [
            name
            for name, each in read.ready.items()
            if name in earlier and is_used_since(earlier[name].backup, each.offsets)
        ]
        refused = {**read.refused, **dict.fromkeys(again, why), **_ended_meanwhile(run, read.ready)}
        outcomes = [not_deleted(name, refusal) for name, refusal in refused.items()]
        ready = [each for name, each in read.ready.items() if name not in refused]
        if not ready:
            return BatchResult(outcomes)
        seconds = min(INTENT_S, run.executor.seconds_left() - MARGIN_S)
        if seconds <= 0:
            return BatchResult(outcomes + [not_deleted(each.group.id, NOT_LEADER) for each in ready])
        now, until = context.clock.now(), Deadline(seconds)
        saved = {each.group.id: _saved(run, each, read.log_ends, now, seconds) for each in ready}
        intents = [each.intent for each in saved.values()]
        window = DeletionWindow(context, run.cluster, intents, run.plan.policy.when.unused_for)
        backups = [part for each in saved.values() for part in each.parts]
        over = [Removal(key) for each in saved.values() for key in each.superseded]
        changes: list[Change] = [*backups, *over, *intents]
        problem = run.executor.record(changes, Deadline(seconds), _fresh(context, read))
        if problem is not None and problem.reason not in NOT_READ_BACK:
            return BatchResult(outcomes + [not_deleted(name, problem) for name in saved])
        if problem is not None:
            stops = dict.fromkeys(saved, problem)
            # Only intents that were read can be ended here.
            context.journal.read_on(Deadline(seconds))
            _adjust_batch(context, len(batch), late=True)
        else:
            stops = _final_checks(run, read, saved, window)
        answers = _send(run, read, [name for name in saved if name not in stops], until)
        unclear = [saved[name].intent for name, each in answers.items() if each.request in UNCLEAR]
        # Before the end of the window: a deletion that is carried out later stays open.
        remains = read_remains(context, unclear, Deadline(seconds))
        if answers:
            window.close(Deadline(seconds), _deleted(read, answers, remains))
        done = _record_outcomes(run, saved, stops, answers, remains, window)
    unreadable = problem is not None and problem.reason == reasons.BACKUP_NOT_READABLE
    return BatchResult(outcomes + done.outcomes, done.is_stuck or unreadable)


def _fresh(context: Context, read: Rechecked) -> Deadline:
    """The end of the time for which the reads are valid."""
    return Deadline(FRESH_S - (context.clock.monotonic() - read.started))


def _send(run: _Run, read: Rechecked, names: Sequence[str], until: Deadline) -> dict[str, Answer]:
    """Delete these groups now or not at all; groups for which no time is left are not in the results."""
    if not names:
        return {}
    context, ready = run.context, {name: read.ready[name] for name in names}
    # The connections to the coordinators are open, as they have just answered.
    left = Deadline(min(until.left, _fresh(context, read).left))
    if run.plan.policy.by_topic:
        results = delete_offsets(run.executor, ready, left)
    else:
        large = [name for name, each in ready.items() if is_large(context, each)]
        results = delete_groups(run.executor, {name: each for name, each in ready.items() if name not in large}, left)
        results |= {
            name: delete_large_group(run.executor, ready[name], until, partial(_stop, run, name)) for name in large
        }
    if len(results) < len(names):
        _adjust_batch(context, len(read.ready) + len(read.refused), late=True)
    return results


def _deleted(
    read: Rechecked, answers: Mapping[str, Answer], remains: Mapping[str, Remains]
) -> dict[str, Collection[Partition]]:
    """Group -> the places whose offsets brokers have deleted, as they say or show; none = it had no offsets.

    Share groups have another log.
    """
    places: dict[str, Collection[Partition]] = {}
    for name, (_, outcome) in answers.items():
        ready, left = read.ready[name], remains.get(name, Remains(Presence.THERE))
        topics = outcome.topics if outcome.kind is OutcomeType.DELETED else left.topics
        gone = [place for place in ready.offsets if not topics or place.topic in topics]
        is_gone = outcome.kind is OutcomeType.DELETED or left.found in (Presence.GONE, Presence.SOME_TOPICS)
        if is_gone and ready.group.type is not GroupType.SHARE:
            places[name] = gone
    return places


def _record_outcomes(
    run: _Run,
    saved: Mapping[str, ToSave],
    stops: Mapping[str, Refusal],
    answers: Mapping[str, Answer],
    remains: Mapping[str, Remains],
    window: DeletionWindow,
) -> BatchResult:
    """Write the outcomes of a batch. A deletion that may yet be carried out stays open: a later run resolves it.

    stops: why a group was not deleted although its intent is written. answers: of the groups whose requests were sent.
    remains: of those without a clear answer.
    """
    context, journal = run.context, run.context.journal
    marks = journal.contents.marks.get(run.plan.policy.uid, {})
    outcomes: list[Outcome] = []
    done: list[Done] = []
    is_stuck = False
    for name, (intent, parts, _) in saved.items():
        not_sent = Answer(RequestState.NOT_SENT, not_deleted(name, stops.get(name, _UNSENT)))
        answer, left = answers.get(name, not_sent), remains.get(name, Remains(Presence.UNKNOWN))
        facts = DeletionFacts(
            deletion=intent,
            state=DeletionState.INTENT if _is_ours(context, intent) else DeletionState.CONTESTED,
            answer=answer,
            remains=left,
            now=context.clock.now(),
            backup=[part.key for part in parts],
            mark=marks.get(name),
        )
        if name not in answers:
            context.memory.unsent[intent.id] = answer.outcome, facts.backup
        result = settle(facts)
        if isinstance(result, Done) and result.outcome.kind is OutcomeType.DELETED:
            result = window.completed(result, partial(whole, parts))
        if isinstance(result, Done):
            done.append(result)
            outcomes.append(result.outcome)
        else:
            outcomes.append(answer.outcome)
            is_stuck |= name in answers and answer.outcome.reason == reasons.INTERRUPTED
    if not record_ends(run.executor, done):
        # No loss: the intents are in the ledger. The run that resolves them counts them, and no other run.
        gone_now = {each.entry.group for each in done if each.outcome.kind is OutcomeType.DELETED}
        why = Refusal(reasons.INTERRUPTED, "deleted, but that could not be written: a later run writes it")
        outcomes = [not_deleted(each.group, why) if each.group in gone_now else each for each in outcomes]
        is_stuck |= bool(gone_now)
    return BatchResult(outcomes, is_stuck)


def _adjust_batch(context: Context, size: int, late: bool) -> None:
    """Halve the batch while brokers are slow or groups are large; double it again when a batch is in time."""
    memory = context.memory
    memory.batch = max(1, size // 2) if late else min(BATCH, max(memory.batch, 2 * size))


def _final_checks(
    run: _Run, read: Rechecked, saved: Mapping[str, ToSave], window: DeletionWindow
) -> dict[str, Refusal]:
    """Groups that are not deleted although their intents are written, with the reasons.

    `group-hygiene keep` writes its request and then checks for an intent; the operator wrote the intent and now checks
    for requests. So one of the two sees the other. In the same way, of two processes that write intents for a group,
    the second one sees the first intent, and refuses.
    """
    context = run.context
    # The guard's first answer for this batch may be minutes old, as the reads may be slow.
    problem = _may_not_begin(run)
    used = {} if problem else window.read_on(saved, _fresh(context, read))
    problem = problem or run.executor.refusal(context.deadline(), Moment.SENDING)
    if problem is None and _fresh(context, read).left <= 0:
        problem = Refusal(reasons.OFFSETS_UNKNOWN, f"reading and saving it took more than {FRESH_S:.0f} s")
        _adjust_batch(context, len(read.ready) + len(read.refused), late=True)
    if problem is not None:
        return dict.fromkeys(saved, problem)
    why = Refusal(reasons.INTERRUPTED, "another process began to delete it at the same moment")
    ended = _ended_meanwhile(run, saved)
    found = {
        name: _asked_to_keep(run, name)
        or (used.get(name) if _is_ours(context, each.intent) else why)
        or ended.get(name)
        for name, each in saved.items()
    }
    return {name: refusal for name, refusal in found.items() if refusal is not None}


def _ended_meanwhile(run: _Run, names: Iterable[str]) -> dict[str, Refusal]:
    """The groups whose interrupted deletion another process has ended since this run began.

    A backup that does not continue that one lacks the offsets that it deleted. The reason is not Interrupted, as the
    backup that this run wrote, which nothing continues, is removed.
    """
    continued = {(name, each.backup.id) for name, each in run.earlier.items()}
    others = unfinished_before(run.context, run.plan.policy, names).items() - continued
    why = Refusal(reasons.CHANGED, "another process has just ended an interrupted deletion of it")
    return dict.fromkeys((name for name, _ in others), why)


def _is_ours(context: Context, intent: Intent) -> bool:
    """Whether this intent is the group's only one, as far as the ledger was read."""
    contents = context.journal.contents
    current = contents.intents.get(intent.group)
    return current is not None and current.id == intent.id and intent.group not in contents.contested


def _may_not_begin(run: _Run) -> Refusal | None:
    """Why no further deletion may begin. One that has begun with several requests continues after its window."""
    context, plan, now = run.context, run.plan, run.context.clock.now()
    return run.executor.refusal(context.deadline(), Moment.REQUEST, Moment.DELETION) or outside_window(plan.policy, now)


def _asked_to_keep(run: _Run, name: str) -> Refusal | None:
    policy, request = run.plan.policy, run.context.journal.contents.keep_of(name)
    if request is None or request.until <= run.context.clock.now():
        return None
    asker = request.asker(policy.namespace, policy.connection_namespace)
    return Refusal(reasons.KEEP_REQUESTED, f"{asker} asked to keep it just now")


def _saved(run: _Run, ready: Ready, log_ends: dict[int, int], now: datetime, seconds: float) -> ToSave:
    """The intent to delete one group within `seconds`, and its backup, with what only an interrupted deletion's has."""
    context, policy, name = run.context, run.plan.policy, ready.group.id
    rows: dict[str, list[SavedOffset]] = {}
    for partition, offset in sorted(ready.offsets.items()):
        saved = SavedOffset(partition.partition, *offset, ready.lag.get(partition))
        rows.setdefault(partition.topic, []).append(saved)
    backup = Backup(
        group=name,
        id=new_id(now),
        part=0,
        parts=1,
        type=str(ready.group.type),
        protocol_type=ready.group.protocol_type,
        cluster=run.cluster.id,
        policy=policy.key,
        policy_uid=policy.uid,
        generation=policy.generation,
        at=now,
        expires=now + policy.backup_retention,
        evidence=ready.why,
        offsets=rows,
        topic_ids=dict(ready.topic_ids),
        partial=policy.by_topic,
        internal_topics=dict(ready.internal_topics),
    )
    mark = context.journal.contents.marks.get(policy.uid, {}).get(name)
    intent = Intent(
        group=name,
        id=backup.id,
        type=backup.type,
        policy=policy.key,
        policy_uid=policy.uid,
        generation=policy.generation,
        at=now,
        deadline=now + timedelta(seconds=seconds),
        expires=backup.expires,
        marked_since=mark.since if mark else None,
        writer=context.journal.writer,
        topics=tuple(sorted(rows)) if policy.by_topic else (),
        partitions=len(ready.offsets) if not policy.by_topic and is_large(context, ready) else 0,
        log_ends=log_ends,
        waiting=0 if policy.by_topic else sum(filter(None, ready.lag.values())),
    )
    earlier = run.earlier.get(name)
    if earlier is None:
        return ToSave(intent, in_parts(backup), ())
    complete = replace(with_earlier(backup, earlier.backup), continues=earlier.backup.id)
    return ToSave(intent, in_parts(complete), earlier.superseded)


def new_id(now: datetime) -> str:
    """An id that sorts by time."""
    return f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def _stop(run: _Run, name: str) -> Refusal | None:
    """Why a deletion by several requests must not send another one; None = continue."""
    context, left = run.context, Deadline(FRESH_S)
    stop = context.journal.read_on(left) or _asked_to_keep(run, name)
    return stop or run.executor.refusal(left, Moment.REQUEST, Moment.DELETION)


def not_deleted(name: str, refusal: Refusal) -> Outcome:
    """`Failed` if an administrator must fix something, else `NotDeleted`."""
    kind = OutcomeType.FAILED if refusal.reason in FAILURES else OutcomeType.NOT_DELETED
    return Outcome(name, kind, refusal.reason, refusal.message)


def _refused(name: str, refusal: Refusal) -> Answer:
    """The answer if no request was carried out."""
    return Answer(RequestState.REFUSED, not_deleted(name, refusal))


def delete_groups(executor: Executor, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Answer]:
    """Delete each group by one request (KIP-229); groups for which the deadline leaves no time are not in the results.

    Each request is limited to groups whose tombstones fit into one write of the broker. That limit is per offsets
    partition, but grouping by partition would save few requests.
    """
    results: dict[str, Answer] = {}
    sizes = {name: _tombstone_bytes(each) for name, each in ready.items()}
    for names in kafka_offsets.in_chunks(sizes, executor.context.memory.write_bytes):
        if deadline.left <= 0:
            break
        coordinators = {name: ready[name].coordinator for name in names}
        answers = executor.delete_groups(coordinators, deadline)
        results |= {name: result_of_group(name, answer, ready[name].group.type) for name, answer in answers.items()}
    return results


def _tombstone_bytes(ready: Ready) -> int:
    """The largest size of a group's tombstones. Start offsets of share groups are not in `__consumer_offsets`."""
    name = ready.group.id
    places = () if ready.group.type is GroupType.SHARE else ready.offsets
    return _own_bytes(name) + sum(kafka_offsets.record_bytes(name, place.topic) for place in places)


def _own_bytes(group: str) -> int:
    """The largest size of a group's tombstones other than those of its offsets."""
    return _GROUP_RECORDS * kafka_offsets.record_bytes(group)


def delete_offsets(executor: Executor, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Answer]:
    """Delete the offsets of each group, by requests for one group each (KIP-496).

    Groups for which the deadline leaves no time are not in the results.
    """
    results: dict[str, Answer] = {}
    for name, each in ready.items():
        if deadline.left <= 0:
            break
        answers: dict[Partition, Fault | None] = {}
        places = dict.fromkeys(sorted(each.offsets), "")
        for chunk in kafka_offsets.write_chunks(name, places, executor.context.memory.write_bytes):
            answers |= executor.delete_offsets(name, chunk, deadline, each.coordinator)
        results[name] = result_of_offsets(name, answers)
    return results


def _refuses(fault: Fault) -> bool:
    return fault.code in _REFUSALS or fault.code.endswith(_DENIED)


def _unclear(name: str, fault: Fault) -> Answer:
    """The result of a request that the broker may have carried out, or may yet carry out."""
    if fault.code in _UNANSWERED:
        unknown = "no answer: a later run finds out whether it was deleted"
        return Answer(RequestState.UNCLEAR, Outcome(name, OutcomeType.NOT_DELETED, reasons.INTERRUPTED, unknown))
    message = f"{fault}: it may still be carried out, so its backup stays; a later run finds out"
    return Answer(RequestState.UNCLEAR, Outcome(name, OutcomeType.FAILED, reasons.DELETE_FAILED, message))


def result_of_group(name: str, fault: Fault | None, kind: GroupType = GroupType.CLASSIC) -> Answer:
    """The result that the answer to DeleteGroups proves. fault: None = no error."""
    if fault is None:
        return Answer(RequestState.CONFIRMED, Outcome(name, OutcomeType.DELETED, reasons.DELETED, "deleted"))
    if not _refuses(fault):
        return _unclear(name, fault)
    if fault.code == "NON_EMPTY_GROUP":
        message = "a consumer joined it just now"
        if kind is GroupType.SHARE:
            message += "; brokers may have erased its start offsets (its backup has them): check that it still consumes"
        return _refused(name, Refusal(reasons.BECAME_ACTIVE, message))
    return _refused_by(name, fault)


def result_of_offsets(name: str, answers: Mapping[Partition, Fault | None]) -> Answer:
    """The result that the answers to OffsetDelete prove; None = no error.

    A topic counts as deleted if the offset of one of its partitions is, as everything deleted must be restorable. The
    broker refuses topics that a member subscribes to.
    """
    unclear = [fault for fault in answers.values() if fault is not None and not _refuses(fault)]
    if unclear:
        return _unclear(name, next((fault for fault in unclear if fault.code in _UNANSWERED), unclear[0]))
    done = {place.topic for place, fault in answers.items() if fault is None}
    left = {place: fault for place, fault in sorted(answers.items()) if fault is not None}
    if done:
        failed = "; ".join(f"{place}: {fault}" for place, fault in list(left.items())[:_NAMES])
        message = f"offsets of {truncated_list(sorted(done), _NAMES)} deleted" + (f"; not of {failed}" if left else "")
        outcome = Outcome(name, OutcomeType.DELETED, reasons.OFFSETS_DELETED, message, tuple(sorted(done)))
        return Answer(RequestState.CONFIRMED, outcome)
    place, fault = next(iter(left.items()))
    if fault.code == "GROUP_SUBSCRIBED_TO_TOPIC":
        return _refused(name, Refusal(reasons.SUBSCRIBED, f"a member subscribed to {place.topic} just now"))
    return _refused_by(name, fault)


def _refused_by(name: str, fault: Fault) -> Answer:
    if fault.code.endswith(_DENIED):
        return _refused(name, Refusal(reasons.DENIED, fault.message or "needs DELETE on the group"))
    return _refused(name, Refusal(reasons.DELETE_FAILED, str(fault)))


def is_large(context: Context, ready: Ready) -> bool:
    """Whether the group's tombstones may exceed one write of the broker: its deletion needs several requests."""
    several = len(ready.offsets) > 1 and ready.group.type is not GroupType.SHARE
    return several and _tombstone_bytes(ready) > context.memory.write_bytes


def delete_large_group(
    executor: Executor, ready: Ready, deadline: Deadline, stop: Callable[[], Refusal | None]
) -> Answer:
    """Delete a group's offsets in chunks (KIP-496), and the group with the rest of them, by one request each.

    Before each request, reads state and offsets again, as earlier reads are too old by then, and calls `stop`. Sends
    nothing after the deadline.
    """
    context, name, left = executor.context, ready.group.id, dict(ready.offsets)
    chunks = _chunks(context, ready, deadline)
    if isinstance(chunks, Refusal):
        return _stopped(ready, left, chunks)
    found = partitions_of(kafka_cluster.read_topics(context.client, deadline))
    # Every partition for which a transaction may commit: see `pending_commits`.
    places = found if isinstance(found, Fault) else {*found, *ready.offsets}
    while True:
        fresh = Deadline(min(FRESH_S, deadline.left))
        refusal = stop() or _changed(executor, ready, left, places, fresh)
        if refusal is not None:
            return _stopped(ready, left, refusal)
        chunk = chunks.pop(0) if chunks else None
        if chunk is None:
            (fault,) = executor.delete_groups({name: ready.coordinator}, fresh).values()
            result = result_of_group(name, fault, ready.group.type)
        else:
            answers = executor.delete_offsets(name, chunk, fresh, ready.coordinator)
            fault = next((fault for fault in answers.values() if fault is not None), None)
            result = result_of_offsets(name, answers)
        if result.request is RequestState.REFUSED:
            return _stopped(ready, left, Refusal(result.outcome.reason, result.outcome.message))
        if chunk is None:
            return result
        if fault is not None:
            return _unclear(name, fault)
        left = {place: commit for place, commit in left.items() if place not in answers}


def _chunks(context: Context, ready: Ready, deadline: Deadline) -> list[list[Partition]] | Refusal:
    """The partitions of each OffsetDelete request, so that DeleteGroups can delete the rest; a Refusal if it can't.

    OffsetDelete needs READ on each topic, and refuses partitions that don't exist: DeleteGroups deletes their offsets.
    All of this is checked before the first request: a group that can't be deleted as a whole must not lose a part.
    """
    name, topics = ready.group.id, {place.topic for place in ready.offsets}
    allowed = kafka_cluster.on_topics(context.client, deadline)
    counts = kafka_cluster.partition_counts(context.client, topics, deadline)
    if isinstance(allowed, Fault):
        return Refusal(reasons.OFFSETS_UNKNOWN, f"the permissions on its topics could not be read: {allowed}")
    # A topic that was recreated with fewer partitions lacks some, too.
    existing: dict[str, int] = {}
    for topic, count in sorted(counts.items()):
        if isinstance(count, Fault) and count.code != NO_SUCH_TOPIC:
            return Refusal(reasons.OFFSETS_UNKNOWN, f"topic {topic} could not be read: {count}")
        existing[topic] = 0 if isinstance(count, Fault) else count
        operations = allowed.get(topic, frozenset())
        if existing[topic] and operations is not None and kafka_cluster.Operation.READ not in operations:
            message = f"it is too large for one request, and to delete its offsets of {topic} needs READ on the topic"
            return Refusal(reasons.DENIED, message)
    # Unread records are a condition of the deletion: partitions that have some come last, so that the group still
    # matches if the deletion is interrupted.
    order = sorted(ready.offsets, key=lambda place: (place.topic, ready.lag.get(place, 0) > 0, place.partition))
    # The group itself has some records, too.
    size = max(1, context.memory.write_bytes - _own_bytes(name))
    last = [place for place in order if place.partition >= existing[place.topic]]
    room = size - sum(kafka_offsets.record_bytes(name, place.topic) for place in last)
    if room < 0:
        message = f"{len(last)} of its offsets are of partitions that don't exist: too many for one write of the broker"
        return Refusal(reasons.DELETE_FAILED, message)
    missing = set(last)
    rest = [place for place in order if place not in missing]
    chunks = list(kafka_offsets.write_chunks(name, dict.fromkeys(rest, ""), size))
    if chunks and sum(kafka_offsets.record_bytes(name, place.topic) for place in chunks[-1]) <= room:
        chunks.pop()
    return chunks


def _changed(
    executor: Executor, ready: Ready, left: Offsets, places: Collection[Partition] | Fault, deadline: Deadline
) -> Refusal | None:
    """Why the group is no longer Empty with exactly the offsets `left`, or may not be deleted now; None = it may."""
    context, name = executor.context, ready.group.id
    coordinators = {name: ready.coordinator}
    refusal = pending_commits(context, coordinators, places, deadline).get(name)
    if refusal is not None:
        return refusal
    described = kafka_groups.describe_groups(context.client, {name: ready.group.type}, coordinators, deadline)[name]
    if isinstance(described, Fault):
        return Refusal(reasons.OFFSETS_UNKNOWN, str(described))
    if described.group.state is not GroupState.EMPTY:
        return Refusal(reasons.BECAME_ACTIVE, f"its state is {described.group.state} now")
    committed = kafka_offsets.committed_offsets(context.client, coordinators, deadline, require_stable=True)[name]
    if isinstance(committed, Fault):
        return Refusal(reasons.OFFSETS_UNKNOWN, str(committed))
    if committed != left:
        return Refusal(reasons.CHANGED, "its committed offsets changed")
    if deadline.left <= 0:
        return _UNSENT
    return executor.refusal(deadline, Moment.SENDING)


def _stopped(ready: Ready, left: Offsets, refusal: Refusal) -> Answer:
    """The result of a deletion by several requests that stopped, before the first request or after some."""
    name, whole = ready.group.id, len(ready.offsets)
    if len(left) == whole:
        return _refused(name, refusal)
    deleted = f"{whole - len(left)} of its {whole} committed offsets were deleted before: its backup has them"
    message = f"{refusal.message}; {deleted}"
    return Answer(RequestState.PART, not_deleted(name, Refusal(refusal.reason, message)))
