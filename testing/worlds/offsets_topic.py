"""Worlds that differ in `__consumer_offsets` and in the group coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import ConfigResource, NewPartitions
from kafka import KafkaAdminClient

from testing.faults.errors import Broken
from testing.sandbox.waiting import wait_for
from testing.worlds.changes import OFFSETS, alter, brokers_configured, configured, restarted
from testing.worlds.life import Life
from testing.worlds.world import Change, Cluster, Moment, Refuses, World, config


def _grown(*restart: int, count: int = 20) -> Change:
    """`__consumer_offsets` gets so many partitions, and these brokers are restarted."""

    @contextmanager
    def change(life: Life) -> Iterator[None]:
        # Without a group there is no such topic.
        life.groups.abandon({f"{life.run.name}-first": {(life.run.topic, 0): 1}})
        life.admin.create_partitions([NewPartitions(OFFSETS, count)])[OFFSETS].result()
        topics = life.admin.list_topics
        wait_for(lambda: len(topics(OFFSETS, timeout=10).topics[OFFSETS].partitions) == count, "it has grown", 30)
        for broker in restart:
            restarted(life, broker)
        yield

    return change


@contextmanager
def _expiring(life: Life) -> Iterator[None]:
    """One marked group expires as a whole, and of another one half of its offsets, before the first deletion."""
    run, topic = life.run, life.run.topic
    gone, half = f"{run.name}-old-expires", f"{run.name}-old-expires-in-part"
    places = {(topic, 0): 3, (topic, 1): 4}
    left = {(topic, 1): 4}
    life.groups.abandon({gone: places, half: places})
    life.groups.commit(gone, places, _RETENTION_MS)
    life.groups.commit(half, {(topic, 0): 3}, _RETENTION_MS)
    run.until_marked([gone, half], _SECONDS)
    wait_for(lambda: gone not in life.groups.listed(), "the group expires", _SECONDS)
    wait_for(lambda: life.groups.offsets(half) == left, "offsets of the other group expire", _SECONDS)
    # Its mark must begin again, and its backup is what is left.
    run.truth.made({half: places})
    run.truth.made({half: left})
    life.made.unused["Classic, in part"], life.made.offsets[half] = half, left
    run.run(seconds=_SECONDS)
    run.until_marked([half], _SECONDS)
    if run.marked([gone]) or run.auditor.recorded([gone]):
        raise Broken(f"{gone} expired, and is still marked, or recorded as deleted: {run.summary()}")
    yield


@contextmanager
def _retention_of_brokers(life: Life) -> Iterator[None]:
    """Records are deleted after a second; not those of topics whose offsets are restored."""
    for topic in (life.run.topic, f"{life.run.name}-shared"):
        alter(life, ConfigResource.Type.TOPIC, topic, {"retention.ms": "-1"})
    with brokers_configured(log_retention_ms="1000", log_cleanup_policy="delete")(life):
        yield


def feature(name: str, level: int) -> Change:
    """A feature of the cluster at a lower level."""

    @contextmanager
    def change(life: Life) -> Iterator[None]:
        admin = KafkaAdminClient(bootstrap_servers=life.groups.bootstrap)
        before = admin.describe_features()
        results = admin.update_features({name: ("SAFE_DOWNGRADE", level)})
        if set(results.values()) != {"OK"}:
            raise AssertionError(f"{name} can't be downgraded: {results}; it was {before}")
        yield
        admin.close()

    return change


# How long offsets are there after a commit with a retention time: longer than it takes to mark their group.
_RETENTION_MS = 30_000
_SECONDS = 120.0
_CLEANER = config(log_cleaner_backoff_ms="200", log_cleaner_threads="2")
_OLD_COUNT = Refuses("OffsetsTopicGrown", "restart", ends=True)

WORLDS = (
    *(
        World(
            "offsets-topic",
            f"offsets-partitions-{count}",
            f"offsets.topic.num.partitions={count}",
            Cluster(config=config(offsets_topic_num_partitions=str(count))),
        )
        for count in (1, 50, 200)
    ),
    World(
        "offsets-topic",
        "offsets-grown",
        "__consumer_offsets grew from 5 to 20 partitions while groups are marked, and the broker was not restarted",
        change=_grown(),
        moment=Moment.MARKED,
        expected=_OLD_COUNT,
        settings=("offsets.topic.num.partitions",),
        alone=True,
    ),
    World(
        "offsets-topic",
        "offsets-grown-unseen",
        "__consumer_offsets grew from 5 to 20 partitions after groups existed, before the operator's first scan",
        change=_grown(),
        moment=Moment.START,
        expected=_OLD_COUNT,
        alone=True,
    ),
    World(
        "offsets-topic",
        "offsets-grown-restarted",
        "__consumer_offsets grew from 5 to 20 partitions, and the broker was restarted, before there are groups",
        change=_grown(1),
        moment=Moment.FIRST,
        alone=True,
    ),
    World(
        "offsets-topic",
        "offsets-grown-2-brokers",
        "__consumer_offsets grew, and neither of two brokers was restarted",
        Cluster(brokers=2),
        change=_grown(),
        moment=Moment.MARKED,
        expected=_OLD_COUNT,
        alone=True,
    ),
    World(
        "offsets-topic",
        "offsets-grown-2-restarted",
        "__consumer_offsets grew, and both brokers were restarted one by one, before there are groups",
        Cluster(brokers=2),
        change=_grown(1, 2),
        moment=Moment.FIRST,
        alone=True,
    ),
    World(
        "offsets-topic",
        "offsets-grown-3-brokers",
        "__consumer_offsets grew, and none of three brokers was restarted",
        Cluster(brokers=3),
        change=_grown(),
        moment=Moment.MARKED,
        expected=_OLD_COUNT,
        alone=True,
    ),
    World(
        "offsets-topic",
        "offsets-grown-1-of-2-restarted",
        "__consumer_offsets grew, and one of two brokers was restarted",
        Cluster(brokers=2),
        change=_grown(2),
        moment=Moment.FIRST,
        expected=_OLD_COUNT,
        alone=True,
    ),
    World(
        "offsets-topic",
        "offsets-doubled-on-2-8",
        "__consumer_offsets grew from 50 to 100 partitions on two brokers of Kafka 2.8.2",
        Cluster("2.8.2", brokers=2, config=config(offsets_topic_num_partitions="50")),
        change=_grown(count=100),
        moment=Moment.MARKED,
        expected=_OLD_COUNT,
        alone=True,
    ),
    World(
        "offsets-topic",
        "offsets-grown-3-restarted",
        "__consumer_offsets grew, and all three brokers were restarted one by one",
        Cluster(brokers=3),
        change=_grown(1, 2, 3),
        moment=Moment.FIRST,
        alone=True,
    ),
    World(
        "offsets-topic",
        "offsets-compacted",
        "the cleaner compacts __consumer_offsets all the time: segments of 100 ms",
        Cluster(config=_CLEANER),
        change=configured(OFFSETS, segment_ms="100", min_cleanable_dirty_ratio="0.001", max_compaction_lag_ms="100"),
        settings=("segment.ms", "min.cleanable.dirty.ratio", "max.compaction.lag.ms"),
    ),
    World(
        "offsets-topic",
        "offsets-tombstones-gone",
        "tombstones of __consumer_offsets are removed at once (delete.retention.ms=0), by a busy cleaner",
        Cluster(config=_CLEANER),
        change=configured(OFFSETS, segment_ms="100", min_cleanable_dirty_ratio="0.001", delete_retention_ms="0"),
        settings=("delete.retention.ms",),
    ),
    World(
        "offsets-topic",
        "offsets-segments-small",
        "offsets.topic.segment.bytes at its least",
        Cluster(config=config(offsets_topic_segment_bytes="1048576")),
    ),
    World(
        "offsets-topic",
        "offsets-retention-1-minute",
        "offsets.retention.minutes=1, checked every ten minutes",
        Cluster(config=config(offsets_retention_minutes="1", offsets_retention_check_interval_ms="600000")),
    ),
    World(
        "offsets-topic",
        "offsets-retention-forever",
        "offsets.retention.minutes at its most: committed offsets never expire (brokers refuse -1)",
        Cluster(config=config(offsets_retention_minutes="2147483647", offsets_retention_check_interval_ms="1000")),
    ),
    World(
        "offsets-topic",
        "groups-expire",
        "offsets that clients committed with a retention time expire while groups are marked",
        Cluster(config=config(offsets_retention_check_interval_ms="1000")),
        change=_expiring,
        moment=Moment.MARKED,
        # Else all groups are due when the change ends, and `keep` comes too late.
        grace=60.0,
    ),
    World(
        "offsets-topic",
        "offsets-read-in-small-buffers",
        "offsets.load.buffer.size=1000, and a slow commit is an error (offsets.commit.timeout.ms=5000)",
        Cluster(config=config(offsets_load_buffer_size="1000", offsets_commit_timeout_ms="5000")),
    ),
    World(
        "offsets-topic",
        "coordinator-lingers",
        "the group coordinator collects writes for 50 ms, in four threads",
        Cluster(
            config=config(
                group_coordinator_append_linger_ms="50",
                group_coordinator_threads="4",
                group_coordinator_background_threads="1",
            )
        ),
    ),
    World(
        "offsets-topic",
        "rebalance-delayed",
        "group.initial.rebalance.delay.ms=3000, its default",
        Cluster(config=config(group_initial_rebalance_delay_ms="3000")),
    ),
    World(
        "offsets-topic",
        "members-limited",
        "groups have at most one member, and sessions of at least 6 s",
        Cluster(
            config=config(
                group_max_size="1",
                group_consumer_max_size="1",
                group_min_session_timeout_ms="6000",
                group_max_session_timeout_ms="60000",
            )
        ),
    ),
    *(
        World(
            "offsets-topic",
            f"protocols-{'-'.join(protocols)}",
            f"group.coordinator.rebalance.protocols={','.join(protocols)}",
            Cluster(config=config(group_coordinator_rebalance_protocols=",".join(protocols))),
            protocols=protocols,
        )
        for protocols in (("classic",), ("classic", "consumer"))
    ),
    *(
        World(
            "offsets-topic",
            f"migration-{policy}",
            f"group.consumer.migration.policy={policy}",
            Cluster(config=config(group_consumer_migration_policy=policy)),
        )
        for policy in ("disabled", "upgrade", "downgrade")
    ),
    World(
        "offsets-topic",
        "group-version-0",
        "the feature group.version is downgraded to 0: no KIP-848 groups",
        change=feature("group.version", 0),
        moment=Moment.FIRST,
        protocols=("classic",),
        alone=True,
    ),
    World(
        "offsets-topic",
        "share-version-0",
        "the feature share.version is downgraded to 0: no share groups",
        change=feature("share.version", 0),
        moment=Moment.FIRST,
        protocols=("classic", "consumer"),
        alone=True,
    ),
    World(
        "offsets-topic",
        "regex-refreshed",
        "group.consumer.regex.refresh.interval.ms and heartbeats at their least",
        Cluster(
            config=config(
                group_consumer_regex_refresh_interval_ms="10000",
                group_consumer_heartbeat_interval_ms="1000",
                group_consumer_min_heartbeat_interval_ms="1000",
            )
        ),
    ),
    World(
        "offsets-topic",
        "offsets-expire-by-brokers-setting",
        "log.retention.ms=1000 and log.cleanup.policy=delete of all brokers, which topics of their own override",
        change=_retention_of_brokers,
        settings=("log.retention.ms", "log.cleanup.policy"),
        moment=Moment.MARKED,
    ),
)
