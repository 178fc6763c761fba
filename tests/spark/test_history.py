"""The life of each group says at any moment what `activity` said then; of what was dropped, that nobody used it."""

from __future__ import annotations

import random
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.backtest.replay import History, Steps, Stretch
from group_hygiene.pipeline.backtest.tally import extent, lives
from group_hygiene.pipeline.backtest.tally import histories as histories_of
from group_hygiene.pipeline.ingest.fold import Fold, Run
from group_hygiene.pipeline.jobs import Retention, maintain
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, GROUP_STATES
from tests.spark.histories import START, Bronze, Event, classic, commit, epoch, member, moment, state, wiped
from tests.spark.test_activity import HISTORIES

# Stands for when the history begins.
BEGAN = -1
STEPS = Steps(START + timedelta(seconds=1), timedelta(seconds=3), 8)


def random_life(chance: random.Random) -> list[Event]:
    """A dozen records, one or two a second, such as brokers write them one after the other."""
    events: list[Event] = []
    family = chance.choice(["classic", "consumer", "share", "streams"])
    second = 0.0
    for _ in range(chance.randint(1, 14)):
        second += chance.choice([0.5, 1.0, 2.5])
        partition = chance.randint(0, 2)
        if family == "classic":
            states = [classic(second - 1, chance.randint(0, 1), chance.choice(["consumer", "connect", ""]))]
        else:
            name = chance.choice("ab")
            states = [epoch(second, family), member(second, name, chance.random() < 0.5, family)]
        events.append(
            chance.choice(
                [
                    *(commit(second, chance.randint(1, 3), partition), commit(second, 2, partition, aborted=True)),
                    *(wiped(second, partition), wiped(second, partition), *states, *states),
                    *(state(second, "classic", gone=True), state(second, "consumer-assignment", member_id="a")),
                ]
            )
        )
    return events


@pytest.fixture(scope="module")
def lived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Tables of many groups, those of the histories that have names among them."""
    warehouse = str(tmp_path_factory.mktemp("history"))
    chance = random.Random(7)
    groups = {name: it.events for name, it in HISTORIES.items() if all(_within(event) for event in it.events)}
    groups |= {f"random-{number}": random_life(chance) for number in range(300)}
    Bronze(spark, warehouse).write({name: _in_order(events) for name, events in groups.items()})
    return warehouse


def _within(event: Event) -> bool:
    return bool(START <= event["record_time"] <= moment(3600))


def _in_order(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event["record_time"])


def histories(spark: SparkSession, warehouse: str, steps: Steps = STEPS) -> dict[str, History]:
    reach = extent(warehouse)
    rows = lives(spark, warehouse, reach, steps).toArrow().to_batches()
    found = {history.name: history for _, history in histories_of(rows, reach, steps.start)}
    assert len(found) == ACTIVITY.read(spark, warehouse).count()
    return found


def as_row(stretch: Stretch) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "there": stretch.group is not None,
        **{name: getattr(stretch.activity, name) for name in ("state", "last_commit", "oldest_commit", "empty_since")},
        "offsets": {place.partition: committed.offset for place, committed in stretch.offsets.items()},
    }
    if stretch.group is None:
        return fields
    return fields | {"type": str(stretch.group.type), "protocol_type": stretch.group.protocol_type}


def as_it_was(row: Any) -> dict[str, Any]:
    """The same of a row of `activity`."""
    fields: dict[str, Any] = {
        "there": row["state"] != "Gone",
        "state": row["state"],
        **{name: row[name] for name in ("last_commit", "oldest_commit", "empty_since")},
        "offsets": {offset["partition"]: offset["offset"] for offset in row["offsets"]},
    }
    if row["state"] == "Gone":
        return fields
    return fields | {"type": row["type"], "protocol_type": row["protocol_type"] or ""}


def test_every_step_is_as_activity_was_then(spark: SparkSession, lived: str, tmp_path: Path) -> None:
    """At each step, a group is what `activity` would have said of it, had it been brought up to then."""
    found = histories(spark, lived)
    moments = spark.createDataFrame([(step, STEPS.at(step)) for step in range(STEPS.count)], "step int, at timestamp")
    known = []
    for table in (COMMITS, GROUP_STATES):
        rows = table.read(spark, lived).join(F.broadcast(moments), F.col("record_time") <= F.col("at"))
        # Of each step, the groups and the offsets are others, and the log has one partition.
        rows = rows.withColumn("log_offset", F.col("log_offset") * STEPS.count + F.col("step"))
        rows = rows.withColumn("group", F.concat_ws("@", "group", "step")).withColumn("log_partition", F.lit(0))
        known.append(rows.toArrow())
    run = Run("cluster", 0, 1, START, START.date())
    with closing(Fold(known[0], known[1], run, str(tmp_path))) as fold:
        found_then = fold.rows(ACTIVITY.schema.empty_table())
        then = {row["group"]: as_it_was(row) for rows in found_then for row in rows.to_pylist()}
    assert len(then) > 1_000
    for name, history in found.items():
        for step in range(STEPS.count):
            stretch = history.at(STEPS.at(step))
            assert (as_row(stretch) if stretch else None) == then.get(f"{name}@{step}"), f"{name} at step {step}"


def test_first_sign_of_life_after_a_step(spark: SparkSession, lived: str) -> None:
    """Who commits, in vain or not, or joins, is told with the time of the first record, also after the last step."""
    found = histories(spark, lived)
    chance = random.Random(7)
    for number in range(300):
        events = random_life(chance)
        for step in range(STEPS.count):
            later = [event for event in events if event["record_time"] > STEPS.at(step) and alive(event)]
            sign = found[f"random-{number}"].back_after(STEPS.at(step))
            first = min((event["record_time"] for event in later), default=None)
            assert (sign.at if sign else None) == first, f"random-{number} after step {step}"


def alive(event: Event) -> bool:
    if event["table"] is COMMITS:
        return event["committed_offset"] is not None
    is_alive = (
        bool(event.get("members")) or bool(event.get("protocol_type")) or event["kind"].endswith(("-epoch", "-member"))
    )
    return is_alive and not event["gone"]


@pytest.mark.parametrize(
    ("events", "then"),
    [
        pytest.param([classic(1, 1), commit(2), classic(5, 0)], ("Classic", "consumer", "Empty", 5, 2), id="all"),
        pytest.param(
            [classic(1, 1), commit(2), classic(5, 0), commit(90 * 86400)],
            ("Classic", "consumer", "Empty", 5, BEGAN),
            id="its-state",
        ),
        pytest.param([commit(1), commit(2, 5, 1), commit(90 * 86400)], ("Classic", "", "Empty", None, 2), id="simple"),
        pytest.param(
            [classic(1, 1), classic(5, 0), classic(90 * 86400, 1)],
            ("Classic", "consumer", "Empty", BEGAN, None),
            id="joined",
        ),
    ],
)
def test_what_was_dropped(
    spark: SparkSession,
    warehouse: str,
    events: list[Event],
    then: tuple[str, str, str, int | None, int | None],
) -> None:
    """What records were dropped, the group's row tells as far as it can; else nobody used it since the history began.

    Here all is dropped but what came 90 days later.
    """
    Bronze(spark, warehouse).write({"group": events})
    late = START + timedelta(days=80)
    maintain(spark, warehouse, Retention(history=_ago(late)))
    reach = extent(warehouse)
    assert abs(reach.began - late) < timedelta(minutes=1)
    history = histories(spark, warehouse, Steps(late, timedelta(days=1), 3))["group"]
    stretch = history.stretches[0]
    assert stretch.begins == late
    assert stretch.group is not None
    type_, protocol_type, state_, empty, committed = then
    assert (str(stretch.group.type), stretch.group.protocol_type, stretch.activity.state) == (
        type_,
        protocol_type,
        state_,
    )
    for found, wanted in ((stretch.activity.empty_since, empty), (stretch.activity.last_commit, committed)):
        if wanted == BEGAN:
            assert found is not None
            assert reach.began - found < timedelta(milliseconds=1)
        else:
            assert found == (None if wanted is None else moment(wanted))


def _ago(then: datetime) -> timedelta:
    return datetime.now(UTC) - then


def test_nothing_there(warehouse: str) -> None:
    """Without tables, it is said what to do."""
    with pytest.raises(PipelineError, match="run `group-hygiene pipeline run` first"):
        extent(warehouse)
