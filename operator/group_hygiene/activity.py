"""What a pipeline's tables say of groups: the operator's only importer of deltalake. Reads two tables; judges nothing.

`coverage` says up to where the offsets log was read and when, and which version of `activity` holds what came of it.
Exactly that version is read: what a pipeline under way writes, or what somebody put back, is another one. Object stores
may hang, so each read runs in a thread of its own, and the caller waits no longer than it was told to. The library is
imported where a table is first opened: it takes 20 MB, and most connections have no pipeline.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from group_hygiene import reasons
from group_hygiene.connection import ActivitySpec
from group_hygiene.model import TABLES_VERSION, Activity, Commits, Fault, GroupType
from group_hygiene.secret import Hidden, in_a_line

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Of a group's name in a message.
_NAME_LENGTH = 100
# Of a single request, and of a request with all its repetitions: the caller's limit is shorter, and a thread that
# nobody waits for must end some time.
_LIMITS = {"timeout": "20s", "connect_timeout": "5s", "retry_timeout": "30s"}
_COVERAGE = (
    "cluster_id",
    "topic_id",
    "log_partition",
    "covered_to",
    "read_at",
    "complete_since",
    "activity_id",
    "activity_version",
)
_ACTIVITY = (
    "group",
    "type",
    "protocol_type",
    "state",
    "first_seen",
    "last_commit",
    "oldest_commit",
    "empty_since",
    "log_partition",
)


class Covered(NamedTuple):
    """One partition of `__consumer_offsets`: every record before `to` is in the tables; as of `read_at`.

    topic_id: of the log that was read (KIP-516), None below 2.8. complete_since: see Activity.
    """

    topic_id: str | None
    to: int
    read_at: datetime
    complete_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at the tables found. cluster: whose log it is. table, version: of `activity`, as it was read.

    covered: by partition of the log. groups: of those that were asked for, all that are in the table and in a partition
    that is covered.
    """

    cluster: str
    table: str
    version: int
    covered: Mapping[int, Covered]
    groups: Mapping[str, Activity] = field(default_factory=dict)


class Tables:
    """The tables under one URI. Not for several threads at once."""

    def __init__(self, spec: ActivitySpec, options: Mapping[str, Hidden]) -> None:
        self.spec = spec
        self._options = options
        self._running: threading.Thread | None = None

    def same(self, spec: ActivitySpec, options: Mapping[str, Hidden]) -> bool:
        return self.spec == spec and self._options == options

    def read(self, groups: Collection[str], seconds: float, older: datetime | None = None) -> Reading | Fault:
        """What the tables say of these groups, within so many seconds; never raises.

        older: `by_topic` is read of groups in use that have a commit from before that; None = of none.
        A Fault's code is EvidenceMissing (there are no such tables, or nothing in them yet), EvidenceWentBack (the
        activity that coverage speaks of is not there) or EvidenceUnreadable (also where a group is in it twice).
        """
        if self._running is not None and self._running.is_alive():
            return Fault(reasons.EVIDENCE_UNREADABLE, "an earlier read of the tables has not come to its end")
        answer: list[Reading | Fault] = []

        def work() -> None:
            try:
                answer.append(self._read(groups, older))
            # A panic of the Rust library is a BaseException.
            except BaseException as error:
                answer.append(self._fault(error))

        thread = threading.Thread(target=work, name="activity", daemon=True)
        thread.start()
        thread.join(seconds)
        if answer:
            return answer[0]
        self._running = thread
        return Fault(reasons.EVIDENCE_UNREADABLE, f"the tables did not answer within {seconds:.0f} s")

    def _read(self, groups: Collection[str], older: datetime | None) -> Reading | Fault:
        table = self._open("coverage")
        newest = max((row["version"] for row in _rows(table, ("version",))), default=TABLES_VERSION)
        if newest > TABLES_VERSION:
            return Fault(
                reasons.EVIDENCE_UNREADABLE,
                f"the tables are of version {newest}, and this operator knows version {TABLES_VERSION}: "
                "a newer pipeline wrote them; upgrade the operator",
            )
        coverage = _rows(table, _COVERAGE)
        if not coverage:
            return Fault(
                reasons.EVIDENCE_MISSING, "the tables cover nothing yet: no run of the pipeline came to its end"
            )
        clusters, tables = {row["cluster_id"] for row in coverage}, {row["activity_id"] for row in coverage}
        if len(clusters) > 1 or len(tables) > 1:
            return Fault(reasons.EVIDENCE_UNREADABLE, "coverage speaks of several clusters or several activity tables")
        covered = _covered(coverage)
        (cluster,), (activity_id,) = clusters, tables
        version = max(row["activity_version"] for row in coverage)
        activity = self._open("activity")
        if activity.metadata().id != activity_id or activity.version() < version:
            return Fault(
                reasons.EVIDENCE_WENT_BACK,
                f"coverage speaks of version {version} of an activity table that is not there: "
                "it was replaced by an older one or by another; the next run of the pipeline mends that",
            )
        reading = Reading(cluster, activity_id, version, covered)
        if not groups:
            return reading
        if activity.version() > version:
            activity.load_as_version(version)
        rows = _rows(activity, _ACTIVITY, _of(cluster, groups))
        aged = [] if older is None else [row["group"] for row in rows if _is_aged(row, older)]
        # A second query and not a column of the first: few groups need it, and it holds a row for each partition.
        offsets = _rows(activity, ("group", "offsets"), _of(cluster, aged)) if aged else []
        if (twice := _twice(row["group"] for row in rows)) is not None:
            return Fault(
                reasons.EVIDENCE_UNREADABLE,
                f"activity holds the group {twice[:_NAME_LENGTH]!r} twice: several pipelines wrote it at once. Let one "
                "run only, and delete the folder activity: its next run makes it anew",
            )
        by_topic = {row["group"]: _by_topic(row["offsets"] or ()) for row in offsets}
        found = {
            row["group"]: _activity(row, covered, by_topic.get(row["group"]))
            for row in rows
            if row["log_partition"] in covered
        }
        return Reading(cluster, activity_id, version, covered, found)

    def _open(self, name: str) -> DeltaTable:
        from deltalake import DeltaTable

        options = {key: value.reveal() for key, value in self._options.items()}
        return DeltaTable(f"{self.spec.uri.rstrip('/')}/{name}", storage_options=_LIMITS | options)

    def _fault(self, error: BaseException) -> Fault:
        from deltalake.exceptions import TableNotFoundError

        if isinstance(error, TableNotFoundError):
            return Fault(
                reasons.EVIDENCE_MISSING, f"there are no tables at {self.spec.uri} (yet): run the pipeline first"
            )
        said = in_a_line(str(error) or type(error).__name__, self._options.values())
        return Fault(reasons.EVIDENCE_UNREADABLE, f"the tables can't be read: {said}")


def refused(spec: ActivitySpec, allowed: Sequence[Path]) -> Fault | None:
    """Why a path on this machine may not be read: only what lies in one of the `allowed` folders may."""
    if not spec.local:
        return None
    path = Path(unquote(urlsplit(spec.uri).path) if spec.uri.startswith("file:") else spec.uri).resolve()
    if any(path.is_relative_to(folder.resolve()) for folder in allowed):
        return None
    return Fault(
        reasons.EVIDENCE_UNREADABLE,
        "spec.activity.uri is a path, and the operator may not read it: start it with --allow-local-activity, or use "
        "an object store",
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _listed(texts: Collection[str]) -> str:
    """A subquery of these texts, from one literal: a list of 100,000 literals overflows the stack of the SQL parser."""
    used = set().union(*texts)
    separator = next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in used)
    return f"SELECT unnest(string_to_array({_quoted(separator.join(sorted(texts)))}, '{separator}'))"


def _rows(table: DeltaTable, columns: Sequence[str], condition: str = "true") -> list[dict[str, Any]]:
    """Rows that fulfil a condition, in which every text is `_quoted`."""
    from deltalake import QueryBuilder

    selected = ", ".join(f'"{column}"' for column in columns)
    query = f"SELECT {selected} FROM t WHERE {condition}"  # noqa: S608
    # Not to_pyarrow_table: it was seen to abort the process when that ends.
    answer = QueryBuilder().register("t", table).execute(query).read_all()
    values = [answer.column(column).to_pylist() for column in columns]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def _of(cluster: str, groups: Collection[str]) -> str:
    """The condition that a row is of one of these groups."""
    return f'"cluster_id" = {_quoted(cluster)} AND "group" IN ({_listed(groups)})'


def _is_aged(row: Mapping[str, Any], older: datetime) -> bool:
    return row["state"] == "Active" and row["oldest_commit"] is not None and _time(row["oldest_commit"]) < older


def _by_topic(offsets: Sequence[Mapping[str, Any]]) -> dict[str, Commits]:
    times: dict[str, list[datetime]] = {}
    for offset in offsets:
        times.setdefault(offset["topic"], []).append(_time(offset["commit_time"]))
    return {topic: Commits(min(of_topic), max(of_topic)) for topic, of_topic in times.items()}


def _twice(groups: Iterable[str]) -> str | None:
    """The first that comes again. No row of it may decide then, and what made it may have hurt others."""
    seen: set[str] = set()
    for group in groups:
        if group in seen:
            return group
        seen.add(group)
    return None


def _covered(rows: Sequence[Mapping[str, Any]]) -> dict[int, Covered]:
    """By partition, without those that were not read to an end yet; of several rows the one that promises least."""
    covered: dict[int, Covered] = {}
    for row in sorted(rows, key=lambda row: row["covered_to"], reverse=True):
        if row["read_at"] is None:
            continue
        since = None if row["complete_since"] is None else _time(row["complete_since"])
        place = Covered(row["topic_id"] or None, row["covered_to"], _time(row["read_at"]), since)
        covered[row["log_partition"]] = place
    return covered


def _activity(
    row: Mapping[str, Any], covered: Mapping[int, Covered], by_topic: Mapping[str, Commits] | None = None
) -> Activity:
    place = covered[row["log_partition"]]
    known = {"first_seen", "last_commit", "oldest_commit", "empty_since"}
    times: dict[str, Any] = {name: None if row[name] is None else _time(row[name]) for name in known}
    return Activity(
        type=GroupType(row["type"]),
        protocol_type=row["protocol_type"] or "",
        state=row["state"] or "Unknown",
        log_partition=row["log_partition"],
        covered_to=place.to,
        read_at=place.read_at,
        complete_since=place.complete_since,
        by_topic=by_topic,
        **times,
    )


def _time(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError("a time in the tables is none")
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
