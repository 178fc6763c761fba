"""From real clients to `activity`: what it says of each group is what the log holds, to the millisecond.

The log is read by Kafka's C client, and its records by the classes of Kafka's own jars: our decoder has no part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from group_hygiene.kafka.client import Client
from group_hygiene.kafka.offsets_log import Commit, StateRecord
from group_hygiene.pipeline.ingest.reading import Choices, ingest
from group_hygiene.pipeline.tables import ACTIVITY
from testing.faults.offsets_log import read
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, at
from tests.kafka.members import SilentShareMember, StreamsMember, part
from tests.kafka.offsets_topic import Record, generated
from tests.spark.test_ingest import commit_in_transaction

Times = dict[str, int | None]
LastClients = tuple[list[dict[str, Any]], int]
# The last of these records is the one of the last member that left.
_OF_MEMBERS = {f"{family}-{what}" for family in ("consumer", "share", "streams") for what in ("epoch", "member")}


@dataclass
class Did:
    """When a client's last commit was under way, and when its last member left: from, to, in milliseconds."""

    committed: tuple[int, int] | None = None
    left: tuple[int, int] | None = None


def timed(act: Callable[[], Any]) -> tuple[int, int]:
    before = _now()
    act()
    return before, _now()


def in_the_log(kafka: KafkaCluster) -> tuple[dict[str, Times], dict[str, LastClients]]:
    """By group: the last commit time that the log holds, and since when its last record says that it is Empty.

    And the clients of the last record that names any, with its time.
    """
    raw = [row for row in read(kafka.bootstrap_servers) if row.key is not None]
    records = generated(kafka, [(row.key or b"", row.value) for row in raw])
    return times_of((row.time_ms, record) for row, record in zip(raw, records, strict=True))


def times_of(records: Iterable[tuple[int, Record | None]]) -> tuple[dict[str, Times], dict[str, LastClients]]:
    """The same of these records, with their times in the log; None = it is no record of a group."""
    found: dict[str, Times] = {}
    clients: dict[str, LastClients] = {}
    for time_ms, record in records:
        if record is None:
            continue
        if isinstance(record, StateRecord) and record.clients:
            clients[record.group] = ([client._asdict() for client in record.clients], time_ms)
        times = found.setdefault(record.group, {"last_commit": None, "empty_since": None})
        if isinstance(record, Commit):
            times["last_commit"] = max(filter(None, (times["last_commit"], record.commit_ms)), default=None)
        elif record.kind == "classic":
            empty = not record.gone and record.members == 0 and record.protocol_type
            times["empty_since"] = record.state_ms if empty else None
        elif record.kind in _OF_MEMBERS:
            times["empty_since"] = None if record.kind.endswith("-epoch") and record.gone else time_ms
    return found, clients


@dataclass
class Real:
    """What the clients did, what the log holds, and the rows of `activity`, by what each group is for."""

    did: dict[str, Did]
    log: dict[str, Times]
    rows: dict[str, dict[str, Any]]
    clients: dict[str, LastClients]


@pytest.fixture(scope="module")
def real(spark: SparkSession, kafka: KafkaCluster, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Real:
    """Two runs of the pipeline: of each group that changes again, one half is seen by each of them."""
    make, warehouse = Maker(kafka.bootstrap_servers), str(tmp_path_factory.mktemp("exact"))
    bootstrap, topic = kafka.bootstrap_servers, make.topic(records=9)
    does = (
        *("transactional", "aborted", "assigns", "repeats", "classic", "consumer", "returned", "remade", "deleted"),
        *("share", "streams"),
    )
    names = {what: make.name(what) for what in does}
    did = {what: Did() for what in does}

    def run() -> None:
        ingest(spark, client, warehouse, lambda line: None)

    for what in ("transactional", "aborted"):
        commit_in_transaction(bootstrap, names[what], topic, 1, abort=False)
    for what in ("assigns", "repeats", "remade", "deleted"):
        did[what].committed = timed(lambda what=what: make.simple(names[what], at(topic, 3)))  # type: ignore[misc]
    for what in ("classic", "consumer", "returned"):
        protocol: Any = "consumer" if what == "consumer" else "classic"
        did[what].committed = timed(lambda: make.join(names[what], topic, protocol, at(topic, 2)))  # noqa: B023
        did[what].left = timed(lambda: make.leave(names[what]))  # noqa: B023
    make.delete_group(names["remade"])
    with (
        SilentShareMember(client, names["share"], topic),
        StreamsMember(client, names["streams"], [part("0", [topic])]),
    ):
        pass
    run()
    for what, abort in (("transactional", False), ("aborted", True)):
        did[what].committed = timed(lambda: commit_in_transaction(bootstrap, names[what], topic, 5, abort))  # noqa: B023
    for _ in range(3):
        did["repeats"].committed = timed(lambda: make.simple(names["repeats"], at(topic, 3)))
    for what in ("returned", "remade"):
        did[what].committed = timed(lambda: make.join(names[what], topic, "classic", at(topic, 4)))  # noqa: B023
        did[what].left = timed(lambda: make.leave(names[what]))  # noqa: B023
    make.delete_group(names["deleted"])
    run()
    make.close()
    log, clients = in_the_log(kafka)
    rows = {row["group"]: row.asDict(recursive=True) for row in ACTIVITY.read(spark, warehouse).collect()}
    assert set(log) <= set(rows)
    assert {name for name in log if rows[name]["last_clients"]} <= set(clients)
    return Real(
        did,
        {what: log[names[what]] for what in does},
        {what: rows[names[what]] for what in does},
        {what: clients[names[what]] for what in does if names[what] in clients},
    )


SIMPLE = {"type": "Classic", "protocol_type": "", "state": "Empty"}
CLASSIC = {"type": "Classic", "protocol_type": "consumer", "state": "Empty"}


@pytest.mark.parametrize(
    ("what", "offsets", "row"),
    [
        pytest.param("transactional", [5], SIMPLE, id="transactional-producer"),
        pytest.param("aborted", [1], SIMPLE, id="aborted-transaction-is-activity-only"),
        pytest.param("assigns", [3], SIMPLE | {"commits": 1}, id="assign-only"),
        pytest.param("repeats", [3], SIMPLE | {"commits": 4}, id="same-offset-again-and-again"),
        pytest.param("classic", [2], CLASSIC, id="joined-and-left"),
        pytest.param("consumer", [2], CLASSIC | {"type": "Consumer"}, id="joined-and-left-kip-848"),
        pytest.param("returned", [4], CLASSIC | {"tombstoned_at": None}, id="left-came-back-and-left"),
        pytest.param("remade", [4], CLASSIC, id="deleted-came-back-and-left"),
        pytest.param("deleted", [], SIMPLE | {"state": "Gone"}, id="deleted"),
    ],
)
def test_exact(real: Real, what: str, offsets: list[int], row: dict[str, Any]) -> None:
    """Times to the millisecond of the log, which are those at which the client did it; and the offsets that count."""
    found, log, did = real.rows[what], real.log[what], real.did[what]
    assert milliseconds(found["last_commit"]) == log["last_commit"]
    assert milliseconds(found["empty_since"]) == log["empty_since"]
    assert [offset["offset"] for offset in found["offsets"]] == offsets
    found |= {"commits": sum(found["commits_by_day"].values())}
    assert {name: found[name] for name in row} == row
    assert did.committed is not None
    assert did.committed[0] <= milliseconds(found["last_commit"]) <= did.committed[1]  # type: ignore[operator]
    assert (found["empty_since"] is None) == (did.left is None)
    if did.left is not None:
        assert did.left[0] <= milliseconds(found["empty_since"]) <= did.left[1]  # type: ignore[operator]


@pytest.mark.parametrize("what", ["classic", "consumer", "share", "streams", "returned", "remade"])
def test_last_clients_are_exact(real: Real, what: str) -> None:
    """Of each type of group those in the last record that names any; addresses as the broker saw them."""
    found, (clients, time_ms) = real.rows[what], real.clients[what]
    assert found["last_clients"] == clients
    assert milliseconds(found["last_clients_at"]) == time_ms
    assert {client["host"] for client in found["last_clients"]} == {"127.0.0.1"}
    assert all(client["client_id"] for client in found["last_clients"])


@pytest.mark.parametrize("what", ["transactional", "assigns", "deleted"])
def test_who_did_not_join_is_not_named(real: Real, what: str) -> None:
    """The log has no client of a simple group."""
    assert (real.rows[what]["last_clients"], what in real.clients) == (None, False)


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("hosts", [True, False])
def test_no_file_has_a_host_if_none_is_wanted(spark: SparkSession, client: Client, tmp_path: Path, hosts: bool) -> None:
    """In any file of the warehouse; clients stay. Malformed records: tests/unit/test_files.py."""
    ingest(spark, client, str(tmp_path), lambda line: None, Choices(hosts=hosts))
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    tables = [pq.read_table(file).to_pylist() for file in files if file.suffix == ".parquet"]
    texts = [file.read_bytes() for file in files if file.suffix != ".parquet"]
    assert ("127.0.0.1" in str(tables)) is hosts
    # Delta's logs.
    assert not any(b"127.0.0.1" in text for text in texts)
    rows = ACTIVITY.read(spark, str(tmp_path)).where("last_clients IS NOT NULL").collect()
    assert {client["client_id"] for row in rows for client in row["last_clients"]}
    assert {client["host"] for row in rows for client in row["last_clients"]} == {"127.0.0.1" if hosts else None}


def _now() -> int:
    """Cut off like a broker's clock: a moment that is rounded up would be later than what follows it."""
    return time.time_ns() // 1_000_000


def milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
