"""The second half of a run: delete, each group read again right before. With `restoration`, all that changes groups.

Of a group that lives it may be some of its offsets: they are read again, saved, deleted and recorded in the same way.

The order of a deletion: the guard agrees -> the ledger is read to its end -> the group is read again -> its backup and
the intent are in the ledger -> the guard agrees once more -> it is all still fresh and we still lead -> the request ->
the outcome is in the ledger.
A process that dies anywhere in between leaves an intent, which `reconcile.settle` brings to its end.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from group_hygiene import reasons
from group_hygiene.entries import (
    Backup,
    Change,
    Intent,
    Key,
    Mark,
    Removal,
    SavedOffset,
    What,
    in_parts,
    with_earlier,
)
from group_hygiene.entries import Outcome as OutcomeEntry
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.offsets import WRITE_BYTES
from group_hygiene.model import GroupType, Keep, Outcome, OutcomeKind
from group_hygiene.plan import Plan
from group_hygiene.policy import Policy
from group_hygiene.reconcile.context import BATCH, Context, Observation
from group_hygiene.reconcile.interrupted import Earlier, interrupted_before, is_used_since
from group_hygiene.reconcile.large_groups import delete_large_group, is_large
from group_hygiene.reconcile.rereading import FRESH_S, Ready, Reread, leaders_moved, read_again
from group_hygiene.reconcile.sending import (
    NOT_SENT,
    Gone,
    Result,
    Unsettled,
    are_gone,
    delete_groups,
    delete_offsets,
    named,
    not_deleted,
)
from group_hygiene.reconcile.uses import Uses
from group_hygiene.tracing import note, traced

# An intent is good for this long at most; a successor waits that long before it does anything.
INTENT_S = 10.0
# What an admin request needs to reach the broker: nothing is sent when less is left.
MARGIN_S = 1.0
_WHAT = {OutcomeKind.DELETED: What.DELETED, OutcomeKind.KEPT: What.KEPT, OutcomeKind.FAILED: What.FAILED}


class Guard(Protocol):
    """Asked right before each change of Kafka."""

    def refusal(self) -> Keep | None:
        """Why the run must end here: the policy or connection was edited, or the operator stops. None = go on."""

    def seconds_left(self) -> float:
        """For how long this process surely is the only one that acts; 0 = not any more."""


class Known(NamedTuple):
    """What is read once for all groups of a run. earlier: by group."""

    earlier: Mapping[str, Earlier]
    uses: Uses


class Saved(NamedTuple):
    """What is written before a group is deleted. parts: of its backup. superseded: see `Earlier`."""

    parts: list[Backup]
    superseded: tuple[Key, ...]


class Batch(NamedTuple):
    """The outcomes of a few groups. is_stuck: a request got no answer in time, or an outcome could not be written."""

    outcomes: list[Outcome]
    is_stuck: bool = False


@traced("apply")
def apply(context: Context, plan: Plan, observation: Observation, guard: Guard) -> list[Outcome]:
    """Delete `plan.actions`, a few at a time, each re-read right before; one outcome per group.

    `guard` is asked before each batch, and its Keep ends the run; and once more right before the request. What changed
    since the scan is kept with the reason; the broker has the last word.

    Raises LedgerFenced when another process took over.
    """
    outcomes: list[Outcome] = []
    actions = list(plan.actions)
    note(due=len(actions))
    if actions:
        told = kafka_cluster.offsets_write_bytes(context.client, context.deadline())
        context.memory.write_bytes = WRITE_BYTES if told is None else min(told, WRITE_BYTES)
    earlier: dict[str, Earlier] = {}
    for name, found in interrupted_before(context, plan.policy, actions).items():
        if isinstance(found, Keep):
            actions.remove(name)
            outcomes.append(not_deleted(name, found))
        else:
            earlier[name] = found
    # Here there is time to read a long log; right before each request only what came since is read.
    uses = Uses(context, plan, observation.snapshot.cluster, context.deadline())
    uses.read_on(context.deadline())
    if changes := uses.changes():
        context.journal.note(changes, context.deadline())
    while actions:
        stop = guard.refusal() or context.journal.read_on(context.deadline())
        if stop is not None:
            outcomes += [not_deleted(name, stop) for name in actions]
            break
        size = context.memory.batch
        batch, actions = actions[:size], actions[size:]
        done, is_stuck = _delete_batch(context, plan, observation, batch, guard, Known(earlier, uses))
        outcomes += done
        if is_stuck:
            # Some broker hangs, or the ledger is out of reach: what else is due would wait for as long.
            why = Keep(reasons.INTERRUPTED, "not tried: an earlier deletion of this run came to no end")
            return outcomes + [not_deleted(name, why) for name in actions]
    return outcomes


def _delete_batch(
    context: Context,
    plan: Plan,
    observation: Observation,
    batch: Sequence[str],
    guard: Guard,
    known: Known,
) -> Batch:
    deadline = context.deadline()
    moved = leaders_moved(context, observation.snapshot.cluster, deadline)
    if moved is not None:
        return Batch([not_deleted(name, moved) for name in batch])
    # What is read must still hold when it is deleted, however few requests a second the connection allows.
    with context.client.burst():
        return _delete_unpaced(context, plan, observation, batch, guard, known)


def _delete_unpaced(
    context: Context,
    plan: Plan,
    observation: Observation,
    batch: Sequence[str],
    guard: Guard,
    known: Known,
) -> Batch:
    deadline = context.deadline()
    read = read_again(context, plan, observation.snapshot.cluster, batch, known.uses, deadline)
    outcomes = [not_deleted(name, keep) for name, keep in read.kept.items()]
    _adjust_batch(context, len(batch), read.late)
    ready = {name: each for name, each in read.ready.items() if not _is_used_since(known.earlier.get(name), each)}
    why = Keep(reasons.REAPPEARED, "an interrupted deletion took a part of it, and it is used since")
    outcomes += [not_deleted(name, why) for name in read.ready if name not in ready]
    if not ready:
        return Batch(outcomes)
    left = guard.seconds_left() - MARGIN_S
    if left <= 0:
        return Batch(outcomes + [not_deleted(name, _not_leader()) for name in ready])
    now, cluster_id = context.clock.now(), observation.snapshot.cluster.id
    saved = {
        name: _saved(_backup(plan.policy, cluster_id, each, now), known.earlier.get(name))
        for name, each in ready.items()
    }
    done, is_stuck = _delete_ready(context, plan, saved, read, min(INTENT_S, left), guard)
    return Batch(outcomes + done, is_stuck)


def _is_used_since(earlier: Earlier | None, ready: Ready) -> bool:
    # Offsets of topics go from groups that are in use, too.
    return earlier is not None and not earlier.backup.partial and is_used_since(earlier.backup, ready.offsets)


def _delete_ready(
    context: Context, plan: Plan, saved: Mapping[str, Saved], read: Reread, seconds: float, guard: Guard
) -> Batch:
    """Save, delete and record the groups of one batch, which were read again just now, within `seconds`."""
    clock, journal = context.clock, context.journal
    now, until = clock.now(), Deadline(seconds)
    intents = {
        name: _intent(context, plan.policy, each.parts[0], read.ready[name], now, seconds)
        for name, each in saved.items()
    }
    backups = [part for each in saved.values() for part in each.parts]
    over = [Removal(key) for each in saved.values() for key in each.superseded]
    unwritten = journal.record([*backups, *over, *intents.values()], Deadline(seconds))
    if unwritten is not None:
        return Batch([not_deleted(name, unwritten) for name in saved])
    stops = _last_words(context, read, saved, guard)
    send = {name: read.ready[name] for name in saved if name not in stops}
    results: dict[str, Result] = {}
    if send:
        # Sent now or not at all: connections to the coordinators stand, as they answered a moment ago.
        left = Deadline(min(until.left, FRESH_S - (clock.monotonic() - read.started)))
        if plan.policy.by_topic:
            results = delete_offsets(context, send, left)
        else:
            large = {name: ready for name, ready in send.items() if is_large(context, ready)}
            results = delete_groups(context, {name: send[name] for name in send if name not in large}, left)
            results |= {
                name: delete_large_group(context, ready, until, partial(_stop, context, guard, name))
                for name, ready in large.items()
            }
        unsent = send.keys() - results.keys()
        stops |= dict.fromkeys(unsent, Keep(reasons.OFFSETS_UNKNOWN, NOT_SENT))
        if unsent:
            _adjust_batch(context, len(read.ready) + len(read.kept), late=True)
    unsettled = [intents[name] for name, result in results.items() if isinstance(result, Unsettled)]
    gone = are_gone(context, unsettled, Deadline(seconds))
    marks = journal.contents.marks.get(plan.policy.uid, {})
    outcomes: list[Outcome] = []
    is_stuck = False
    changes: list[Change] = []
    for name, intent in intents.items():
        outcome = not_deleted(name, stops[name]) if name in stops else results[name]
        if isinstance(outcome, Unsettled):
            if not gone[name].all:
                # It may still be carried out: the intent stays open, and is settled by a later run.
                outcomes.append(outcome.outcome)
                is_stuck |= outcome.outcome.reason == reasons.INTERRUPTED
                continue
            outcome = carried_out(intent, gone[name], "deleted")
        outcomes.append(outcome)
        # Brokers erase a share group's state first, and may then find that somebody joined it.
        needed = name in results and intent.type == GroupType.SHARE
        useless = [] if needed else [part.key for part in saved[name].parts]
        changes += conclusion(intent, outcome, useless, clock.now(), marks.get(name))
    if journal.record(changes) is not None:
        # No loss: the intents are there. The run that settles them counts them, and no other one does.
        gone_now = {outcome.group for outcome in outcomes if outcome.kind is OutcomeKind.DELETED}
        context.memory.unrecorded |= {intents[name].id: plan.policy.uid for name in gone_now}
        why = Keep(reasons.INTERRUPTED, "deleted, but that could not be written: a later run does")
        outcomes = [not_deleted(each.group, why) if each.group in gone_now else each for each in outcomes]
        is_stuck |= bool(gone_now)
    return Batch(outcomes, is_stuck)


def _adjust_batch(context: Context, size: int, late: bool) -> None:
    """Fewer groups at a time where brokers are slow, or groups large, until a batch is in time; then more again."""
    memory = context.memory
    memory.batch = max(1, size // 2) if late else min(BATCH, max(memory.batch, 2 * size))


def _last_words(context: Context, read: Reread, names: Iterable[str], guard: Guard) -> dict[str, Keep]:
    """Which groups stay, now that their intents are written, and why.

    Whoever asks to keep a group writes that, and then looks for an intent; we wrote the intent, and now look for
    requests. So one of the two sees the other.
    """
    clock, journal = context.clock, context.journal
    # The first question of this batch may be minutes old: reading the groups again takes as long as the cluster does.
    problem = guard.refusal() or journal.read_on(Deadline(FRESH_S))
    if problem is None and clock.monotonic() - read.started > FRESH_S:
        problem = Keep(reasons.OFFSETS_UNKNOWN, f"reading and saving it took more than {FRESH_S:.0f} s")
        _adjust_batch(context, len(read.ready) + len(read.kept), late=True)
    if problem is None and guard.seconds_left() < MARGIN_S:
        problem = _not_leader()
    if problem is not None:
        return dict.fromkeys(names, problem)
    # The plan and its dates are as good as the clock, which may have been set since the scan.
    problem = journal.skew(clock.now())
    if problem is not None:
        return dict.fromkeys(names, problem)
    asked = {name: _asked_to_keep(context, name) for name in names}
    return {name: keep for name, keep in asked.items() if keep is not None}


def _asked_to_keep(context: Context, name: str) -> Keep | None:
    request = context.journal.contents.keeps.get(name)
    if request is None or request.until <= context.clock.now():
        return None
    return Keep(reasons.KEPT_ON_REQUEST, f"{request.by} asked to keep it just now")


def carried_out(intent: Intent, gone: Gone, message: str) -> Outcome:
    """What an intent meant to do was done, or as much of it as is `gone`."""
    if not intent.topics:
        return Outcome(intent.group, OutcomeKind.DELETED, reasons.DELETED, message)
    message = f"offsets of {named(gone.topics)} {message}"
    return Outcome(intent.group, OutcomeKind.DELETED, reasons.OFFSETS_DELETED, message, tuple(sorted(gone.topics)))


def conclusion(
    intent: Intent, outcome: Outcome, backup: Iterable[Key], now: datetime, mark: Mark | None = None
) -> list[Change]:
    """What ends an intent in the ledger: the outcome; and of what was deleted the mark, else the backup.

    mark: the group's own, of the intent's policy; what it says of other topics stays.
    """
    deleted = outcome.kind is OutcomeKind.DELETED
    # Of a deletion that came to no end, a request may still be carried out.
    may_go_yet = outcome.reason in (reasons.INTERRUPTED, reasons.REAPPEARED)
    entry = OutcomeEntry(
        group=intent.group,
        id=intent.id,
        at=now,
        what=What.OFFSETS_DELETED if deleted and intent.topics else _WHAT[outcome.kind],
        reason=outcome.reason,
        message=outcome.message,
        policy=intent.policy,
        policy_uid=intent.policy_uid,
        generation=intent.generation,
        expires=intent.expires,
        marked_since=intent.marked_since,
        type=intent.type if may_go_yet else "",
        writer=intent.writer if may_go_yet else "",
        topics=outcome.topics if deleted else intent.topics,
    )
    changes: list[Change] = [entry, Removal(intent.key)]
    if not deleted:
        return [*changes, *map(Removal, backup)]
    uid, name = intent.policy_uid, intent.group
    topics = {} if mark is None else {t: at for t, at in mark.topics.items() if t not in outcome.topics}
    if mark is not None and topics and intent.topics:
        since = min(topics.values())
        changes.append(replace(mark, topics=topics, since=since, due=since + (mark.due - mark.since)))
    else:
        changes.append(Removal(("mark", uid, name)))
    return changes if intent.topics else [*changes, Removal(("seen", uid, name))]


def _saved(backup: Backup, earlier: Earlier | None) -> Saved:
    if earlier is None:
        return Saved(in_parts(backup), ())
    complete = replace(with_earlier(backup, earlier.backup), continues=earlier.backup.id)
    return Saved(in_parts(complete), earlier.superseded)


def _backup(policy: Policy, cluster_id: str, ready: Ready, now: datetime) -> Backup:
    """What saves one group."""
    rows: dict[str, list[SavedOffset]] = {}
    for partition, offset in sorted(ready.offsets.items()):
        saved = SavedOffset(partition.partition, *offset, ready.lag.get(partition))
        rows.setdefault(partition.topic, []).append(saved)
    return Backup(
        group=ready.group.id,
        id=new_id(now),
        part=0,
        parts=1,
        type=str(ready.group.type),
        protocol_type=ready.group.protocol_type,
        cluster=cluster_id,
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


def _intent(context: Context, policy: Policy, backup: Backup, ready: Ready, now: datetime, seconds: float) -> Intent:
    mark = context.journal.contents.marks.get(policy.uid, {}).get(backup.group)
    return Intent(
        group=backup.group,
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
        topics=tuple(sorted({place.topic for place in ready.offsets})) if policy.by_topic else (),
        partitions=len(ready.offsets) if not policy.by_topic and is_large(context, ready) else 0,
    )


def new_id(now: datetime) -> str:
    """An id that sorts by time."""
    return f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def _stop(context: Context, guard: Guard, name: str) -> Keep | None:
    """Why nothing more may be sent of the deletion of a group that takes several requests."""
    stop = guard.refusal() or context.journal.read_on(Deadline(FRESH_S)) or _asked_to_keep(context, name)
    return stop or (_not_leader() if guard.seconds_left() < MARGIN_S else None)


def _not_leader() -> Keep:
    return Keep(reasons.NOT_LEADER, "this process does not lead any more, or not for long enough")
