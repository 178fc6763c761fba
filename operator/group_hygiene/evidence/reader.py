"""Reads the pipeline's two tables; judges nothing. The operator's only importer of deltalake.

`coverage` records how far the offsets log was read and when, and which version of `activity` holds the result. Exactly
that version is read: a running pipeline may have written a newer one, and a table that was put back has another.

Tenants configure the tables, and may have written them. So each read runs in a child process (`process.child`) with
limits of memory and time. With a Secret, that process inherits nothing from the operator's environment, and reaches the
network only through a `relay`.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import msgspec

from group_hygiene.model import reasons
from group_hygiene.model.evidence import (
    ACTIVITY_WRITER,
    CLIENT,
    CLIENTS_MAX,
    TABLES_VERSION,
    Activity,
    Commits,
    LastClient,
)
from group_hygiene.model.groups import GroupType
from group_hygiene.model.reasons import Refusal
from group_hygiene.process import child, memory
from group_hygiene.process.egress import Egress, look_up
from group_hygiene.spec.connection import ActivitySpec
from group_hygiene.spec.fields import Hidden, one_line
from group_hygiene.spec.storage import Allowed, HostPort, Store

if TYPE_CHECKING:
    from arro3.core import RecordBatch
    from deltalake import DeltaTable


# Of a group's name in a message.
_NAME_LENGTH = 100
# Concurrent reads share the operator's memory.
_turns = memory.MemoryTurns(slots=2)
# Of one read, even if its caller would wait longer: other connections wait for their turn.
_SECONDS_MAX = 120.0
_WORK = "group_hygiene.evidence.reader:work"
# The trusted certificates. A reader with a Secret gets nothing else of the operator's environment.
_ENVIRONMENT = ("SSL_CERT_FILE", "SSL_CERT_DIR", "LANG", "LC_ALL")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
# The offsets topic has 50 partitions by default, and coverage has a row for each.
_COVERAGE_MAX = 10_000
# Small batches and one thread: rows are streamed, so the table need not fit into memory.
_QUERY = {"datafusion.execution.batch_size": "1024", "datafusion.execution.target_partitions": "1"}
# Characters of any text but a group's name: type, state, ids of cluster and topics.
_TEXT_MAX = 255
# Topics for which one group has offsets.
_TOPICS_MAX = 10_000
# Of a request, and of a request with its retries: a thread must end even if its caller stopped waiting.
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
    "batch",
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
    "last_clients",
    "last_clients_at",
)


class _TablesUnreadable(Exception):
    """Its arguments are the reason and the message of a Refusal."""


class CoveredPartition(NamedTuple):
    """One partition of `__consumer_offsets`: at `read_at`, the tables had every record before offset `to`.

    topic_id: of the log that was read (KIP-516), None below 2.8. complete_since: see Activity. leader_epoch: of the
    partition at that time (KIP-101); NO_LEADER_EPOCH = its log has none, None = unknown.
    """

    topic_id: str | None
    to: int
    read_at: datetime
    complete_since: datetime | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one read. cluster: id of the log's cluster. table, version: of `activity`, as it was read.

    covered: by partition of the log. groups: the requested groups that are in the table and in a covered partition.
    """

    cluster: str
    table: str
    version: int
    covered: Mapping[int, CoveredPartition]
    groups: Mapping[str, Activity] = field(default_factory=dict)


class Tables:
    """The tables under one URI. store: credentials, None = this process's own. owner: the connection, for fairness."""

    def __init__(
        self, spec: ActivitySpec, store: Store | None = None, egress: Egress | None = None, owner: str = ""
    ) -> None:
        self.spec = spec
        self._store = store
        self._egress = egress or Egress()
        self._owner = owner

    def same(self, spec: ActivitySpec, store: Store | None) -> bool:
        return self.spec == spec and self._store == store

    def read(self, groups: Collection[str], seconds: float, older: datetime | None = None) -> Reading | Refusal:
        """Read the activity of these groups, within so many seconds; never raises.

        older: also read `by_topic` of groups in use with a commit before this time; None = of no group.
        A Refusal's reason is EvidenceMissing (no tables, or empty ones), EvidenceWentBack (`activity` lacks the version
        that `coverage` names) or EvidenceUnreadable (also if a group has two rows).
        """
        end = time.monotonic() + seconds
        store = Store({}, frozenset()) if self.spec.local else self._store
        try:
            with (
                _turns.held(self._owner, seconds),
                memory.lent(child.MEMORY_MIB << 20, "the process that reads the tables"),
            ):
                left = min(max(end - time.monotonic(), 0.0), _SECONDS_MAX)
                return asyncio.run(self._read_confined(store, groups, left, older))
        except TimeoutError:
            return Refusal(reasons.EVIDENCE_UNREADABLE, f"the tables did not answer within {seconds:.0f} s")
        except child.ChildFailed as error:
            return _too_much(str(error))
        except memory.TooMuch as error:
            return Refusal(reasons.EVIDENCE_UNREADABLE, str(error))
        except OSError as error:
            return Refusal(reasons.EVIDENCE_UNREADABLE, f"no process could be started to read the tables: {error}")

    async def _read_confined(
        self, store: Store | None, groups: Collection[str], seconds: float, older: datetime | None
    ) -> Reading | Refusal:
        options = {} if store is None else {key: value.reveal() for key, value in store.options.items()}
        # Tables hold UTF-8 only: other names can't be in them.
        names = tuple(name for name in groups if name.encode(errors="ignore").decode() == name)
        request = msgspec.json.encode(_Request(self.spec.uri, options, names, older))
        if store is None:
            return _answer(await child.run(_WORK, request, os.environ, seconds))
        egress = self._egress
        if not store.chosen and (egress.hosts or egress.networks):
            # A provider's own hosts need not be listed; the addresses that they resolve to are checked nevertheless.
            egress = replace(egress, hosts=egress.hosts | {place.host for place in store.places})
        async with Relay(store.places, egress) as relay:
            environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            environment |= dict.fromkeys(_PROXIES, relay.url) | {"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/none"}
            answer = _answer(await child.run(_WORK, request, environment, seconds))
            if isinstance(answer, Refusal) and relay.problem is not None:
                return Refusal(answer.reason, f"the object store can't be read: {relay.problem}")
            return answer


class _Request(NamedTuple):
    uri: str
    options: dict[str, str]
    groups: tuple[str, ...]
    older: datetime | None


class _Line(NamedTuple):
    """A line of the answer: a group's activity; the last line has the reading without its groups, or a refusal."""

    group: str = ""
    activity: Activity | None = None
    reading: Reading | None = None
    refusal: Refusal | None = None


# Created at import, as msgspec crashes if two threads read a type's annotations at once.
_LINES = msgspec.json.Decoder(_Line)


def _answer(content: bytes | bytearray) -> Reading | Refusal:
    try:
        *lines, last = _LINES.decode_lines(content)
    except msgspec.MsgspecError:
        return Refusal(reasons.EVIDENCE_UNREADABLE, "the tables can't be read: a column has another type")
    if last.reading is None:
        return last.refusal or Refusal(reasons.EVIDENCE_UNREADABLE, "the tables can't be read")
    return replace(last.reading, groups={line.group: line.activity for line in lines if line.activity is not None})


def _too_much(how: str) -> Refusal:
    return Refusal(
        reasons.EVIDENCE_UNREADABLE,
        f"reading the tables takes more than {child.MEMORY_MIB} MiB of memory, or breaks the library that reads "
        f"them ({how})",
    )


def work(content: bytes) -> Iterator[bytes]:
    """Read the tables, in the child process. Yields line by line, so that the answer need not fit into memory."""
    request = msgspec.json.decode(content, type=_Request)
    try:
        for line in _read(request):
            yield msgspec.json.encode(line) + b"\n"
    # A panic of the Rust library is a BaseException.
    except BaseException as error:
        yield msgspec.json.encode(_Line(refusal=_refusal(request, error)))


def _read(request: _Request) -> Iterator[_Line]:
    """Raises _TablesUnreadable, and the library's errors."""
    from deltalake.exceptions import TableNotFoundError

    table = _open(request, "coverage")
    newest = max((row["version"] for row in _coverage(table, ("version",))), default=TABLES_VERSION)
    if newest > TABLES_VERSION:
        raise _TablesUnreadable(
            reasons.EVIDENCE_UNREADABLE,
            f"the tables have version {newest}, and this operator reads version {TABLES_VERSION}: "
            "a newer pipeline wrote them; upgrade the operator",
        )
    coverage = _coverage(table, _COVERAGE)
    if not coverage:
        raise _TablesUnreadable(
            reasons.EVIDENCE_MISSING, "the tables cover nothing yet: no run of the pipeline has completed"
        )
    clusters, tables = {row["cluster_id"] for row in coverage}, {row["activity_id"] for row in coverage}
    if len(clusters) > 1 or len(tables) > 1:
        raise _TablesUnreadable(
            reasons.EVIDENCE_UNREADABLE, "coverage names several clusters or several activity tables"
        )
    covered = _covered(coverage)
    (cluster,), (activity_id,) = clusters, tables
    version = max(row["activity_version"] for row in coverage)
    activity = _open(request, "activity")
    known = activity.metadata().id == activity_id and activity.version() >= version
    if known and activity.version() > version:
        try:
            activity.load_as_version(version)
        except TableNotFoundError as error:
            raise _TablesUnreadable(
                reasons.EVIDENCE_UNREADABLE,
                f"coverage names version {version} of activity, which was removed from the table's log: "
                "the next complete run of the pipeline corrects that",
            ) from error
    if not known or activity.transaction_version(ACTIVITY_WRITER) != coverage[0]["batch"]:
        raise _TablesUnreadable(
            reasons.EVIDENCE_WENT_BACK,
            f"coverage names version {version} of an activity table that does not exist: an older or another "
            "table replaced it; the next run of the pipeline corrects that",
        )
    reading = Reading(cluster, activity_id, version, covered)
    if request.groups:
        yield from _groups(activity, reading, set(request.groups), request.older)
    yield _Line(reading=reading)


def _open(request: _Request, name: str) -> DeltaTable:
    from deltalake import DeltaTable

    return DeltaTable(f"{request.uri.rstrip('/')}/{name}", storage_options=_LIMITS | request.options)


def _refusal(request: _Request, error: BaseException) -> Refusal:
    from deltalake.exceptions import TableNotFoundError

    if isinstance(error, _TablesUnreadable):
        return Refusal(*error.args)
    if isinstance(error, MemoryError):
        return _too_much("out of memory")
    if isinstance(error, TableNotFoundError):
        return Refusal(reasons.EVIDENCE_MISSING, f"there are no tables at {request.uri} yet: run the pipeline first")
    message = one_line(str(error) or type(error).__name__, map(Hidden, request.options.values()))
    return Refusal(reasons.EVIDENCE_UNREADABLE, f"the tables can't be read: {message}")


def refused(spec: ActivitySpec, namespace: str, allowed: Allowed) -> Refusal | None:
    """Why a connection of this namespace may not use these tables; None = it may.

    A path must be in an allowed folder. Without a Secret, the operator's own identity must be allowed for the URI.
    """
    if spec.local:
        path = Path(unquote(urlsplit(spec.uri).path) if spec.uri.startswith("file:") else spec.uri).resolve()
        if any(path.is_relative_to(folder.resolve()) for folder in allowed.folders):
            return None
        return Refusal(
            reasons.EVIDENCE_UNREADABLE,
            "spec.activity.uri is a path, and the operator may not read it: start it with --allow-local-activity, or "
            "use an object store",
        )
    if spec.secret is not None or any(grant.covers(namespace, spec.uri) for grant in allowed.identity):
        return None
    return Refusal(
        reasons.EVIDENCE_UNREADABLE,
        "spec.activity has no secretRef, and the operator may not use its own identity there: name a Secret with "
        "credentials, or start the operator with --allow-activity-identity NAMESPACE=URI",
    )


def _check_files(table: DeltaTable) -> None:
    """Raises ValueError if the table's log names a file outside the table's folder.

    The Delta protocol allows absolute paths, and the library follows `..` too: otherwise a tenant's table could make
    the operator read any other table with its own identity.
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
    """Raises _TablesUnreadable if a group has two rows: neither can be trusted, and other rows may be wrong, too."""
    _check_files(activity)
    seen, aged = set[str](), set[str]()
    for row in _rows(activity, reading.cluster, _ACTIVITY, groups):
        name = row["group"]
        if name in seen:
            raise _TablesUnreadable(
                reasons.EVIDENCE_UNREADABLE,
                f"activity has two rows of the group {name[:_NAME_LENGTH]!r}: several pipelines wrote it at once. Run "
                "one pipeline only, and delete the folder activity: the next run recreates it",
            )
        seen.add(name)
        if row["log_partition"] not in reading.covered:
            continue
        oldest = row["oldest_commit"]
        if older is not None and row["state"] == "Active" and oldest is not None and _time(oldest) < older:
            aged.add(name)
        else:
            yield _Line(name, _activity(row, reading.covered))
    # A second query and not a column of the first: few groups need it, and it has an element per partition.
    for row in _rows(activity, reading.cluster, (*_ACTIVITY, "offsets", "topics_after"), aged) if aged else ():
        topics = _by_topic(row["offsets"] or (), dict(row["topics_after"] or ()))
        yield _Line(row["group"], _activity(row, reading.covered, topics))


def _coverage(table: DeltaTable, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Raises ValueError for more rows than an offsets topic can have partitions."""
    _check_files(table)
    rows = [row for batch in _batches(table, columns, f"LIMIT {_COVERAGE_MAX + 1}") for row in _dicts(batch, columns)]
    if len(rows) > _COVERAGE_MAX:
        raise ValueError(f"coverage has more than {_COVERAGE_MAX} rows")
    return rows


def _rows(
    table: DeltaTable, cluster: str, columns: Sequence[str], groups: AbstractSet[str]
) -> Iterator[dict[str, Any]]:
    """The rows of these groups of a cluster. Names are compared here, and never become part of a query."""
    from arro3.core import Array, DataType

    quoted = "'" + cluster.replace("'", "''") + "'"
    for batch in _batches(table, columns, f'WHERE "cluster_id" = {quoted}'):
        names = batch.column(columns.index("group")).to_pylist()
        hits = [index for index, name in enumerate(names) if name in groups]
        if hits:
            yield from _dicts(batch.take(Array(hits, DataType.uint64())), columns)


def _batches(table: DeltaTable, columns: Sequence[str], rest: str) -> Iterator[RecordBatch]:
    from deltalake import QueryBuilder

    selected = ", ".join(f'"{column}"' for column in columns)
    # Not to_pyarrow_table: it sometimes aborts the process at exit.
    return iter(QueryBuilder(_QUERY).register("t", table).execute(f"SELECT {selected} FROM t {rest}"))  # noqa: S608


def _dicts(batch: RecordBatch, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Raises ValueError for a text that is longer than a pipeline writes."""
    values = [batch.column(column).to_pylist() for column in columns]
    for row in zip(*values, strict=True):
        answer = dict(zip(columns, row, strict=True))
        for column, value in answer.items():
            if column != "group" and isinstance(value, str) and len(value) > _TEXT_MAX:
                raise ValueError(f"{column} is longer than {_TEXT_MAX} characters")
        yield answer


def _by_topic(offsets: Sequence[Mapping[str, Any]], after: Mapping[str, Any]) -> dict[str, Commits]:
    """after: by topic, the end of the last read of the log that did not have the topic's last commit yet, if known."""
    times: dict[str, list[datetime]] = {}
    for offset in offsets:
        times.setdefault(offset["topic"], []).append(_time(offset["commit_time"]))
    if len(times) > _TOPICS_MAX or any(len(topic) > _TEXT_MAX for topic in times):
        raise ValueError(f"a group has offsets of more than {_TOPICS_MAX} topics, or of a topic with an invalid name")
    least = {topic: _time(after[topic]) for topic in times if topic in after}
    return {
        topic: Commits(min(of_topic), max(*of_topic, least.get(topic, of_topic[0])))
        for topic, of_topic in times.items()
    }


def _covered(rows: Sequence[Mapping[str, Any]]) -> dict[int, CoveredPartition]:
    """By partition, without those that were not completely read yet; of several rows, the one that covers least."""
    covered: dict[int, CoveredPartition] = {}
    for row in sorted(rows, key=lambda row: row["covered_to"], reverse=True):
        if row["read_at"] is None:
            continue
        since = None if row["complete_since"] is None else _time(row["complete_since"])
        covered[row["log_partition"]] = CoveredPartition(
            row["topic_id"] or None, row["covered_to"], _time(row["read_at"]), since, row["leader_epoch"]
        )
    return covered


def _activity(
    row: Mapping[str, Any], covered: Mapping[int, CoveredPartition], by_topic: Mapping[str, Commits] | None = None
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
        last_client=_last_client(row["last_clients"] or (), row["last_clients_at"]),
        **times,
    )


def _last_client(clients: Sequence[Mapping[str, Any]], at: datetime | None) -> LastClient | None:
    """Raises ValueError for more than a pipeline writes."""
    texts = [client[name] for client in clients for name in CLIENT]
    if len(clients) > CLIENTS_MAX or any(
        text is not None and (not isinstance(text, str) or len(text) > _TEXT_MAX) for text in texts
    ):
        raise ValueError(f"a group has more than {CLIENTS_MAX} last clients, or one with a text that is too long")
    return LastClient.of(clients, None if at is None else _time(at))


def _time(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError("a time in the tables has another type")
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# An HTTP proxy for one reader of an object store: it connects to the given hosts, and to no others.
#
# The library that reads tables resolves names, follows redirects and, without credentials, asks a cloud's metadata
# service. All of that passes through this proxy, which checks each address before it connects.

# Of all responses, for one read.
_BYTES_MAX = 1 << 30
_CHUNK = 1 << 16
_CONNECT_S = 5.0


class Relay:
    """Runs while it is entered. problem: why it refused or ended a connection; contains no address."""

    def __init__(self, places: Collection[HostPort], egress: Egress) -> None:
        self._places, self._egress = places, egress
        self._left = _BYTES_MAX
        self._tasks: set[asyncio.Task[None]] = set()
        self.problem: str | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_CHUNK)
        return self

    async def __aexit__(self, *_error: object) -> None:
        # CPython loses a connection that it accepts while the server closes (python/cpython#109564).
        asyncio.get_running_loop().remove_reader(self._server.sockets[0])
        await asyncio.sleep(0)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._server.is_serving():
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step closes nothing itself.
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward: asyncio.StreamWriter | None = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, target = head.split(b" ", 2)[:2]
            tunnel = method == b"CONNECT"
            source, onward = await self._connect(_place(target.decode("ascii"), tunnel))
            if tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                onward.write(head)
            both = (
                asyncio.create_task(self._pass(reader, onward)),
                asyncio.create_task(self._pass(source, writer, True)),
            )
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            with suppress(OSError):
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        finally:
            ends = [writer] if onward is None else [writer, onward]
            for end in ends:
                end.close()
            # Here the task may be cancelled again.
            for end in ends:
                with suppress(OSError):
                    await end.wait_closed()

    async def _connect(self, place: HostPort) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Resolve the host, check each address and connect. Raises OSError."""
        if place not in self._places:
            self.problem = "it redirects to another host, and redirects are not followed"
            raise OSError(self.problem)
        refusal = self._egress.refusal_of_name(place.host)
        error: OSError | None = None
        for _, _, _, _, address in [] if refusal else await look_up(place.host, place.port):
            refusal = self._egress.refusal(place.host, address[0])
            if refusal is None:
                try:
                    async with asyncio.timeout(_CONNECT_S):
                        return await asyncio.open_connection(*address[:2])
                except OSError as failed:
                    error = failed
        if error is None and refusal is not None:
            self.problem = f"its host resolves to {refusal}"
        raise error or OSError("no address")

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, counted: bool = False) -> None:
        while data := await source.read(_CHUNK):
            if counted:
                self._left -= len(data)
                if self._left < 0:
                    self.problem = f"it sent more than {_BYTES_MAX >> 20} MiB"
                    return
            sink.write(data)
            await sink.drain()


def _place(target: str, tunnel: bool) -> HostPort:
    """Parse the target of a request to a proxy (RFC 9112: authority form or absolute form). Raises ValueError."""
    parts = urlsplit(f"//{target}" if tunnel else target)
    if not parts.hostname or (not tunnel and parts.scheme != "http"):
        raise ValueError("invalid request target")
    return HostPort(parts.hostname.rstrip("."), parts.port or (443 if tunnel else 80))
