"""`history` and `restore`: what the ledger has on groups. Opens the ledger for all commands, never as its owner."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Column, Report, Table, printable, working
from group_hygiene.cli.target import Session, open_session
from group_hygiene.engine.context import Context, Memory
from group_hygiene.engine.executor import Executor
from group_hygiene.engine.recovery import LedgerNeed, open_journal, recover_commands
from group_hygiene.engine.restorable import GroupResult, RestoreRequest, ResultKind
from group_hygiene.engine.restoration import restore
from group_hygiene.errors import LedgerProblem
from group_hygiene.ledger.contents import COMMAND_LINE, COMMAND_WRITER, LedgerSettings, group_of
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, Entry, HistoryEntry, KeepRequest, Key, Mark, whole
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import timestamp

_ENTRY_TYPES = frozenset({"outcome", "mark", "keep", "backup"})
_HISTORY = (
    *map(Column, ("TIME", "GROUP", "WHAT", "REASON", "BY", "UNTIL")),
    Column("BACKUP-UNTIL", "backupUntil"),
    Column("MESSAGE"),
    Column("MARKED-SINCE", "markedSince", wide=True),
    Column("ID", wide=True),
)
_GROUPS = (
    Column("GROUP"),
    Column("RESULT", cell=lambda d: "-" if d["reason"] == reasons.WOULD_RESTORE else d["result"]),
    Column("REASON"),
    Column("BACKUP", "backupTime"),
    Column("MESSAGE"),
)
_PARTITIONS = (
    *map(Column, ("GROUP", "TOPIC")),
    *(Column(title, number=True) for title in ("PARTITION", "SAVED", "COMMIT")),
    Column("REASON"),
    Column("MESSAGE", cell=lambda d: d["message"] or None),
)


class _Event(NamedTuple):
    """One row, in the order of the columns.

    until: when a mark is due or a keep request ends. backup_until: of a complete backup with this id.
    """

    at: datetime
    group: str
    what: str
    reason: str | None
    by: str
    until: datetime | None = None
    backup_until: datetime | None = None
    message: str | None = None
    marked_since: datetime | None = None
    id: str | None = None


class Opening(NamedTuple):
    """How a command uses the ledger. topic: None = that of the connection. optional: it is no error if there is none.

    any_topic: `topic` is that of another connection; deletions that commands left open there are not resolved.
    """

    need: LedgerNeed
    topic: str | None
    any_topic: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class CommandGuard:
    """The guard of a command: an edit of the KafkaConnection ends it; there is no Lease to lose."""

    session: Session

    def refusal(self) -> Refusal | None:
        return self.session.read_change()

    def seconds_left(self) -> float:
        return math.inf


@contextmanager
def open_cluster_and_ledger(target: ChosenCluster, opening: Opening) -> Iterator[tuple[Session, Executor]]:
    """The cluster and its ledger; see `open_executor`. Raises HygieneError."""
    with open_session(target) as session:
        yield session, open_executor(session, opening)


def open_executor(session: Session, opening: Opening) -> Executor:
    """The executor of a command. It writes with a new writer id, which fences no other writer; deletions that earlier
    commands left open are resolved.

    Raises LedgerProblem if there is no ledger, and where an operator would refuse: the brokers are not those of the
    KafkaConnection's status, or the ledger is not its ledger.
    """
    spec, of_operator = session.connection.ledger, session.known.get("ledger") or {}
    topic = opening.topic or spec.topic
    # Without Kubernetes it is not known which topic an operator uses.
    named = None if session.api is None else spec.topic
    settings = LedgerSettings(
        installation=COMMAND_LINE if opening.need is LedgerNeed.CREATE else None,
        writer=f"{COMMAND_WRITER}{secrets.token_hex(8)}",
        known=(spec.confirmed or of_operator.get("id")) if topic == spec.topic else None,
        known_topic=None if opening.any_topic else of_operator.get("topic", named),
        topic=topic,
        replication_factor=spec.replication_factor,
    )
    memory = Memory(cluster_id=session.cluster_id)
    with working("reading the ledger"):
        journal = open_journal(memory, session.client, settings, opening.need, (), session.deadline())
    problem, writes = journal.problem, opening.need is not LedgerNeed.SHOW
    if problem is None and writes and journal.exists and not journal.writable:
        problem = Refusal(reasons.LEDGER_UNAVAILABLE, f"the topic {topic} is not claimed as a ledger yet")
    if problem is not None:
        raise LedgerProblem(problem.message, problem.reason)
    context = Context(session.client, session.connection, memory, session.clock, journal, claims=session.claims)
    guard = CommandGuard(session)
    # Tenants may write another connection's ledger.
    if writes and not opening.any_topic:
        recover_commands(context, guard)
    if not journal.exists and not opening.optional:
        raise LedgerProblem(
            f"this cluster has no ledger: there is no topic {topic}. The operator creates it once a GroupPolicy "
            "deletes (mode Enforce) or has receivers; until then --create-ledger of keep and delete does. If the "
            "ledger is another topic, give --ledger-topic"
        )
    return Executor(context, guard)


def history(
    target: ChosenCluster, groups: Sequence[str], since: timedelta | None, topic: str | None, policy: str | None = None
) -> Report:
    """The events of the groups (none = all), newest first; keep requests in their current state.

    policy: only events by this GroupPolicy, as namespace/name.
    """
    named = frozenset(groups)

    def wanted(key: Key) -> bool:
        return bool(key) and key[0] in _ENTRY_TYPES and (not named or group_of(key) in named)

    with open_cluster_and_ledger(target, Opening(LedgerNeed.SHOW, topic, any_topic=True)) as (session, executor):
        now, journal = session.clock.now(), executor.context.journal
        with working("reading the ledger"):
            latest = journal.latest(wanted, session.deadline())
            events = list(_events(entry for _, entry in latest if entry is not None))
        contents = journal.contents
    first = None if since is None else now - since
    shown = sorted(
        (
            e
            for e in events
            if (first is None or e.at >= first or (e.until is not None and e.until > now)) and policy in (None, e.by)
        ),
        key=lambda event: (event.at, event.group),
        reverse=True,
    )
    errors = [
        f"group {group}: an entry can't be read: {why}"
        for group, why in sorted(contents.damaged.items())
        if not named or group in named
    ]
    if contents.hidden:
        errors.append(contents.hidden_summary)
    keys = [column.key or column.title.lower() for column in _HISTORY]
    documents = [
        dict(zip(keys, (timestamp(v) if isinstance(v, datetime) else v for v in event), strict=True)) for event in shown
    ]
    document = {"events": documents, "notes": [], "errors": errors}
    table = Table.of(documents, _HISTORY, () if shown else ["no entries"])
    return Report(document, list(dict.fromkeys(event.group for event in shown)), [table], (), errors)


def _events(entries: Iterable[Entry]) -> Iterator[_Event]:
    parts: dict[tuple[str, str], list[Backup]] = {}
    outcomes: list[HistoryEntry] = []
    # The time when each mark is due; None for marks that have ended, which only outcomes name.
    marks: dict[tuple[datetime, str, str], datetime | None] = {}
    topics: dict[tuple[datetime, str, str], list[str]] = {}
    for entry in entries:
        match entry:
            case Mark():
                marks[entry.since, entry.group, entry.policy] = entry.due
                topics[entry.since, entry.group, entry.policy] = sorted(entry.topics)
            case KeepRequest():
                yield _Event(entry.at, entry.group, "KeepRequested", None, entry.by, entry.until, message=entry.why)
            case HistoryEntry():
                outcomes.append(entry)
            case Backup():
                parts.setdefault((entry.group, entry.id), []).append(entry)
    expires = {key: backup.expires for key, found in parts.items() if (backup := whole(found)) is not None}
    for outcome in outcomes:
        if outcome.marked_since is not None:
            marks.setdefault((outcome.marked_since, outcome.group, outcome.policy), None)
        yield _Event(
            outcome.at,
            outcome.group,
            str(outcome.what),
            outcome.reason,
            outcome.policy,
            backup_until=expires.get((outcome.group, outcome.id)),
            message=outcome.message or None,
            marked_since=outcome.marked_since,
            id=outcome.id,
        )
    for (since, group, policy), due in marks.items():
        of = topics.get((since, group, policy))
        message = f"offsets of {', '.join(of)}" if of else None
        yield _Event(since, group, "Marked", None, policy, until=due, message=message)


def restore_groups(target: ChosenCluster, request: RestoreRequest, preview: bool, topic: str | None) -> Report:
    """Restore, or with `preview` only show the result."""
    # Also from the ledger of another topic, such as that of a former installation.
    opening = Opening(LedgerNeed.SHOW if preview else LedgerNeed.WRITE, topic, any_topic=True)
    with open_cluster_and_ledger(target, opening) as (_, executor), working("restoring"):
        results = restore(executor, request, preview)
    failed = [
        f"group {printable(r.group)}: {r.reason}: {r.message}" for r in results if r.kind is not ResultKind.RESTORED
    ]
    errors = failed or (
        [] if results else [f"the ledger has no backup of a group that {request.policy} deleted since then"]
    )
    groups = [_result_document(result) for result in results]
    document = {"preview": preview, "groups": groups, "errors": errors}
    partitions = [{"group": each["group"]} | partition for each in groups for partition in each["partitions"]]
    tables = [Table.of(groups, _GROUPS), Table.of(partitions, _PARTITIONS)]
    restored = [r.group for r in results if r.kind is ResultKind.RESTORED]
    return Report(document, restored, tables, (), errors, in_rows=failed)


def _result_document(result: GroupResult) -> dict[str, Any]:
    return {
        "group": result.group,
        "result": str(result.kind),
        "reason": str(result.reason),
        "message": result.message,
        "backupTime": timestamp(result.saved_at) if result.saved_at else None,
        "partitions": [
            {
                "topic": p.partition.topic,
                "partition": p.partition.partition,
                "saved": p.saved.offset,
                "commit": p.commit.offset if p.commit else None,
                "leaderEpoch": p.saved.leader_epoch,
                "metadata": p.saved.metadata,
                "reason": str(p.reason),
                "message": p.message,
            }
            for p in result.partitions
        ],
    }
