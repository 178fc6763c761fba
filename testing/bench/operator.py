"""`python -m testing.bench.operator`: memory and time of the operator for many groups and policies.

A real broker gets abandoned groups of 10 committed partitions each, of which 2 % have unread records. Policies on `*`
count `unchangedFor`; the first and every other one match those with lag, and half of these mark them. For each number
of groups, and of policies, the operator runs as a process that sees the chart's memory limit as in a container (it
needs Linux, and the right to make namespaces): one that has run before, and one that starts on its ledger. All policies
share one interval, so each round runs all of them.

    run_s, run_cpu_s     from the due time until the last policy has run; the process's CPU from before until then
    read_cpu_s           of this program, to list these groups and read their offsets
    api_reads_per_round  of custom resources
    bytes_per_group      peak memory beyond that of an operator without a connection, by one policy
    bytes_per_pair       peak memory beyond that of one policy, for each further pair of a policy and a group

Then it prints for each target whether it is met, as far as its sizes were measured (see `figures`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from group_hygiene.kafka.client import Deadline, connect
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.kafka.groups import list_groups
from group_hygiene.kafka.offsets import committed_offsets
from group_hygiene.model.groups import Fault
from group_hygiene.spec.client_settings import Settings
from testing.bench import report
from testing.bench.command import run, say
from testing.bench.errors import BenchError
from testing.bench.programs import KAFKA_VERSION
from testing.bench.purge_stage import NAMESPACE, PurgeStage
from testing.faults.errors import FaultsError
from testing.faults.groups import Groups
from testing.sandbox.kafka import Jvm, KafkaCluster
from testing.sandbox.ports import Ports
from testing.sandbox.proc import cpu_seconds, memory_mb
from testing.sandbox.process import Keeper

PARTITIONS = 10
# The chart's default.
LIMIT_MB = 512
# The most that each figure may be. A comparison of all objects, which lists each CRD, may fall into a round.
TARGETS = {
    "not_run_500000x10": 0,
    "peak_mb_500000x10": LIMIT_MB,
    "run_s_500000x10": 300.0,
    "not_run_100000x50": 0,
    "peak_mb_100000x50": LIMIT_MB,
    "too_many_500000x50": 49,
    "other_reasons_500000x50": 0,
    "bytes_per_group_500000": 250,
    "bytes_per_pair_100000x50": 20,
    "cpu_vs_reading_100000x1": 2.5,
    "more_api_reads": 4.0,
}
_TOPICS, _RECORDS, _BATCH, _LAG_EVERY = 20, 50, 1_000, 50
_HEAP = "2g"
_CONFIG = {"offsets.topic.num.partitions": "50", "group.coordinator.append.linger.ms": "0"}
_USER = "system:serviceaccount:"
_SECONDS, _POLL_S = 900.0, 1.0
# Seconds, more than a run takes.
_INTERVAL, _MANY_INTERVAL, _MANY = 120, 300, 50_000


@dataclass(frozen=True)
class Row:
    """problem: why not all policies ran: the reasons in their conditions `Ready`, how often each; "" = all ran."""

    groups: int
    policies: int
    start: str
    peak_rss_mb: float
    run_s: float
    run_cpu_s: float
    read_cpu_s: float
    scan_s: float
    api_reads_per_round: float
    bytes_per_group: int | None
    bytes_per_pair: int | None
    problem: str = ""


class Bench:
    """One broker and one API server; more groups are added as the rows need them."""

    def __init__(self, servers: str, stage: PurgeStage, interval: int | None) -> None:
        self._servers, self._stage, self._wanted = servers, stage, interval
        self._groups = Groups(servers)
        self._topics = [self._groups.topic(f"events.{n:03d}", PARTITIONS, _RECORDS) for n in range(_TOPICS)]
        self._loaded = 0
        self._port = Ports().take(1)[0]

    def rows(self, counts: Sequence[int], policies: Sequence[int]) -> Iterator[Row]:
        self._stage.start(0, LIMIT_MB, self._port)
        empty = memory_mb(self._stage.pid, "VmRSS")
        self._stage.stop()
        for groups in counts:
            self._interval = self._wanted or (_MANY_INTERVAL if groups > _MANY else _INTERVAL)
            self._load(groups)
            read = self._read_cpu()
            alone: dict[str, float] = {}
            for count in policies:
                # What an earlier row says of its policies is no result of this one.
                self._stage.remove_policies()
                self._stage.start(0, LIMIT_MB, self._port)
                self._apply(count)
                self._round(count, 0.0)
                warm = self._measured(groups, count, "running", read)
                self._stage.stop()
                self._stage.start(0, LIMIT_MB, self._port)
                for row in (warm, self._measured(groups, count, "started", read)):
                    if count == 1:
                        alone[row.start] = row.peak_rss_mb
                    each = (row.peak_rss_mb - empty) * 2**20 / groups if count == 1 else None
                    first = alone.get(row.start)
                    further = None
                    if count > 1 and first is not None:
                        further = round((row.peak_rss_mb - first) * 2**20 / (groups * (count - 1)))
                    made = {"bytes_per_group": each and round(each), "bytes_per_pair": further}
                    yield Row(**asdict(row) | made)
                self._stage.stop()

    def _load(self, groups: int) -> None:
        say(f"loading {groups - self._loaded:,} groups")
        for first in range(self._loaded, groups, _BATCH):
            numbers = range(first, min(groups, first + _BATCH))
            self._groups.abandon({f"team-{n % 97}.job-{n:07d}": self._offsets(n) for n in numbers})
        self._loaded = groups

    def _offsets(self, number: int) -> dict[tuple[str, int], int]:
        offset = _RECORDS // 2 if number % _LAG_EVERY == 0 else _RECORDS
        return {(self._topics[number % _TOPICS], index): offset for index in range(PARTITIONS)}

    def _read_cpu(self) -> float:
        client = connect(Settings(tuple(self._servers.split(","))))
        try:
            deadline, began = Deadline(_SECONDS), time.process_time()
            cluster = read_cluster(client, deadline)
            if isinstance(cluster, Fault):
                raise BenchError(f"the cluster can't be read: {cluster}")
            listed = list_groups(client, cluster, deadline).groups
            names = list(listed)
            for first in range(0, len(names), 2_000):
                some = {name: listed[name].coordinator for name in names[first : first + 2_000]}
                committed_offsets(client, some, deadline)
            return time.process_time() - began
        finally:
            client.close()

    def _apply(self, count: int) -> None:
        connection = {"bootstrapServers": [self._servers], "scan": {"timeout": "5m"}}
        self._stage.apply_object("KafkaConnection", "main", connection)
        for number in range(count):
            when: dict[str, Any] = {"unchangedFor": "1s" if number % 2 == 0 else "720h"}
            if number % 2 == 0:
                when["lag"] = {"atLeast": 1}
            spec = {
                "connectionRef": {"name": "main"},
                "interval": f"{self._interval}s",
                "mode": "Enforce" if number % 4 == 0 else "DryRun",
                "match": {"groups": ["*"]},
                "when": when,
                "action": "Delete",
                "delete": {"gracePeriod": "240h", "maxPercent": 100},
            }
            self._stage.apply_object("GroupPolicy", f"policy-{number:02d}", spec)

    def _measured(self, groups: int, count: int, start: str, read: float) -> Row:
        """The next round in which all policies are due: of a process that has just started, its first one."""
        starts = start == "started"
        due = time.time() if starts else (time.time() // self._interval + 1) * self._interval
        time.sleep(max(0.0, due - time.time() - 1))
        pid, before, scans = self._stage.pid, cpu_seconds(self._stage.pid), self._scans()
        began_reads = self._reads()
        ended, problem = self._round(count, due)
        after = self._scans()
        more = max(1, after[0] - scans[0])
        return Row(
            groups=groups,
            policies=count,
            start=start,
            peak_rss_mb=round(memory_mb(pid, "VmHWM"), 1),
            run_s=round(ended - due, 1),
            run_cpu_s=round(cpu_seconds(pid) - before, 1),
            read_cpu_s=round(read, 1),
            scan_s=round((after[1] - scans[1]) / more, 1),
            api_reads_per_round=round((self._reads() - began_reads) / more, 1),
            bytes_per_group=None,
            bytes_per_pair=None,
            problem=problem,
        )

    def _round(self, count: int, due: float) -> tuple[float, str]:
        """Wait until all policies have run since `due`: when that was; or why some have not, after a scan."""
        end, scans = time.time() + _SECONDS, self._scans()[0]
        while time.time() < end:
            ran = re.findall(
                r"^group_hygiene_policy_last_run_timestamp_seconds{.*} (.*)$", self._metrics(), re.MULTILINE
            )
            if len([each for each in ran if float(each) > due]) >= count:
                return time.time(), ""
            if self._stage.exit_code() is not None:
                return time.time(), "the process ended"
            # Before a scan, a policy's condition is of the round before.
            failed = self._stage.not_ready() if self._scans()[0] > scans else {}
            if failed and sum(failed.values()) + len([each for each in ran if float(each) > due]) >= count:
                return time.time(), ", ".join(f"{reason}: {many}" for reason, many in sorted(failed.items()))
            time.sleep(_POLL_S)
        raise BenchError(f"after {_SECONDS:.0f} s not all {count} policies have run: {self._stage.not_ready()}")

    def _scans(self) -> tuple[int, float]:
        """How many scans there were, and their seconds together."""
        text, name = self._metrics(), "group_hygiene_scan_duration_seconds"
        count, total = (re.search(rf"^{name}_{kind}{{.*}} (.*)$", text, re.MULTILINE) for kind in ("count", "sum"))
        return (int(float(count[1])), float(total[1])) if count and total else (0, 0.0)

    def _metrics(self) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def _reads(self) -> int:
        return sum(
            event["verb"] in ("get", "list")
            and event["user"]["username"].startswith(_USER)
            and (event.get("objectRef") or {}).get("apiGroup") == "grouphygiene.io"
            for event in self._stage.audit_events()
        )


def main() -> int:
    """Run the command line; returns the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m testing.bench.operator", description=__doc__, formatter_class=raw)
    parser.add_argument("--groups", type=int, nargs="+", default=[10_000, 100_000, 500_000])
    parser.add_argument("--policies", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument(
        "--interval",
        type=int,
        help=f"the policies', s; default: {_INTERVAL}, or {_MANY_INTERVAL} for over {_MANY:,} groups",
    )
    options = parser.parse_args()
    return run(lambda: _measure(sorted(options.groups), sorted(options.policies), options.interval), FaultsError)


def measure(groups: Sequence[int], policies: Sequence[int], interval: int | None) -> list[Row]:
    """Measure all rows. Progress goes to stderr. Raises BenchError, FaultsError and SandboxError."""
    jvm, rows = Jvm(heap=_HEAP, peak_speed=True), list[Row]()
    with (
        KafkaCluster(KAFKA_VERSION, config=_CONFIG, jvm=jvm) as kafka,
        Keeper() as keeper,
        PurgeStage(keeper, audit_log=True) as stage,
    ):
        for row in Bench(kafka.bootstrap_servers, stage, interval).rows(groups, policies):
            say(json.dumps(asdict(row)))
            rows.append(row)
    return rows


def _measure(groups: Sequence[int], policies: Sequence[int], interval: int | None) -> None:
    before = report.circumstances()
    rows = [asdict(row) for row in measure(groups, policies, interval)]
    found = figures(rows)
    wanted = {name: most for name, most in TARGETS.items() if name in found}
    print(f"\n{table(rows)}\n\n{report.targets(found, wanted)}\n")
    for name in TARGETS.keys() - wanted.keys():
        say(f"target {name}: not measured")
    kept = report.write("operator", {"rows": rows, **found}, wanted, before.document(), {"limit_mb": LIMIT_MB})
    print(f"Kept in {os.path.relpath(kept)}, in namespace {NAMESPACE}\n")
    print(json.dumps({"rows": rows}), flush=True)


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures that have targets, of the sizes that were measured; of a process that had run and of one that started
    the higher one.

    not_run: policies. too_many, other_reasons: of those that did not run, by their reason. cpu_vs_reading: of a process
    that had run, compared with reading the same groups. more_api_reads: of most policies than of the fewest.
    """
    found: dict[str, float] = {}
    for row in rows:
        size, not_run = f"{row['groups']}x{row['policies']}", _not_run(row)
        too_many = not_run.get("TooManyGroups", 0)
        values = {
            f"not_run_{size}": sum(not_run.values()),
            f"too_many_{size}": too_many,
            f"other_reasons_{size}": sum(not_run.values()) - too_many,
            f"peak_mb_{size}": row["peak_rss_mb"],
            f"run_s_{size}": row["run_s"],
            f"bytes_per_group_{row['groups']}": row["bytes_per_group"],
            f"bytes_per_pair_{size}": row["bytes_per_pair"],
        }
        if row["start"] == "running":
            values[f"cpu_vs_reading_{size}"] = round(row["run_cpu_s"] / row["read_cpu_s"], 2)
        for name, value in values.items():
            if name in TARGETS and value is not None:
                found[name] = max(found.get(name, value), value)
    for few, many in ((few, many) for few in rows for many in rows if few["policies"] < many["policies"]):
        if (few["groups"], few["start"]) == (many["groups"], many["start"]):
            more = round(many["api_reads_per_round"] - few["api_reads_per_round"], 1)
            found["more_api_reads"] = max(found.get("more_api_reads", more), more)
    return found


def _not_run(row: Mapping[str, Any]) -> dict[str, int]:
    """Reason -> how many policies did not run for that."""
    reasons = {reason: int(many) for reason, many in re.findall(r"(\w+): (\d+)", row["problem"])}
    return reasons if reasons or not row["problem"] else {row["problem"]: row["policies"]}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as aligned text."""
    cells = [
        list(rows[0]),
        *([f"{value:,}" if isinstance(value, int | float) else value or "" for value in row.values()] for row in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


if __name__ == "__main__":
    sys.exit(main())
