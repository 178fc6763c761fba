"""What the driver of a backtest gets: bounded by policies and steps, and the same however many executors count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from group_hygiene.cli.backtests import _document
from group_hygiene.pipeline.backtest.replay import Trial
from group_hygiene.pipeline.backtest.run import Terms, backtest
from group_hygiene.pipeline.backtest.tally import SCHEMA, OnTrial, Regret, Row, Sums, counted
from group_hygiene.spec.fields import timestamp
from group_hygiene.spec.policy import parse_policy
from testing.bench.backtest import Known, differences, policy
from testing.bench.past import write_past
from testing.sandbox.spark.event_log import SETTINGS, tasks_by_executor
from testing.sandbox.spark.jars import jars

START = datetime(2026, 1, 1, tzinfo=UTC)
EXECUTORS = 4
SECONDS = 600


def sums(spark: SparkSession, rows: Sequence[Row], patterns: int, regrets: int) -> Sums:
    """Of two policies, each with a shorter period beside its own."""
    trial = Trial(parse_policy(policy()), START, START + timedelta(days=1))
    bench = [OnTrial(trial, [trial.with_idle_for(timedelta(hours=1)), trial], [])] * 2
    table = pa.Table.from_pylist([row._asdict() for row in rows], SCHEMA)
    frame = spark.createDataFrame(table, from_arrow_schema(SCHEMA)).repartition(3)
    return counted(frame, bench, patterns, regrets)


def regret(group: str, second: int) -> dict[str, Any]:
    at = START + timedelta(seconds=second)
    return Regret(group, "a-*", at, at, at, "Join")._asdict()


def test_only_the_first_are_listed(spark: SparkSession) -> None:
    """Of each policy, the patterns with the most deletions, and the first regrets; counts are of all."""
    rows = [
        Row(number, "pattern", text=f"{name}-*", deleted=deleted, regretted=regretted, many=many * times)
        for number in (0, 1)
        for name, many in (("a", 1), ("b", 3), ("c", 2), ("a", 4), ("d", 2))
        # A third of the groups that the shorter period deletes are deleted with its own, too, and then not regretted.
        for deleted, regretted, times in ((1, 0, 2), (2, 1, 1))
    ]
    for number in (0, 1):
        rows += [Row(number, "regret", regret=regret(f"g{at}", at // 2)) for at in range(6)]
        rows += [Row(number, "deleted", step, many=5) for step in (0, 1, 1)]
        rows.append(Row(number, "reason", text="Match", many=7))
    found = sums(spark, rows, patterns=3, regrets=5)
    for number in (0, 1):
        patterns = [(row["text"], row["deleted"], row["regretted"]) for row in found[number, "pattern"]]
        assert patterns == [("a-*", [15, 5], [5, 0]), ("b-*", [9, 3], [3, 0]), ("c-*", [6, 2], [2, 0])]
        assert [row["regret"]["group"] for row in found[number, "regret"]] == ["g0", "g1", "g2", "g3", "g4"]
        assert {row["step"]: row["many"] for row in found[number, "deleted"]} == {0: 5, 1: 10}
        assert [(row["text"], row["many"]) for row in found[number, "reason"]] == [("Match", 7)]


def test_no_group_is_counted(spark: SparkSession) -> None:
    """A policy that selects none."""
    found = sums(spark, [], 1, 1)
    assert not found
    assert found[0, "deleted"] == []


# The command line, with parts so small that a small past has several.
_PROGRAM = """
from group_hygiene.cli import main
from group_hygiene.pipeline.backtest import run
run._SETTINGS["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = "16k"
main()
"""


def test_all_executors_judge(spark: SparkSession, tmp_path: Path) -> None:
    """With the answer of one machine, which is right in each step."""
    warehouse, events, settings = str(tmp_path / "warehouse"), tmp_path / "events", tmp_path / "settings"
    events.mkdir()
    settings.mkdir()
    past = write_past(spark, warehouse, 800, 30)
    alone = backtest(spark, warehouse, [parse_policy(policy())], Terms(past.start, past.end))
    lines = SETTINGS | {"spark.eventLog.dir": events.as_uri(), "spark.locality.wait": "0s"}
    (settings / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy()))
    command = [sys.executable, "-c", _PROGRAM, "backtest", "-f", str(tmp_path / "policy.yaml"), "-o", "json"]
    command += ["--warehouse", warehouse, "--from", timestamp(past.start), "--to", timestamp(past.end)]
    command += ["--master", f"local-cluster[{EXECUTORS},2,1024]", "--jars", str(jars()), "--memory", "1g"]
    command += ["--log-file", str(tmp_path / "spark.log")]
    environment = os.environ | {"SPARK_CONF_DIR": str(settings)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{(tmp_path / 'spark.log').read_text()[-3000:]}"
    assert json.loads(done.stdout) == _document(alone, [])
    assert differences(done.stdout, Known.of(past, timedelta(days=1))) == []
    tasks = tasks_by_executor(events)
    assert len(tasks) == EXECUTORS, tasks
    assert min(tasks.values()) > 1, tasks
