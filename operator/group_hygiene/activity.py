"""What a pipeline's tables say of groups: the operator's only importer of deltalake. Reads two tables; judges nothing.

`coverage` says up to where the offsets log was read and when, and which version of `activity` holds what came of it.
Exactly that version is read: what a pipeline under way writes, or what somebody put back, is another one.

Tenants name the tables, and may have written them. So each reading runs in a process of its own (see `confined`), which
has a limit of memory, and is ended when it takes too long. Given a Secret, it has nothing of the operator's
environment, and its only way out is a `relay`.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from group_hygiene import confined, memory, reasons
from group_hygiene.connection import ActivitySpec
from group_hygiene.egress import Egress
from group_hygiene.model import TABLES_VERSION, Activity, Commits, Fault, GroupType
from group_hygiene.relay import Relay
from group_hygiene.secret import Hidden, in_a_line
from group_hygiene.storage import Allowed, Store

if TYPE_CHECKING:
    from arro3.core import RecordBatch
    from deltalake import DeltaTable

# Of a group's name in a message.
_NAME_LENGTH = 100
# Readings at the same time share the operator's memory.
_turns = memory.Turns(slots=2)
# Of a reading, whatever its caller would wait: others wait for their turn.
_SECONDS_MAX = 120.0
_WORK = "group_hygiene.activity:work"
# Of the operator's environment: which certificates are trusted. Nothing else reaches a reader with a Secret.
_ENVIRONMENT = ("SSL_CERT_FILE", "SSL_CERT_DIR", "LANG", "LC_ALL")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
# The offsets topic has 50 partitions unless somebody wanted more, and coverage has a row for each.
_COVERAGE_MAX = 10_000
# Small batches and one thread: what is read passes through, and none of it has to fit into memory.
_QUERY = {"datafusion.execution.batch_size": "1024", "datafusion.execution.target_partitions": "1"}
# Of a text that is not a group's name: type, state and the like, and the id of a cluster or a topic.
_TEXT_MAX = 255
# Of topics that one group has offsets of.
_TOPICS_MAX = 10_000
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
    "leader_epoch",
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
    "last_commit_after",
    "state_after",
)
# Tables of release 0.1.0 lack these columns: null, not known.
_ADDED = frozenset({"leader_epoch", "last_commit_after", "state_after", "topics_after"})


class _Fault(Exception):
    """With the code and the message of a Fault."""


class Covered(NamedTuple):
    """One partition of `__consumer_offsets`: every record before `to` is in the tables; as of `read_at`.

    topic_id: of the log that was read (KIP-516), None below 2.8. complete_since: see Activity. leader_epoch: in which
    the partition was led then (KIP-101); NO_LEADER_EPOCH = its log holds none, None = not known.
    """

    topic_id: str | None
    to: int
    read_at: datetime
    complete_since: datetime | None = None
    leader_epoch: int | None = None


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
    """The tables under one URI. store: with whose credentials; None = those of this process. owner: takes turns."""

    def __init__(
        self, spec: ActivitySpec, store: Store | None = None, egress: Egress | None = None, owner: str = ""
    ) -> None:
        self.spec = spec
        self._store = store
        self._egress = egress or Egress()
        self._owner = owner

    def same(self, spec: ActivitySpec, store: Store | None) -> bool:
        return self.spec == spec and self._store == store

    def read(self, groups: Collection[str], seconds: float, older: datetime | None = None) -> Reading | Fault:
        """What the tables say of these groups, within so many seconds; never raises.

        older: `by_topic` is read of groups in use that have a commit from before that; None = of none.
        A Fault's code is EvidenceMissing (there are no such tables, or nothing in them yet), EvidenceWentBack (the
        activity that coverage speaks of is not there) or EvidenceUnreadable (also where a group is in it twice).
        """
        end = time.monotonic() + seconds
        store = Store({}, frozenset()) if self.spec.local else self._store
        try:
            with (
                _turns.held(self._owner, seconds),
                memory.lent(confined.MEMORY_MIB << 20, "the process that reads the tables"),
            ):
                left = min(max(end - time.monotonic(), 0.0), _SECONDS_MAX)
                return asyncio.run(self._read_confined(store, groups, left, older))
        except TimeoutError:
            return Fault(reasons.EVIDENCE_UNREADABLE, f"the tables did not answer within {seconds:.0f} s")
        except confined.TooMuch as error:
            return _too_much(str(error))
        except memory.TooMuch as error:
            return Fault(reasons.EVIDENCE_UNREADABLE, str(error))
        except OSError as error:
            return Fault(reasons.EVIDENCE_UNREADABLE, f"no process could be started to read the tables: {error}")

    async def _read_confined(
        self, store: Store | None, groups: Collection[str], seconds: float, older: datetime | None
    ) -> Reading | Fault:
        options = {} if store is None else {key: value.reveal() for key, value in store.options.items()}
        # What can't be written in UTF-8 is in no table.
        names = tuple(filter(_is_text, groups))
        request = msgspec.json.encode(_Request(self.spec.uri, options, names, older))
        if store is None:
            return _answer(await confined.run(_WORK, request, os.environ, seconds))
        egress = self._egress
        if not store.chosen and (egress.hosts or egress.networks):
            # A provider's own hosts need not be listed; where they lead is checked all the same.
            egress = replace(egress, hosts=egress.hosts | {place.host for place in store.places})
        async with Relay(store.places, egress) as relay:
            environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            environment |= dict.fromkeys(_PROXIES, relay.url) | {"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/none"}
            answer = _answer(await confined.run(_WORK, request, environment, seconds))
            if isinstance(answer, Fault) and relay.problem is not None:
                return Fault(answer.code, f"the object store can't be read: {relay.problem}")
            return answer


class _Request(NamedTuple):
    uri: str
    options: dict[str, str]
    groups: tuple[str, ...]
    older: datetime | None


class _Line(NamedTuple):
    """A line of an answer: what is known of a group; the last one has the reading without its groups, or a fault."""

    group: str = ""
    activity: Activity | None = None
    reading: Reading | None = None
    fault: Fault | None = None


def _answer(content: bytes | bytearray) -> Reading | Fault:
    *lines, last = msgspec.json.Decoder(_Line).decode_lines(content)
    if last.reading is None:
        return last.fault or Fault(reasons.EVIDENCE_UNREADABLE, "the tables can't be read")
    return replace(last.reading, groups={line.group: line.activity for line in lines if line.activity is not None})


def _too_much(how: str) -> Fault:
    return Fault(
        reasons.EVIDENCE_UNREADABLE,
        f"reading the tables takes more than {confined.MEMORY_MIB} MiB of memory, or breaks the library that reads "
        f"them ({how})",
    )


def work(content: bytes) -> Iterator[bytes]:
    """The reading itself, in the process that `confined` made for it. Line by line, so that memory holds none of it."""
    request = msgspec.json.decode(content, type=_Request)
    reader = _Reader(request.uri, {key: Hidden(value) for key, value in request.options.items()})
    try:
        for line in reader.read(set(request.groups), request.older):
            yield msgspec.json.encode(line) + b"\n"
    # A panic of the Rust library is a BaseException.
    except BaseException as error:
        yield msgspec.json.encode(_Line(fault=reader.fault(error)))


class _Reader:
    """Opens the tables of one URI."""

    def __init__(self, uri: str, options: Mapping[str, Hidden]) -> None:
        self._uri, self._options = uri, options

    def read(self, groups: AbstractSet[str], older: datetime | None) -> Iterator[_Line]:
        """Raises _Fault, and what the library raises."""
        table = self._open("coverage")
        newest = max((row["version"] for row in _coverage(table, ("version",))), default=TABLES_VERSION)
        if newest > TABLES_VERSION:
            raise _Fault(
                reasons.EVIDENCE_UNREADABLE,
                f"the tables are of version {newest}, and this operator knows version {TABLES_VERSION}: "
                "a newer pipeline wrote them; upgrade the operator",
            )
        coverage = _coverage(table, _COVERAGE)
        if not coverage:
            raise _Fault(
                reasons.EVIDENCE_MISSING, "the tables cover nothing yet: no run of the pipeline came to its end"
            )
        clusters, tables = {row["cluster_id"] for row in coverage}, {row["activity_id"] for row in coverage}
        if len(clusters) > 1 or len(tables) > 1:
            raise _Fault(reasons.EVIDENCE_UNREADABLE, "coverage speaks of several clusters or several activity tables")
        covered = _covered(coverage)
        (cluster,), (activity_id,) = clusters, tables
        version = max(row["activity_version"] for row in coverage)
        activity = self._open("activity")
        if activity.metadata().id != activity_id or activity.version() < version:
            raise _Fault(
                reasons.EVIDENCE_WENT_BACK,
                f"coverage speaks of version {version} of an activity table that is not there: "
                "it was replaced by an older one or by another; the next run of the pipeline mends that",
            )
        reading = Reading(cluster, activity_id, version, covered)
        if groups:
            if activity.version() > version:
                activity.load_as_version(version)
            yield from _groups(activity, reading, groups, older)
        yield _Line(reading=reading)

    def _open(self, name: str) -> DeltaTable:
        from deltalake import DeltaTable

        options = {key: value.reveal() for key, value in self._options.items()}
        return DeltaTable(f"{self._uri.rstrip('/')}/{name}", storage_options=_LIMITS | options)

    def fault(self, error: BaseException) -> Fault:
        from deltalake.exceptions import TableNotFoundError

        if isinstance(error, _Fault):
            return Fault(*error.args)
        if isinstance(error, MemoryError):
            return _too_much("out of memory")
        if isinstance(error, TableNotFoundError):
            return Fault(reasons.EVIDENCE_MISSING, f"there are no tables at {self._uri} (yet): run the pipeline first")
        said = in_a_line(str(error) or type(error).__name__, self._options.values())
        return Fault(reasons.EVIDENCE_UNREADABLE, f"the tables can't be read: {said}")


def refused(spec: ActivitySpec, namespace: str, allowed: Allowed) -> Fault | None:
    """Why a connection of this namespace may not have these tables read; None = it may.

    A path must lie in a folder that is allowed. Without a Secret, the operator's own identity must be allowed there.
    """
    if spec.local:
        path = Path(unquote(urlsplit(spec.uri).path) if spec.uri.startswith("file:") else spec.uri).resolve()
        if any(path.is_relative_to(folder.resolve()) for folder in allowed.folders):
            return None
        return Fault(
            reasons.EVIDENCE_UNREADABLE,
            "spec.activity.uri is a path, and the operator may not read it: start it with --allow-local-activity, or "
            "use an object store",
        )
    if spec.secret is not None or any(grant.covers(namespace, spec.uri) for grant in allowed.identity):
        return None
    return Fault(
        reasons.EVIDENCE_UNREADABLE,
        "spec.activity has no secretRef, and the operator may not use its own identity there: name a Secret with "
        "credentials, or start the operator with --allow-activity-identity NAMESPACE=URI",
    )


def _check_files(table: DeltaTable) -> None:
    """Raises ValueError where the table's log names a file outside the table's folder.

    The Delta protocol allows absolute paths, and the library follows `..` too: by the operator's own identity, a table
    could have any other one read.
    """
    for path in table.get_add_actions(flatten=True).column("path").to_pylist():
        plain = path
        while (decoded := unquote(plain)) != plain:
            plain = decoded
        if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|[/\\\\]", plain) or ".." in re.split(r"[/\\\\]", plain):
            raise ValueError("a table names files that are not in its folder")


def _groups(
    activity: DeltaTable, reading: Reading, groups: AbstractSet[str], older: datetime | None
) -> Iterator[_Line]:
    """Raises _Fault where one is in the table twice: neither row may decide, and its cause may have harmed others."""
    _check_files(activity)
    seen, aged = set[str](), set[str]()
    for row in _rows(activity, reading.cluster, _ACTIVITY, groups):
        name = row["group"]
        if name in seen:
            raise _Fault(
                reasons.EVIDENCE_UNREADABLE,
                f"activity holds the group {name[:_NAME_LENGTH]!r} twice: several pipelines wrote it at once. Let one "
                "run only, and delete the folder activity: its next run makes it anew",
            )
        seen.add(name)
        if row["log_partition"] not in reading.covered:
            continue
        if older is not None and _is_aged(row, older):
            aged.add(name)
        else:
            yield _Line(name, _activity(row, reading.covered))
    # A second query and not a column of the first: few groups need it, and it holds a row for each partition.
    for row in _rows(activity, reading.cluster, (*_ACTIVITY, "offsets", "topics_after"), aged) if aged else ():
        topics = _by_topic(row["offsets"] or (), dict(row["topics_after"] or ()))
        yield _Line(row["group"], _activity(row, reading.covered, topics))


def _coverage(table: DeltaTable, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Raises ValueError for more rows than an offsets topic can have partitions."""
    _check_files(table)
    held = _held(table, columns)
    rows = [
        dict.fromkeys(columns) | row
        for batch in _batches(table, held, f"LIMIT {_COVERAGE_MAX + 1}")
        for row in _dicts(batch, held)
    ]
    if len(rows) > _COVERAGE_MAX:
        raise ValueError(f"coverage has more than {_COVERAGE_MAX} rows")
    return rows


def _rows(
    table: DeltaTable, cluster: str, columns: Sequence[str], groups: AbstractSet[str]
) -> Iterator[dict[str, Any]]:
    """The rows of these groups of a cluster. No name is part of a query: a row is chosen here, by its own."""
    from arro3.core import Array, DataType

    held = _held(table, columns)
    for batch in _batches(table, held, f'WHERE "cluster_id" = {_quoted(cluster)}'):
        hits = [index for index, name in enumerate(batch.column(held.index("group")).to_pylist()) if name in groups]
        for row in _dicts(batch.take(Array(hits, DataType.uint64())), held) if hits else ():
            yield dict.fromkeys(columns) | row


def _held(table: DeltaTable, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns without those that tables of release 0.1.0 lack, where this is one: they read as null."""
    names = {field.name for field in table.schema().fields}
    return tuple(column for column in columns if column in names or column not in _ADDED)


def _batches(table: DeltaTable, columns: Sequence[str], rest: str) -> Iterator[RecordBatch]:
    from deltalake import QueryBuilder

    selected = ", ".join(f'"{column}"' for column in columns)
    # Not to_pyarrow_table: it was seen to abort the process when that ends.
    return iter(QueryBuilder(_QUERY).register("t", table).execute(f"SELECT {selected} FROM t {rest}"))  # noqa: S608


def _dicts(batch: RecordBatch, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Raises ValueError for a text that is longer than any that a pipeline writes."""
    values = [batch.column(column).to_pylist() for column in columns]
    for row in zip(*values, strict=True):
        answer = dict(zip(columns, row, strict=True))
        for column, value in answer.items():
            if column != "group" and isinstance(value, str) and len(value) > _TEXT_MAX:
                raise ValueError(f"{column} is longer than {_TEXT_MAX} characters")
        yield answer


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _is_text(name: str) -> bool:
    """Whether it can be written in UTF-8, as all names in a table are."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_aged(row: Mapping[str, Any], older: datetime) -> bool:
    return row["state"] == "Active" and row["oldest_commit"] is not None and _time(row["oldest_commit"]) < older


def _by_topic(offsets: Sequence[Mapping[str, Any]], after: Mapping[str, Any]) -> dict[str, Commits]:
    """after: when a read of the log ended before the last commit for a topic was written, where that is known."""
    times: dict[str, list[datetime]] = {}
    for offset in offsets:
        times.setdefault(offset["topic"], []).append(_time(offset["commit_time"]))
    if len(times) > _TOPICS_MAX or any(len(topic) > _TEXT_MAX for topic in times):
        raise ValueError(f"a group has offsets of more than {_TOPICS_MAX} topics, or of none that Kafka has")
    least = {topic: _time(after[topic]) for topic in times if topic in after}
    return {
        topic: Commits(min(of_topic), max(*of_topic, least.get(topic, of_topic[0])))
        for topic, of_topic in times.items()
    }


def _covered(rows: Sequence[Mapping[str, Any]]) -> dict[int, Covered]:
    """By partition, without those that were not read to an end yet; of several rows the one that promises least."""
    covered: dict[int, Covered] = {}
    for row in sorted(rows, key=lambda row: row["covered_to"], reverse=True):
        if row["read_at"] is None:
            continue
        since = None if row["complete_since"] is None else _time(row["complete_since"])
        told = _time(row["read_at"]), since, row["leader_epoch"]
        place = Covered(row["topic_id"] or None, row["covered_to"], *told)
        covered[row["log_partition"]] = place
    return covered


def _activity(
    row: Mapping[str, Any], covered: Mapping[int, Covered], by_topic: Mapping[str, Commits] | None = None
) -> Activity:
    place = covered[row["log_partition"]]
    known = {"first_seen", "last_commit", "oldest_commit", "empty_since", "last_commit_after", "state_after"}
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
