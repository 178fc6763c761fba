"""`python -m testing.bench.purge`: purge many groups, and see what that does to memory, status and others.

One real broker gets abandoned groups of 10 committed partitions each, all of which one policy deletes, some hundreds a
run, with the operator as a process of its own. Shown are the operator's memory after the first and the last run that
deleted, the largest status, whether the ledger tells of each group, and how long another client of that broker waits
(see `bench.other_client`), idle and from the moment at which the policy is applied until the last group is gone.

All of this shares one machine. So that the other client waits for the broker, and not for a core that the operator
computes on, the operator has a lower priority (`--nice 0` measures without that).
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.bench import other_client, purge_waits, report
from testing.bench.command import run, say
from testing.bench.errors import BenchError
from testing.bench.other_client import Round, rounds
from testing.bench.programs import KAFKA_VERSION
from testing.bench.purge_ledger import problems
from testing.bench.purge_stage import LEDGER, PurgeStage, Watched
from testing.faults.errors import FaultsError
from testing.faults.groups import Groups, Offsets
from testing.sandbox.kafka import Jvm, KafkaCluster
from testing.sandbox.ledger_log import LedgerLog, Record
from testing.sandbox.process import Command, Keeper, Server
from testing.sandbox.waiting import wait_for

PARTITIONS = 10
PREFIX = "unused-"
# The most that each figure may be; a status stays under its bytes.
TARGETS = {"rss_growth_percent": 10.0, "status_max_bytes": 19_999, "ledger_problems": 0, "p99_ratio": 2.0}
_TOPICS = 20
_RECORDS = 50
_BATCH = 1_000
# After so many intervals, the counts of the groups that the last run deleted must be gone.
_SCANS = 3
_HEAP = "1500m"
_CONFIG = {
    "offsets.topic.num.partitions": "50",
    # Commits are written at once instead of gathered: loading waits for each.
    "group.coordinator.append.linger.ms": "0",
}


@dataclass(frozen=True)
class Options:
    """How a purge is done. idle, patience: seconds. rate: rounds a second of the other client; rounds: the least.

    interval: of the policy, seconds: a run must take less than two, or it starts the count of `unchangedFor` anew.
    requests: the connection's limits.requestsPerSecond, 0 = none. nice: of the operator. patience: with no deletion.
    """

    groups: int
    max_per_run: int = 500
    interval: int = 10
    requests: int = 0
    nice: int = 10
    idle: float = 60.0
    rate: float = 25.0
    rounds: int = 500
    patience: float = 300.0


@dataclass(frozen=True)
class Purged:
    """What came of it. made: what each group had committed. left: groups that are still there.

    records: of the ledger. waits: of each batch, seconds from its backup to its request. idle, during: the other
    client's rounds.
    """

    watched: Watched
    made: Mapping[str, Offsets]
    left: Sequence[str]
    records: Sequence[Record]
    waits: Sequence[float]
    idle: Sequence[Round]
    during: Sequence[Round]


def main() -> int:
    """Run the command line; answers with the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m testing.bench.purge", description=__doc__, formatter_class=raw)
    default = Options(50_000)
    parser.add_argument("--groups", type=int, default=default.groups, help="default: %(default)s")
    parser.add_argument("--max-per-run", type=int, default=default.max_per_run, help="default: %(default)s")
    parser.add_argument("--interval", type=int, default=default.interval, help="the policy's, s; default: %(default)s")
    parser.add_argument(
        "--requests",
        type=int,
        default=default.requests,
        help="limits.requestsPerSecond, 0 = none; default: %(default)s",
    )
    parser.add_argument("--nice", type=int, default=default.nice, help="the operator's; default: %(default)s")
    parser.add_argument("--idle", type=float, default=default.idle, help="idle seconds before; default: %(default)s")
    options = Options(**vars(parser.parse_args()))
    if options.groups < 2 * options.max_per_run:
        parser.error("so few groups are not two runs")
    return run(lambda: _measure(options), FaultsError)


def _measure(options: Options) -> None:
    before = report.circumstances()
    purged = purge(options)
    line = summary(options, purged)
    for each in wrongs(purged)[:10]:
        say(f"  {each}")
    kept = keep(line, before.document())
    print(f"\n{report.targets(line, TARGETS)}\n\nKept in {os.path.relpath(kept)}\n")
    print(json.dumps(line), flush=True)


def purge(options: Options) -> Purged:
    """Do it all. Progress goes to stderr. Raises BenchError, FaultsError and SandboxError."""
    jvm = Jvm(heap=_HEAP, peak_speed=True)
    say(f"starting a broker of Kafka {KAFKA_VERSION} and an API server")
    with KafkaCluster(KAFKA_VERSION, config=_CONFIG, jvm=jvm) as kafka, Keeper() as keeper, PurgeStage(keeper) as stage:
        servers = kafka.bootstrap_servers
        made = load(servers, options.groups)
        with another_client(keeper, servers, options.rate) as log:
            say(f"the other client works alone, {options.idle:.0f} s")
            idle_from = time.time()
            time.sleep(max(options.idle, options.rounds * 1.1 / options.rate))
            wait_for(
                lambda: len(_between(rounds(log), idle_from, time.time())) >= options.rounds,
                "the other client works",
                300,
            )
            idle_to = time.time()
            stage.start(options.nice)
            began = stage.apply(*specs(servers, options))
            watched = stage.watch(options.groups, began, options.patience, _tell)
            waits = rounds(log)
        say("reading the ledger")
        # The next scan ends the counts of the groups that the last run deleted.
        end = time.monotonic() + _SCANS * options.interval
        while problems(records := LedgerLog(servers, LEDGER).read(), made) and time.monotonic() < end:
            time.sleep(options.interval)
        batches = purge_waits.waits(records, purge_waits.deleted_at(servers))
        left = sorted(set(made) & Groups(servers).listed())
    idle, during = _between(waits, idle_from, idle_to), _between(waits, watched.began, watched.ended)
    if len(during) < options.rounds:
        raise BenchError(f"the other client made {len(during)} rounds during the purge: too few for a percentile")
    return Purged(watched, made, left, records, batches, idle, during)


def load(bootstrap: str, groups: int) -> dict[str, Offsets]:
    """Make abandoned groups, with records waiting for each; what each of them committed."""
    say(f"loading {groups:,} groups")
    make = Groups(bootstrap)
    topics = [make.topic(f"events.{number:03d}", PARTITIONS, _RECORDS) for number in range(_TOPICS)]
    made: dict[str, Offsets] = {
        f"{PREFIX}{number:07d}": {
            (topics[number % _TOPICS], index): (number * 7 + index * 3) % _RECORDS for index in range(PARTITIONS)
        }
        for number in range(groups)
    }
    names, started = list(made), time.monotonic()
    for at in range(0, groups, _BATCH):
        make.abandon({name: made[name] for name in names[at : at + _BATCH]})
        done = min(groups, at + _BATCH)
        say(f"  {done:,} of {groups:,} groups ({done / (time.monotonic() - started):,.0f}/s)")
    return made


def specs(bootstrap: str, options: Options) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the connection and of the policy."""
    connection: dict[str, Any] = {"bootstrapServers": [bootstrap], "scan": {"timeout": "2m"}}
    if options.requests:
        connection["limits"] = {"requestsPerSecond": options.requests}
    policy = {
        "connectionRef": {"name": "main"},
        "interval": f"{options.interval}s",
        "mode": "Enforce",
        "match": {"groups": [f"{PREFIX}*"]},
        "when": {"unchangedFor": "1s"},
        "action": "Delete",
        "delete": {"gracePeriod": "1s", "maxPerRun": options.max_per_run, "maxPercent": 100},
    }
    return connection, policy


def wrongs(purged: Purged) -> list[str]:
    """One line for each group about which the ledger, or the policy's status, says what is not so."""
    return problems(purged.records, purged.made) + [f"{name}: it is still there" for name in purged.left]


def summary(options: Options, purged: Purged) -> dict[str, Any]:
    """The figures. Times in seconds, where not in ms; memory in MiB."""
    watched = purged.watched
    quiet, busy = other_client.p99(purged.idle), other_client.p99(purged.during)
    return {
        "groups": options.groups,
        "max_per_run": options.max_per_run,
        "interval_s": options.interval,
        "requests_per_second": options.requests or None,
        "nice": options.nice,
        "runs": len(watched.runs),
        "seconds": round(watched.ended - watched.began, 1),
        "operator_cpu_s": round(watched.cpu_s, 1),
        "rss_first_mb": round(watched.runs[0].rss_mb, 1),
        "rss_last_mb": round(watched.runs[-1].rss_mb, 1),
        "rss_peak_mb": round(watched.peak_rss_mb, 1),
        "rss_growth_percent": round(watched.rss_growth_percent, 1),
        "status_max_bytes": max(watched.statuses),
        "ledger_problems": len(wrongs(purged)),
        "p99_idle_ms": round(quiet * 1000, 2),
        "p99_purge_ms": round(busy * 1000, 2),
        "p99_ratio": round(busy / quiet, 2),
        "p50_idle_ms": round(_median(purged.idle) * 1000, 2),
        "p50_purge_ms": round(_median(purged.during) * 1000, 2),
        "batches": len(purged.waits),
        "write_to_send_p50_ms": round(statistics.median(purged.waits) * 1000, 1),
        "write_to_send_p99_ms": round(statistics.quantiles(purged.waits, n=100)[98] * 1000, 1),
        "rounds": [len(purged.idle), len(purged.during)],
    }


def keep(line: Mapping[str, Any], circumstances: Mapping[str, Any]) -> Path:
    """Write the last result for this number of groups: when, where and of which source it was."""
    return report.write(f"purge-{line['groups']}", line, TARGETS, circumstances)


@contextmanager
def another_client(keeper: Keeper, bootstrap: str, rate: float) -> Iterator[Path]:
    """Run `bench.other_client`, so many rounds a second; yields its log once it has done one."""
    Groups(bootstrap).topic(other_client.TOPIC, 1, 1)
    log = keeper.scratch / "other-client.log"
    command = [sys.executable, "-m", "testing.bench.other_client", bootstrap, "--rate", str(rate)]
    root = str(Path(__file__).parents[2])
    client = keeper.start("other-client", Command(command, log, cwd=Path(root)))
    try:
        _until_first_round(client, log)
        yield log
    finally:
        client.stop(0)


def _until_first_round(client: Server, log: Path) -> None:
    end = time.monotonic() + 60
    while not rounds(log):
        if client.exit_code() is not None or time.monotonic() > end:
            raise BenchError(f"the other client does not work:\n{client.log_tail()}")
        time.sleep(0.1)


def _between(waits: Sequence[Round], begin: float, end: float) -> list[Round]:
    return [each for each in waits if begin <= each.at <= end]


def _median(waits: Sequence[Round]) -> float:
    return statistics.median(each.took for each in waits)


def _tell(watched: Watched) -> None:
    last, seconds = watched.runs[-1], watched.ended - watched.began
    say(f"  run {len(watched.runs)}: {last.deleted:,} deleted, {seconds:.0f} s, RSS {last.rss_mb:.0f} MB")


if __name__ == "__main__":
    sys.exit(main())
