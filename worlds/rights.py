"""Worlds in which one of the operator's rights in Kafka is missing, from the moment that groups are marked."""

from __future__ import annotations

from confluent_kafka.admin import AclOperation

from worlds.acls import TOPIC, denied
from worlds.world import Change, Cluster, Moment, Refuses, World, config

_USER = Cluster(user=True)


def _without(name: str, change: Change, reason: str, cause: str, forced: bool = False) -> World:
    expected = Refuses(reason, cause, forced=forced)
    return World("rights", f"without-{name}", f"{name} is denied", _USER, change, Moment.MARKED, expected)


WORLDS = (
    World("rights", "with-all-rights", "the rights of docs/kafka-permissions.md", _USER),
    World(
        "rights",
        "logins-again",
        "connections.max.reauth.ms=5000: clients log in again every five seconds",
        Cluster(user=True, config=config(connections_max_reauth_ms="5000")),
    ),
    _without("describe-cluster", denied("cluster-describe"), "SnapshotIncomplete", "DESCRIBE"),
    _without("describe-groups", denied("group", AclOperation.DESCRIBE), "SnapshotIncomplete", "DESCRIBE"),
    _without("delete-groups", denied("group", AclOperation.DELETE), "AuthorizationDenied", "DELETE"),
    # Of all topics, it would be missing on the ledger, too.
    _without("describe-topic", denied("topic-describe", topic=TOPIC), "TopicsHidden", "DESCRIBE"),
    _without(
        "describe-offsets-log",
        denied("topic-describe", topic="__consumer_offsets"),
        "SnapshotIncomplete",
        "__consumer_offsets",
    ),
    _without("read-topic", denied("topic-read", topic=TOPIC), "LagUnknown", "READ"),
    _without(
        "read-offsets-log",
        denied("topic-read", topic="__consumer_offsets"),
        "EvidenceUnreadable",
        "__consumer_offsets",
        forced=True,
    ),
    _without("read-ledger", denied("ledger", AclOperation.READ), "LedgerUnavailable", "READ"),
    _without("write-ledger", denied("ledger", AclOperation.WRITE), "LedgerUnavailable", "WRITE"),
    _without("describe-ledger", denied("ledger", AclOperation.DESCRIBE), "LedgerUnavailable", "DESCRIBE"),
    _without(
        "describe-configs-of-ledger",
        denied("ledger", AclOperation.DESCRIBE_CONFIGS),
        "LedgerUnavailable",
        "DESCRIBE_CONFIGS",
    ),
    _without("transactional-id", denied("transactional-id"), "LedgerUnavailable", "transactional"),
)
