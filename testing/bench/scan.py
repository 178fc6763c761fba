"""`python -m testing.bench.scan`: how long a scan of many groups takes, ours and its peers', side by side.

Three real brokers are filled with groups of 10 committed partitions each. Two jobs are measured: `steady` lists the
Empty groups and reads the offsets of the 1 % whose id matches a pattern; `full` reads the offsets of all groups. A run
of the operator does what `steady` does and more, which is not measured here: it reads the topics, the ends of the
partitions where a policy asks for lag, the checkpoints of MirrorMaker 2, and its ledger. Each program is one process
that connects, does its job once to be warm, and then as many times as asked, in turns with the others. What they count
must be what was loaded. Last comes, on brokers of its own, `group-hygiene plan` of a shipped example on 1,000 groups:
whole processes, less their bare start.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from testing.bench import report
from testing.bench.command import run, say
from testing.bench.errors import BenchError
from testing.bench.load import CONFIG, PARTITIONS, Loaded, load
from testing.bench.memory import ALIVE_PER_BROKER, held
from testing.bench.plan import plan_runs, target
from testing.bench.programs import KAFKA_VERSION, jobs, ours_at_once, prepare, take_turns
from testing.sandbox.kafka import Jvm, KafkaCluster

_BROKERS = 3
_HEAP = "1500m"
_CHUNKS = (5_000, 1_000, 200)


def main() -> int:
    """Run the command line; answers with the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m testing.bench.scan", description=__doc__, formatter_class=raw)
    parser.add_argument("--groups", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=5, help="warm runs of each program, default: %(default)s")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="instead: does the memory of a full scan of ours grow with the number of requests?",
    )
    options = parser.parse_args()
    if options.groups < 200 or options.runs < 1:
        parser.error("at least 200 groups and 1 run are needed")
    if options.memory:
        return run(lambda: _memory(options.groups))
    return run(lambda: _compare(options.groups, options.runs))


def _compare(groups: int, runs: int) -> None:
    prepare()
    before = report.circumstances()
    with _cluster(groups) as (servers, loaded):
        results = take_turns(jobs(), servers, runs)
        report.check_counts(results, loaded)
    say("starting brokers for plan")
    with KafkaCluster(KAFKA_VERSION, _BROKERS, config=CONFIG) as kafka:
        planned = plan_runs(kafka.bootstrap_servers, runs)
    results += planned
    line = report.summary(results, groups)
    kept = report.keep(line, results, before.document())
    print(f"\n{groups:,} groups with {PARTITIONS} committed partitions each, {loaded.unused:,} of them match\n")
    print(report.table(results))
    print(f"\n{report.targets(line)}\n{target(planned)}")
    print(f"\nEvery run counted all groups and partitions. Kept in {os.path.relpath(kept)}\n")
    print(json.dumps(line), flush=True)


def _memory(groups: int) -> None:
    problems = []
    with _cluster(groups) as (servers, loaded):
        for chunk in _CHUNKS:
            results = take_turns([ours_at_once(chunk)], servers, 2)
            report.check_counts(results, loaded)
            most = held(servers, chunk, loaded.groups)
            print(
                f"{chunk:5,} groups a request, {most.requests:,} requests: peak RSS {results[0].rss_mb:.0f} MB, "
                f"at most {most.alive} answers of together {most.alive_mb:.1f} MB alive at once",
                flush=True,
            )
            if most.alive > _BROKERS * ALIVE_PER_BROKER:
                problems.append(f"{most.alive} of {most.requests} answers were alive at once")
    if problems:
        raise BenchError(f"memory grows with the number of requests: {'; '.join(problems)}")
    print("memory does not grow with the number of requests")


@contextmanager
def _cluster(groups: int) -> Iterator[tuple[str, Loaded]]:
    say(f"starting {_BROKERS} brokers of Kafka {KAFKA_VERSION}")
    jvm = Jvm(heap=_HEAP, peak_speed=True)
    with KafkaCluster(KAFKA_VERSION, _BROKERS, config=CONFIG, jvm=jvm) as kafka:
        say(f"loading {groups:,} groups")
        started = time.monotonic()
        loaded, members = load(kafka.bootstrap_servers, groups)
        say(f"loaded in {time.monotonic() - started:.0f} s")
        try:
            yield kafka.bootstrap_servers, loaded
        finally:
            members.stop()


if __name__ == "__main__":
    sys.exit(main())
