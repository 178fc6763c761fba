"""A synthetic past of the pipeline's tables, of which is known what a policy would have deleted, and what wrongly.

`bench.lives` says who was in use when. This writes it as an ingest would have: first what a compacted topic holds at
`start`, the last record of each key, then a batch a day; `activity` and `coverage` come of that by the pipeline itself.
And it answers what comes out of a policy, by plain arithmetic with the times between uses: it shares nothing with the
code that judges.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.pipeline import store
from group_hygiene.pipeline.ingest.reading import Tables, advanced
from group_hygiene.pipeline.ingest.task import Range, Sink
from group_hygiene.pipeline.store import Table, TableFile
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, GROUP_STATES, Place, Progress
from testing.bench.lives import DAY, LEAST_DAYS, NEVER, NO_COMMIT, SECOND, How, Lives, Numbers, Span, lives, span

LOG_PARTITIONS = 50
LEAST_GROUPS = 500
# Rows that are Arrow at a time.
_ROWS = 500_000
_TOPICS = 200
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = ("classic", "consumer-epoch", "consumer-member")
_CLASSIC, _BUMP, _MEMBER = range(3)
_Columns = Callable[[dict[str, Numbers]], dict[str, Any]]

Regret = tuple[str, datetime, datetime]
Deletion = tuple[str, datetime]


class _Gaps(NamedTuple):
    """One row a time without use: of which group, since and until when, and when Kafka dropped the group."""

    group: Numbers
    since: Numbers
    until: Numbers
    gone: Numbers


@dataclass(frozen=True, eq=False)
class Past:
    """start, end: what can be replayed; the tables go on to `read_at`. rows: of `commits` and `group_states`."""

    groups: int
    days: int
    rows: int
    start: datetime
    end: datetime
    read_at: datetime
    _names: Sequence[str]
    _gaps: _Gaps

    def deleted(
        self,
        idle_for: timedelta,
        grace: timedelta,
        backup_retention: timedelta,
        step: timedelta,
        start: datetime,
        end: datetime,
    ) -> set[Deletion]:
        """(group, deleted at) of all that a policy would have deleted, judging each `step` from `start` to `end`.

        start: not before the one of this past; end: not after its `read_at`.
        """
        found = self._deletions(_Rule.of(idle_for, grace, backup_retention, step), start, end)
        return {(self._names[group], _moment(at)) for group, at, _ in found}

    def regrets(
        self,
        idle_for: timedelta,
        grace: timedelta,
        backup_retention: timedelta,
        step: timedelta,
        start: datetime,
        end: datetime,
    ) -> set[Regret]:
        """(group, deleted at, came back at) of those deletions after which the group was used again, at any time."""
        found = self._deletions(_Rule.of(idle_for, grace, backup_retention, step), start, end)
        return {(self._names[group], _moment(at), _moment(back)) for group, at, back in found if back != NEVER}

    def _deletions(self, rule: "_Rule", start: datetime, end: datetime) -> Iterator[tuple[int, int, int]]:
        """(group, deleted at, came back at), in milliseconds; NEVER = it did not come back."""
        begin = _milliseconds(start)
        steps = (_milliseconds(end) - begin) // rule.step
        # By the number of the step: at the first one a group is idle for long enough, at the last one still there.
        first = np.maximum(-((begin - self._gaps.since - rule.idle_for) // rule.step), 0)
        last = np.minimum((np.minimum(self._gaps.until, self._gaps.gone) - 1 - begin) // rule.step, steps)
        wait, rest = -(-rule.grace // rule.step), -(-rule.backup_retention // rule.step)
        some = first <= last
        of, kept_until, marked, before = -1, 0, -1, -2
        columns = (self._gaps.group, first, last, self._gaps.until)
        for group, since, to, until in zip(*(column[some].tolist() for column in columns), strict=True):
            if group != of:
                of, kept_until, before = group, 0, -2
            judged = max(since, kept_until)
            if judged > to:
                continue
            if judged > before + 1:
                # There was a step at which it did not match.
                marked = judged
            before = to
            due = max(judged, marked + wait)
            if due <= to:
                yield group, begin + due * rule.step, until
                kept_until, before = due + rest, -2


class _Rule(NamedTuple):
    """In milliseconds."""

    idle_for: int
    grace: int
    backup_retention: int
    step: int

    @classmethod
    def of(cls, *each: timedelta) -> "_Rule":
        return cls(*(value // _MILLISECOND for value in each))


def write_past(spark: SparkSession, warehouse: str, groups: int = 100_000, days: int = 90) -> Past:
    """Fill a warehouse that is not there yet: all its tables, as after a run of the pipeline at `read_at`.

    The same for the same numbers. Raises ValueError where they are too small for all kinds of groups.
    """
    if groups < LEAST_GROUPS or days < LEAST_DAYS:
        raise ValueError(f"at least {LEAST_GROUPS} groups and {LEAST_DAYS} days are needed")
    when = span(days)
    known = lives(groups, when)
    partitions = np.array([partition_of(name, LOG_PARTITIONS) for name in known.names])
    commits, states, ends = _placed(_commits(known, when), _states(known, when), partitions, when)
    names = pa.array(known.names, pa.string())
    _write(warehouse, COMMITS, commits, lambda rows: _commit_columns(rows, names, when))
    _write(warehouse, GROUP_STATES, states, lambda rows: _state_columns(rows, names))
    _fold(spark, warehouse, ends, when)
    start, end, read_at = (_moment(each) for each in when)
    rows = len(commits["time"]) + len(states["time"])
    return Past(groups, days, rows, start, end, read_at, known.names, _gaps(known))


# Columns of records; `order` is that of records of one group and one millisecond.
_Rows = dict[str, Numbers]


def _commits(known: Lives, when: Span) -> _Rows:
    """All commits and tombstones of commits, as they are in the log at the time."""
    uses, beats = known.uses, known.beats
    committed = uses.commit != NO_COMMIT
    dropped = committed & (uses.gone != NEVER)
    parts = [
        {"group": uses.group, "time": uses.commit, "aborted": uses.how == How.ABORTED} | _same(committed),
        {"group": beats.group, "time": beats.time, "partition": beats.partition},
        {"group": uses.group, "time": uses.gone, "gone": 1, "order": 3} | _same(dropped),
    ]
    defaults = {"partition": 0, "aborted": 0, "gone": 0, "order": 1}
    # Kafka's log cleaner, too, lets nothing of an aborted transaction take the place of what was there.
    return _compacted(_together(parts, defaults), ("partition", "aborted"), when)


def _states(known: Lives, when: Span) -> _Rows:
    """All other records: who comes writes its own first, who leaves too; then comes what it means for the group."""
    uses = known.uses
    classic, newer = uses.how == How.CLASSIC, uses.how == How.CONSUMER
    dropped = uses.gone != NEVER
    come, left = {"group": uses.group, "time": uses.begin}, {"group": uses.group, "time": uses.end, "order": 2}
    end = {"group": uses.group, "time": uses.gone, "gone": 1, "order": 4}
    parts = [
        come | {"kind": _CLASSIC, "members": 1} | _same(classic),
        left | {"kind": _CLASSIC} | _same(classic),
        end | {"kind": _CLASSIC} | _same(classic & dropped),
        come | {"kind": _MEMBER} | _same(newer),
        come | {"kind": _BUMP, "order": 1} | _same(newer),
        left | {"kind": _MEMBER, "gone": 1} | _same(newer),
        left | {"kind": _BUMP, "order": 3} | _same(newer),
        end | {"kind": _BUMP} | _same(newer & dropped),
    ]
    return _compacted(_together(parts, {"members": 0, "gone": 0, "order": 0}), ("kind",), when)


def _same(taken: Any) -> dict[str, Any]:
    return {"taken": taken}


def _together(parts: Sequence[Mapping[str, Any]], defaults: Mapping[str, int]) -> _Rows:
    """One after the other: of each, those rows that are `taken`, all if it doesn't say."""
    names = {name for part in parts for name in part} | defaults.keys()

    def column(part: Mapping[str, Any], name: str) -> Numbers:
        size = len(part["group"])
        values = np.broadcast_to(np.asarray(part.get(name, defaults.get(name)), np.int64), size)
        return np.asarray(values[part.get("taken", np.full(size, True))])

    return {name: np.concatenate([column(part, name) for part in parts]) for name in names - {"taken"}}


def _compacted(rows: _Rows, key: tuple[str, ...], when: Span) -> _Rows:
    """As the pipeline read them: of what was there at `start` the last record of each key, and nothing of `read_at`."""
    columns = [rows["group"], *(rows[name] for name in key)]
    order = np.lexsort((rows["order"], rows["time"], *columns))
    last = np.full(len(order), False)
    last[:-1] = True
    for column in columns:
        last[:-1] &= column[order][1:] == column[order][:-1]
    overwritten = np.full(len(order), False)
    overwritten[:-1] = last[:-1] & (rows["time"][order][1:] <= when.start)
    kept = order[~overwritten & (rows["time"][order] < when.read_at)]
    return {name: column[kept] for name, column in rows.items()}


def _placed(commits: _Rows, states: _Rows, partitions: Numbers, when: Span) -> tuple[_Rows, _Rows, Numbers]:
    """Both with where they lie in the log, in its order; and for each of its partitions the offset after the last."""
    both = {name: np.concatenate([commits[name], states[name]]) for name in ("group", "time", "order")}
    partition = partitions[both["group"]]
    order = np.lexsort((both["order"], both["group"], both["time"], partition))
    ends = np.bincount(partition, minlength=LOG_PARTITIONS)
    offset = np.empty(len(order), np.int64)
    offset[order] = np.arange(len(order)) - (np.cumsum(ends) - ends)[partition[order]]
    batch = np.where(both["time"] <= when.start, 1, 2 + (both["time"] - when.start - 1) // DAY)

    def placed(rows: _Rows, which: slice) -> _Rows:
        rows = rows | {"log_partition": partition[which], "log_offset": offset[which], "batch": batch[which]}
        place = np.lexsort((rows["log_offset"], rows["log_partition"], rows["batch"]))
        return {name: column[place] for name, column in rows.items()}

    first = slice(0, len(commits["time"]))
    return placed(commits, first), placed(states, slice(first.stop, None)), ends


def _write(warehouse: str, table: Table, rows: _Rows, columns: _Columns) -> None:
    """Create the table with these rows, some in each file: their Arrow columns take ten times the memory."""
    Path(warehouse).mkdir(exist_ok=True)
    schema, files = table.schema, []
    for at in range(0, len(rows["time"]), _ROWS):
        part = {name: column[at : at + _ROWS] for name, column in rows.items()}
        by_name = {
            "era": np.zeros(len(part["time"]), np.int64),
            **{name: part[name] for name in ("batch", "log_partition", "log_offset")},
            "record_time": part["time"] * 1000,
            **dict.fromkeys(("written_after", "clients"), pa.nulls(len(part["time"]))),
            **columns(part),
        }
        arrays = [_array(by_name[field.name]).cast(field.type) for field in schema]
        file = TableFile(warehouse, table)
        file.add(pa.RecordBatch.from_arrays(arrays, schema=schema))
        files.append(file.finished().file)
    table.change(warehouse, files, -1)


def _array(values: Any) -> Any:
    return pa.array(values) if isinstance(values, np.ndarray) else values


def _commit_columns(rows: _Rows, names: Any, when: Span) -> dict[str, Any]:
    gone, size = rows["gone"] == 1, len(rows["time"])
    topics = pa.array([f"events.{number:03d}" for number in range(_TOPICS)])
    return {
        "group": names.take(pa.array(rows["group"])),
        "topic": topics.take(pa.array(rows["group"] % _TOPICS)),
        "partition": rows["partition"],
        # Who commits has read all there is: a record a second.
        "committed_offset": pa.array((rows["time"] - when.start + 10 * DAY) // SECOND, mask=gone),
        "leader_epoch": pa.array(np.zeros(size, np.int64), mask=gone),
        "metadata": pa.array(np.full(size, ""), mask=gone),
        "commit_ms": pa.array(rows["time"], mask=gone),
        "aborted": rows["aborted"] == 1,
    }


def _state_columns(rows: _Rows, names: Any) -> dict[str, Any]:
    gone, classic, member = rows["gone"] == 1, rows["kind"] == _CLASSIC, rows["kind"] == _MEMBER
    size = len(gone)
    return {
        "kind": pa.array(_KINDS).take(pa.array(rows["kind"])),
        "group": names.take(pa.array(rows["group"])),
        "protocol_type": pa.array(np.full(size, "consumer"), mask=gone | ~classic),
        "generation": pa.array(np.ones(size, np.int64), mask=gone),
        "member_id": pa.array(np.full(size, "member-1"), mask=~member),
        "members": pa.array(rows["members"], mask=gone | ~classic),
        "state_ms": pa.array(rows["time"], mask=gone | ~classic),
        "gone": gone,
    }


def _fold(spark: SparkSession, warehouse: str, ends: Numbers, when: Span) -> None:
    """Write `activity` and `coverage`, by the pipeline's own tasks, of the rows in the other tables."""
    versions = {table.name: (table.path(warehouse), table.schema) for table in (COMMITS, GROUP_STATES)}

    # Within this function, as Spark's workers can't import the benchmarks.
    def written(ranges: Sequence[Range], sink: Sink) -> dict[int, int]:
        for partition, _, _ in ranges:
            for name, (uri, schema) in versions.items():
                for rows in store.read(uri, 0, warehouse, f"log_partition = {partition}"):
                    for part in pa.Table.from_batches([rows]).select(schema.names).cast(schema).to_batches():
                        sink.keep(name, part)
        return {each.partition: each.end for each in ranges}

    batch, read_at, start = (when.read_at - when.start) // DAY, _moment(when.read_at), _moment(when.start)
    before = Progress("past", "past", 0, batch, {number: Place(0) for number in range(len(ends))})
    tables = Tables(spark, warehouse, ACTIVITY.create(warehouse, batch), -1)
    ranges = [Range(number, 0, int(end)) for number, end in enumerate(ends)]
    done = tables.work(tables.tasks(ranges, before.places, False), tables.round(before, read_at), written)
    tables.add(done)
    after = advanced(before, done)
    places = {each: replace(place, read_at=read_at, first_read_at=start) for each, place in after.places.items()}
    tables.save(replace(after, places=places))


def _gaps(known: Lives) -> _Gaps:
    uses = known.uses
    same = uses.group[1:] == uses.group[:-1]
    until, gone = np.full(len(uses.group), NEVER), uses.gone.copy()
    until[:-1] = np.where(same, uses.begin[1:], NEVER)
    # A commit that counts for nothing does not bring back what Kafka has dropped.
    still = same & (uses.gone[:-1] != NEVER) & (uses.how[1:] == How.ABORTED)
    gone[1:][still] = uses.end[1:][still]
    return _Gaps(uses.group, uses.end, until, gone)


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MILLISECOND
