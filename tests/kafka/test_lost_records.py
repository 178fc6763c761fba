"""A log that lost its last records by a power failure: what is written in their place is not overlooked."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from group_hygiene.kafka.client import connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.mirror import Checkpoints
from group_hygiene.ledger.contents import COMMAND_LINE
from group_hygiene.model import reasons
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster, ZooKeeperCluster
from testing.sandbox.kafka.jars import VERSIONS
from tests.kafka.books import claimed, keep, mark, refused
from tests.kafka.makers import Maker, at, soon
from tests.kafka.scene import Scene, policy, verdicts

_BATCH = struct.Struct(">qi")
# No broker restarts within a second.
_LONGER_S = 2.5


def cut(segment: Path, batches: int) -> None:
    """Remove the last batches of a log's file, as if the machine had lost power before it wrote them to its disk."""
    data, starts, at = segment.read_bytes(), [], 0
    while at + _BATCH.size <= len(data) and (size := _BATCH.unpack_from(data, at)[1]) > 0:
        starts.append(at)
        at += _BATCH.size + size
    with segment.open("r+b") as file:
        file.truncate(starts[-batches])


def broker(version: str, config: Mapping[str, str] | None = None) -> KafkaCluster:
    """With ZooKeeper, a single broker comes back in the same leader epoch."""
    kind = KafkaCluster if version == VERSIONS[0] else ZooKeeperCluster
    # Else the broker notes how far the file is on its disk, and does not look at the rest.
    return kind(version, config={"log.flush.offset.checkpoint.interval.ms": "600000", **(config or {})})


def lose(kafka: KafkaCluster, topic: str, batches: int) -> None:
    """Cut the last batches off the log of partition 0 of the topic."""
    kafka.kill_broker(1)
    cut(next((kafka.log(1).parent / "data").rglob(f"{topic}-0/*.log")), batches)
    kafka.start_broker(1)


@pytest.mark.parametrize(
    ("version", "written"), [*((VERSIONS[0], written) for written in (0, 1, 2, 5)), ("3.9.1", 0), ("3.9.1", 5)]
)
def test_what_is_written_over_lost_records_is_read(version: str, written: int) -> None:
    """The writer of before reads all again, whether the log is shorter than it was, as long, or longer."""
    with broker(version) as kafka:
        settings = Settings(tuple(kafka.bootstrap_servers.split(",")))
        with closing(connect(settings)) as client, closing(Maker(kafka.plaintext_bootstrap)) as make:
            topic = make.name("ledger")
            ledger = claimed(client, topic)
            for name in ("g-1", "g-2", "g-3"):
                ledger.write([mark(name)])
            # The last two transactions, each with its marker.
            lose(kafka, topic, 4)
            with closing(connect(settings)) as theirs:
                command = claimed(theirs, topic, installation=COMMAND_LINE, writer=f"another-{topic}")
                for number in range(written):
                    command.write([keep(f"kept-{number}")])
            assert "lost its last records" in refused(lambda: ledger.read_on(soon()))
            ledger.read_on(soon())
            assert set(ledger.contents.marks["uid-1"]) == {"g-1"}
            assert set(ledger.contents.keeps) == {f"kept-{number}" for number in range(written)}
            ledger.write([mark("g-4")])
            assert set(ledger.contents.marks["uid-1"]) == {"g-1", "g-4"}


@pytest.mark.parametrize(("version", "written"), [*((VERSIONS[0], written) for written in (1, 2, 5)), ("3.9.1", 5)])
def test_checkpoints_in_the_place_of_lost_ones_are_read(version: str, written: int) -> None:
    """However long the log is by now; what was read before stays known."""
    with broker(version) as kafka:
        settings = Settings(tuple(kafka.bootstrap_servers.split(",")))
        with closing(connect(settings)) as client, closing(Maker(kafka.plaintext_bootstrap)) as make:
            topic, checkpoints = make.topic(f"{make.name('source')}.checkpoints.internal", partitions=1), Checkpoints()
            for name in ("old-1", "old-2", "old-3"):
                make.checkpoints(topic, [name])
            assert checkpoints.read(client, [topic], soon()) == frozenset({"old-1", "old-2", "old-3"})
            lose(kafka, topic, 2)
            # One that never met the broker of before.
            with closing(connect(settings)) as again, closing(Maker(kafka.plaintext_bootstrap)) as later:
                new = [f"new-{number}" for number in range(written)]
                for name in new:
                    later.checkpoints(topic, [name])
                assert checkpoints.read(again, [topic], soon()) == frozenset({"old-1", "old-2", "old-3", *new})


@pytest.mark.parametrize("scans", [3, 1])
@pytest.mark.parametrize("version", [VERSIONS[0], "3.9.1"])
def test_a_use_in_the_place_of_lost_records_is_seen(version: str, scans: int) -> None:
    """A consumer joins and leaves without a commit, its records where lost ones were, before the end of a scan.

    scans: how many there were before; the first one reads none of the records before it.
    """
    with (
        broker(version, {"offsets.topic.num.partitions": "1"}) as kafka,
        closing(Maker(kafka.plaintext_bootstrap)) as make,
    ):
        topic = make.topic(records=50)
        group = make.abandoned(make.name("monthly"), topic, commit=at(topic, 10))
        with closing(connect(Settings(tuple(kafka.bootstrap_servers.split(","))))) as client:
            scene, monthly = Scene(client), policy(group)
            # The records of other groups are lost.
            for _ in range(6):
                make.simple(make.name("other"), at(topic, 1))
            scene.observe(monthly)
            if scans > 1:
                scene.mark(monthly, scene.observe(monthly, after=60))
                make.simple(make.name("other"), at(topic, 1))
                assert verdicts(scene.observe(monthly, after=30), monthly) == {group: "Match"}
            lose(kafka, OFFSETS_TOPIC, 4)
            make.abandoned(group, topic, commit=at(topic, 10))
            for _ in range(8):
                make.simple(make.name("other"), at(topic, 1))
            assert verdicts(scene.observe(monthly, after=60), monthly) == {group: reasons.TOO_RECENT}


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_transaction_that_ends_late_is_no_loss(scene: Scene, make: Maker, end: str) -> None:
    """Its marker is later than the last record that was read, and was there at that scan: the counts go on."""
    topic = make.topic(records=50)
    group = make.abandoned(make.name("monthly"), topic, commit=at(topic, 10))
    monthly = policy(group)
    scene.observe(monthly)
    scene.observe(monthly, after=60)
    other = make.pending(make.name("other"), at(topic, 1))
    time.sleep(_LONGER_S)
    getattr(other, end)(60)
    for _ in range(2):
        assert verdicts(scene.observe(monthly, after=30), monthly) == {group: "Match"}
