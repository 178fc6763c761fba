"""Worlds of three brokers: dead ones, elections, reassignments, racks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import ElectionType, KafkaException
from kafka import KafkaAdminClient
from kafka import TopicPartition as Place

from testing.sandbox.kafka.cluster import Alteration
from testing.worlds.changes import (
    LEDGER,
    OFFSETS,
    brokers_configured,
    configured,
    repeatedly,
    restarted,
    rolling_restart,
    without_broker,
)
from testing.worlds.life import Life
from testing.worlds.world import Cluster, Moment, Refuses, World, config

_THREE = Cluster(brokers=3)
_PAUSE_SECONDS = 3.0


@contextmanager
def _elections(life: Life) -> Iterator[None]:
    """Leaders of all partitions move to their preferred replicas again and again, after each other's restart."""

    def elect() -> None:
        try:
            life.admin.elect_leaders(ElectionType.PREFERRED).result()
        except KafkaException as error:
            if "ELECTION_NOT_NEEDED" not in str(error):
                raise

    restarted(life, 2)
    with repeatedly(elect, _PAUSE_SECONDS):
        yield


@contextmanager
def _reassignments(life: Life) -> Iterator[None]:
    """Partitions of the offsets log and of the ledger move between brokers, and so do their leaders."""
    admin = KafkaAdminClient(bootstrap_servers=life.groups.bootstrap)
    chosen = random.Random(7)
    partitions = itertools.cycle(range(len(life.admin.list_topics(OFFSETS).topics[OFFSETS].partitions)))

    def move() -> None:
        order = chosen.sample(life.kafka.broker_ids, 2)
        admin.alter_partition_reassignments({Place(OFFSETS, next(partitions)): order})

    with repeatedly(move, _PAUSE_SECONDS):
        yield
    admin.close()


@contextmanager
def _racks(life: Life) -> Iterator[None]:
    """Each broker has a rack, and consumers may read from the nearest replica."""
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    for broker in life.kafka.broker_ids:
        settings = {"broker.rack": f"rack-{broker}", "replica.selector.class": selector}
        restarted(life, broker, Alteration(config=settings))
    yield


@contextmanager
def _too_few_in_sync(life: Life) -> Iterator[None]:
    """The ledger needs three replicas in sync, and one broker of three is down."""
    with configured(LEDGER, min_insync_replicas="3")(life), without_broker(3)(life):
        yield


@contextmanager
def _ledger_unreplicated(life: Life) -> Iterator[None]:
    """The ledger keeps one replica only."""
    admin = KafkaAdminClient(bootstrap_servers=life.groups.bootstrap)
    topic = life.run.ledger_topic
    leader = life.admin.list_topics(topic).topics[topic].partitions[0].leader
    admin.alter_partition_reassignments({Place(topic, 0): [leader]})
    yield
    others = [broker for broker in life.kafka.broker_ids if broker != leader]
    admin.alter_partition_reassignments({Place(topic, 0): [leader, *others]})
    admin.close()


def _slow(milliseconds: int) -> Cluster:
    """Three brokers whose followers wait so long for 100 kB before a fetch is answered."""
    return Cluster(
        brokers=3,
        config=config(
            replica_fetch_wait_max_ms=str(milliseconds),
            replica_fetch_min_bytes="100000",
            replica_lag_time_max_ms="10000",
            replica_high_watermark_checkpoint_interval_ms="60000",
        ),
    )


WORLDS = (
    World("replicas", "three-brokers", "three brokers with the sandbox's settings", _THREE),
    World(
        "replicas",
        "broker-down-before-the-ledger",
        "one broker of three is down before there is a ledger with replicationFactor 3",
        _THREE,
        change=without_broker(3),
        expected=Refuses("LedgerUnavailable", "replica"),
        alone=True,
    ),
    World(
        "replicas",
        "broker-down-while-marked",
        "one broker of three is stopped while groups are marked",
        _THREE,
        change=without_broker(3),
        moment=Moment.MARKED,
        # It may come back, so this is no refusal of its brokers, as TopicsHidden is.
        expected=Refuses("TopicsUnknown", "broker 3"),
        alone=True,
    ),
    World(
        "replicas",
        "ledger-min-isr-above-replicas",
        "min.insync.replicas=4 of the ledger's topic with three replicas, which counts as 3 (KIP-966)",
        _THREE,
        change=configured(LEDGER, min_insync_replicas="4"),
        moment=Moment.DELETED,
        settings=("min.insync.replicas",),
    ),
    World(
        "replicas",
        "ledger-too-few-in-sync",
        "min.insync.replicas=3 of the ledger's topic, and one broker of three is stopped while groups are marked",
        _THREE,
        change=_too_few_in_sync,
        moment=Moment.MARKED,
        # `doctor` writes nothing; it names the broker that is gone.
        expected=Refuses("LedgerUnavailable", "NOT_ENOUGH_REPLICAS", everywhere=False),
        settings=("min.insync.replicas",),
        alone=True,
    ),
    World(
        "replicas",
        "ledger-unreplicated",
        "the ledger's partition is reassigned to one broker, which status and doctor name (FewReplicas)",
        _THREE,
        change=_ledger_unreplicated,
        moment=Moment.DELETED,
    ),
    World(
        "replicas",
        "brokers-restarted",
        "the three brokers are restarted one by one after the first deletions",
        _THREE,
        change=rolling_restart,
        moment=Moment.DELETED,
        alone=True,
    ),
    World(
        "replicas",
        "unclean-elections",
        "unclean.leader.election.enable=true of all brokers",
        _THREE,
        change=brokers_configured(unclean_leader_election_enable="true"),
        settings=("unclean.leader.election.enable",),
    ),
    World(
        "replicas",
        "elections-under-way",
        "preferred leaders are elected again and again",
        _THREE,
        change=_elections,
        moment=Moment.MARKED,
        settings=("auto.leader.rebalance.enable",),
        alone=True,
    ),
    World(
        "replicas",
        "reassignments-under-way",
        "partitions of the offsets log move between brokers all the time",
        _THREE,
        change=_reassignments,
        moment=Moment.MARKED,
        alone=True,
    ),
    World(
        "replicas",
        "racks",
        "broker.rack, and fetches from followers (KIP-392)",
        _THREE,
        change=_racks,
        moment=Moment.FIRST,
        settings=("broker.rack", "replica.selector.class"),
        alone=True,
    ),
    World(
        "replicas",
        "leaders-rebalanced",
        "leaders are rebalanced every second",
        Cluster(
            brokers=3,
            config=config(auto_leader_rebalance_enable="true", leader_imbalance_check_interval_seconds="1"),
        ),
    ),
    World(
        "replicas",
        "replicas-slow",
        # A transaction is some four acknowledged writes, and a deletion has 2 s from its last read of offsets on.
        "followers fetch late: each write waits for up to a quarter of a second, and lag of 10 s is in sync",
        _slow(250),
    ),
    World(
        "replicas",
        "replicas-too-slow",
        # An acknowledged write waits for a fetch of each follower, and a transaction for several writes. An intent is
        # valid for 10 s (the Lease of a world ends then, too), so none can be written.
        "followers fetch so late that a transaction takes more than the 10 s in which an intent is valid",
        _slow(3000),
        moment=Moment.MARKED,
        expected=Refuses("LedgerUnavailable", "in time", ends=True, everywhere=False),
    ),
)
