"""Worlds with clocks that are wrong, and with time stamps of another kind.

A broker's or a command's clock is set by a library that is loaded before the C library (`skew.c`), which needs `cc`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.cimpl import NewTopic

from testing.sandbox.kafka.cluster import Alteration
from testing.worlds.changes import brokers_configured, preloaded, restarted
from testing.worlds.life import Life
from testing.worlds.world import Change, Cluster, Moment, Refuses, World, config

_HOURS = 2
_LEDGER = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
}


def _skewed(hours: float) -> dict[str, str]:
    """The environment of a process whose clock is this much ahead."""
    return preloaded("skew.c", SKEW_S=str(int(hours * 3600)))


def _broker_skewed(broker: int, hours: float, ledger_on: int | None = None) -> Change:
    """A broker's clock; with the ledger on another one whose clock is right."""

    @contextmanager
    def change(life: Life) -> Iterator[None]:
        restarted(life, broker, Alteration(environment=_skewed(hours)))
        if ledger_on is not None:
            topic = NewTopic(life.run.ledger_topic, 1, replica_assignment=[[ledger_on]], config=_LEDGER)
            life.admin.create_topics([topic])[topic.topic].result()
        yield
        restarted(life, broker, Alteration())

    return change


def _operator_skewed(hours: float) -> Change:
    @contextmanager
    def change(life: Life) -> Iterator[None]:
        life.run.step_clock(hours * 3600)
        yield
        life.run.step_clock(0)
        time.sleep(1)

    return change


def _commands_skewed(hours: float) -> Change:
    @contextmanager
    def change(life: Life) -> Iterator[None]:
        life.commands_environment |= _skewed(hours)
        yield

    return change


_NEEDS = ("cc",)

WORLDS = (
    *(
        World(
            "clocks",
            f"clock-of-a-broker-{name}",
            f"one broker of two is {name} by {_HOURS} hours; the ledger is on the other one",
            Cluster(brokers=2),
            change=_broker_skewed(2, hours, ledger_on=1),
            moment=Moment.FIRST,
            ledger={"replicationFactor": 1},
            # Share consumers may wait for two hours.
            protocols=("classic", "consumer"),
            alone=True,
            needs=_NEEDS,
        )
        for name, hours in (("behind", -_HOURS), ("ahead", _HOURS))
    ),
    *(
        World(
            "clocks",
            f"clock-of-the-ledgers-broker-{name}",
            f"the only broker is {name} by {_HOURS} hours",
            change=_broker_skewed(1, hours),
            moment=Moment.START,
            expected=Refuses("ClockSkew", "clock"),
            alone=True,
            needs=_NEEDS,
        )
        for name, hours in (("behind", -_HOURS), ("ahead", _HOURS))
    ),
    *(
        World(
            "clocks",
            f"clock-of-the-operator-{name}",
            f"the operator's clock is {name} by {_HOURS} hours, set while groups are marked",
            change=_operator_skewed(hours),
            moment=Moment.MARKED,
            expected=Refuses("ClockSkew", "clock", forced=True),
            own_clock=True,
        )
        for name, hours in (("behind", -_HOURS), ("ahead", _HOURS))
    ),
    *(
        World(
            "clocks",
            f"clock-of-commands-{name}",
            f"the command line is {name} by two days: `keep` counts by the broker's clock, `delete` refuses",
            change=_commands_skewed(hours),
            moment=Moment.START,
            needs=_NEEDS,
        )
        for name, hours in (("behind", -48),)
    ),
    World(
        "clocks",
        "times-of-append",
        "log.message.timestamp.type=LogAppendTime of all brokers",
        change=brokers_configured(log_message_timestamp_type="LogAppendTime"),
        moment=Moment.FIRST,
        settings=("log.message.timestamp.type",),
    ),
    World(
        "clocks",
        "times-bounded",
        "brokers refuse records whose times differ from theirs by 5 s",
        change=brokers_configured(
            log_message_timestamp_before_max_ms="5000", log_message_timestamp_after_max_ms="5000"
        ),
        moment=Moment.FIRST,
        settings=("log.message.timestamp.before.max.ms", "log.message.timestamp.after.max.ms"),
    ),
    World(
        "clocks",
        "sessions-short",
        "sessions of brokers, and their heartbeats, are short",
        Cluster(config=config(broker_session_timeout_ms="3000", broker_heartbeat_interval_ms="500")),
    ),
)
