"""The start of a run: opens the ledger of a connection if its policies need one, and ends what earlier processes left.

These are deletions that a process began and did not finish: what is left of their groups, their backups and their
outcomes. An interrupted deletion may have deleted some of a group's offsets, which only its backup has then. So the
next backup includes them, and replaces the one before it: deletions that fail at every run must not fill the ledger.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from group_hygiene.engine.context import Context, Memory
from group_hygiene.engine.executor import Executor, Guard, Ledger, Moment, ProofInput, open_ledger, refusals
from group_hygiene.engine.settle import (
    Answer,
    DeletionFacts,
    DeletionState,
    Done,
    Presence,
    Remains,
    RequestState,
    settle,
)
from group_hygiene.engine.uses import DeletionWindow, find_growth
from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.ledger.contents import COMMAND_WRITER, Contents, LedgerSettings, group_of
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, HistoryEntry, Intent, Key, OutcomeType, saved_offsets, whole
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.groups import Fault, Group, GroupState, GroupType, Offsets, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import Connection
from group_hygiene.spec.policy import Policy

Deletion = Intent | HistoryEntry

# An intent is valid for this long at most; a successor waits that long before it acts.
INTENT_S = 10.0
# For how long intents of another connection's processes are left alone: none of them takes that long for a batch.
OTHERS_S = 120.0
# For how long a deletion stays in doubt while its group exists. A deletion after that does not count as a late request.
_DOUBT_S = 3600.0

_UNWRITTEN = "deleted; that could not be written at once"


class LedgerNeed(Enum):
    """A run's use of the ledger."""

    SHOW = "to show its entries, as a command that changes nothing"
    READ = "to read its entries; it is written if an earlier run left something open"
    WRITE = "to restore from it, so it must exist"
    CREATE = "some policy may change Kafka or has receivers, so it is created if there is none"


def ledger_settings(connection: Connection, status: Mapping[str, Any], installation: str) -> LedgerSettings:
    """The settings of a connection's ledger. status: the current one of its object."""
    known = status.get("ledger") or {}
    return LedgerSettings(
        topic=connection.ledger.topic,
        replication_factor=connection.ledger.replication_factor,
        installation=installation,
        writer=f"group-hygiene-{installation}-{connection.uid}",
        known=connection.ledger.confirmed or known.get("id"),
        known_topic=known.get("topic") if known.get("id") else None,
    )


def few_replicas(ledger: Ledger | None, connection: Connection) -> Refusal | None:
    """A note that the ledger's topic has fewer replicas than the spec asks for; None = it has enough."""
    wanted = connection.ledger.replication_factor
    if ledger is None or ledger.replicas >= wanted:
        return None
    message = (
        f"topic {ledger.topic} has {ledger.replicas} replicas, and ledger.replicationFactor asks for {wanted}: if "
        "their brokers are lost, so are backups. Add replicas with kafka-reassign-partitions, or lower the number"
    )
    return Refusal(reasons.FEW_REPLICAS, message)


def open_journal(
    memory: Memory,
    client: Client,
    settings: LedgerSettings,
    need: LedgerNeed,
    policies: Iterable[str],
    deadline: Deadline,
) -> Journal:
    """The journal of one run: the ledger read to its end, if there is one or a policy needs one.

    Creates the ledger only for LedgerNeed.CREATE. This process writes it for that, for a restore, or while it has a
    mark of one of `policies` (their uids) or an unresolved deletion of this connection, even of a deleted policy.
    Raises LedgerFenced.
    """
    case = ProofInput(
        client=client,
        memory=memory,
        deadline=deadline,
        settings=settings,
        writes=need in (LedgerNeed.WRITE, LedgerNeed.CREATE),
    )
    problem = next(refusals(case, Moment.OPENING), None)
    try:
        if problem is not None:
            raise LedgerProblem(problem.message, problem.reason)
        if memory.ledger is None:
            create = need is LedgerNeed.CREATE
            # The status may not have it yet, or lack it for as long as it can't be written.
            known = replace(settings, known=settings.known or memory.ledger_id)
            memory.ledger = open_ledger(client, known, deadline, create, claim=create)
            memory.claimed = create
        ledger = memory.ledger
        if ledger is None:
            return Journal(None, memory.contents, memory.unwritten)
        memory.ledger_topic = settings.topic
        problem = next(refusals(case, Moment.OPENED), None)
        if problem is not None:
            raise LedgerProblem(problem.message, problem.reason)
        # An empty topic has no owner yet, and a restore does not claim it.
        needed = need is LedgerNeed.CREATE or (need is LedgerNeed.WRITE and ledger.id is not None)
        marked = any(ledger.contents.marks.get(uid) for uid in policies)
        writes = needed or marked or has_unresolved(ledger.contents, ledger.writer)
        writes = writes and need is not LedgerNeed.SHOW
        if writes and not memory.claimed:
            ledger.claim(deadline)
            memory.claimed = True
        memory.ledger_id = ledger.id or memory.ledger_id
    except LedgerProblem as error:
        memory.close_ledger()
        return Journal(None, memory.contents, memory.unwritten, problem=Refusal.of(error))
    ledger.contents.apply(memory.unwritten.values())
    # The same object from now on: if the ledger is not reachable later, its contents are still known.
    memory.contents = ledger.contents
    return Journal(ledger, ledger.contents, memory.unwritten, writes)


def _open_deletions(contents: Contents) -> list[Deletion]:
    return [*contents.unresolved.values(), *contents.intents.values()]


def has_unresolved(contents: Contents, writer: str) -> bool:
    """Whether the ledger has an unresolved deletion by a command, or by the processes that write as `writer`."""
    return any(each.writer == writer or each.writer.startswith(COMMAND_WRITER) for each in _open_deletions(contents))


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
    # They are in the ledger although the write appeared to fail.
    recorded = memory.unrecorded.keys() - {entry.id for entry in _open_deletions(contents)}
    deleted = Counter(memory.unrecorded.pop(id_).policy_uid for id_ in recorded)
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
    by_key = {each.key: each for each in _open_deletions(journal.contents) if each.writer.startswith(COMMAND_WRITER)}
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


def _settle(context: Context, old: Collection[str], over: Collection[str]) -> Counter[str]:
    """Write the outcomes of deletions whose processes act no more; returns policy uid -> how many groups are deleted.

    old: the ids of these deletions. over: ids of those that were in doubt for an hour.
    """
    contents = context.journal.contents
    # If a group has a later intent, that one is resolved first.
    by_group = contents.unresolved | contents.intents
    deletions = [each for each in by_group.values() if each.id in old]
    remains = read_remains(context, deletions, context.deadline(), parts=True)
    if any(each.found is Presence.GONE for each in remains.values()):
        deadline = context.deadline()
        cluster = read_cluster(context.client, deadline, context.connection.topics_attested)
        if isinstance(cluster, Fault) or find_growth(context, cluster, deadline, records=False, coordinators=True):
            # A broker that is asked for a group may look for it in another partition than the one that has it.
            return Counter()
    results = [settle(_facts(context, each, remains[each.group], each.id in over)) for each in deletions]
    done = [result for result in results if isinstance(result, Done)]
    lost = {name for name, each in remains.items() if each.found in (Presence.PART, Presence.PART_IN_USE)}
    lost |= {each.entry.group for each in done if each.outcome.kind is OutcomeType.DELETED}
    lost &= {each.entry.group for each in done}
    if lost:
        # What these groups committed right before.
        ended = [each for each in deletions if each.group in lost]
        cluster = read_cluster(context.client, context.deadline(), context.connection.topics_attested)
        window = DeletionWindow(context, cluster, ended)
        window.close(context.deadline(), {each.group: () for each in ended if each.type != GroupType.SHARE})
        done = [
            window.completed(each, partial(_backup_of, context, each.entry)) if each.entry.group in lost else each
            for each in done
        ]
    if not done or not record_ends(Executor(context), done):
        return Counter()
    return Counter(result.entry.policy_uid for result in done if result.outcome.kind is OutcomeType.DELETED)


def record_ends(executor: Executor, done: Sequence[Done]) -> bool:
    """Write how these deletions ended. False: not written. Then the next read of the ledger shows whether they are
    there, and they are counted, once.
    """
    memory = executor.context.memory
    problem = executor.record([change for each in done for change in each.changes])
    deleted = {each.entry.id: each.entry for each in done if each.outcome.kind is OutcomeType.DELETED}
    if problem is not None:
        memory.unrecorded |= deleted
        return False
    for each in done:
        memory.unsent.pop(each.entry.id, None)
    for id_ in deleted:
        memory.unrecorded.pop(id_, None)
    return True


def _facts(context: Context, deletion: Deletion, remains: Remains, is_over: bool) -> DeletionFacts:
    contents, memory = context.journal.contents, context.memory
    known, unsent = memory.unrecorded.get(deletion.id), memory.unsent.get(deletion.id)
    answer: Answer | None = None
    backup: Sequence[Key] = ()
    if known is not None:
        outcome = Outcome(known.group, OutcomeType.DELETED, known.reason, _UNWRITTEN, known.topics)
        answer = Answer(RequestState.CONFIRMED, outcome)
    elif unsent is not None and deletion.group not in contents.contested:
        outcome, backup = unsent
        answer = Answer(RequestState.NOT_SENT, outcome)
    if deletion.id in contents.restored:
        # One request deletes a group as a whole or not at all.
        if not deletion.partitions:
            remains = Remains(Presence.RESTORED, frozenset(deletion.topics))
        elif remains.found not in (Presence.GONE, Presence.UNKNOWN):
            remains = Remains(Presence.PART_RESTORED)
    in_doubt = DeletionState.DOUBT_OVER if is_over else DeletionState.IN_DOUBT
    return DeletionFacts(
        deletion=deletion,
        state=DeletionState.INTENT if isinstance(deletion, Intent) else in_doubt,
        answer=answer,
        remains=remains,
        now=context.clock.now(),
        backup=backup,
        mark=contents.marks.get(deletion.policy_uid, {}).get(deletion.group),
    )


class Earlier(NamedTuple):
    """The backup of an interrupted deletion after which the group still existed.

    backup: all offsets of the group then. superseded: the keys of an older backup that `backup` includes.
    """

    backup: Backup
    superseded: tuple[Key, ...]


def unfinished_before(context: Context, policy: Policy, names: Iterable[str]) -> dict[str, str]:
    """Group -> the id of its interrupted deletion whose backup a new one continues, by the ledger as last read.

    For DeleteOffsets, only deletions of the same policy count.
    """
    unfinished, now = context.journal.contents.unfinished, context.clock.now()
    found = {name: unfinished.get(name, {}).get(policy.uid if policy.by_topic else "") for name in names}
    return {name: outcome.id for name, outcome in found.items() if outcome is not None and outcome.expires > now}


def interrupted_before(
    context: Context, policy: Policy, names: Iterable[str]
) -> tuple[dict[str, Earlier], dict[str, Refusal]]:
    """The backup of each group's interrupted deletion, if it has one; and the Refusals where it can't be read."""
    ids = unfinished_before(context, policy, names)
    backups = _backups(context, ids)
    if isinstance(backups, Refusal):
        return {}, dict.fromkeys(ids, backups)
    earlier: dict[str, Earlier] = {}
    refused: dict[str, Refusal] = {}
    for name, id_ in ids.items():
        backup = _of_deletion(backups, name, id_)
        if backup is None:
            refused[name] = Refusal(reasons.INTERRUPTED, "the backup of an interrupted deletion of it can't be read")
            continue
        older = _of_deletion(backups, name, backup.continues)
        over = older is not None and has_all_of(backup, older)
        keys = [part.key for part in backups if over and (part.group, part.id) == (name, backup.continues)]
        earlier[name] = Earlier(backup, tuple(keys))
    return earlier, refused


def _backups(context: Context, groups: Iterable[str]) -> list[Backup] | Refusal:
    """The parts of all backups of the groups. Reads the whole ledger."""
    wanted = frozenset(groups)
    if not wanted:
        return []
    found = context.journal.entries(lambda key: key[0] == "backup" and group_of(key) in wanted, context.deadline())
    return found if isinstance(found, Refusal) else [entry for entry in found if isinstance(entry, Backup)]


def _backup_of(context: Context, deletion: Deletion) -> Backup | None:
    """The backup of a deletion; None if it can't be read. Reads the whole ledger."""
    found = _backups(context, [deletion.group])
    return None if isinstance(found, Refusal) else _of_deletion(found, deletion.group, deletion.id)


def _of_deletion(parts: Iterable[Backup], group: str, id_: str) -> Backup | None:
    return whole([part for part in parts if (part.group, part.id) == (group, id_)])


def has_all_of(newer: Backup, older: Backup) -> bool:
    """Whether the newer backup can restore all that the older one can, and for as long. Pure."""
    rows = saved_offsets(newer).items()
    return (
        newer.expires >= older.expires
        and saved_offsets(older).items() <= rows
        and all(newer.topic_ids.get(topic) == older.topic_ids.get(topic) for topic in older.offsets)
        and older.internal_topics.items() <= newer.internal_topics.items()
    )


def is_used_since(backup: Backup, offsets: Offsets) -> bool:
    """Whether a group that lost some offsets of its backup has committed others since. Pure.

    Never for topics' offsets, whose groups are in use. offsets: its committed offsets now.
    """
    saved = saved_offsets(backup)
    return not backup.partial and bool(saved.keys() - offsets.keys()) and not offsets.items() <= saved.items()


def read_remains(
    context: Context, deletions: Collection[Deletion], deadline: Deadline, parts: bool = False
) -> dict[str, Remains]:
    """What is left of the target of each deletion, by group; of one deletion per group.

    A group that exists may have come back with another type. parts: find out whether a large group lost a part, which
    reads the whole ledger.
    """
    groups = [each.group for each in deletions if not each.topics]
    existing = kafka_groups.find_groups(context.client, groups, deadline)
    # For a moment, a new coordinator does not show a group whose last records it has not committed: here it says so.
    absent = dict.fromkeys(name for name, answer in existing.items() if answer is None)
    left = kafka_offsets.committed_offsets(context.client, absent, deadline, require_stable=True)
    in_use = dict.fromkeys(each.group for each in deletions if each.topics)
    committed = kafka_offsets.committed_offsets(context.client, in_use, deadline)
    hidden = _hidden(context, in_use, {topic for each in deletions for topic in each.topics}, deadline)

    def remains(deletion: Deletion) -> Remains:
        topics = frozenset(deletion.topics)
        if topics:
            offsets = committed[deletion.group]
            if isinstance(offsets, Fault) or deletion.group in hidden:
                return Remains(Presence.UNKNOWN)
            gone = topics.difference(place.topic for place in offsets)
            some = Presence.SOME_TOPICS if gone else Presence.THERE
            return Remains(Presence.GONE if gone == topics else some, gone)
        answer = existing[deletion.group]
        if answer is None or isinstance(answer, Fault):
            return Remains(Presence.GONE if left.get(deletion.group) == {} else Presence.UNKNOWN)
        if parts and deletion.partitions:
            return _of_large_group(context, deletion, answer.group)
        return Remains(Presence.THERE)

    return {each.group: remains(each) for each in deletions}


def _hidden(context: Context, groups: Collection[str], topics: Collection[str], deadline: Deadline) -> Collection[str]:
    """The groups that may have hidden offsets of these topics.

    "All offsets" are without those of topics that the user may not DESCRIBE; a partition that is named is refused.
    """
    named = [Partition(topic, 0) for topic in topics]
    answers = kafka_offsets.committed_offsets(context.client, dict.fromkeys(groups), deadline, named) if named else {}
    return {group for group, answer in answers.items() if isinstance(answer, Fault)}


def _of_large_group(context: Context, deletion: Deletion, group: Group) -> Remains:
    """Of a group that exists: whether all offsets of its backup are there, and whether it was used since."""
    backups = _backups(context, [group.id])
    committed = kafka_offsets.committed_offsets(context.client, {group.id: None}, context.deadline())[group.id]
    if isinstance(backups, Refusal) or isinstance(committed, Fault):
        return Remains(Presence.UNKNOWN)
    backup = _of_deletion(backups, group.id, deletion.id)
    if backup is not None:
        saved = saved_offsets(backup).keys()
        if saved <= committed.keys():
            return Remains(Presence.THERE)
        if _hidden(context, [group.id], {place.topic for place in saved}, context.deadline()):
            return Remains(Presence.UNKNOWN)
    used = group.state is not GroupState.EMPTY or (backup is not None and is_used_since(backup, committed))
    return Remains(Presence.PART_IN_USE if used else Presence.PART, left=len(committed))
