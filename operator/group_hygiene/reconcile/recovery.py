"""Resolves deletions that a process began and did not finish: finds out their outcomes, and writes these."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from group_hygiene.kafka import growth
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.kafka.offsets_log import Commit, GroupState
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.settings import COMMAND_WRITER
from group_hygiene.model.entries import Intent, Key
from group_hygiene.model.entries import Outcome as OutcomeEntry
from group_hygiene.model.groups import Fault
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.verdicts import Outcome, OutcomeKind
from group_hygiene.reconcile.context import Context, Memory
from group_hygiene.reconcile.deletion import INTENT_S
from group_hygiene.reconcile.executor import Executor
from group_hygiene.reconcile.interruptions import Remains, backup_of, read_remains
from group_hygiene.reconcile.preconditions import Guard, Moment
from group_hygiene.reconcile.settle import Done, Facts, Found, Request, State, settle
from group_hygiene.reconcile.window import Window, unread_window

# For how long intents of another connection's processes are left alone: none of them takes that long for a batch.
OTHERS_S = 120.0
# For how long a deletion stays in doubt while its group exists. A deletion after that does not count as a late request.
_DOUBT_S = 3600.0

_UNWRITTEN = "deleted; that could not be written at once"


def _open_deletions(contents: Contents) -> list[Intent | OutcomeEntry]:
    return [*contents.unresolved.values(), *contents.intents.values()]


def _is_by_command(deletion: Intent | OutcomeEntry) -> bool:
    return deletion.writer.startswith(COMMAND_WRITER)


def has_unresolved(contents: Contents, writer: str) -> bool:
    """Whether the ledger has an unresolved deletion by a command, or by the processes that write as `writer`."""
    return any(each.writer == writer or _is_by_command(each) for each in _open_deletions(contents))


def recover_intents(context: Context) -> Mapping[str, int]:
    """Resolve every open intent of the ledger; returns policy uid -> how many groups turned out to be deleted.

    The writer of an intent may act on it until its deadline. So an intent is left alone until this process has known it
    for that long, by its own monotonic clock: the writer may be a frozen process on a machine with another time.
    Intents of another connection to the same cluster are left alone for longer. If a group can't be read, its intent
    stays open, and no policy deletes the group. While the group exists, its deletion stays in doubt for an hour: a
    broker that hung may still carry out the request.
    """
    journal, memory = context.journal, context.memory
    contents = journal.contents
    if not journal.writable or not (contents.intents or contents.unresolved or memory.unrecorded):
        return {}
    old = _wait_for_deadlines(context)
    # Its writer may have resolved an intent since.
    if journal.read_on(context.deadline()) is not None:
        return {}
    deleted = _found_recorded(memory, contents)
    now = context.clock.monotonic()
    over = {id_ for id_, since in memory.intents.items() if now - since >= _DOUBT_S}
    return deleted + _settle(context, old, over)


def recover_commands(context: Context, guard: Guard, seconds: float = INTENT_S + OTHERS_S) -> None:
    """Resolve deletions that earlier commands left open, if their entries are older than `seconds`; for a command.

    A command's life is too short to wait for their deadlines. So it compares the times at which the broker appended
    their entries with that of a write of its own: clocks of users' machines don't count. Deletions that the operator
    began are left to the operator.
    """
    journal = context.journal
    by_key = {each.key: each for each in _open_deletions(journal.contents) if _is_by_command(each)}
    if not by_key or not journal.writable:
        return
    executor = Executor(context, guard)
    if executor.refusal(context.deadline(), Moment.REQUEST) or isinstance(executor.broker_time(), Refusal):
        return
    times, now = journal.append_times(by_key.keys(), context.deadline()), journal.stamp
    # Another process may have resolved one since.
    if isinstance(times, Refusal) or now is None or journal.read_on(context.deadline()) is not None:
        return
    ages = {by_key[key].id: (now - at).total_seconds() for key, at in times.items()}
    _settle(
        context,
        [id_ for id_, age in ages.items() if age >= seconds],
        [id_ for id_, age in ages.items() if age >= _DOUBT_S],
    )


def _wait_for_deadlines(context: Context) -> set[str]:
    """The ids of deletions known for long enough; waits for those of this connection's processes."""
    memory, now, journal = context.memory, context.clock.monotonic(), context.journal
    contents = journal.contents
    entries = _open_deletions(contents)
    memory.intents = {entry.id: memory.intents.get(entry.id, now) for entry in entries}
    own = {entry.id for entry in entries if entry.writer == journal.writer}
    others = {id_ for id_, since in memory.intents.items() if now - since >= OTHERS_S}
    acting = [memory.intents[intent.id] for intent in contents.intents.values() if intent.id in own]
    pause = max(acting, default=now - INTENT_S) + INTENT_S - now
    if pause > 0:
        time.sleep(min(pause, INTENT_S))
    return own | others


def _found_recorded(memory: Memory, contents: Contents) -> Counter[str]:
    """Policy uid -> number of deletions that are in the ledger although the write appeared to fail."""
    pending = {entry.id for entry in _open_deletions(contents)}
    found = [memory.unrecorded.pop(id_).policy_uid for id_ in memory.unrecorded.keys() - pending]
    return Counter(found)


def _settle(context: Context, old: Collection[str], over: Collection[str]) -> Counter[str]:
    """Write the outcomes of deletions whose processes act no more; returns policy uid -> how many groups are deleted.

    old: the ids of these deletions. over: ids of those that were in doubt for an hour.
    """
    memory, journal = context.memory, context.journal
    # If a group has a later intent, that one is resolved first.
    by_group = journal.contents.unresolved | journal.contents.intents
    deletions = [each for each in by_group.values() if each.id in old]
    remains = read_remains(context, deletions, context.deadline(), parts=True)
    if any(each.found is Found.GONE for each in remains.values()) and _is_grown(context):
        # A broker that is asked for a group may look for it in another partition than the one that has it.
        return Counter()
    results = [settle(_facts(context, each, remains[each.group], each.id in over)) for each in deletions]
    done = _completed(context, deletions, [result for result in results if isinstance(result, Done)])
    if not done:
        return Counter()
    recorded = [result.entry for result in done if result.outcome.kind is OutcomeKind.DELETED]
    problem = Executor(context).record([change for result in done for change in result.changes])
    for result in done:
        memory.unsent.pop(result.entry.id, None)
    for entry in recorded:
        # If the write failed, the next read of the ledger shows whether it is there; then it is counted, once.
        memory.unrecorded.pop(entry.id, None) if problem is None else memory.unrecorded.update({entry.id: entry})
    return Counter(entry.policy_uid for entry in recorded if problem is None)


def _is_grown(context: Context) -> bool:
    cluster = read_cluster(context.client, context.deadline(), context.connection.topics_attested)
    if isinstance(cluster, Fault) or context.memory.grown:
        return True
    return bool(growth.by_coordinators(context.client, cluster, Deadline(context.deadline().left / 2)))


def _completed(context: Context, deletions: Collection[Intent | OutcomeEntry], done: Sequence[Done]) -> list[Done]:
    """The same ends, with what the groups committed right before their deletions."""
    groups = {each.entry.group for each in done if each.outcome.kind is OutcomeKind.DELETED}
    deleted = {each.group: each for each in deletions if each.group in groups}
    if not deleted:
        return list(done)
    cluster = read_cluster(context.client, context.deadline(), context.connection.topics_attested)
    if isinstance(cluster, Fault):
        return [unread_window(each, str(cluster)) if each.entry.group in groups else each for each in done]

    def matters(record: Commit | GroupState) -> bool:
        topics = deleted[record.group].topics
        return not topics or (isinstance(record, Commit) and record.topic in topics)

    window = Window(context, cluster, {name: each.log_ends for name, each in deleted.items()}, matters)
    window.close(context.deadline())
    return [
        window.completed(each, partial(backup_of, context, each.entry)) if each.entry.group in groups else each
        for each in done
    ]


def _facts(context: Context, deletion: Intent | OutcomeEntry, remains: Remains, is_over: bool) -> Facts:
    contents, found, memory = context.journal.contents, remains.found, context.memory
    known, unsent = memory.unrecorded.get(deletion.id), memory.unsent.get(deletion.id)
    request: Request = Request.UNKNOWN
    answer: Outcome | None = None
    backup: Sequence[Key] = ()
    if known is not None:
        answer = Outcome(known.group, OutcomeKind.DELETED, known.reason, _UNWRITTEN, known.topics)
        request = Request.CONFIRMED
    elif unsent is not None and deletion.group not in contents.contested:
        request, (answer, backup) = Request.NOT_SENT, unsent
    if deletion.id in contents.restored:
        # One request deletes a group as a whole or not at all.
        if not deletion.partitions:
            found = Found.RESTORED
        elif found not in (Found.GONE, Found.UNKNOWN):
            found = Found.PART_RESTORED
    in_doubt = State.DOUBT_OVER if is_over else State.IN_DOUBT
    return Facts(
        deletion=deletion,
        state=State.INTENT if isinstance(deletion, Intent) else in_doubt,
        request=request,
        found=found,
        now=context.clock.now(),
        answer=answer,
        topics=remains.topics if found is Found.SOME_TOPICS else deletion.topics,
        left=remains.left,
        backup=backup,
        mark=contents.marks.get(deletion.policy_uid, {}).get(deletion.group),
    )
