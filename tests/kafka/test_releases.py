"""What former releases wrote is read: their ledgers on a real broker, restored from, and their pipelines' tables."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from group_hygiene.evidence.reader import Reading, Tables
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka.client import Client
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model.backups import Backup, whole
from group_hygiene.model.entries import Mark
from group_hygiene.model.groups import Partition
from group_hygiene.reconcile.context import Memory
from group_hygiene.reconcile.opening import LedgerNeed, open_journal
from group_hygiene.restore.restorable import Kind
from group_hygiene.spec.connection import ActivitySpec
from tests.kafka.books import foreign, settings
from tests.kafka.makers import Maker, soon
from tests.kafka.test_restoration import committed, restored
from tests.releases.make import INSTALLATION, TOPIC

RELEASES = sorted(path.parent for path in (Path(__file__).parents[1] / "releases").glob("*/ledger.json"))
AT, LATER = datetime(2026, 11, 22, 12, tzinfo=UTC), datetime(2126, 1, 1, tzinfo=UTC)


@pytest.fixture(params=[pytest.param(path, id=path.name) for path in RELEASES])
def release(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.param
    return folder


def test_the_ledger_of_a_release_is_read(client: Client, make: Maker, release: Path) -> None:
    """All that it holds, by who goes on with it: owner, dates, requests, deletions under way; and groups come back.

    Topics have another id on each cluster, so that of the release's topic stands for its own.
    """
    saved = json.loads((release / "ledger.json").read_text())
    make.topic(TOPIC, partitions=2, records=9)
    topic_id = kafka_cluster.topic_ids(client, [TOPIC], soon())[TOPIC]
    assert isinstance(topic_id, str)
    ledger = foreign(make)
    values = [
        (row["key"].encode(), row["value"].replace(saved["topicId"], topic_id).encode()) for row in saved["records"]
    ]
    make.produce(ledger, values)
    memory = Memory()
    wanted = settings(ledger, installation=INSTALLATION)
    journal = open_journal(memory, client, wanted, LedgerNeed.WRITE, ["uid-1"], soon())
    assert journal.problem is None
    found = journal.contents
    assert (found.unreadable, found.damaged) == (0, {})
    assert found.owner is not None
    assert found.owner.installation == INSTALLATION
    assert (found.watches["uid-1"].epoch, found.watches["uid-1"].watched) == (2, 60.5)
    assert found.seen["uid-1"]["seen"].fingerprint == b"\x00\xff" * 8
    assert found.covered["c-1"].to == {0: 7}
    marks: dict[str, Mark] = found.marks["uid-1"]
    assert (marks["marked"].since, marks["marked"].topics) == (AT, {})
    assert (marks["reduced"].due, marks["reduced"].topics) == (LATER, {TOPIC: AT})
    assert (found.keeps["kept"].until, found.keeps["kept"].why) == (LATER, "needed")
    assert {group: intent.topics for group, intent in found.intents.items()} == {"intended": (), "half": (TOPIC,)}
    assert found.deletions.keys() == {"deleted"}
    assert found.deletions["deleted"].until == LATER
    assert found.offset_deletions["reduced"].keys() == {TOPIC}
    # 0.1.0 noted something else of alerts, which is ignored.
    keys = {("alerts", "c-1", "uid-1"), ("receipt", "c-1", "chat", "uid-1")}
    assert found.alerts.keys() == (set() if release.name == "0.1.0" else keys)
    assert memory.ledger is not None
    _backups(memory.ledger)
    for group in ("deleted", "chunked"):
        assert restored(client, memory.ledger, group).kind is Kind.RESTORED
        offsets = {place: commit.offset for place, commit in committed(client, group).items()}
        assert offsets == {Partition(TOPIC, 0): 3, Partition(TOPIC, 1): 0}
        assert committed(client, group)[Partition(TOPIC, 0)].metadata == "from host-1, ünïcode"


def _backups(ledger: Ledger) -> None:
    """Each kind of them is whole."""
    parts: dict[str, list[Backup]] = {}
    for entry in ledger.entries(lambda key: key[0] == "backup", soon()):
        assert isinstance(entry, Backup)
        parts.setdefault(entry.group, []).append(entry)
    backups: dict[str, Any] = {group: whole(found) for group, found in parts.items()}
    assert {group: (backup.type, backup.partial) for group, backup in backups.items()} == {
        "deleted": ("Classic", False),
        "chunked": ("Classic", False),
        "reduced": ("Classic", True),
        "newer": ("Consumer", False),
        "share": ("Share", False),
        "streams": ("Streams", False),
    }
    assert backups["streams"].internal_topics == {"streams-changelog": "an-id"}


def test_the_tables_of_a_release_are_read(release: Path) -> None:
    """By the operator's reader: who was Empty since when, who only committed, and who was in use."""
    reading = Tables(ActivitySpec(str(release / "tables"))).read(["left", "assigned", "in-use", "none"], 60)
    assert isinstance(reading, Reading)
    assert set(reading.covered) == {0, 1}
    groups = reading.groups
    assert {name: (str(found.type), found.state, found.protocol_type) for name, found in groups.items()} == {
        "left": ("Classic", "Empty", "consumer"),
        "assigned": ("Classic", "Empty", ""),
        "in-use": ("Consumer", "Active", "consumer"),
    }
    assert groups["left"].idle_since == groups["left"].empty_since is not None
    assert groups["assigned"].simple
    assert groups["assigned"].idle_since is not None
