"""`restore`: restore committed offsets from the ledger, like a GroupRestore, and show each result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from group_hygiene.cli.history import Opening, open_cluster_and_ledger
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Cell, Column, Report, Table, printable, working
from group_hygiene.model import reasons
from group_hygiene.reconcile import LedgerNeed
from group_hygiene.restore.restorable import GroupResult, PartitionResult, RestoreRequest, ResultKind
from group_hygiene.restore.restoration import restore
from group_hygiene.spec.durations import timestamp

_GROUPS: Mapping[Column, Callable[[GroupResult], Cell]] = {
    Column("GROUP"): lambda r: r.group,
    Column("RESULT"): lambda r: "-" if r.reason == reasons.WOULD_RESTORE else str(r.kind),
    Column("REASON"): lambda r: str(r.reason),
    Column("BACKUP"): lambda r: timestamp(r.saved_at) if r.saved_at else None,
    Column("MESSAGE"): lambda r: r.message,
}
_PARTITIONS: Mapping[Column, Callable[[tuple[str, PartitionResult]], Cell]] = {
    Column("GROUP"): lambda r: r[0],
    Column("TOPIC"): lambda r: r[1].partition.topic,
    Column("PARTITION", number=True): lambda r: r[1].partition.partition,
    Column("SAVED", number=True): lambda r: r[1].saved.offset,
    Column("COMMIT", number=True): lambda r: r[1].commit.offset if r[1].commit else None,
    Column("REASON"): lambda r: str(r[1].reason),
    Column("MESSAGE"): lambda r: r[1].message or None,
}


def restore_groups(target: ChosenCluster, request: RestoreRequest, preview: bool, topic: str | None) -> Report:
    """Restore, or with `preview` only show the result."""
    # Also from the ledger of another topic, such as that of a former installation.
    opening = Opening(LedgerNeed.SHOW if preview else LedgerNeed.WRITE, topic, any_topic=True)
    with open_cluster_and_ledger(target, opening) as (_, executor), working("restoring"):
        results = restore(executor, request, preview)
    failed = [
        f"group {printable(r.group)}: {r.reason}: {r.message}" for r in results if r.kind is not ResultKind.RESTORED
    ]
    errors = [*failed]
    if not results:
        errors.append(f"the ledger has no backup of a group that {request.policy} deleted since then")
    document = {"preview": preview, "groups": [_document(result) for result in results], "errors": errors}
    partitions = [(result.group, partition) for result in results for partition in result.partitions]
    tables = [Table.of(results, _GROUPS), Table.of(partitions, _PARTITIONS)]
    restored = [r.group for r in results if r.kind is ResultKind.RESTORED]
    return Report(document, restored, tables, (), errors, in_rows=failed)


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
