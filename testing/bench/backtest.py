"""`python -m testing.bench.backtest`: how long a policy takes to try on the past, and whether the results are right.

A synthetic past (`bench.past`) is written to a warehouse, of which is known what the policy would have deleted, and
which of that was used again later. Then the command line replays it as a user would: `group-hygiene backtest`, at one
moment a day, and after that `group-hygiene report`. Each is a process of its own, and its time begins with the process,
so with a Java that is cold. The deletions and regrets of each step must be those that are known, and so must be each
regret that it lists, to the millisecond.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from group_hygiene.errors import HygieneError
from group_hygiene.pipeline.backtest.tally import REGRETS
from group_hygiene.pipeline.jobs import Options, spark_session
from group_hygiene.spec.fields import format_duration, timestamp
from testing.bench import report
from testing.bench.command import run, say
from testing.bench.errors import BenchError, WrongCount
from testing.bench.lives import LEAST_DAYS, RULE
from testing.bench.past import LEAST_GROUPS, Past, Regret, write_past
from testing.sandbox.proc import Peak
from testing.sandbox.spark.jars import jars

# The most that each figure may be.
# It looks far more often than what comes of it is told.
TRIED = RULE._replace(step=timedelta(hours=1))
TARGETS = {"backtest_s": 300.0, "report_s": 120.0, "report_mb": 3.0, "peak_rss_mb": 4096.0}
# The times that the large one, of a million groups, may take.
_LARGE, _LARGE_S = 1_000_000, 600.0
_SHOWN = 10
_STEP = timedelta(hours=24)
_SECONDS = 3600.0


@dataclass(frozen=True)
class Known:
    """What must come out: how many deletions there are, and which of them were wrong.

    steps: time -> how many deletions and how many regrets since the one before; of all that have any.
    """

    deleted: int
    regrets: set[Regret]
    steps: Mapping[datetime, tuple[int, int]]

    @classmethod
    def of(cls, past: Past, step: timedelta) -> "Known":
        deleted, regrets = past.deleted(*TRIED, past.start, past.end), past.regrets(*TRIED, past.start, past.end)
        counts = (
            Counter(past.start - (past.start - at) // step * step for at in times)
            for times in ([at for _, at in deleted], [at for _, at, _ in regrets])
        )
        by_deletion, by_regret = counts
        return cls(len(deleted), regrets, {at: (many, by_regret[at]) for at, many in by_deletion.items()})


@dataclass
class Times:
    """Seconds, with the start of the process; `write`: of the past, without that of Spark. report_mb: MiB.

    peak_rss_mb: of all processes of the backtest together, in MiB. bytes_scanned: as it says.
    """

    write: float = 0.0
    backtest: float = 0.0
    report: float = 0.0
    report_mb: float = 0.0
    peak_rss_mb: float = 0.0
    bytes_scanned: int = 0


def main() -> int:
    """Run the command line; answers with the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m testing.bench.backtest", description=__doc__, formatter_class=raw)
    parser.add_argument("--groups", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--days", type=int, default=90, help="steps of the replay, default: %(default)s")
    options = parser.parse_args()
    if options.groups < LEAST_GROUPS or options.days < LEAST_DAYS:
        parser.error(f"at least {LEAST_GROUPS} groups and {LEAST_DAYS} days are needed")
    return run(lambda: _measure(options.groups, options.days), HygieneError)


def _measure(groups: int, days: int) -> None:
    before = report.circumstances()
    times = Times()
    with _scratch() as folder:
        past = _write(folder, groups, days, times)
        known = Known.of(past, _STEP)
        say(f"backtest: {known.deleted:,} deletions, {len(known.regrets):,} regrets must come out")
        times.backtest, times.peak_rss_mb, answer = _program(*_backtest(folder, past))
        times.bytes_scanned = json.loads(answer)["bytesScanned"]
        say("report")
        page = folder / "report.html"
        times.report, _, _ = _program("report", *_tables(folder), "--output-file", str(page))
        times.report_mb = page.stat().st_size / 1024**2
    wrong = differences(answer, known)
    line = summary(past, times, exact=not wrong)
    print(f"\n{past.rows:,} records of {groups:,} groups, written in {times.write:.0f} s")
    print(f"{known.deleted:,} deletions, {len(known.regrets):,} of groups that were used again\n")
    targets = TARGETS | ({"backtest_s": _LARGE_S, "report_s": _LARGE_S} if groups >= _LARGE else {})
    print(report.targets(line, targets))
    if not wrong:
        parts = {"write_s": round(times.write, 3), "deleted": known.deleted, "regrets": len(known.regrets)}
        kept = report.write(
            f"backtest-{groups}", line, targets, before.document() | {"records": past.rows}, {"parts": parts}
        )
        print(f"\nEach deletion, and each regret that it lists, is right. Kept in {os.path.relpath(kept)}")
    conclude(line, wrong)


def conclude(line: Mapping[str, Any], wrong: Sequence[str]) -> None:
    """The last line of all. Raises WrongCount, which says what is wrong, where anything is."""
    print(f"\n{json.dumps(line)}", flush=True)
    if wrong:
        raise WrongCount("\n".join(["the backtest is wrong:", *wrong]))


def summary(past: Past, times: Times, exact: bool) -> dict[str, Any]:
    """The figures that are compared: seconds, MiB, and whether all regrets and the number of deletions were right."""
    return {
        "groups": past.groups,
        "days": past.days,
        "backtest_s": round(times.backtest, 3),
        "report_s": round(times.report, 3),
        "report_mb": round(times.report_mb, 3),
        "peak_rss_mb": round(times.peak_rss_mb, 1),
        "bytes_scanned": times.bytes_scanned,
        "regret_exact": exact,
    }


def differences(answer: str, known: Known) -> list[str]:
    """One line for each thing in the answer of `backtest -o json` that is not so, the first ten each way.

    Raises BenchError for what is no such answer, of one policy.
    """
    try:
        (policy,) = json.loads(answer)["policies"]
        deleted, count = policy["deleted"], policy["regret"]
        reported = [(each["group"], _time(each["deletedAt"]), _time(each["cameBackAt"])) for each in policy["regrets"]]
        steps = {_time(each["at"]): (each["deleted"], each["regret"]) for each in policy["steps"]}
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"this is no answer of a backtest of one policy ({error!r}): {answer[:200]!r}") from error
    wrong = []
    if deleted != known.deleted:
        wrong.append(f"it says {deleted} deletions, and there are {known.deleted}")
    if count != len(known.regrets):
        wrong.append(f"it says {count} regrets, and there are {len(known.regrets)}")
    if len(reported) != len(set(reported)):
        wrong.append(f"it tells {len(reported) - len(set(reported))} regrets more than once")
    for at in sorted(steps.keys() | known.steps.keys()):
        said, true = steps.get(at, (0, 0)), known.steps.get(at, (0, 0))
        if said != true:
            wrong.append(f"at {timestamp(at)} it says {said} deletions and regrets, and there are {true}")
    # It lists the first ones.
    first = sorted(known.regrets, key=lambda regret: (regret[1], regret[0]))[:REGRETS]
    wrong += _shown("not told", set(first) - set(reported))
    wrong += _shown("told, and not so", set(reported) - known.regrets)
    return wrong


def _shown(what: str, regrets: set[Regret]) -> list[str]:
    lines = [
        f"{what}: {group}, deleted {at.isoformat()}, came back {back.isoformat(timespec='milliseconds')}"
        for group, at, back in sorted(regrets)[:_SHOWN]
    ]
    return [*lines, f"{what}: {len(regrets) - _SHOWN} more"] if len(regrets) > _SHOWN else lines


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() != timedelta(0):
        raise ValueError(f"{text} is no time in UTC")
    return moment


def policy() -> dict[str, Any]:
    """The GroupPolicy that is tried: of all groups, by `TRIED`, with limits that nothing reaches."""

    def hours(length: timedelta) -> str:
        return f"{length // timedelta(hours=1)}h"

    delete = {
        **{"gracePeriod": hours(TRIED.grace), "backupRetention": hours(TRIED.backup_retention)},
        **{"maxPerRun": 10_000, "maxPercent": 100},
    }
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupPolicy",
        "metadata": {"name": "unused", "namespace": "bench"},
        "spec": {
            "connectionRef": {"name": "main"},
            "interval": hours(TRIED.step),
            "match": {"groups": ["*"]},
            "when": {"idleFor": hours(TRIED.idle_for)},
            "action": "Delete",
            "delete": delete,
        },
    }


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kafka-group-hygiene-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _write(folder: Path, groups: int, days: int, times: Times) -> Past:
    say(f"writing a past of {groups:,} groups and {days} days")
    with spark_session(Options(master="local[*]", jars=jars(), log=folder / "spark.log")) as spark:
        started = time.monotonic()
        past = write_past(spark, str(folder / "warehouse"), groups, days)
        times.write = time.monotonic() - started
    say(f"written in {times.write:.0f} s: {past.rows:,} records")
    return past


def _backtest(folder: Path, past: Past) -> list[str]:
    file = folder / "policy.yaml"
    file.write_text(yaml.safe_dump(policy()))
    between = ["--from", timestamp(past.start), "--to", timestamp(past.end), "--step", format_duration(_STEP)]
    return ["backtest", "-f", str(file), *_tables(folder), *between, "-o", "json"]


def _tables(folder: Path) -> list[str]:
    return ["--warehouse", str(folder / "warehouse"), "--jars", str(jars())]


def _program(*arguments: str) -> tuple[float, float, str]:
    """How long the command line takes, its peak memory in MiB, and what it prints."""
    command = [sys.executable, "-m", "group_hygiene.cli", *arguments]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, Peak(process.pid) as peak:
        try:
            printed, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.terminate()
            raise BenchError(f"group-hygiene {arguments[0]} did not end within {_SECONDS:.0f} s") from error
    if process.returncode:
        raise BenchError(f"group-hygiene {arguments[0]} ended with exit code {process.returncode}")
    return time.monotonic() - started, peak.mb, printed


if __name__ == "__main__":
    sys.exit(main())
