"""Scenarios: brokers that die, hang, or hide a topic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from testing.faults.enforcement import LOOK_SECONDS
from testing.faults.errors import Broken
from testing.faults.kafka_proxy import Then, When
from testing.faults.requests import Exchange
from testing.faults.stage import Stage
from testing.faults.world import World
from testing.sandbox.kafka import Security
from testing.sandbox.waiting import wait_for

_PASSWORD = "correct-horse-battery"
_USER = "hygiene"


def broker_dies_at_delete(stage: Stage) -> None:
    """A broker is killed before it gets a DeleteGroups, and right after it processed one: all deletions are recorded.

    Hidden topics may exist on that broker alone, so the remaining groups wait for it.
    """
    with stage.cluster(3) as kafka, stage.world(kafka=kafka) as world:
        for when in (When.BEFORE, When.BETWEEN):
            names, killed = world.abandon(6), list[int]()

            def kill(exchange: Exchange, killed: list[int] = killed) -> Then:
                killed.append(exchange.broker)
                kafka.kill_broker(exchange.broker)
                return Then.DROP

            rule = world.at("delete", when, kill)
            world.until_deleted(names, rule.done.is_set)
            stage.tried += 1
            kafka.start_broker(killed[0])
            world.until_deleted(names, seconds=120)


def broker_hangs_at_delete(stage: Stage) -> None:
    """A broker freezes before it reads a DeleteGroups, for longer than the sender waits, and then processes it."""
    with stage.cluster(3) as kafka, stage.world(kafka=kafka) as world:
        names, paused = world.abandon(6), list[int]()

        def pause(exchange: Exchange) -> None:
            paused.append(exchange.broker)
            kafka.pause_broker(exchange.broker)

        rule = world.at("delete", When.BEFORE, pause)
        world.until_deleted(names, rule.done.is_set)
        stage.tried += 1
        time.sleep(5)
        kafka.resume_broker(paused[0])
        world.until_deleted(names, seconds=120)


def one_broker_of_three_is_dead(stage: Stage) -> None:
    """A broker is dead before the scan, and its groups are invisible: no group is deleted or unmarked."""
    with stage.cluster(3, offsets_topic_replication_factor="1") as kafka, stage.world(kafka=kafka) as world:
        names = world.abandon(12)
        world.until_marked(names)
        world.truth.stays(names, "a broker was dead")
        leader = world.groups.admin.list_topics(world.ledger_topic).topics[world.ledger_topic].partitions[0].leader
        # Not the ledger's leader: without it, nothing could be deleted anyway.
        dead = next(broker for broker in kafka.broker_ids if broker != leader)
        kafka.kill_broker(dead)
        stage.tried += 1
        for _ in range(3):
            world.run(seconds=90)
            time.sleep(LOOK_SECONDS)
        if not world.marked(names):
            raise Broken("a group that could not be seen lost its mark")
        kafka.start_broker(dead)
        wait_for(lambda: set(names) <= world.groups.listed(), "all groups are there again", 60)
        world.truth.free(names)
        world.until_deleted(names, seconds=120)


def topic_hidden(stage: Stage) -> None:
    """DESCRIBE on one topic is revoked, which hides its offsets: no group is deleted with half a backup."""
    with _secure(stage) as world:
        world.until_marked(names := world.abandon(3))
        other = world.groups.topic(f"{world.name}-hidden")
        both = {name: {(world.topic, 0): 1, (other, 0): 2} for name in (f"{world.name}-both-1", f"{world.name}-both-2")}
        world.groups.abandon(both)
        world.truth.made(both)
        world.truth.stays([*names, *both], "a topic was hidden")
        _acl(world, AclPermissionType.DENY, AclOperation.DESCRIBE, ResourceType.TOPIC, other)
        stage.tried += 1
        world.runs_and_keeps([*names, *both], 4)
        if "TopicsHidden" not in world.reasons():
            raise Broken(f"the status does not show it: {world.summary()}")
        _lift(world, AclPermissionType.DENY)
        world.truth.free([*names, *both])
        world.until_deleted([*names, *both], seconds=60)


def ledger_denied(stage: Stage) -> None:
    """WRITE, and then READ, on the ledger's topic is revoked: nothing is deleted until it is granted again."""
    for operation in (AclOperation.WRITE, AclOperation.READ):
        with _secure(stage) as world:
            names = world.abandon(4)
            world.until_marked(names)
            _acl(world, AclPermissionType.DENY, operation, ResourceType.TOPIC, world.ledger_topic)
            stage.tried += 1
            world.truth.stays(names, "the ledger was out of reach")
            world.runs_and_keeps(names, 3)
            _lift(world, AclPermissionType.DENY)
            world.truth.free(names)
            world.until_deleted(names)


@contextmanager
def _secure(stage: Stage) -> Iterator[World]:
    """A world whose brokers require passwords and ACLs; its operator has the permissions of the docs."""
    sasl = {"mechanism": "PLAIN", "username": _USER, "passwordSecretRef": {"name": "kafka", "key": "password"}}
    security = Security(sasl="PLAIN", users={_USER: _PASSWORD}, authorizer=True, doors=1)
    with (
        stage.cluster(1, security) as kafka,
        stage.world(kafka=kafka, connection={"sasl": sasl}, prepare=_grant) as world,
    ):
        yield world


def _grant(world: World) -> None:
    """Grant the ACLs of docs/kafka-permissions.md, and make the Secret with its RoleBinding."""
    world.secret("kafka", {"password": _PASSWORD})
    for operation, kind, name in (
        (AclOperation.DESCRIBE, ResourceType.BROKER, "kafka-cluster"),
        (AclOperation.DESCRIBE_CONFIGS, ResourceType.BROKER, "kafka-cluster"),
        (AclOperation.IDEMPOTENT_WRITE, ResourceType.BROKER, "kafka-cluster"),
        (AclOperation.ALL, ResourceType.TRANSACTIONAL_ID, "*"),
        (AclOperation.DESCRIBE, ResourceType.TOPIC, "*"),
        (AclOperation.READ, ResourceType.TOPIC, "*"),
        (AclOperation.ALL, ResourceType.GROUP, "*"),
        (AclOperation.ALL, ResourceType.TOPIC, world.ledger_topic),
    ):
        _acl(world, AclPermissionType.ALLOW, operation, kind, name)


def _acl(world: World, permission: AclPermissionType, operation: AclOperation, kind: ResourceType, name: str) -> None:
    binding = AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{_USER}", "*", operation, permission)
    for made in world.groups.admin.create_acls([binding]).values():
        made.result()
    time.sleep(0.5)


def _lift(world: World, permission: AclPermissionType) -> None:
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{_USER}", None, AclOperation.ANY, permission
    )
    for lifted in world.groups.admin.delete_acls([every]).values():
        lifted.result()
    time.sleep(0.5)
