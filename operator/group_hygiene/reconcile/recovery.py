"""Resolves deletions that a process began and did not finish: finds out their outcomes, and writes these."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.settings import COMMAND_WRITER
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, Intent, OutcomeType
from group_hygiene.model.entries import Outcome as OutcomeEntry
from group_hygiene.reconcile.context import Context, Memory
from group_hygiene.reconcile.delete_requests import Gone, are_gone
from group_hygiene.reconcile.deletion import INTENT_S, closing_changes, deleted_outcome
from group_hygiene.reconcile.executor import Executor
from group_hygiene.reconcile.interruptions import interrupted_outcome

# For how long intents of another connection's processes are left alone: none of them takes that long for a batch.
_OTHERS_S = 120.0
# For how long a deletion stays unresolved while its group exists. A deletion after that does not count as a late
# request.
_UNRESOLVED_S = 3600.0

_INTERRUPTED = "deleted; the process that did it was interrupted"
_RESTORED = "deleted, and restored since; the process that deleted it was interrupted"
_UNWRITTEN = "deleted; that could not be written at once"
_LATE = "gone: deleted by a request without an answer, or by another client since"


def _open_entries(contents: Contents) -> list[Intent | OutcomeEntry]:
    return [*contents.unresolved.values(), *contents.intents.values()]


def has_unresolved(contents: Contents, writer: str) -> bool:
    """Whether the ledger has an unresolved deletion by a command, or by the processes that write as `writer`."""
    return any(each.writer == writer or each.writer.startswith(COMMAND_WRITER) for each in _open_entries(contents))


def recover_intents(context: Context) -> Mapping[str, int]:
    """Resolve every open intent of the ledger; returns policy uid -> how many groups turned out to be deleted.

    The writer of an intent may act on it until its deadline. So an intent is left alone until this process has known it
    for that long, by its own monotonic clock: the writer may be a frozen process on a machine with another time.
    Intents of another connection to the same cluster are left alone for longer. If a group can't be read, its intent
    stays open, and no policy deletes the group. While the group exists, its deletion stays unresolved for an hour: a
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
    intents = [intent for intent in contents.intents.values() if intent.id in old]
    unresolved = [before for before in contents.unresolved.values() if before.id in old]
    # If a group has both, the intent counts.
    gone = are_gone(context, [*unresolved, *intents], context.deadline())
    changes, done = _closing_changes(context, intents, unresolved, gone)
    if not changes:
        return deleted
    if Executor(context).record(changes) is not None:
        # The next read of the ledger shows whether it was written; then it is counted, once.
        memory.unrecorded |= done
        return deleted
    memory.unrecorded = {id_: uid for id_, uid in memory.unrecorded.items() if id_ not in done}
    return deleted + Counter(done.values())


def _wait_for_deadlines(context: Context) -> set[str]:
    """The ids of deletions known for long enough; waits for those of this connection's processes."""
    memory, now, journal = context.memory, context.clock.monotonic(), context.journal
    contents = journal.contents
    entries = _open_entries(contents)
    memory.intents = {entry.id: memory.intents.get(entry.id, now) for entry in entries}
    own = {entry.id for entry in entries if entry.writer == journal.writer}
    others = {id_ for id_, since in memory.intents.items() if now - since >= _OTHERS_S}
    acting = [memory.intents[intent.id] for intent in contents.intents.values() if intent.id in own]
    pause = max(acting, default=now - INTENT_S) + INTENT_S - now
    if pause > 0:
        time.sleep(min(pause, INTENT_S))
    return own | others


def _found_recorded(memory: Memory, contents: Contents) -> Counter[str]:
    """Policy uid -> number of deletions that are in the ledger although the write appeared to fail."""
    pending = {entry.id for entry in _open_entries(contents)}
    found = {id_: uid for id_, uid in memory.unrecorded.items() if id_ not in pending}
    for id_ in found:
        del memory.unrecorded[id_]
    return Counter(found.values())


def _closing_changes(
    context: Context, intents: Iterable[Intent], unresolved: Iterable[OutcomeEntry], gone: Mapping[str, Gone]
) -> tuple[list[Change], dict[str, str]]:
    """The changes to write, and the deletions that they record: id -> uid of the policy."""
    memory, contents, clock = context.memory, context.journal.contents, context.clock
    changes: list[Change] = []
    done: dict[str, str] = {}
    for intent in intents:
        name, at = intent.group, clock.now()
        is_sure = intent.id in memory.unrecorded
        if name in contents.restored and (is_sure or not intent.partitions):
            # One request deletes a group as a whole or not at all. In the history the deletion comes before the
            # restore.
            message, at = _RESTORED, intent.at
        elif is_sure:
            message = _UNWRITTEN
        elif gone[name].all or gone[name].topics:
            message = _INTERRUPTED
        else:
            message = ""
        if message:
            # A group that was restored, or certainly deleted, may exist again by now.
            found = gone[name] if message == _INTERRUPTED else Gone(True, frozenset(intent.topics))
            mark = contents.marks.get(intent.policy_uid, {}).get(name)
            changes += closing_changes(intent, deleted_outcome(intent, found, message), (), at, mark)
            done[intent.id] = intent.policy_uid
        elif gone[name].all is False:
            # Its backup stays until its retention ends: it may still be needed.
            left = interrupted_outcome(context, intent)
            if left is not None:
                changes += closing_changes(intent, left, (), at)
    for before in unresolved:
        name = before.group
        if name in contents.intents:
            continue
        if gone[name].all:
            changes.append(_late_deletion(before, clock.now()))
            done[before.id] = before.policy_uid
        elif gone[name].all is False and clock.monotonic() - memory.intents[before.id] >= _UNRESOLVED_S:
            changes.append(msgspec.structs.replace(before, type="", writer=""))
    return changes, done


def _late_deletion(before: OutcomeEntry, now: datetime) -> OutcomeEntry:
    type_, reason = OutcomeType.DELETED, reasons.DELETED
    if before.topics:
        type_, reason = OutcomeType.OFFSETS_DELETED, reasons.OFFSETS_DELETED
    return msgspec.structs.replace(before, at=now, what=type_, reason=reason, message=_LATE, type="", writer="")
