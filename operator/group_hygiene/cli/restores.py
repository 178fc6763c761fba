"""`restore`: restore committed offsets from the ledger, like a GroupRestore, and show each result."""

from __future__ import annotations

from typing import Any

from group_hygiene.cli.history import Opening, open_cluster_and_ledger
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Column, Report, Table, printable, working
from group_hygiene.model import reasons
from group_hygiene.reconcile import LedgerNeed
from group_hygiene.restore.restorable import GroupResult, RestoreRequest, ResultKind
from group_hygiene.restore.restoration import restore
from group_hygiene.spec.fields import timestamp

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
    groups = [_document(result) for result in results]
    document = {"preview": preview, "groups": groups, "errors": errors}
    partitions = [{"group": each["group"]} | partition for each in groups for partition in each["partitions"]]
    tables = [Table.of(groups, _GROUPS), Table.of(partitions, _PARTITIONS)]
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
