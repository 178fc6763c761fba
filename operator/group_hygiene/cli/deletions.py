"""`delete`: delete groups by name, with the operator's checks, backups and ledger, and show each result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from group_hygiene.cli.deletion_commands import DeleteOptions
from group_hygiene.cli.history import Opening, open_executor
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Column, Report, Table, note, printable, working
from group_hygiene.cli.plans import protection_errors
from group_hygiene.cli.target import Session, open_session, read_connection_file
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.verdicts import OutcomeKind
from group_hygiene.reconcile import DeletionRequest, Judged, LedgerNeed, delete_requested, judge_requested

_COLUMNS = (
    Column("GROUP"),
    Column("STATE", coloured=True),
    Column("TYPE"),
    *map(Column, ("RESULT", "REASON", "MESSAGE")),
)
_WOULD_DELETE = "WouldDelete"
_CLAIMS_UNKNOWN = "groups that a ScaledObject or KafkaConnector names"
_CONNECTION_UNKNOWN = f"protect, limits and role of the KafkaConnection, and {_CLAIMS_UNKNOWN}"


class _Result(NamedTuple):
    """kind: as OutcomeKind, or WouldDelete."""

    kind: str
    reason: str | None
    message: str | None


def delete(
    target: ChosenCluster, chosen: DeleteOptions, request: DeletionRequest, confirm: Callable[[Sequence[str]], None]
) -> Report:
    """Delete, or for a preview only show the result. confirm: called with the groups to delete; raises to stop."""
    preview = chosen.preview
    with open_session(target, read_connection_file(chosen.connection_file), claims=True) as session:
        notes = _notes(session, chosen)
        # Before the user confirms.
        for text in notes:
            note(text)
        need = LedgerNeed.CREATE if chosen.create_ledger else LedgerNeed.WRITE
        # A preview shows what a deletion would do that creates the ledger.
        opening = Opening(LedgerNeed.SHOW if preview else need, chosen.ledger_topic, optional=chosen.create_ledger)
        executor = open_executor(session, opening)
        least = session.connection.floors.backup_retention
        if least is not None:
            request = request._replace(backup_retention=max(request.backup_retention, least))
        with working("reading groups"):
            judged = judge_requested(executor.context, request)
        matching = [name for name, verdict in judged.verdicts.items() if verdict.matches]
        results = {name: _result(judged, name) for name in request.groups}
        partly = set[str]()
        stop = judged.stop
        if matching and not preview and stop is None:
            confirm(matching)
            with working(f"deleting {len(matching)} groups"):
                stop, outcomes = delete_requested(executor, judged)
            results |= {each.group: _Result(str(each.kind), str(each.reason), each.message) for each in outcomes}
            partly = {each.group for each in outcomes if each.topics and set(each.topics) != set(request.topics)}
        if stop is not None:
            results |= dict.fromkeys(matching, _refused(stop))
    done = _WOULD_DELETE if preview else OutcomeKind.DELETED
    refused = [
        f"group {printable(n)}: {r.reason}: {r.message}" for n, r in results.items() if r.kind != done or n in partly
    ]
    skipped = {verdict.refusal.reason for verdict in judged.verdicts.values() if verdict.refusal}
    errors = refused + protection_errors(judged.observation.protections, skipped)
    document = {
        "preview": preview,
        "groups": [
            dict(zip(("group", "result", "reason", "message"), (name, *result), strict=True))
            for name, result in results.items()
        ],
        "notes": notes,
        "errors": errors,
    }
    table = Table(_COLUMNS, [_row(judged, name, result) for name, result in results.items()])
    deleted = [name for name, result in results.items() if result.kind == done]
    return Report(document, deleted, [table], (), errors, in_rows=refused)


def _notes(session: Session, chosen: DeleteOptions) -> list[str]:
    if session.in_kubernetes:
        return []
    unknown = _CONNECTION_UNKNOWN if chosen.connection_file is None else _CLAIMS_UNKNOWN
    if chosen.create_ledger:
        unknown += ", and requests to keep a group in a ledger of another topic"
    return [f"not known here: {unknown}: --connection reads them"]


def _result(judged: Judged, name: str) -> _Result:
    verdict, snapshot = judged.verdicts.get(name), judged.observation.snapshot
    if verdict is None and snapshot.complete:
        return _refused(
            Refusal(reasons.GONE, "brokers list no such group: it does not exist, or you may not DESCRIBE it")
        )
    if verdict is None:
        return _refused(snapshot.refusal)
    if verdict.refusal is not None:
        return _refused(verdict.refusal)
    return _Result(_WOULD_DELETE, None, None)


def _refused(why: Refusal) -> _Result:
    return _Result(str(OutcomeKind.NOT_DELETED), str(why.reason), why.message)


def _row(judged: Judged, name: str, result: _Result) -> tuple[str | None, ...]:
    group = judged.observation.snapshot.groups.get(name)
    return name, *((str(group.state), str(group.type)) if group else (None, None)), *result
