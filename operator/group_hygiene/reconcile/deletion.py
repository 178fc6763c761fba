"""The second half of a run: reads each group again and deletes it. Changes go through `Executor`.

DeleteOffsets deletes some offsets of a group in use, which are read again, saved, deleted and recorded in the same way.

The order of a deletion: ask the guard -> read the group again -> write its backup and the intent, and read them back
with all that others wrote into the ledger -> read the offsets log on -> ask the guard again -> check that all reads are
fresh and this process still leads -> send the request -> read the offsets log on -> write the outcome, and into the
backup what was committed in between.
A process that dies in between leaves an intent, which `reconcile.recover_intents` resolves.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from group_hygiene.decide.plan import Plan, outside_window
from group_hygiene.kafka import cluster as kafka_cluster
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
from group_hygiene.model.groups import Cluster, GroupType, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.reconcile.context import BATCH, Context, Observation
from group_hygiene.reconcile.delete_requests import (
    NOT_SENT,
    delete_groups,
    delete_large_group,
    delete_offsets,
    is_large,
    not_deleted,
)
from group_hygiene.reconcile.executor import Executor
from group_hygiene.reconcile.preconditions import MARGIN_S, NOT_LEADER, Moment
from group_hygiene.reconcile.recheck import Rechecked, leaders_moved, recheck
from group_hygiene.reconcile.recovery import (
    INTENT_S,
    Earlier,
    interrupted_before,
    is_used_since,
    read_remains,
    record_ends,
)
from group_hygiene.reconcile.settle import (
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
from group_hygiene.reconcile.uses import Since, Uses
from group_hygiene.reconcile.vetoes import FRESH_S, Ready
from group_hygiene.reconcile.window import DeletionWindow

_UNSENT = Refusal(reasons.OFFSETS_UNKNOWN, NOT_SENT)


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
        refused = {**read.refused, **dict.fromkeys(again, why)}
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
    found = {
        name: _asked_to_keep(run, name) or (used.get(name) if _is_ours(context, each.intent) else why)
        for name, each in saved.items()
    }
    return {name: refusal for name, refusal in found.items() if refusal is not None}


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
