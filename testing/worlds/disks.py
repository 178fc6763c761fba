"""Worlds in which a broker has two disks. Kafka takes one that fails or is full off line until the broker restarts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kafka import KafkaAdminClient, TopicPartitionReplica

from testing.sandbox.kafka.cluster import Alteration
from testing.sandbox.kafka.layout import new_cluster_id
from testing.sandbox.waiting import wait_for
from testing.worlds.changes import preloaded, restarted
from testing.worlds.life import Life
from testing.worlds.world import Cluster, Moment, Refuses, World

_SECONDS = 60.0
_SETTINGS = ("log.dirs",)


@contextmanager
def _two_disks(life: Life) -> Iterator[None]:
    """The last broker has a second disk, on which it puts new partitions."""
    _second_disk(life, {})
    yield


@contextmanager
def _broken(life: Life) -> Iterator[None]:
    """The second disk of the last broker fails: its folder is gone."""
    second = _second_disk(life, {})
    _with_ledger(life, second)
    aside = second.with_name("aside")
    second.rename(aside)
    _until_offline(life)
    yield
    aside.rename(second)
    restarted(life, life.kafka.broker_ids[-1])


@contextmanager
def _full(life: Life) -> Iterator[None]:
    """The second disk of the last broker is full."""
    flag = life.kafka.log(life.kafka.broker_ids[-1]).with_name("full")
    # The folder of `_second_disk`.
    second = _second_disk(life, preloaded("full.c", FULL_DIR=str(flag.with_name("second")), FULL_FLAG=str(flag)))
    _with_ledger(life, second)
    flag.touch()
    _until_offline(life)
    yield
    flag.unlink()
    restarted(life, life.kafka.broker_ids[-1])


def _second_disk(life: Life, environment: Mapping[str, str]) -> Path:
    """Restart the last broker with a second disk; its folder."""
    broker = life.kafka.broker_ids[-1]
    first, second = (life.kafka.log(broker).with_name(name) for name in ("data", "second"))
    second.mkdir()
    # A disk has an id, and nothing else when it is new.
    rows = (first / "meta.properties").read_text().splitlines()
    rows = [f"directory.id={new_cluster_id()}" if row.startswith("directory.id=") else row for row in rows]
    (second / "meta.properties").write_text("\n".join(rows) + "\n")
    # Kafka writes a file on each disk so often, and then notices that it can't.
    settings = {"log.dirs": f"{first},{second}", "log.flush.offset.checkpoint.interval.ms": "1000"}
    restarted(life, broker, Alteration(config=settings, environment=environment))
    return second


def _with_ledger(life: Life, folder: Path) -> None:
    """Move the last broker's replica of the ledger into a folder."""
    admin, ledger = KafkaAdminClient(bootstrap_servers=life.groups.bootstrap), life.run.ledger_topic
    admin.alter_replica_log_dirs({TopicPartitionReplica(ledger, 0, life.kafka.broker_ids[-1]): str(folder)})
    admin.close()
    # A broker does not start with both.
    before, after = folder.with_name("data") / f"{ledger}-0", folder / f"{ledger}-0"
    wait_for(lambda: after.exists() and not before.exists(), "the ledger moves to the second disk", _SECONDS)


def _until_offline(life: Life) -> None:
    admin = KafkaAdminClient(bootstrap_servers=life.groups.bootstrap)

    def is_offline() -> bool:
        (answer,) = admin.describe_log_dirs(brokers=[life.kafka.broker_ids[-1]])
        return any(row["error_code"] for row in answer["log_dirs"])

    wait_for(is_offline, "the second disk is off line", _SECONDS)
    admin.close()


# A topic that only this disk has would be hidden.
_HIDES = Refuses("TopicsUnknown", "broker 3")

WORLDS = (
    World(
        "disks",
        "disks-two",
        "log.dirs has two folders",
        change=_two_disks,
        moment=Moment.FIRST,
        settings=_SETTINGS,
        alone=True,
    ),
    World(
        "disks",
        "disk-broken",
        "the disk with the ledger fails: its partition has no leader, and the broker goes on",
        change=_broken,
        moment=Moment.MARKED,
        expected=Refuses("LedgerUnavailable", "leader"),
        settings=_SETTINGS,
        alone=True,
    ),
    World(
        "disks",
        "disk-broken-of-3",
        "one of two disks of one broker of three fails, with a replica of the ledger",
        Cluster(brokers=3),
        change=_broken,
        moment=Moment.MARKED,
        expected=_HIDES,
        settings=_SETTINGS,
        alone=True,
    ),
    World(
        "disks",
        "disk-full-of-3",
        "one of two disks of one broker of three is full, with a replica of the ledger",
        Cluster(brokers=3),
        change=_full,
        moment=Moment.MARKED,
        expected=_HIDES,
        settings=_SETTINGS,
        alone=True,
        needs=("cc",),
    ),
)
