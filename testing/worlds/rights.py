"""Worlds in which one of the operator's rights in Kafka is missing, from the moment that groups are marked."""

from __future__ import annotations

from typing import Any

from confluent_kafka.admin import AclOperation

from testing.worlds.acls import OFFSETS, TOPIC, denied
from testing.worlds.world import Change, Cluster, Moment, Refuses, Works, World, config

_USER = Cluster(user=True)
_WORKS = Works()


def _without(
    name: str, change: Change, expected: Works | Refuses = _WORKS, moment: Moment = Moment.MARKED, **more: Any
) -> World:
    about = f"{name} is denied, {moment.value}"
    return World("rights", f"without-{name}", about, _USER, change, moment, expected, **more)


def _ledger(operation: AclOperation, moment: Moment = Moment.MARKED) -> World:
    """A world without a right on the ledger's topic."""
    name = operation.name.lower().replace("_", "-")
    refuses = Refuses("LedgerUnavailable", operation.name)
    return _without(f"{name}-ledger", denied("ledger", operation), refuses, moment)


WORLDS = (
    World("rights", "with-all-rights", "the rights of docs/kafka-permissions.md", _USER),
    World(
        "rights",
        "logins-again",
        "connections.max.reauth.ms=5000: clients log in again every five seconds",
        Cluster(user=True, config=config(connections_max_reauth_ms="5000")),
    ),
    _without("describe-cluster", denied("cluster-describe"), Refuses("SnapshotIncomplete", "DESCRIBE")),
    # Without it, only offsets.retention.minutes is unknown.
    _without("describe-configs-cluster", denied("cluster-describe-configs")),
    # Producers need it before Kafka 2.8 (KIP-679), and transactional ones never.
    _without("idempotent-write-cluster", denied("cluster-idempotent-write")),
    _without("describe-groups", denied("group", AclOperation.DESCRIBE), Refuses("SnapshotIncomplete", "DESCRIBE")),
    _without("delete-groups", denied("group", AclOperation.DELETE), Refuses("AuthorizationDenied", "DELETE")),
    # Of all topics, it would be missing on the ledger, too.
    _without("describe-topic", denied("topic-describe", topic=TOPIC), Refuses("TopicsHidden", "DESCRIBE")),
    _without("describe-offsets-log", denied("topic-describe", topic=OFFSETS), Refuses("SnapshotIncomplete", OFFSETS)),
    # 500 kB are assumed as the most that a broker deletes at once.
    _without("describe-configs-offsets-log", denied("offsets-log-describe-configs")),
    # Brokers count the lag of share groups themselves; and a user who says --force asks for no lag.
    _without(
        "read-topic",
        denied("topic-read", topic=TOPIC),
        Refuses("LagUnknown", "READ", forced=True),
        protocols=("classic", "consumer"),
    ),
    _without(
        "read-offsets-log",
        denied("topic-read", topic=OFFSETS),
        Refuses("EvidenceUnreadable", OFFSETS, forced=True),
    ),
    _ledger(AclOperation.CREATE, Moment.START),
    _ledger(AclOperation.READ),
    _ledger(AclOperation.WRITE),
    _ledger(AclOperation.DESCRIBE),
    _ledger(AclOperation.DESCRIBE_CONFIGS),
    _without("transactional-id", denied("transactional-id"), Refuses("LedgerUnavailable", "transactional")),
)
