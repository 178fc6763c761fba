"""How long `group-hygiene plan` of a shipped example takes on 1,000 groups that it matches: whole processes."""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from testing.bench.errors import BenchError, WrongCount
from testing.bench.programs import Job, Measured
from testing.faults.groups import Groups

PROGRAM = "group-hygiene"
GROUPS = 1_000
TARGET_S = 1.0
_EXAMPLE = Path(__file__).parents[2] / "examples" / "policy-random-ids.yaml"
_UNUSED = "perf-consumer-"
_TOPIC = "events.console"


def plan_runs(servers: str, runs: int, groups: int = GROUPS) -> list[Measured]:
    """The bare start (`--version`), and `plan` after what that takes, on groups that are made here.

    They are what kafka-consumer-perf-test leaves behind: joined once, Empty, with records after what they committed.
    Raises WrongCount unless each run prints a verdict for each of them, and that is Match.
    """
    make = Groups(servers)
    make.topic(_TOPIC, partitions=2, records=10)
    make.abandon({f"{_UNUSED}{number:05d}": {(_TOPIC, 0): 5, (_TOPIC, 1): 5} for number in range(groups)})
    plan = ["plan", "--bootstrap-server", servers, "-f", str(_EXAMPLE)]
    times: dict[str, list[float]] = {"start": [], "plan": []}
    for number in range(runs + 1):
        start = _run(["--version"])[0]
        seconds, printed = _run(plan)
        check_verdicts(printed, groups)
        # The first of each warms the broker and the page cache.
        if number:
            times["start"].append(start)
            times["plan"].append(seconds)
    start = statistics.median(times["start"])
    return [
        _measured("start-up", times["start"], 0.0),
        _measured(f"plan {groups:,}", times["plan"], start),
    ]


def check_verdicts(printed: str, groups: int) -> None:
    """Raises WrongCount unless the table that `plan` printed has so many groups, and all match."""
    rows = [line.split() for line in printed.splitlines() if line.startswith(_UNUSED)]
    matched = sum("Match" in row for row in rows)
    if (len(rows), matched) != (groups, groups):
        raise WrongCount(f"plan printed {len(rows)} verdicts, {matched} of them Match, but there are {groups} groups")


def target(results: Sequence[Measured]) -> str:
    """One line: whether `plan` took less than a second after the start."""
    (seconds,) = (statistics.median(result.runs) for result in results if result.job.name.startswith("plan "))
    return f"target plan after start-up < {TARGET_S:g} s: {seconds:.3f}, {'met' if seconds < TARGET_S else 'NOT MET'}"


def _measured(name: str, whole: list[float], start: float) -> Measured:
    runs = [max(0.0, seconds - start) for seconds in whole]
    return Measured(Job(PROGRAM, name, lambda _: []), first=whole[0], total=sum(whole), runs=runs)


def _run(arguments: list[str]) -> tuple[float, str]:
    started = time.monotonic()
    command = [sys.executable, "-m", "group_hygiene.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    if done.returncode:
        raise BenchError(f"group-hygiene {arguments[0]} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return seconds, done.stdout
