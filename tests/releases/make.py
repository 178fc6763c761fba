"""`python -m tests.releases.make`: the ledger and the tables that this version writes, for later versions to read.

On a real broker: the ledger by the product's own writer, with an entry of each kind; the tables by `group-hygiene
pipeline run`. Both go into tests/releases/<version>/. Dates lie in the future, so that no sweep takes them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from group_hygiene import __version__
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.cluster import topic_ids
from group_hygiene.ledger.settings import LedgerSettings
from group_hygiene.model import reasons
from group_hygiene.model.backups import SavedOffset, in_parts
from group_hygiene.model.entries import (
    Covered,
    DeliveryState,
    Entry,
    Firing,
    Intent,
    KeepRequest,
    Mark,
    Notice,
    Outcome,
    OutcomeType,
    PolicyAlerts,
    Receipt,
    Seen,
    Watch,
)
from group_hygiene.reconcile import open_ledger
from group_hygiene.spec.connection import Settings
from sandbox.kafka import KafkaCluster
from sandbox.spark.jars import jars_with_kafka_source
from tests.backups import backup
from tests.kafka.makers import Maker, at, soon

INSTALLATION, TOPIC = "the-first", "release-orders"
_LEDGER = "__group_hygiene"
_TABLES = ("activity", "coverage", "commits", "group_states", "ingested")
_ROOT = Path(__file__).parents[2]
_AT = datetime(2026, 11, 22, 12, tzinfo=UTC)
_LATER = datetime(2126, 1, 1, tzinfo=UTC)


def main() -> None:
    """Writes the folder anew."""
    folder = Path(__file__).parent / __version__
    with KafkaCluster(config={"offsets.topic.num.partitions": "2"}) as cluster:
        make = Maker(cluster.bootstrap_servers)
        make.tag = ""
        client = connect(Settings(tuple(cluster.bootstrap_servers.split(","))))
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _groups(make)
            saved = {"topicId": _write_ledger(client), "records": _records(cluster)}
            folder.mkdir()
            (folder / "ledger.json").write_text(json.dumps(saved, indent=1, ensure_ascii=False) + "\n")
            _write_tables(cluster, folder / "tables")
        finally:
            client.close()
            make.close()


def _groups(make: Maker) -> None:
    make.topic(TOPIC, partitions=2, records=9)
    make.abandoned("left", TOPIC, commit=at(TOPIC, 3))
    make.simple("assigned", at(TOPIC, 5))
    make.join("in-use", TOPIC, "consumer", at(TOPIC, 7))


def _write_ledger(client: Client) -> str:
    """The id of the topic of the groups."""
    topic_id = topic_ids(client, [TOPIC], soon())[TOPIC]
    assert isinstance(topic_id, str)
    settings = LedgerSettings(installation=INSTALLATION, writer="the-writer", topic=_LEDGER)
    ledger = open_ledger(client, settings, soon(), create=True, claim=True)
    assert ledger is not None
    ledger.write(_entries(topic_id))
    return topic_id


def _entries(topic_id: str) -> list[Entry]:
    """One of each kind and of each form; the owner is written by whoever claims the ledger."""
    uid, policy = "uid-1", "kafka/litter"
    when: dict[str, Any] = {"at": _AT, "expires": _LATER}
    by: dict[str, Any] = {"policy": policy, "policy_uid": uid, "generation": 1}
    rows = [SavedOffset(0, 3, 0, "from host-1, ünïcode", 6), SavedOffset(1, 0, -1, "", None)]
    saved = {"topic_ids": {TOPIC: topic_id}, **when}
    whole = backup("deleted", {TOPIC: rows}, **saved)
    partial = backup("reduced", {TOPIC: rows[:1]}, partial=True, id="id-2", **saved)
    streams = backup("streams", {TOPIC: rows}, type="Streams", internal_topics={"streams-changelog": "an-id"}, **saved)
    share = backup("share", {TOPIC: rows}, type="Share", protocol_type="share", **saved)
    kip848 = backup("newer", {TOPIC: rows}, type="Consumer", **saved)
    chunked = in_parts(backup("chunked", {TOPIC: rows}, id="id-3", **saved), chunk_bytes=1)
    matched = Firing(
        _AT, b"\x00\x01\x02\x03\x04", total=1, reported=1, new=1, groups=["a"], detail="", first_due=_LATER
    )
    delivery = DeliveryState(policy, {"GroupsMatched": _AT}, Notice(_AT, 1, ["deleted"]))
    ids: dict[str, Any] = {"connection_uid": "c-1", "policy_uid": uid, "expires": _LATER}
    return [
        Watch(policy_uid=uid, digest="d", epoch=2, watched=60.5, at=_AT, complete_at=_AT),
        Seen(policy_uid=uid, group="seen", epoch=2, fingerprint=b"\x00\xff" * 8, since=_AT, watched=1.5),
        Covered(connection_uid="c-1", topic_id="t", to={0: 7}, table="a", version=3, at=_AT, expires=_LATER),
        Mark(policy_uid=uid, group="marked", policy=policy, digest="d", since=_AT, due=_AT + timedelta(days=1)),
        Mark(policy_uid=uid, group="reduced", policy=policy, digest="d", since=_AT, due=_LATER, topics={TOPIC: _AT}),
        KeepRequest(group="kept", until=_LATER, why="needed", by="somebody", at=_AT),
        Intent(group="intended", id="id-4", type="Classic", deadline=_AT, marked_since=_AT, writer="w", **by, **when),
        Intent(group="half", id="id-5", type="Classic", deadline=_AT, topics=(TOPIC,), **by, **when),
        *(whole, partial, streams, share, kip848, *chunked),
        _outcome("deleted", "id-1", OutcomeType.DELETED, reasons.DELETED, **by, **when),
        _outcome(
            "reduced", "id-2", OutcomeType.OFFSETS_DELETED, reasons.OFFSETS_DELETED, topics=(TOPIC,), **by, **when
        ),
        _outcome("stayed", "id-6", OutcomeType.NOT_DELETED, reasons.NOT_EMPTY, marked_since=_AT, **by, **when),
        PolicyAlerts(firing={"GroupsMatched": matched}, **ids),
        Receipt(receiver="chat", digest="d", delivery=delivery, **ids),
    ]


def _outcome(group: str, id_: str, what: OutcomeType, reason: str, **fields: Any) -> Outcome:
    return Outcome(group=group, id=id_, what=what, reason=reason, message="as it was", **fields)


def _records(cluster: KafkaCluster) -> list[dict[str, str]]:
    """What is in the topic, by another client: keys and values are JSON."""
    place = TopicPartition(_LEDGER, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, enable_auto_commit=False, isolation_level="read_committed"
    )
    consumer.assign([place])
    consumer.seek_to_beginning()
    end, records = consumer.end_offsets([place])[place], []
    while consumer.position(place) < end:
        for batch in consumer.poll(timeout_ms=200).values():
            records += [{"key": record.key.decode(), "value": record.value.decode()} for record in batch]
    consumer.close()
    return records


def _write_tables(cluster: KafkaCluster, into: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        warehouse = Path(scratch, "warehouse")
        where = ("--bootstrap-server", cluster.bootstrap_servers, "--warehouse", warehouse)
        spark = ("--jars", jars_with_kafka_source(), "--log-file", Path(scratch, "spark.log"), "--memory", "1g")
        argv = (sys.executable, "-m", "group_hygiene.cli", "pipeline", "run", *where, *spark)
        subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(_ROOT / "operator")}, check=True)
        # Sums of Hadoop's own: it looks at them only where they are there.
        ignored = shutil.ignore_patterns("*.crc")
        for name in _TABLES:
            shutil.copytree(warehouse / name, into / name, ignore=ignored)


if __name__ == "__main__":
    main()
