"""Scenarios: brokers that do what they were asked to, and answer that they did not, or may not have."""

from __future__ import annotations

from faults.kafka_proxy import When
from faults.requests import Exchange, answer_with
from faults.stage import Stage

# What brokers answer only where they wrote nothing: INVALID_GROUP_ID, authorization errors (of a topic, a group, the
# cluster, a transactional id, a delegation token), NON_EMPTY_GROUP, GROUP_SUBSCRIBED_TO_TOPIC.
_REFUSALS = {24, 29, 30, 31, 53, 65, 68, 86}
# All that Kafka has, and one that it may have some day.
CODES = tuple(code for code in (*range(-1, 138), 999) if code != 0 and code not in _REFUSALS)
_AT_ONCE = 45


def answers_that_prove_nothing(stage: Stage) -> None:
    """Groups are deleted, and each answer has another error code: every deletion is recorded, and has its backup."""
    with stage.world() as world:
        for begin in range(0, len(CODES), _AT_ONCE):
            codes = CODES[begin : begin + _AT_ONCE]
            names = world.abandon(len(codes))
            told = dict(zip(names, codes, strict=True))

            def rewrite(exchange: Exchange, told: dict[str, int] = told) -> None:
                answer_with(exchange, told)

            rule = world.at("delete", When.BETWEEN, rewrite)
            world.until_deleted(names)
            rule.wait("the answer is changed")
            stage.tried += len(codes)
