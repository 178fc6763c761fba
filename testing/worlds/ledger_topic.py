"""Worlds in which a setting of the ledger's topic is changed while the operator runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import NewPartitions

from testing.faults.errors import Broken, FaultsError
from testing.worlds.changes import LEDGER, configured
from testing.worlds.life import Life
from testing.worlds.world import Moment, Refuses, Works, World

_UNAVAILABLE = "LedgerUnavailable"


@contextmanager
def _two_partitions(life: Life) -> Iterator[None]:
    life.admin.create_partitions([NewPartitions(life.run.ledger_topic, 2)])[life.run.ledger_topic].result()
    time.sleep(1)
    yield


@contextmanager
def _deleted(life: Life) -> Iterator[None]:
    life.admin.delete_topics([life.run.ledger_topic])[life.run.ledger_topic].result()
    time.sleep(1)
    yield


@contextmanager
def _edited(life: Life) -> Iterator[None]:
    """A user edits spec.ledger.topic: the API server refuses."""
    try:
        life.run.kube.patch(
            "KafkaConnection", life.run.name, "main", {"ledger": {"topic": f"{life.run.ledger_topic}-2"}}
        )
    except FaultsError as error:
        if " 422 " not in str(error):
            raise
    else:
        raise Broken("spec.ledger.topic of a connection could be edited")
    yield


def _set(name: str, expected: Works | Refuses, moment: Moment = Moment.DELETED, **settings: str) -> World:
    """A world that sets configurations of the ledger's topic."""
    named = {setting.replace("_", "."): value for setting, value in settings.items()}
    return World(
        "ledger-topic",
        name,
        f"{', '.join(f'{setting}={value}' for setting, value in named.items())} of the ledger's topic, {moment.value}",
        change=configured(LEDGER, **settings),
        moment=moment,
        expected=expected,
        settings=tuple(named),
    )


WORLDS = (
    _set("ledger-cleanup-delete", Refuses(_UNAVAILABLE, "cleanup.policy"), cleanup_policy="delete"),
    _set("ledger-cleanup-both", Refuses(_UNAVAILABLE, "cleanup.policy"), cleanup_policy="compact,delete"),
    _set(
        "ledger-own-time",
        Refuses(_UNAVAILABLE, "message.timestamp.type"),
        Moment.MARKED,
        message_timestamp_type="CreateTime",
    ),
    _set(
        "ledger-unclean",
        Refuses(_UNAVAILABLE, "unclean.leader.election.enable"),
        unclean_leader_election_enable="true",
    ),
    # Of one replica, one counts as enough (KIP-966).
    _set("ledger-min-isr-2", Works(), min_insync_replicas="2"),
    _set("ledger-small-messages", Refuses(_UNAVAILABLE, "max.message.bytes"), max_message_bytes="2000"),
    _set("ledger-retention", Works(), retention_ms="1000", retention_bytes="1000"),
    _set(
        "ledger-compacted",
        Works(),
        Moment.MARKED,
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="100",
    ),
    _set(
        "ledger-tombstones-gone",
        Refuses(_UNAVAILABLE, "delete.retention.ms"),
        Moment.MARKED,
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        delete_retention_ms="0",
    ),
    _set("ledger-never-compacted", Works(), min_compaction_lag_ms="9223372036854775807"),
    _set("ledger-segments-small", Works(), Moment.MARKED, segment_bytes="1048576", segment_index_bytes="1000"),
    _set("ledger-jitter", Works(), Moment.MARKED, segment_ms="1000", segment_jitter_ms="500"),
    _set("ledger-flushed", Works(), Moment.MARKED, flush_messages="1", flush_ms="1", index_interval_bytes="1"),
    _set("ledger-preallocated", Works(), Moment.MARKED, preallocate="true", file_delete_delay_ms="0"),
    _set(
        "ledger-times-bounded",
        Works(),
        Moment.MARKED,
        message_timestamp_before_max_ms="1000",
        message_timestamp_after_max_ms="1000",
    ),
    World(
        "ledger-topic",
        "ledger-two-partitions",
        "the ledger's topic gets a second partition",
        change=_two_partitions,
        moment=Moment.MARKED,
        expected=Refuses(_UNAVAILABLE, "1 partition", ends=True),
    ),
    World(
        "ledger-topic",
        "ledger-deleted",
        "the ledger's topic is deleted",
        change=_deleted,
        moment=Moment.MARKED,
        expected=Refuses("LedgerReset", "ledger", ends=True),
    ),
    World(
        "ledger-topic",
        "ledger-edited",
        "a user edits spec.ledger.topic, which the API server refuses",
        change=_edited,
        moment=Moment.MARKED,
    ),
)
