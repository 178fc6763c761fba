"""A log that lost its last records by a power failure: what is written in their place is not overlooked."""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path

import pytest

from group_hygiene.kafka.client import Deadline, connect
from group_hygiene.kafka.mirror import Checkpoints
from group_hygiene.ledger.settings import COMMAND_LINE
from group_hygiene.spec.connection import Settings
from sandbox.kafka import KafkaCluster
from tests.kafka.books import claimed, keep, mark, pair, refused, transaction
from tests.kafka.makers import Maker, soon

_BATCH = struct.Struct(">qi")


def cut(segment: Path, batches: int) -> None:
    """Remove the last batches of a log's file, as if the machine had lost power before it wrote them to its disk."""
    data, starts, at = segment.read_bytes(), [], 0
    while at + _BATCH.size <= len(data) and (size := _BATCH.unpack_from(data, at)[1]) > 0:
        starts.append(at)
        at += _BATCH.size + size
    with segment.open("r+b") as file:
        file.truncate(starts[-batches])


@pytest.mark.parametrize("written", [0, 1, 2, 5])
def test_what_is_written_over_lost_records_is_read(written: int) -> None:
    """The writer of before reads all again, whether the log is shorter than it was, as long, or longer."""
    # Else the broker notes how far the file is on its disk, and does not look at the rest.
    with KafkaCluster(config={"log.flush.offset.checkpoint.interval.ms": "600000"}) as kafka:
        settings = Settings(tuple(kafka.bootstrap_servers.split(",")))
        with closing(connect(settings)) as client, closing(Maker(kafka.plaintext_bootstrap)) as make:
            topic = make.name("ledger")
            ledger = claimed(client, topic)
            for name in ("g-1", "g-2", "g-3"):
                ledger.write([mark(name)])
            kafka.kill_broker(1)
            # The last two transactions, each with its marker.
            cut(next((kafka.log(1).parent / "data").rglob(f"{topic}-0/*.log")), 4)
            kafka.start_broker(1)
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


def test_a_read_that_an_open_transaction_ended_proves_nothing() -> None:
    """What was read before the transaction stays in doubt until the log was asked."""
    with KafkaCluster(config={"log.flush.offset.checkpoint.interval.ms": "600000"}) as kafka:
        settings = Settings(tuple(kafka.bootstrap_servers.split(",")))
        with closing(connect(settings)) as client, closing(Maker(kafka.plaintext_bootstrap)) as make:
            topic = make.name("ledger")
            ledger = claimed(client, topic)
            for name in ("g-1", "g-2", "g-3"):
                ledger.write([mark(name)])
            kafka.kill_broker(1)
            cut(next((kafka.log(1).parent / "data").rglob(f"{topic}-0/*.log")), 4)
            kafka.start_broker(1)
            with closing(connect(settings)) as theirs:
                command = claimed(theirs, topic, installation=COMMAND_LINE, writer=f"another-{topic}")
                for number in range(5):
                    command.write([keep(f"kept-{number}")])
            open_one = transaction(kafka, topic, [pair(mark("g-5"))], make.name("open"))
            assert "a transaction has been open" in refused(lambda: ledger.read_on(soon(), Deadline(0.2)))
            open_one.abort_transaction(60)
            assert "lost its last records" in refused(lambda: ledger.read_on(soon()))
            assert set(ledger.contents.keeps) == {f"kept-{number}" for number in range(5)}


@pytest.mark.parametrize("written", [1, 2, 5])
def test_checkpoints_in_the_place_of_lost_ones_are_read(written: int) -> None:
    """However long the log is by now; what was read before stays known."""
    with KafkaCluster(config={"log.flush.offset.checkpoint.interval.ms": "600000"}) as kafka:
        settings = Settings(tuple(kafka.bootstrap_servers.split(",")))
        with closing(connect(settings)) as client, closing(Maker(kafka.plaintext_bootstrap)) as make:
            topic, checkpoints = make.topic(f"{make.name('source')}.checkpoints.internal", partitions=1), Checkpoints()
            for name in ("old-1", "old-2", "old-3"):
                make.checkpoints(topic, [name])
            assert checkpoints.read(client, [topic], soon()) == frozenset({"old-1", "old-2", "old-3"})
            kafka.kill_broker(1)
            cut(next((kafka.log(1).parent / "data").rglob(f"{topic}-0/*.log")), 2)
            kafka.start_broker(1)
            # One that never met the broker of before.
            with closing(connect(settings)) as again, closing(Maker(kafka.plaintext_bootstrap)) as later:
                new = [f"new-{number}" for number in range(written)]
                for name in new:
                    later.checkpoints(topic, [name])
                assert checkpoints.read(again, [topic], soon()) == frozenset({"old-1", "old-2", "old-3", *new})
