"""`python -m testing.faults.ingest_overlaps`: two pipelines at once into an S3 store, killed and frozen, in rounds.

In each round a second run begins at a random point of the first one, and one of both is killed, or frozen until the
other one has ended, or neither. After each, and after a last undisturbed run, the complete part of the tables must
equal the log, as in `ingest_kills`. Last line: `N passed, 0 failed`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial

import click

from testing.faults.ingest_kills import BROKER, Committers, Pipeline
from testing.faults.ingest_tables import covered_by, differences
from testing.faults.offsets_log import ends
from testing.sandbox.errors import SandboxError
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.process import Keeper, Server
from testing.sandbox.s3 import S3Store
from testing.sandbox.waiting import wait_for

ROUNDS = 20
_END_SECONDS = 600.0
# A run may end as another one took its place: it says so.
_OVERTAKEN = "another run wrote it"


class Overlaps:
    """Rounds of two runs. outcomes: how many runs ended in which way."""

    def __init__(self, runs: tuple[Pipeline, Pipeline]) -> None:
        self._runs = runs
        self.outcomes = Counter[str]()

    def one(self, what: str) -> None:
        first, second = random.sample(self._runs, 2)
        running = [first.start("--once")]
        line, times, after = random.choice([("", 1, 2.0), ("ingest: ", 1, 3.0), ("ingest: ", 2, 3.0)])
        with suppress(SandboxError):
            wait_for(lambda: len(first.said()) >= times or _ended(running[0]), f"a line {line!r}", _END_SECONDS)
        time.sleep(random.uniform(0, after))
        running.append(second.start("--once"))
        victim = random.choice(running)
        time.sleep(random.uniform(0, 10))
        if what == "kill" and not _ended(victim):
            victim.send(signal.SIGKILL)
        elif what == "freeze" and not _ended(victim):
            victim.send(signal.SIGSTOP)
            other = running[1 - running.index(victim)]
            with suppress(SandboxError):
                wait_for(lambda: _ended(other), "the other run", _END_SECONDS)
            victim.send(signal.SIGCONT)
        for run, server in zip((first, second), running, strict=True):
            wait_for(partial(_ended, server), "the end of a run", _END_SECONDS)
            text = run.log()
            if server is victim and what == "kill" and server.exit_code() not in (0, 1):
                outcome = "killed"
            elif server.exit_code() == 0:
                outcome = "done"
            else:
                outcome = "overtaken" if _OVERTAKEN in text else f"failed:\n{text}"
            self.outcomes[outcome] += 1


def _ended(server: Server) -> bool:
    return server.exit_code() is not None


def rounds(count: int) -> int:
    """Run them. Returns the number of failures."""
    failed = 0
    with KafkaCluster(config=BROKER) as kafka, S3Store(["kafka-hygiene"]) as store, Keeper() as keeper:
        variables, warehouse = store.bucket("kafka-hygiene").variables, "s3a://kafka-hygiene/main"
        # For reading the tables in this process.
        os.environ.update(variables)
        first, second = (
            Pipeline(keeper, "run", kafka.bootstrap_servers, warehouse, name, variables) for name in ("first", "second")
        )
        overlaps = Overlaps((first, second))
        with Committers(kafka.bootstrap_servers):
            for number in range(count):
                what = ("freeze", "kill", "neither")[number % 3]
                overlaps.one(what)
                failed += _report(f"round {number + 1:2}, {what}", differences(kafka.bootstrap_servers, warehouse))
        first.complete()
        problems, log = differences(kafka.bootstrap_servers, warehouse), ends(kafka.bootstrap_servers)
        if covered_by(f"{warehouse}/coverage", "batch")[0] != log:
            problems.append("the log was not read to its end")
        problems += [outcome for outcome in overlaps.outcomes if outcome.startswith("failed")]
        failed += _report(f"the last run, up to offset {sum(log.values()):,}", problems)
        click.echo(", ".join(f"{many} {outcome}" for outcome, many in overlaps.outcomes.items()))
    click.echo(f"{count + 1 - failed} passed, {failed} failed")
    return failed


def _report(name: str, problems: list[str]) -> int:
    click.echo(f"{'FAILED' if problems else 'passed'}  {name}")
    for problem in problems:
        click.echo(f"        {problem}")
    return int(bool(problems))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testing.faults.ingest_overlaps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the points in time")
    options = parser.parse_args()
    random.seed(options.seed)
    click.echo(f"seed {options.seed}")
    return int(rounds(options.rounds) > 0)


if __name__ == "__main__":
    sys.exit(main())
