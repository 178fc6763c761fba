"""The check of pull requests in examples/gitops: the very commands of its workflow that try policies on the past."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from testing.sandbox.spark.jars import jars
from tests.cli.test_gitops_check import GITOPS, ROOT, commands
from tests.spark.histories import Bronze, Event, classic, commit, moment
from tests.spark.test_looking_back import DAY, SECONDS


def looked(day: float) -> list[Event]:
    """In use for a quarter of an hour."""
    return [classic(day * DAY, 1), commit(day * DAY + 60), classic(day * DAY + 900, 0)]


def test_it_fails_for_a_group_that_was_used_again(spark: SparkSession, tmp_path: Path) -> None:
    """Each policy of production and of its teams is tried on 30 days, and what is told is there for the summary."""
    copy = tmp_path / "repository"
    shutil.copytree(GITOPS, copy)
    lives = {
        "perf-consumer-1": looked(-20),
        "perf-consumer-2": [*looked(-20), *looked(-10)],
        "team-a-job-1": looked(-20),
        "orders": [commit(day * DAY) for day in range(-31, 1)],
    }
    Bronze(spark, str(copy / "warehouse"), moment(-31 * DAY)).write(lives)
    programs = tmp_path / "bin"
    programs.mkdir()
    options = f"--memory 1g --master 'local[2]' --log-file '{tmp_path}/spark.log'"
    program = f'#!/bin/sh\nexec "{sys.executable}" -m group_hygiene.cli "$@" {options}\n'
    (programs / "group-hygiene").write_text(program)
    (programs / "group-hygiene").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "operator"),
        "GROUP_HYGIENE_SPARK_JARS": str(jars()),
    }
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", commands("backtest", "backtest")]
    done = subprocess.run(
        shell, env=environment, cwd=copy, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    output = (copy / "backtest.txt").read_text()
    assert done.returncode == 3, output
    assert "--max-regret is 0" in output
    found = re.findall(
        r"^GroupPolicy (\S+) .*\n  it would have (?:deleted (\d+) groups?; (\w+)|\w+)", output, re.MULTILINE
    )
    assert found == [
        ("kafka-production/abandoned", "2", "1"),
        ("kafka-production/expires-soon", "", ""),
        ("kafka-production/random-ids", "2", "1"),
        ("team-a/retired-jobs", "1", "none"),
    ]
    assert re.search(r"^perf-consumer-2 .* Join", output, re.MULTILINE)
