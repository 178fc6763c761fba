"""`restore`: restore committed offsets from the ledger, like a GroupRestore, and show each result."""

from __future__ import annotations

from typing import Any

from group_hygiene.cli.history import Opening, open_cluster_and_ledger
from group_hygiene.cli.options import Target
from group_hygiene.cli.output import Cell, Column, Report, Table, printable, working
from group_hygiene.model import reasons
from group_hygiene.reconcile import LedgerNeed
from group_hygiene.restore.restorable import GroupResult, Kind, PartitionResult, RestoreRequest
from group_hygiene.restore.restoration import restore
from group_hygiene.spec.durations import timestamp

_GROUPS = (
    Column("GROUP"),
    Column("RESULT"),
    Column("REASON"),
    Column("BACKUP"),
    Column("MESSAGE"),
)
_PARTITIONS = (
    Column("GROUP"),
    Column("TOPIC"),
    Column("PARTITION", number=True),
    Column("SAVED", number=True),
    Column("COMMIT", number=True),
    Column("REASON"),
    Column("MESSAGE"),
)


def restore_groups(target: Target, request: RestoreRequest, preview: bool, topic: str | None) -> Report:
    """Restore, or with `preview` only show the result."""
    # Also from the ledger of another topic, such as that of a former installation.
    opening = Opening(LedgerNeed.SHOW if preview else LedgerNeed.WRITE, topic, any_topic=True)
    with open_cluster_and_ledger(target, opening) as (_, executor), working("restoring"):
        results = restore(executor, request, preview)
    errors = [f"group {printable(r.group)}: {r.reason}: {r.message}" for r in results if r.kind is not Kind.RESTORED]
    if not results:
        errors.append(f"the ledger has no backup of a group that {request.policy} deleted since then")
    document = {"preview": preview, "groups": [_document(result) for result in results], "errors": errors}
    tables = [Table(_GROUPS, [_row(result) for result in results])]
    tables.append(Table(_PARTITIONS, [_partition_row(r.group, p) for r in results for p in r.partitions]))
    return Report(document, [r.group for r in results if r.kind is Kind.RESTORED], tables, (), errors)


def _row(result: GroupResult) -> tuple[Cell, ...]:
    saved_at = timestamp(result.saved_at) if result.saved_at else None
    kind = "-" if result.reason == reasons.WOULD_RESTORE else str(result.kind)
    return (result.group, kind, str(result.reason), saved_at, result.message)


def _partition_row(group: str, result: PartitionResult) -> tuple[Cell, ...]:
    topic, number = result.partition
    commit = result.commit.offset if result.commit else None
    return (group, topic, number, result.saved.offset, commit, str(result.reason), result.message or None)


def _document(result: GroupResult) -> dict[str, Any]:
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
