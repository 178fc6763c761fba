"""`python -m testing.worlds`: lives in all worlds, and reports the results. Exit code 0 = all passed."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import groupby
from queue import Empty, SimpleQueue

import click
from confluent_kafka import KafkaException

from group_hygiene.process.start import start
from testing.faults.auditor import Audit
from testing.faults.errors import FaultsError
from testing.sandbox.errors import SandboxError
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install
from testing.worlds.life import Silent, begun
from testing.worlds.results import Result, Results
from testing.worlds.table import SMOKE, WORLDS
from testing.worlds.world import Cluster, Refuses, World

# So many worlds in turn use the same brokers, which then end: a second job has something to do, too.
_IN_TURN = 6
_PRINTING = threading.Lock()
_STARTED = time.monotonic()


def main() -> int:
    start()
    options = _options()
    results = Results()
    chosen = [world for world in WORLDS if _is_chosen(world, options)]
    if options.list:
        _list(chosen)
        return 0
    earlier = {} if options.again else results.earlier()
    found = [earlier[world.name] for world in chosen if world.name in earlier]
    if found:
        say(f"{len(found)} worlds passed in an earlier call with this code")
    found += _run([world for world in chosen if world.name not in earlier], options.jobs, results)
    return _report(chosen, found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testing.worlds", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these worlds, or all of these families")
    parser.add_argument("--smoke", action="store_true", help=f"{len(SMOKE)} worlds")
    parser.add_argument("--jobs", type=int, default=2, help="worlds at a time (%(default)s)")
    parser.add_argument("--again", action="store_true", help="also those that passed before with the same code")
    parser.add_argument("--list", action="store_true", help="list the worlds, and what is expected in each")
    options = parser.parse_args()
    unknown = set(options.only or ()) - {world.name for world in WORLDS} - {world.family for world in WORLDS}
    if unknown:
        parser.error(f"no such world: {', '.join(sorted(unknown))}")
    return options


def _is_chosen(world: World, options: argparse.Namespace) -> bool:
    if options.only:
        return world.name in options.only or world.family in options.only
    return not options.smoke or world.name in SMOKE


def _list(worlds: Iterable[World]) -> None:
    for world in worlds:
        expected = world.expected
        what = f"refuses: {expected.reason}, {expected.cause!r}" if isinstance(expected, Refuses) else "works"
        needs = f" (needs {', '.join(world.needs)})" if world.needs else ""
        click.echo(f"{world.family:14} {world.name:36} {what:50} {world.about}{needs}")


def say(text: str) -> None:
    with _PRINTING:
        click.echo(f"{time.monotonic() - _STARTED:6.0f} s  {text}")


def _run(worlds: list[World], jobs: int, results: Results) -> list[Result]:
    """Live in them, with so many at a time. A job has an API server, and brokers for a few equal worlds in turn."""
    found: list[Result] = []
    batches: SimpleQueue[list[World]] = SimpleQueue()
    for batch in _batches(worlds):
        batches.put(batch)

    def job() -> None:
        with ApiServer() as server:
            install(server)
            while True:
                try:
                    batch = batches.get_nowait()
                except Empty:
                    return
                for result in _in_turn(batch, server):
                    with _PRINTING:
                        results.add(result)
                        found.append(result)

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(job) for _ in range(min(jobs, batches.qsize()))]:
            done.result()
    return found


def _batches(worlds: list[World]) -> Iterator[list[World]]:
    """Worlds that may share brokers. The largest clusters come first, so that the run does not end with one."""

    def key(world: World) -> tuple[int, str]:
        return -world.cluster.brokers, f"{world.cluster}{world.name if world.alone else ''}"

    for _, group in groupby(sorted(worlds, key=key), key=key):
        same = list(group)
        for begin in range(0, len(same), _IN_TURN):
            yield same[begin : begin + _IN_TURN]


def _in_turn(batch: list[World], server: ApiServer) -> Iterator[Result]:
    with ExitStack() as stack:
        kafka: KafkaCluster | None = None
        for world in batch:
            lacking = [need for need in world.needs if not _has(need)]
            if lacking:
                say(f"{world.name}: NOT RUN, as this machine lacks {', '.join(lacking)}")
                yield Result(world.name, not_run=", ".join(lacking))
                continue
            if kafka is None:
                started = _started(world.cluster, stack)
                if isinstance(started, str):
                    yield Result(world.name, problems=(started,))
                    continue
                kafka = started
            result = _one(world, kafka, server)
            yield result
            if not result.passed or world.alone:
                # Other worlds must not fail because of this one.
                stack.close()
                kafka = None


def _has(need: str) -> bool:
    return os.geteuid() == 0 if need == "root" else shutil.which(need) is not None


def _started(cluster: Cluster, stack: ExitStack) -> KafkaCluster | str:
    try:
        return stack.enter_context(cluster.start())
    except SandboxError as error:
        return f"the brokers do not start: {error}"


def _one(world: World, kafka: KafkaCluster, server: ApiServer) -> Result:
    began, audit, problems, silent = time.monotonic(), Audit(), list[str](), 0
    log = ""
    try:
        with begun(world, kafka, server) as life:
            try:
                life.live()
            finally:
                audit = life.run.audit()
                log = life.run.replicas.all[-1].log()[-1500:] if life.run.replicas.all else ""
    except (FaultsError, SandboxError, KafkaException) as error:
        problems.append(f"{type(error).__name__}: {error}")
        silent = int(isinstance(error, Silent))
    except Exception:
        # An error in a world must not end the others.
        problems.append(traceback.format_exc())
    problems += audit.problems
    seconds = time.monotonic() - began
    say(f"{world.name}: {'passed' if not problems else 'FAILED'} after {seconds:.0f} s ({world.about})")
    for problem in problems:
        say(f"  {problem}")
    if problems:
        say(f"  the operator's log ends: {log}")
    counts = (audit.deletions, len(audit.wrong), len(audit.no_backup), silent)
    return Result(world.name, seconds, *counts, tuple(problems))


def _report(chosen: list[World], found: list[Result]) -> int:
    by_name = {result.world: result for result in found}
    rows = [by_name[world.name] for world in chosen if world.name in by_name]
    click.echo(f"\n{'world':36} {'seconds':>7} {'deleted':>7}")
    for row in rows:
        state = f"NOT RUN: needs {row.not_run}" if row.not_run else "" if row.passed else "FAILED"
        click.echo(f"{row.world:36} {row.seconds:7.0f} {row.deletions or '':>7}  {state}".rstrip())
        for problem in row.problems:
            click.echo(f"    {problem[:600]}")
    refusing = sum(isinstance(world.expected, Refuses) for world in chosen)
    not_run = [row.world for row in rows if row.not_run]
    failed = sum(bool(row.problems) for row in rows)
    click.echo(f"\n{len(chosen)} worlds, of which {refusing} must refuse; not run: {', '.join(not_run) or 'none'}")
    click.echo(
        f"groups wrongly deleted {sum(row.wrong for row in rows)}, "
        f"backups missing {sum(row.no_backup for row in rows)}, silent {sum(row.silent for row in rows)}"
    )
    click.echo(f"{sum(row.passed for row in rows)} passed, {failed} failed")
    return int(failed > 0 or len(rows) < len(chosen))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
