"""A pipeline's tables as the operator reads them, written without a pipeline: so that each can be wrong in one way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import Transaction

from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.model.evidence import ACTIVITY_WRITER, CLIENT, TABLES_VERSION
from group_hygiene.model.groups import NO_LEADER_EPOCH

_TIME = pa.timestamp("us", tz="UTC")
_ACTIVITY = pa.schema(
    [
        ("cluster_id", pa.string()),
        ("group", pa.string()),
        ("type", pa.string()),
        ("protocol_type", pa.string()),
        ("state", pa.string()),
        ("first_seen", _TIME),
        ("last_commit", _TIME),
        ("oldest_commit", _TIME),
        ("empty_since", _TIME),
        ("offsets", pa.list_(pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("commit_time", _TIME)]))),
        ("log_partition", pa.int32()),
        ("last_commit_after", _TIME),
        ("state_after", _TIME),
        ("topics_after", pa.map_(pa.string(), _TIME)),
        ("last_clients", pa.list_(pa.struct(dict.fromkeys(CLIENT, pa.string())))),
        ("last_clients_at", _TIME),
    ]
)
_COVERAGE = pa.schema(
    [
        ("cluster_id", pa.string()),
        ("topic_id", pa.string()),
        ("log_partition", pa.int32()),
        ("covered_to", pa.int64()),
        ("read_at", _TIME),
        ("complete_since", _TIME),
        ("activity_id", pa.string()),
        ("activity_version", pa.int64()),
        ("batch", pa.int64()),
        ("version", pa.int32()),
        ("leader_epoch", pa.int32()),
    ]
)


def now() -> datetime:
    """In the milliseconds that a log has."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def idle(group: str, hours: float = 100, **changes: Any) -> dict[str, Any]:
    """A group that consumers joined, which nobody has used for so long."""
    since = now() - timedelta(hours=hours)
    row = {
        "group": group,
        "type": "Classic",
        "protocol_type": "consumer",
        "state": "Empty",
        "first_seen": since - timedelta(hours=1),
        "last_commit": since - timedelta(minutes=1),
        "oldest_commit": since - timedelta(minutes=1),
        "empty_since": since,
    }
    return row | changes


def simple(group: str, hours: float = 100, **changes: Any) -> dict[str, Any]:
    """A group that nobody ever joined, whose clients have not committed for so long."""
    since = now() - timedelta(hours=hours)
    known = {"protocol_type": "", "state": "Unknown", "last_commit": since, "oldest_commit": since, "empty_since": None}
    return idle(group, hours, **(known | changes))


def in_use(group: str, **hours: float) -> dict[str, Any]:
    """A group with members that committed a moment ago, and for each of these topics last so many hours ago."""
    times = {topic: now() - timedelta(hours=since) for topic, since in hours.items()}
    offsets = [
        {"topic": topic, "partition": partition, "commit_time": at + timedelta(minutes=partition)}
        for topic, at in times.items()
        for partition in (1, 0, 2)
    ]
    oldest = min(times.values(), default=None)
    fields = {"state": "Active", "empty_since": None, "last_commit": now(), "oldest_commit": oldest, "offsets": offsets}
    return idle(group, 0, **fields)


@dataclass
class Warehouse:
    """The folder with the tables of one cluster, whose log has so many partitions."""

    folder: Path
    cluster: str = "cluster-1"
    topic_id: str | None = None
    partitions: int = 50
    _batch: int = 0

    @property
    def uri(self) -> str:
        return str(self.folder)

    def write(self, rows: Iterable[Mapping[str, Any]], **coverage: Any) -> None:
        """What a run of the pipeline leaves: the rows, and that they are all there is, but for `coverage`."""
        self.write_activity(rows)
        self.cover(**coverage)

    def write_activity(self, rows: Iterable[Mapping[str, Any]]) -> None:
        table = [
            {"cluster_id": self.cluster, "log_partition": partition_of(row["group"], self.partitions), **row}
            for row in rows
        ]
        rows_ = pa.Table.from_pylist(table, _ACTIVITY)
        self._batch += 1
        by = CommitProperties(app_transactions=[Transaction(ACTIVITY_WRITER, self._batch)])
        write_deltalake(self.folder / "activity", rows_, mode="overwrite", commit_properties=by)

    def cover(self, only: Iterable[int] | None = None, ends: Mapping[int, int] | None = None, **changes: Any) -> None:
        """Cover these partitions of the log, by default all, with the activity table as it is now; up to their ends."""
        activity = DeltaTable(self.folder / "activity")
        row = {
            "cluster_id": self.cluster,
            "topic_id": self.topic_id,
            "covered_to": 1000,
            "read_at": now(),
            "complete_since": None,
            "activity_id": activity.metadata().id,
            "activity_version": activity.version(),
            "batch": activity.transaction_version(ACTIVITY_WRITER),
            "version": TABLES_VERSION,
            "leader_epoch": NO_LEADER_EPOCH,
        } | changes
        covered = range(self.partitions) if only is None else only
        places = ends or {}
        rows = [row | {"log_partition": index, "covered_to": places.get(index, row["covered_to"])} for index in covered]
        write_deltalake(self.folder / "coverage", pa.Table.from_pylist(rows, _COVERAGE), mode="overwrite")
