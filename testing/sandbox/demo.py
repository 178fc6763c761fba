"""`python -m testing.sandbox.demo`: the main job in two minutes, on a real Kafka and a real Kubernetes API server.

It creates unused groups and groups that only seem unused, starts the operator, and checks which groups remain.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any

from testing.sandbox import demo_stale
from testing.sandbox.demo_channel import Channel
from testing.sandbox.demo_checks import (
    TITLES,
    UNCHANGED,
    Story,
    check_groups,
    check_history,
    check_operator,
    check_restored,
    check_skipped,
    reasons_in,
)
from testing.sandbox.demo_clients import View
from testing.sandbox.demo_command import CommandLine
from testing.sandbox.demo_idle import IDLE_KINDS, check_idle, is_done, lines
from testing.sandbox.demo_kubernetes import IDLE, NAMESPACE, OPERATOR, POLICY, STALE, Kubernetes
from testing.sandbox.demo_past import check_past, commands, shown, shown_who, who
from testing.sandbox.demo_pipeline import Pipeline
from testing.sandbox.demo_screen import Check, Screen, in_columns, shorten
from testing.sandbox.errors import NotReached, SandboxError
from testing.sandbox.example_groups import LEFT, LIVING, PREVIEW, Kind, Shop, leave, make_all, topic_deleted
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.cluster import PATIENT
from testing.sandbox.kafka.programs import Programs
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.kubernetes.binaries import control_plane
from testing.sandbox.prerequisites import JAVA, KUBECTL, OPENSSL, find
from testing.sandbox.waiting import wait_for

_RANDOM = "random-ids"
# Beginnings of ids that programs make up, and of similar ones, which lines show as their number.
_MADE_UP, _SIMILAR = ("perf-consumer-", "anonymous."), ("click-",)
_DRY_RUN_SECONDS, _MARK_SECONDS, _ENFORCE_SECONDS, _RUN_SECONDS = 120.0, 60.0, 90.0, 60.0
_IDLE_SECONDS, _READ_SECONDS = 300.0, 120.0
_PROTECTED, _RESTORED = "old-billing", PREVIEW.pattern


def main() -> int:
    """Run the demo. Returns 0 only if every check passed."""
    parser = argparse.ArgumentParser("python -m testing.sandbox.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running at the end, until Ctrl-C")
    parser.add_argument(
        "--operator-command",
        default=OPERATOR,
        metavar="COMMAND",
        help="command to run as the operator, instead of this checkout's operator",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    # A shell starts background processes with SIGINT ignored; a SIGINT that is sent explicitly must work.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for program in (JAVA, OPENSSL, KUBECTL):
            find(program)
        return 0 if _Demo(options.operator_command, options.keep).run() else 1
    except SandboxError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


class _Demo:
    """One run. `run` always stops everything that it started."""

    def __init__(self, operator_command: str, keep: bool) -> None:
        self._command, self._keep = operator_command, keep
        self._screen = Screen()
        self._started = time.monotonic()
        self._kafka = KafkaCluster(config=PATIENT)
        self._api = ApiServer()
        self._kubernetes = Kubernetes(self._api)
        self._pipeline = Pipeline()
        self._channel = Channel()
        self._shop: Shop | None = None

    def run(self) -> bool:
        with ExitStack() as stack:
            parts = (self._kafka, self._api, self._channel, self._kubernetes, self._pipeline)
            for stop in (*(part.stop for part in parts), self._close_shop):
                stack.callback(stop)
            stack.callback(self._progress, "stopping everything")
            shop, kinds = self._set_up(stack)
            return self._check_all(shop, kinds)

    def _set_up(self, stack: ExitStack) -> tuple[Shop, list[Kind]]:
        self._kafka.prepare()
        control_plane()
        self._pipeline.prepare()
        Programs("", (), ("orders",)).prepare()
        self._channel.start()
        self._progress(f"starting Kafka {self._kafka.version} and a Kubernetes API server")
        pool = ThreadPoolExecutor(2)
        # Without waiting: clients fail once the servers are stopped.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        made, running = pool.submit(self._make_groups), pool.submit(self._start_operator)
        _wait_for_all(made, running)
        return made.result()

    def _make_groups(self) -> tuple[Shop, list[Kind]]:
        self._kafka.start()
        self._progress("making unused groups, and groups that only seem unused")
        self._shop = shop = Shop(self._kafka.bootstrap_servers)
        shop.open()
        # First, as the stale offsets must be idle for some time, and Spark takes long to start.
        by_log = make_all(shop, (*IDLE_KINDS, demo_stale.moved_on))
        self._pipeline.start(shop.bootstrap)
        left = leave(shop, LEFT)
        topic_deleted(shop)
        return shop, [*left, *make_all(shop, LIVING), *by_log]

    def _start_operator(self) -> None:
        self._api.start()
        self._kubernetes.install()
        self._kubernetes.run_operator(self._command, self._pipeline.tables)

    def _check_all(self, shop: Shop, kinds: list[Kind]) -> bool:
        view = View(shop.bootstrap)
        story = Story(kinds, view.groups())
        self._show_before(story)
        self._kubernetes.apply_examples(shop.bootstrap, self._pipeline.tables, self._channel.address)
        self._dry_run(story, view)
        story.baseline = view.offsets(story.before)
        story.done = {client.name: client.done for client in shop.clients}
        command_line = CommandLine(shop.bootstrap)
        self._enforce(story, command_line)
        self._by_log(story, view)
        # First, as the next check resumes the clients, which may change the operator's status.
        checks = [*check_operator(story, self._kubernetes), *check_idle(story, self._kubernetes.objects())]
        checks += demo_stale.check_stale(story, view)
        rows = check_groups(story, shop)
        self._screen.heading("5  After: the outcome of each group, and whether the remaining clients still work")
        self._screen.table(TITLES, rows)
        restored = self._restore(story, view, shop, command_line)
        alerts = self._check_alerts(story)
        self._screen.heading("8  The operator's statuses, compared with Kafka")
        self._screen.checks(checks)
        looked = self._look_back(story, view, command_line)
        self._progress(f"all of it took {time.monotonic() - self._started:.0f} s")
        return self._end([*(row.check for row in rows), *restored, *alerts, *checks, *looked])

    def _show_before(self, story: Story) -> None:
        screen, states = self._screen, {group: seen.state for group, seen in story.before.items()}
        empty = sorted(group for group, state in states.items() if state == "Empty")
        others = sorted(f"{group} ({state})" for group, state in states.items() if state != "Empty")
        unused = [group for kind in story.kinds if kind.abandoned for group in kind.groups]
        screen.heading(
            f"kafka-group-hygiene: the operator on a real Kafka {self._kafka.version} and a real Kubernetes API server"
        )
        screen.heading(f"1  Before: {len(states)} consumer groups, {len(unused)} of them unused. Which?")
        screen.text(f"Empty in Kafka: {shorten(empty, *_MADE_UP)}")
        screen.text(f"In use in Kafka: {', '.join(others)}")

    def _dry_run(self, story: Story, view: View) -> None:
        screen, kubernetes = self._screen, self._kubernetes
        self._progress("applied examples/demo/; waiting until the operator has seen the groups unchanged for 3 s")
        unused = [group for kind in story.kinds if kind.looks_abandoned for group in kind.groups]
        expected = {
            POLICY: len(unused),
            _RANDOM: sum(group.startswith(_MADE_UP) for group in unused),
            "report-unused": sum(not group.startswith(_MADE_UP) for group in unused),
        }
        self._wait(
            lambda: all(_count(kubernetes, name, "matched") >= count for name, count in expected.items()),
            _DRY_RUN_SECONDS,
        )
        story.dry = frozenset(view.states())
        screen.heading("2  Dry run: what would be deleted, and why the rest stays")
        screen.command(*kubernetes.get("kconn"))
        screen.command(*kubernetes.get("kgp"))
        screen.command(*kubernetes.describe())
        entries = reasons_in(kubernetes.objects(), *UNCHANGED)
        story.unchanged = {group: entry.get("reason", "") for group, entry in entries.items()}
        matching = sorted(group for group, entry in entries.items() if entry["verdict"] == "Match")
        skipped: dict[tuple[str, str], list[str]] = {}
        for group, entry in sorted(entries.items()):
            if entry["verdict"] == "Skip":
                skipped.setdefault((entry["reason"], entry["message"]), []).append(group)
        screen.lines(
            f"would delete: {shorten(matching, *_MADE_UP)}",
            *in_columns([(shorten(groups, *_SIMILAR), *why) for why, groups in sorted(skipped.items())]),
        )

    def _enforce(self, story: Story, command_line: CommandLine) -> None:
        screen, kubernetes = self._screen, self._kubernetes
        looks_abandoned = [group for kind in story.kinds if kind.looks_abandoned for group in kind.groups]
        # History begins with Spark's first read: the backtest needs groups from before they are deleted.
        self._wait(lambda: self._pipeline.read_since(datetime.min.replace(tzinfo=UTC)), _READ_SECONDS)
        screen.heading("3  Enforce: one word in an object, as a commit would change it; and a request to keep a group")
        screen.command(kubernetes.enforce())
        self._progress("waiting for the marks")
        self._wait(lambda: _count(kubernetes, POLICY, "marked") >= len(looks_abandoned), _MARK_SECONDS)
        screen.command(*kubernetes.get("kgp"))
        screen.command(*kubernetes.describe())
        screen.command(command_line.address())
        screen.command(*command_line.run("keep", _PROTECTED, "--for", "30d", "--why", "invoices until the year ends"))
        self._progress("waiting until the grace period of 15 s is over, for the run that deletes and the one after it")
        self._wait(lambda: self._settled(story), _ENFORCE_SECONDS)
        screen.command(*kubernetes.get("kconn"))
        screen.command(*kubernetes.get("kgp"))
        screen.command(*kubernetes.describe())

    def _by_log(self, story: Story, view: View) -> None:
        screen, kubernetes = self._screen, self._kubernetes
        self._progress(
            "waiting until the offsets log shows the latency test unused for 20 s, and for the run after that"
        )
        objects = kubernetes.objects()

        def settled() -> bool:
            nonlocal objects
            objects = kubernetes.objects()
            stale = demo_stale.is_done(objects)
            return _overdone(story, objects) or (is_done(story, objects) and stale and _recounted(story, objects))

        self._wait(settled, _IDLE_SECONDS)
        story.after, story.ledger = view.groups(), view.ledger()
        entries = reasons_in(objects, *UNCHANGED, IDLE)
        story.reasons = {group: entry["reason"] for group, entry in entries.items() if "reason" in entry}
        screen.heading("4  By Kafka's own log of commits, which Spark reads all the time: groups without members")
        screen.command(self._pipeline.command())
        screen.command(*kubernetes.describe(IDLE))
        screen.lines(*lines(story, objects))
        screen.command(*kubernetes.describe(STALE))

    def _restore(self, story: Story, view: View, shop: Shop, command_line: CommandLine) -> list[Check]:
        screen, kubernetes = self._screen, self._kubernetes
        screen.heading("6  Restore: one of them is needed after all")
        screen.command(*command_line.run("restore", _RESTORED))
        checks = check_restored(story, _RESTORED, view, shop)
        command, history = command_line.run("history", _RESTORED)
        screen.command(command, history)
        checks.append(check_history(_RESTORED, history))
        self._progress("waiting for the operator's next scan")
        self._wait(lambda: kubernetes.skipped("Reappeared") > 0, _RUN_SECONDS)
        checks.append(check_skipped(_RESTORED, kubernetes))
        screen.checks(checks)
        return checks

    def _check_alerts(self, story: Story) -> list[Check]:
        screen, channel = self._screen, self._channel
        self._wait(lambda: channel.has_all_deletions(story), _RUN_SECONDS)
        screen.heading("7  Alerts, as the webhook of connection.yaml received them: each once, one message per run")
        screen.lines(*channel.lines())
        checks = channel.check(story)
        screen.checks(checks)
        return checks

    def _look_back(self, story: Story, view: View, command_line: CommandLine) -> list[Check]:
        screen = self._screen
        self._progress("waiting until Spark has read all of it")
        now, story.after = datetime.now(UTC), view.groups()
        self._wait(lambda: self._pipeline.read_since(now), _READ_SECONDS)
        self._progress("looking back, and writing a report")
        backtest, report = self._pipeline.look_back(*commands())
        screen.heading("9  Backtest: the deletions of a hasty policy in the last minute, and its regrets")
        screen.command(backtest.command, shown(backtest))
        screen.command(report.command)
        command, explained = command_line.run(*who(self._pipeline.tables))
        screen.command(command, shown_who(explained))
        checks = check_past(story, _RESTORED, backtest, report, explained)
        screen.checks(checks)
        return checks

    def _settled(self, story: Story) -> bool:
        """Whether the run after the deletion is over: no group is due, and the groups were counted again."""
        objects = self._kubernetes.objects()
        statuses = {name: obj.get("status") or {} for name, obj in objects.items()}
        deleted = statuses[POLICY].get("totals", {}).get("deleted", 0)
        left = [statuses[name].get("groups", {}).get("matched", 0) for name in (POLICY, _RANDOM)]
        return bool(deleted) and not any(left) and _recounted(story, objects)

    def _end(self, checks: list[Check]) -> bool:
        if self._keep:
            self._explain()
        passed = self._screen.result(checks)
        if self._keep:
            try:
                while not threading.Event().wait(1.0):
                    self._check()
            except KeyboardInterrupt:
                print(file=sys.stderr)
        return passed

    def _explain(self) -> None:
        """How to look around."""
        url = self._kubernetes.metrics_url()
        lines = [
            f"export KUBECONFIG={self._api.kubeconfig}",
            f"kubectl get kconn,kgp -n {NAMESPACE}",
            f"kubectl describe kgp {POLICY} -n {NAMESPACE}",
            *([f"curl {url}"] if url else []),
        ]
        self._screen.heading("Everything stays up until Ctrl-C. In another terminal:")
        for line in lines:
            print(f"   {line}")
        print(f"   Kafka listens at {self._kafka.bootstrap_servers}")

    def _wait(self, true: Callable[[], bool], seconds: float) -> None:
        """Wait until it is true. If it never is, the checks will fail."""

        def asked() -> bool:
            self._check()
            return true()

        with suppress(NotReached):
            wait_for(asked, seconds=seconds)

    def _check(self) -> None:
        """Raise an error if a server or the operator has ended by itself."""
        self._kafka.check()
        self._api.check()
        self._kubernetes.check()
        self._pipeline.check()

    def _close_shop(self) -> None:
        if self._shop is not None:
            self._shop.close()

    def _progress(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:3.0f} s] {text} ...", file=sys.stderr, flush=True)


def _count(kubernetes: Kubernetes, policy: str, what: str) -> int:
    return int(kubernetes.status(policy).get("groups", {}).get(what, 0))


def _deleted(objects: Mapping[str, Mapping[str, Any]]) -> int:
    return sum((objects[name].get("status") or {}).get("totals", {}).get("deleted", 0) for name in (POLICY, IDLE))


def _recounted(story: Story, objects: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the connection's count of groups has dropped by the policies' count of deletions."""
    total = (objects["main"].get("status") or {}).get("groups", {}).get("total", 0)
    return bool(total + _deleted(objects) == len(story.before))


def _overdone(story: Story, objects: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether more than the unused groups are gone: waiting is useless then, and the checks will fail."""
    unused = [group for kind in story.kinds if kind.abandoned or kind.looks_abandoned for group in kind.groups]
    return _deleted(objects) > len(unused)


def _wait_for_all(*futures: Future[Any]) -> None:
    """Wait for all; raises the first error at once."""
    for future in wait(futures, return_when=FIRST_EXCEPTION).done:
        future.result()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Not sys.exit, which would wait for threads with requests to stopped servers.
    os._exit(code)
