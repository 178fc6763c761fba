"""`delete`: delete groups by name, with the operator's checks, backups and ledger, and show each result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from group_hygiene.cli.commands import DeleteOptions
from group_hygiene.cli.history import Opening, open_executor
from group_hygiene.cli.manifests import protection_errors
from group_hygiene.cli.output import Column, Report, Table, note, printable, working
from group_hygiene.cli.target import Session, open_session, read_connection_file
from group_hygiene.engine.recovery import LedgerNeed
from group_hygiene.engine.requested import DeletionRequest, Judged, delete_requested, judge_requested
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.reasons import Refusal

_COLUMNS = (
    Column("GROUP"),
    Column("STATE", coloured=True),
    *map(Column, ("TYPE", "RESULT", "REASON", "MESSAGE")),
)
_WOULD_DELETE = "WouldDelete"
_CLAIMS_UNKNOWN = "groups that a ScaledObject or KafkaConnector names"
_CONNECTION_UNKNOWN = f"protect, limits and role of the KafkaConnection, and {_CLAIMS_UNKNOWN}"


def delete(chosen: DeleteOptions, request: DeletionRequest, confirm: Callable[[Sequence[str]], None]) -> Report:
    """Delete, or for a preview only show the result. confirm: called with the groups to delete; raises to stop."""
    preview = chosen.preview
    with open_session(chosen.target, read_connection_file(chosen.connection_file), claims=True) as session:
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
            for each in outcomes:
                results[each.group] = _document(each.group, str(each.kind), str(each.reason), each.message)
            partly = {each.group for each in outcomes if each.topics and set(each.topics) != set(request.topics)}
        if stop is not None:
            results |= {name: _refused(name, stop) for name in matching}
    done = _WOULD_DELETE if preview else OutcomeType.DELETED
    refused = [
        f"group {printable(name)}: {each['reason']}: {each['message']}"
        for name, each in results.items()
        if each["result"] != done or name in partly
    ]
    skipped = {verdict.refusal.reason for verdict in judged.verdicts.values() if verdict.refusal}
    errors = refused + protection_errors(judged.observation.protections, skipped)
    document = {"preview": preview, "groups": list(results.values()), "notes": notes, "errors": errors}
    rows = [each | _state_and_type(judged, name) for name, each in results.items()]
    deleted = [name for name, each in results.items() if each["result"] == done]
    return Report(document, deleted, [Table.of(rows, _COLUMNS)], (), errors, in_rows=refused)


def _notes(session: Session, chosen: DeleteOptions) -> list[str]:
    if session.api is not None:
        return []
    unknown = _CONNECTION_UNKNOWN if chosen.connection_file is None else _CLAIMS_UNKNOWN
    if chosen.create_ledger:
        unknown += ", and requests to keep a group in a ledger of another topic"
    return [f"not known here: {unknown}: --connection reads them"]


def _result(judged: Judged, name: str) -> dict[str, str | None]:
    verdict, snapshot = judged.verdicts.get(name), judged.observation.snapshot
    if verdict is None and snapshot.complete:
        gone = "brokers list no such group: it does not exist, or you may not DESCRIBE it"
        return _refused(name, Refusal(reasons.GONE, gone))
    refusal = snapshot.refusal if verdict is None else verdict.refusal
    return _document(name, _WOULD_DELETE, None, None) if refusal is None else _refused(name, refusal)


def _refused(name: str, why: Refusal) -> dict[str, str | None]:
    return _document(name, str(OutcomeType.NOT_DELETED), str(why.reason), why.message)


def _document(name: str, result: str, reason: str | None, message: str | None) -> dict[str, str | None]:
    """result: as OutcomeType, or WouldDelete."""
    return {"group": name, "result": result, "reason": reason, "message": message}


def _state_and_type(judged: Judged, name: str) -> dict[str, str | None]:
    group = judged.observation.snapshot.groups.get(name)
    return {"state": None, "type": None} if group is None else {"state": str(group.state), "type": str(group.type)}
