"""`python -m testing.bench.broker`: what unused groups cost a broker, and what a clean-up gives back.

One real broker gets more and more Empty groups of 10 committed partitions each. For each number of groups the
broker is restarted: the time until it has loaded its offsets partitions, the memory in use after a full garbage
collection, how long a client waits for ListGroups, with one request at a time, and how long a scrape by a metrics
exporter takes: the list of the groups and the committed offsets of all of them, by franz-go, which exporters use. Then
all groups but the first number are deleted, and the same is measured again.

A restart reads the log of `__consumer_offsets`: after the deletions also its tombstones, which the broker's cleaner
removes later.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka.admin import AdminClient
from kafka.protocol.admin import ListGroupsRequest

from testing.bench import report
from testing.bench.command import run, say
from testing.bench.errors import BenchError
from testing.bench.load import CONFIG, PARTITIONS, commit_more, group_name, load
from testing.bench.programs import KAFKA_VERSION, Job, kadm_full, take_turns
from testing.sandbox.kafka import Jvm, KafkaCluster
from testing.sandbox.prerequisites import JAVA, find
from testing.sandbox.waiting import wait_for

_BROKER = 1
_HEAP = "10g"
_FIRST = 200
_REQUESTS = 30
_SCRAPES = 3
_AT_ONCE = 1_000
_LOAD_SECONDS = 900.0
_LIST_VERSION = 4
_USED = re.compile(r"used (\d+)K")
_LOADED = re.compile(r"Finished loading of metadata from __consumer_offsets-\d+ .*? in (\d+)ms")


@dataclass(frozen=True)
class Figures:
    """Of a broker with so many groups. heap_mb: in use. load_s: until all partitions are loaded, of which loading_s
    was spent on the slowest one. list_ms, list_max_ms: median and maximum. list_mb: the size of the answer. scrape_s:
    the median; without what an exporter does with the offsets.
    """

    groups: int
    heap_mb: float
    load_s: float
    loading_s: float
    list_ms: float
    list_max_ms: float
    list_mb: float
    scrape_s: float


def main() -> int:
    """Run the command line; returns the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m testing.bench.broker", description=__doc__, formatter_class=raw)
    parser.add_argument("--groups", type=int, nargs="+", default=[10_000, 100_000, 500_000])
    options = parser.parse_args()
    counts = sorted(set(options.groups))
    if counts[0] <= _FIRST:
        parser.error(f"more than {_FIRST} groups are needed")
    return run(lambda: _measure(counts))


def _measure(counts: Sequence[int]) -> None:
    scrape = kadm_full()
    before = report.circumstances()
    with KafkaCluster(KAFKA_VERSION, config=CONFIG, jvm=Jvm(heap=_HEAP, peak_speed=True)) as kafka:
        _, members = load(kafka.bootstrap_servers, _FIRST)
        members.stop()
        few, *filled = [_figures(kafka, _FIRST, scrape), *_filled(kafka, counts, scrape)]
        say(f"deleting all but {counts[0]:,} groups")
        _delete(kafka.bootstrap_servers, [group_name(number) for number in range(counts[0], counts[-1])])
        after = _figures(kafka, counts[0], scrape)
    every = {str(each.groups): asdict(each) for each in filled}
    line = {
        "bytes_per_group": round((filled[-1].heap_mb - few.heap_mb) * 1024**2 / (filled[-1].groups - _FIRST)),
        "groups": every,
        "after_clean_up": asdict(after),
    }
    print(_table([few, *filled, after]))
    kept = report.write("broker", line, {}, before.document(), {"partitions_per_group": PARTITIONS})
    print(f"\nKept in {os.path.relpath(kept)}")
    print(f"\n{json.dumps(line)}", flush=True)


def _filled(kafka: KafkaCluster, counts: Sequence[int], scrape: Job) -> Iterator[Figures]:
    there = _FIRST
    for count in counts:
        say(f"committing for {count - there:,} more groups")
        commit_more(kafka.bootstrap_servers, [group_name(number) for number in range(there, count)], PARTITIONS)
        there = count
        yield _figures(kafka, count, scrape)


def _figures(kafka: KafkaCluster, groups: int, scrape: Job) -> Figures:
    say(f"measuring {groups:,} groups")
    # First, so that nothing but the groups differs in memory.
    load, slowest = _restart(kafka)
    waits, size = _list_groups(kafka.bootstrap_servers)
    heap = _heap_mb(kafka.pid(_BROKER))
    (scraped,) = take_turns([scrape], kafka.bootstrap_servers, _SCRAPES)
    return Figures(
        groups,
        round(heap, 1),
        round(load, 2),
        round(slowest, 2),
        round(statistics.median(waits) * 1000, 1),
        round(max(waits) * 1000, 1),
        round(size / 1024**2, 2),
        round(statistics.median(scraped.runs), 3),
    )


def _heap_mb(pid: int) -> float:
    """What is in use after a full collection."""
    jcmd = find(JAVA).resolve().with_name("jcmd")

    def ask(command: str) -> str:
        return subprocess.run([jcmd, str(pid), command], capture_output=True, text=True, check=True, timeout=120).stdout

    ask("GC.run")
    used = _USED.search(ask("GC.heap_info"))
    if used is None:
        raise BenchError("jcmd does not say how much of the heap is in use")
    return int(used[1]) / 1024


def _restart(kafka: KafkaCluster) -> tuple[float, float]:
    """Seconds until all partitions are loaded, and those of the slowest one, by the broker's log."""
    kafka.stop_broker(_BROKER)
    log = kafka.log(_BROKER)
    began, before = time.monotonic(), log.stat().st_size
    kafka.start_broker(_BROKER)

    def loaded() -> list[str]:
        with log.open(errors="replace") as lines:
            lines.seek(before)
            found = _LOADED.findall(lines.read())
        return found if len(found) >= int(CONFIG["offsets.topic.num.partitions"]) else []

    found = wait_for(loaded, "the offsets partitions are loaded", _LOAD_SECONDS)
    return time.monotonic() - began, max(map(int, found)) / 1000


def _list_groups(servers: str) -> tuple[list[float], int]:
    """Seconds until each answer to ListGroups has arrived, and its size in bytes."""
    host, _, port = servers.partition(",")[0].rpartition(":")
    request = ListGroupsRequest(states_filter=[], version=_LIST_VERSION)
    request.with_header(correlation_id=1, client_id="bench")
    message = request.encode(framed=True, header=True)
    waits, size = [], 0
    with socket.create_connection((host, int(port)), 60) as connection, connection.makefile("rb") as answers:
        for _ in range(_REQUESTS):
            began = time.monotonic()
            connection.sendall(message)
            (size,) = struct.unpack(">i", answers.read(4))
            answers.read(size)
            waits.append(time.monotonic() - began)
    return waits, size


def _delete(servers: str, names: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for at in range(0, len(names), _AT_ONCE):
        some = list(names[at : at + _AT_ONCE])
        for done in admin.delete_consumer_groups(some, request_timeout=60).values():
            done.result()


def _table(every: Sequence[Figures]) -> str:
    rows: list[Sequence[Any]] = [list(asdict(every[0])), *(list(asdict(each).values()) for each in every)]
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    raise SystemExit(main())
