"""Where to continue to read the log, also if it changed since the last run.

`plan` is pure. If records were lost or the log is another one, it stops: a user must decide, since the tables' history
has a gap then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from group_hygiene.errors import Halted, PipelineError
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets_topic import LogBounds
from group_hygiene.model.groups import NO_LEADER_EPOCH
from group_hygiene.pipeline import store
from group_hygiene.pipeline.coverage import Place, Progress
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE, RECORDS

_HOW_TO_CONTINUE = (
    "To continue with the current log, run this once with --start-over: all history stays, and groups count as active "
    "at that moment, since the lost records are unknown"
)


def cut_off(before: Progress, ends: Mapping[int, int]) -> dict[int, int]:
    """Partitions that lost records after they were read -> the end offset of the remaining ones.

    ends: current end offsets of the leader epoch in which each was read (`offsets.epoch_ends`).
    """
    return {p: end for p, end in ends.items() if p in before.places and end < before.places[p].covered_to}


def plan(
    before: Progress | None,
    bounds: LogBounds,
    start_over: bool,
    cut: Mapping[int, int] | None = None,
    lost: str | None = None,
) -> Progress:
    """Where to continue. Raises Halted if the log is another one than before, or lost records before they were read.

    cut: see `cut_off`. lost: why the rows of `activity` are gone; None = they are there. start_over: continue
    nevertheless. A log that was recreated, or gained partitions, or is read again for `activity`, is a new era; one
    that lost its beginning is the same era. Raises PipelineError if there is no log now.
    """
    if before is None:
        places = {partition: Place(start) for partition, start in bounds.starts.items()}
        return Progress(bounds.cluster_id, bounds.topic_id, 0, 0, places)
    if before.cluster_id != bounds.cluster_id:
        raise Halted(
            f"this warehouse holds the history of the Kafka cluster {before.cluster_id}, but this cluster is "
            f"{bounds.cluster_id}: use a separate --warehouse for each cluster"
        )
    if before.places and not bounds.ends:
        # Without partitions, era and batch would be lost, as they are stored with each.
        raise PipelineError(
            f"the topic {OFFSETS_TOPIC} is gone: run this again once a consumer has made the brokers create it"
        )
    if (why := lost or _why_new_era(before, bounds, cut or {})) is not None:
        if not start_over:
            raise Halted(f"{why}. {_HOW_TO_CONTINUE}")
        places = {partition: _again(before, partition, bounds) for partition in bounds.starts}
        return Progress(bounds.cluster_id, bounds.topic_id, before.era + 1, before.batch, places)
    places = dict(before.places)
    starts = bounds.starts.items()
    unread = {partition: start for partition, start in starts if start > places.get(partition, Place(start)).covered_to}
    if unread:
        if not start_over:
            partition, start = min(unread.items())
            others = f" (and {len(unread) - 1} more partitions)" if len(unread) > 1 else ""
            raise Halted(
                f"{OFFSETS_TOPIC}-{partition} was read up to offset {places[partition].covered_to} and begins at "
                f"{start} now{others}: the records between were deleted before they were read. {_HOW_TO_CONTINUE}"
            )
        places |= {partition: _again(before, partition, bounds) for partition in unread}
    return Progress(bounds.cluster_id, bounds.topic_id or before.topic_id, before.era, before.batch, places)


def refuse_orphans(warehouse: str) -> None:
    """Before the first run. Raises Halted if tables have rows nevertheless: these would be written twice."""
    for table in (*RECORDS, ACTIVITY):
        if store.rows(table.path(warehouse), "SELECT 1 FROM t LIMIT 1"):
            _tables_differ(f"the table {COVERAGE.name} is gone or empty, and {table.name} is not")


def refuse_others(warehouse: str, batch: int) -> None:
    """Raises Halted unless all tables of records are those that `coverage` names, before anything is written.

    The first batch created them, and a run that was killed leaves the one after `batch`.
    """
    for table in RECORDS:
        version = table.version(warehouse)
        if batch and version < 0:
            _tables_differ(f"the table {COVERAGE.name} ends with batch {batch}, and {table.name} is gone")
        last = max((file.most or 0 for file in table.files(warehouse, version, "batch")), default=0)
        if last > batch + 1:
            _tables_differ(
                f"the table {table.name} ends with batch {last}, and {COVERAGE.name} with batch {batch}: an older "
                f"state of {COVERAGE.name} replaced the newest one"
            )


def _tables_differ(why: str) -> NoReturn:
    raise Halted(
        f"{why}. Restore its newest state, or read the log again into a new, empty --warehouse (and set it in "
        "spec.activity.uri)"
    )


def _again(before: Progress, partition: int, bounds: LogBounds) -> Place:
    """Continue at the log's current beginning; records before it are unknown."""
    known = before.places.get(partition)
    return Place(bounds.starts[partition], None, bounds.asked_at, known.first_read_at if known else None)


def _why_new_era(before: Progress, bounds: LogBounds, cut: Mapping[int, int]) -> str | None:
    if before.topic_id and bounds.topic_id and before.topic_id != bounds.topic_id:
        ids = f"id {before.topic_id} then, {bounds.topic_id} now"
        return f"the topic {OFFSETS_TOPIC} was recreated since the last run ({ids})"
    for partition, place in sorted(before.places.items()):
        end = bounds.ends.get(partition)
        if end is None or end < place.covered_to:
            now = "is gone" if end is None else f"ends at {end} now"
            return (
                f"{OFFSETS_TOPIC}-{partition} was read up to offset {place.covered_to} and {now}: "
                "the topic was recreated, or a broker lost the end of its log"
            )
    if cut:
        partition, end = min(cut.items())
        place, now = before.places[partition], "is unknown" if end == NO_LEADER_EPOCH else f"ends at offset {end}"
        return (
            f"{OFFSETS_TOPIC}-{partition} was read up to offset {place.covered_to} in leader epoch "
            f"{place.leader_epoch}, which {now} now: the topic was recreated, or an unclean leader election lost the "
            "end of its log"
        )
    if before.places and bounds.starts.keys() - before.places.keys():
        # A group's partition depends on their number: its records continue in another one, with other offsets.
        return (
            f"the topic {OFFSETS_TOPIC} has {len(bounds.starts)} partitions now and had {len(before.places)}: "
            "groups have moved to other partitions"
        )
    return None
