"""Scenarios: brokers that process a request, and then answer with an error."""

from __future__ import annotations

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from testing.faults.kafka_proxy import Rule, Then, When
from testing.faults.requests import OFFSET_DELETE, Exchange, answer_offsets_with, answer_with, offsets_of
from testing.faults.stage import Stage
from testing.faults.world import World

# What brokers answer only where they wrote nothing: INVALID_GROUP_ID, authorization errors (of a topic, a group, the
# cluster, a transactional id, a delegation token), NON_EMPTY_GROUP, GROUP_SUBSCRIBED_TO_TOPIC.
_REFUSALS = {24, 29, 30, 31, 53, 65, 68, 86}
# All that Kafka has, and one that it may have some day.
CODES = tuple(code for code in (*range(-1, 138), 999) if code != 0 and code not in _REFUSALS)
_AT_ONCE = 45
# A group that goes in parts takes a few runs: those that coordinators have answered in some version, and unknown ones.
_CODES_OF_PARTS = (-1, 3, 7, 14, 15, 16, 19, 27, 35, 42, 56, 69, 87, 89, 134, 999)
_PARTS_AT_ONCE = 8
# Of a group that is too large for one write, and the most that a write may be.
_PARTITIONS, _WRITE_BYTES = 40, 3_500


def answers_that_prove_nothing(stage: Stage) -> None:
    """Groups are deleted, and each answer has another error code: every deletion is recorded, and has its backup."""
    with stage.world() as world:
        for begin in range(0, len(CODES), _AT_ONCE):
            codes = CODES[begin : begin + _AT_ONCE]
            names = world.abandon(len(codes))
            codes_of = dict(zip(names, codes, strict=True))

            def rewrite(exchange: Exchange, codes_of: dict[str, int] = codes_of) -> None:
                answer_with(exchange, codes_of)

            rule = world.at("delete", When.BETWEEN, rewrite)
            world.until_deleted(names)
            rule.wait("the answer is changed")
            stage.tried += len(codes)


def answers_to_parts_that_prove_nothing(stage: Stage) -> None:
    """Groups too large for one request are deleted, and each answer to a part has another error code: none is lost."""
    with stage.cluster(1, offsets_topic_num_partitions="5") as kafka, stage.world(kafka=kafka) as world:
        topic = world.groups.topic(f"{world.name}-wide", _PARTITIONS)
        for begin in range(0, len(_CODES_OF_PARTS), _PARTS_AT_ONCE):
            codes = _CODES_OF_PARTS[begin : begin + _PARTS_AT_ONCE]
            _writes_at_most(world, 1_000_000)
            names = [f"{world.name}-large-{code}" for code in codes]
            made = {name: {(topic, index): index % 5 for index in range(_PARTITIONS)} for name in names}
            world.groups.abandon(made)
            world.truth.made(made)
            _writes_at_most(world, _WRITE_BYTES)
            rules = [world.proxy.rule(_rewriting(name, code)) for name, code in zip(names, codes, strict=True)]
            world.until_deleted(names, seconds=300)
            for rule in rules:
                rule.wait("an answer is changed", 1)
            stage.tried += len(codes)


def _rewriting(group: str, code: int) -> Rule:
    def matches(exchange: Exchange) -> bool:
        return exchange.api == OFFSET_DELETE and offsets_of(exchange) == group

    def rewrite(exchange: Exchange) -> Then:
        answer_offsets_with(exchange, code, whole=code % 2 == 0)
        return Then.PASS

    return Rule(matches, When.BETWEEN, rewrite)


def _writes_at_most(world: World, size: int) -> None:
    """What the coordinators' partitions take as one batch."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "__consumer_offsets", incremental_configs=[entry])
    for future in world.groups.admin.incremental_alter_configs([resource]).values():
        future.result()
