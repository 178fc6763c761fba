"""`python -m bench.scan`: how long a scan of a cluster with many groups takes, ours and its peers', side by side.

Three real brokers are filled with groups of 10 committed partitions each. Two jobs are measured: `steady` lists the
Empty groups and reads the offsets of the 1 % whose id matches a pattern, as each run of the operator does; `full` reads
the offsets of all groups. Each program is one process that connects, does its job once to be warm, and then as many
times as asked, in turns with the others. What they count must be what was loaded.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import report
from bench.errors import BenchError
from bench.load import PARTITIONS, Loaded, load
from bench.programs import KAFKA_VERSION, jobs, ours_at_once, prepare, take_turns
from sandbox.errors import SandboxError
from sandbox.kafka import Jvm, KafkaCluster

_BROKERS = 3
_HEAP = "1500m"
_BUSY = 1.0
_CHUNKS = (2_000, 500, 100)
# What the allocator and the network add from one run to the next.
_MEMORY_TOLERANCE = 1.15
_CONFIG = {
    "offsets.topic.num.partitions": "50",
    "offsets.topic.replication.factor": "1",
    # Commits are written at once instead of gathered: loading waits for each.
    "group.coordinator.append.linger.ms": "0",
    # Nothing is expired or compacted while somebody is measured.
    "offsets.retention.check.interval.ms": "86400000",
    "log.cleaner.enable": "false",
}


def main() -> int:
    """Run the command line; answers with the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m bench.scan", description=__doc__, formatter_class=raw)
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
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if options.memory:
            _memory(options.groups)
        else:
            _compare(options.groups, options.runs)
    except (BenchError, SandboxError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _compare(groups: int, runs: int) -> None:
    prepare()
    before = os.getloadavg()[0]
    if before > _BUSY:
        _say(f"this machine is busy (load average {before:.1f}): the figures will say less")
    with _cluster(groups) as (servers, loaded):
        results = take_turns(jobs(), servers, runs)
    report.check_counts(results, loaded)
    line = report.summary(results, groups)
    kept = report.keep(line, results, (before, os.getloadavg()[0]))
    print(f"\n{groups:,} groups with {PARTITIONS} committed partitions each, {loaded.litter:,} of them match\n")
    print(report.table(results))
    print(f"\nEvery run counted all groups and partitions. Kept in {os.path.relpath(kept)}\n")
    print(json.dumps(line), flush=True)


def _memory(groups: int) -> None:
    peaks: dict[int, float] = {}
    with _cluster(groups) as (servers, loaded):
        for chunk in _CHUNKS:
            results = take_turns([ours_at_once(chunk)], servers, 2)
            report.check_counts(results, loaded)
            peaks[chunk] = results[0].rss_mb
            print(f"{chunk:5,} groups a request: peak RSS {peaks[chunk]:.0f} MB", flush=True)
    if max(peaks.values()) > peaks[_CHUNKS[0]] * _MEMORY_TOLERANCE:
        raise BenchError("memory grows with the number of requests")
    print("memory does not grow with the number of requests")


@contextmanager
def _cluster(groups: int) -> Iterator[tuple[str, Loaded]]:
    _say(f"starting {_BROKERS} brokers of Kafka {KAFKA_VERSION}")
    jvm = Jvm(heap=_HEAP, peak_speed=True)
    with KafkaCluster(KAFKA_VERSION, _BROKERS, config=_CONFIG, jvm=jvm) as kafka:
        _say(f"loading {groups:,} groups")
        started = time.monotonic()
        loaded, members = load(kafka.bootstrap_servers, groups)
        _say(f"loaded in {time.monotonic() - started:.0f} s")
        try:
            yield kafka.bootstrap_servers, loaded
        finally:
            members.stop()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
