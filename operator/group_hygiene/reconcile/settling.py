"""Deletions that a process began and did not finish: find out what became of them, and write it down."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from group_hygiene import reasons
from group_hygiene.contents import Contents
from group_hygiene.entries import Change, Intent, What
from group_hygiene.entries import Outcome as OutcomeEntry
from group_hygiene.reconcile.context import Context, Memory
from group_hygiene.reconcile.deletion import INTENT_S, carried_out, conclusion
from group_hygiene.reconcile.interrupted import what_is_left
from group_hygiene.reconcile.sending import Gone, are_gone

# For how long those of another connection's processes are left to them: none of them takes so long over a batch.
_OTHERS_S = 120.0
# For how long a group that is still there stays in doubt. Who deletes it later is not taken for a late request.
_DOUBT_S = 3600.0

_INTERRUPTED = "deleted; the process that did it was interrupted"
_RESTORED = "deleted, and restored since; the process that deleted it was interrupted"
_UNWRITTEN = "deleted; that could not be written at once"
_LATE = "gone: deleted by a request that nobody answered, or by somebody else meanwhile"


def _open(contents: Contents) -> list[Intent | OutcomeEntry]:
    return [*contents.doubtful.values(), *contents.intents.values()]


def leaves_open(contents: Contents, writer: str) -> bool:
    """Whether the ledger has something to settle of the connection whose processes write under this name."""
    return any(entry.writer == writer for entry in _open(contents))


def settle(context: Context) -> Mapping[str, int]:
    """Bring every open intent of the ledger to its end; policy uid -> how many groups turned out to be deleted.

    Whoever wrote an intent may act on it until its deadline. So an intent is left alone until this process has known
    it for that long, by its own monotonic clock: the writer may be a frozen process, on a machine with another time.
    What another connection to the same cluster began is its own matter for longer. An intent whose group can't be
    asked about stays open, and its group is left alone meanwhile. A group that is still there stays in doubt for an
    hour: a broker that hung may carry the request out whenever it goes on.
    """
    journal, memory = context.journal, context.memory
    contents = journal.contents
    if not journal.writable or not (contents.intents or contents.doubtful or memory.unrecorded):
        return {}
    old = _wait_out(context)
    # What its writer ended meanwhile is not ours to end.
    if journal.read_on(context.deadline()) is not None:
        return {}
    deleted = _found_recorded(memory, contents)
    intents = [intent for intent in contents.intents.values() if intent.id in old]
    doubts = [before for before in contents.doubtful.values() if before.id in old]
    # Of a group with both, the intent is what counts.
    gone = are_gone(context, [*doubts, *intents], context.deadline())
    changes, done = _conclusions(context, intents, doubts, gone)
    if not changes:
        return deleted
    if journal.record(changes) is not None:
        # Whether it is written shows when the ledger can be read again, and then it is counted, once.
        memory.unrecorded |= done
        return deleted
    memory.unrecorded = {id_: uid for id_, uid in memory.unrecorded.items() if id_ not in done}
    return deleted + Counter(done.values())


def _wait_out(context: Context) -> set[str]:
    """The ids of what has been known for long enough; waits for what this connection's processes began."""
    memory, now, journal = context.memory, context.clock.monotonic(), context.journal
    contents = journal.contents
    entries = _open(contents)
    memory.intents = {entry.id: memory.intents.get(entry.id, now) for entry in entries}
    own = {entry.id for entry in entries if entry.writer == journal.writer}
    others = {id_ for id_, since in memory.intents.items() if now - since >= _OTHERS_S}
    acting = [memory.intents[intent.id] for intent in contents.intents.values() if intent.id in own]
    pause = max(acting, default=now - INTENT_S) + INTENT_S - now
    if pause > 0:
        time.sleep(min(pause, INTENT_S))
    return own | others


def _found_recorded(memory: Memory, contents: Contents) -> Counter[str]:
    """How many deletions of which policy are in the ledger, though that seemed not to be written: it was, after all."""
    pending = {entry.id for entry in _open(contents)}
    found = {id_: uid for id_, uid in memory.unrecorded.items() if id_ not in pending}
    for id_ in found:
        del memory.unrecorded[id_]
    return Counter(found.values())


def _conclusions(
    context: Context, intents: Iterable[Intent], doubts: Iterable[OutcomeEntry], gone: Mapping[str, Gone]
) -> tuple[list[Change], dict[str, str]]:
    """What to write, and which deletions that tells of: id -> uid of the policy."""
    memory, contents, clock = context.memory, context.journal.contents, context.clock
    changes: list[Change] = []
    done: dict[str, str] = {}
    for intent in intents:
        name, at = intent.group, clock.now()
        is_sure = intent.id in memory.unrecorded
        if name in contents.restored and (is_sure or not intent.partitions):
            # One request deletes a group as a whole or not at all. History tells of it before it tells of the restore.
            message, at = _RESTORED, intent.at
        elif is_sure:
            message = _UNWRITTEN
        elif gone[name].all or gone[name].topics:
            message = _INTERRUPTED
        else:
            message = ""
        if message:
            # What was restored, or surely deleted, may be there again by now.
            found = gone[name] if message == _INTERRUPTED else Gone(True, frozenset(intent.topics))
            mark = contents.marks.get(intent.policy_uid, {}).get(name)
            changes += conclusion(intent, carried_out(intent, found, message), (), at, mark)
            done[intent.id] = intent.policy_uid
        elif gone[name].all is False:
            # Its backup stays until its retention ends: it may yet be needed.
            left = what_is_left(context, intent)
            if left is not None:
                changes += conclusion(intent, left, (), at)
    for before in doubts:
        name = before.group
        if name in contents.intents:
            continue
        if gone[name].all:
            changes.append(_late(before, clock.now()))
            done[before.id] = before.policy_uid
        elif gone[name].all is False and clock.monotonic() - memory.intents[before.id] >= _DOUBT_S:
            changes.append(msgspec.structs.replace(before, type="", writer=""))
    return changes, done


def _late(before: OutcomeEntry, now: datetime) -> OutcomeEntry:
    what, reason = What.DELETED, reasons.DELETED
    if before.topics:
        what, reason = What.OFFSETS_DELETED, reasons.OFFSETS_DELETED
    return msgspec.structs.replace(before, at=now, what=what, reason=reason, message=_LATE, type="", writer="")
