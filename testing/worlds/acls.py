"""The rights of the operator's user in Kafka: those of docs/kafka-permissions.md, and one of them less."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from testing.faults.world import World as Enforced
from testing.worlds.world import PASSWORD, USER, Change

if TYPE_CHECKING:
    from testing.worlds.life import Life

Right = tuple[AclOperation, ResourceType, str]
OFFSETS = "__consumer_offsets"
_LEDGER = "the ledger's topic"
# With committed offsets of all groups of a life.
TOPIC = "the topic of a life"
RIGHTS: dict[str, Right] = {
    "cluster-describe": (AclOperation.DESCRIBE, ResourceType.BROKER, "kafka-cluster"),
    "cluster-describe-configs": (AclOperation.DESCRIBE_CONFIGS, ResourceType.BROKER, "kafka-cluster"),
    "offsets-log-describe-configs": (AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, OFFSETS),
    "cluster-idempotent-write": (AclOperation.IDEMPOTENT_WRITE, ResourceType.BROKER, "kafka-cluster"),
    "transactional-id": (AclOperation.ALL, ResourceType.TRANSACTIONAL_ID, "*"),
    "topic-describe": (AclOperation.DESCRIBE, ResourceType.TOPIC, "*"),
    "topic-read": (AclOperation.READ, ResourceType.TOPIC, "*"),
    "group": (AclOperation.ALL, ResourceType.GROUP, "*"),
    "ledger": (AclOperation.ALL, ResourceType.TOPIC, _LEDGER),
}


def grant(run: Enforced) -> None:
    """Grant all rights, and make the Secret with its RoleBinding."""
    run.secret("kafka", {"password": PASSWORD})
    for right in RIGHTS.values():
        _acl(run, right, AclPermissionType.ALLOW)


def denied(name: str, operation: AclOperation | None = None, topic: str = "") -> Change:
    """A change that denies one right of RIGHTS, or a part of it."""
    operation_, kind, resource = RIGHTS[name]

    @contextmanager
    def change(life: Life) -> Iterator[None]:
        _acl(life.run, (operation or operation_, kind, topic or resource), AclPermissionType.DENY)
        yield
        every = AclBindingFilter(
            *(ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{USER}", None, AclOperation.ANY),
            AclPermissionType.DENY,
        )
        for lifted in life.admin.delete_acls([every]).values():
            lifted.result()
        time.sleep(0.5)

    return change


def _acl(run: Enforced, right: Right, permission: AclPermissionType) -> None:
    operation, kind, name = right
    name = {_LEDGER: run.ledger_topic, TOPIC: run.topic}.get(name, name)
    binding = AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, permission)
    for made in run.groups.admin.create_acls([binding]).values():
        made.result()
    time.sleep(0.5)
