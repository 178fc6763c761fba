"""docs/first-clean-up.md on three brokers, with 3,000 unused groups and 400 others: only the unused ones go."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml

from testing.bench import other_client
from testing.bench.purge import another_client
from testing.faults.groups import Groups, Offsets
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.node.given import Cluster
from testing.sandbox.node.kafka import NAMESPACE, NodeKafka
from testing.sandbox.process import Keeper
from testing.sandbox.waiting import wait_for
from tests.node import release

PAGE = (release.ROOT / "docs" / "first-clean-up.md").read_text()
UNUSED = 3_000
_MILLIS = 1_795_759_894_373
# As programs leave them (tests/kafka/test_left_groups.py): Spring Cloud Stream, kafka-consumer-perf-test, and the
# console consumer with the ids of previews, of CI runs and of replays.
UNUSED_IDS: tuple[Callable[[int], str], ...] = (
    lambda number: f"anonymous.{uuid.UUID(int=number)}",
    lambda number: f"perf-consumer-{number}",
    lambda number: f"pr-{number}-api",
    lambda number: f"test-{uuid.UUID(int=number)}",
    lambda number: f"replay-{number}",
)
_SECONDS = 600.0
_IDLE_SECONDS, _RATE = 30.0, 25.0
_RECORDS = 10
# The periods of the page would take days.
_SHORT = {"interval": "10s", "when": {"unchangedFor": "15s"}}
_GRACE = "10s"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """The commands of the page that begin so, as words."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(program)]


@pytest.fixture
def many(cluster: Cluster, kafka: NodeKafka) -> Iterator[NodeKafka]:
    """Three brokers in the place of the other one."""
    with NodeKafka(cluster, brokers=3, config={"offsets.retention.check.interval.ms": "36000000"}) as made:
        yield made
    kafka.publish()


@pytest.fixture
def groups(many: NodeKafka) -> Groups:
    made = Groups(many.plaintext_bootstrap)
    made.topic("orders", records=_RECORDS)
    return made


def fill(groups: Groups) -> set[str]:
    """Make the groups; returns those that must stay: of services, caught up, without members ever, protected."""
    groups.abandon({UNUSED_IDS[number % len(UNUSED_IDS)](number): _offsets(number) for number in range(UNUSED)})
    stay: dict[str, Offsets] = {f"service-{number}": _offsets(number) for number in range(200)}
    stay |= {f"payments-{number}": _offsets(number) for number in range(40)}
    at_end = {("orders", partition): _RECORDS for partition in range(2)}
    stay |= {f"perf-consumer-{90_000 + number}": at_end for number in range(100)}
    groups.abandon(stay)
    simple = {f"test-group-{_MILLIS + number}": _offsets(number) for number in range(60)}
    for name, offsets in simple.items():
        groups.commit(name, offsets)
    return {*stay, *simple}


def _offsets(number: int) -> Offsets:
    return {("orders", 0): number % _RECORDS, ("orders", 1): number % 7}


@pytest.mark.usefixtures("no_release")
def test_the_guide_cleans_up(
    cluster: Cluster,
    many: NodeKafka,
    groups: Groups,
    record_property: Callable[[str, object], None],
) -> None:
    """Each command and each object as it stands there, with shorter periods: deleted 3000, kept 400, wrong 0."""
    stay = fill(groups)
    began = time.monotonic()
    _plan(many)
    release.install(cluster, f"rbac.secretNamespaces={{{NAMESPACE}}}")
    connection, policy, enforce, first, raised = [yaml.safe_load(block) for block in blocks("yaml")]
    policy["spec"] |= _SHORT
    for obj in (connection, policy):
        cluster.kubectl("apply", "-f", "-", input=json.dumps(obj))
    _wait(cluster, "groups.wouldDelete", UNUSED)
    for words in commands("kubectl get"):
        if "-w" not in words:
            assert cluster.kubectl(*words[1:]).stdout
    with Keeper() as keeper, another_client(keeper, many.plaintext_bootstrap, _RATE) as log:
        time.sleep(_IDLE_SECONDS)
        idle = other_client.p99(other_client.rounds(log))
        _patch(cluster, "kgp/random-ids", enforce | {"delete": {"gracePeriod": _GRACE}})
        wait_for(lambda: _blocked(cluster) == "LimitExceeded", lambda: release.explain(cluster), _SECONDS)
        assert len(groups.listed() - {other_client.GROUP}) == UNUSED + len(stay)
        started, at = time.monotonic(), time.time()
        _patch(cluster, "kgp/random-ids", first)
        _patch(cluster, "kconn/main", raised)
        _wait(cluster, "totals.deleted", UNUSED)
        seconds = time.monotonic() - started
        during = other_client.p99([each for each in other_client.rounds(log) if each.at >= at])
    left = groups.listed() - {other_client.GROUP}
    record_property("deleted, kept, wrong", (UNUSED + len(stay) - len(left), len(left), len(stay - left)))
    record_property("seconds of the deletions, and of all", (seconds, time.monotonic() - began))
    record_property("p99 of another client before and during, s", (idle, during))
    assert left == stay
    _bring_one_back(cluster, groups)
    _delete_by_name(cluster, groups)
    _delete_offsets_by_name(cluster, groups)


def _plan(kafka: KafkaCluster) -> None:
    """Step 1, from this machine."""
    environment = {"PYTHONPATH": str(release.ROOT / "operator"), "PATH": "/usr/bin:/bin"}
    environment["GROUP_HYGIENE_BOOTSTRAP_SERVER"] = kafka.plaintext_bootstrap
    listed, planned = commands("group-hygiene list") + commands("group-hygiene plan")
    for words, found in ((listed, "service-1"), (planned, f"perf-consumer-{{digits}}: {UNUSED // 5:,} match")):
        command = [sys.executable, "-m", "group_hygiene.cli", *words[1:]]
        done = subprocess.run(
            command, cwd=release.ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        assert found in done.stdout, done.stdout[:2_000]


def _bring_one_back(cluster: Cluster, groups: Groups) -> None:
    """Step 6, in the operator's pod."""
    (restore,) = commands("group-hygiene restore")
    (history,) = commands("group-hygiene history")
    inside = ("exec", "-n", release.NAME, f"deploy/{release.NAME}", "--")
    name = UNUSED_IDS[1234 % len(UNUSED_IDS)](1234)
    cluster.kubectl(*inside, *(name if word == "GROUP" else word for word in restore))
    assert groups.offsets(name) == _offsets(1234)
    assert cluster.kubectl(*inside, *history).stdout.count(" Deleted ") >= UNUSED


def _delete_by_name(cluster: Cluster, groups: Groups) -> None:
    """In the operator's pod, beside the operator: what was used lately or is protected stays; a restore works."""
    unused, protected = "service-7", "payments-7"
    offsets = groups.offsets(unused)
    wanted = (unused, protected, "--by", "me", "--yes")
    assert _call(cluster, "delete", *wanted) == {unused: "RecentlyActive", protected: "Protected"}
    assert groups.offsets(unused) == offsets
    assert _call(cluster, "delete", *wanted, "--force") == {unused: "Deleted", protected: "Protected"}
    assert unused not in groups.listed()
    assert _call(cluster, "restore", unused) == {unused: "Restored"}
    assert groups.offsets(unused) == offsets


def _delete_offsets_by_name(cluster: Cluster, groups: Groups) -> None:
    """The same for the offsets of one topic, of a group whose consumer now reads another one."""
    group, topic = "service-8", groups.topic("stock")
    wanted = (group, "--topic", "orders", "--by", "me", "--yes")
    stale, current = groups.offsets(group), {(topic, 0): 1}
    groups.commit(group, current)
    member = groups.member(group, topic)
    assert _call(cluster, "delete-offsets", *wanted) == {group: "RecentlyActive"}
    assert _call(cluster, "delete-offsets", *wanted, "--force") == {group: "OffsetsDeleted"}
    assert groups.offsets(group) == current
    member.leave()
    assert _call(cluster, "restore", group) == {group: "Restored"}
    assert groups.offsets(group) == stale | current


def _call(cluster: Cluster, command: str, *arguments: str) -> dict[str, str]:
    """Run a command in the operator's pod; returns each group's reason or result."""
    where = ("exec", "-n", release.NAME, f"deploy/{release.NAME}", "--", "group-hygiene", command)
    done = cluster.kubectl(*where, "--connection", "main", "-n", NAMESPACE, "-o", "json", *arguments, check=False)
    assert done.stdout, done.stderr
    return {each["group"]: each["reason"] or each["result"] for each in json.loads(done.stdout)["groups"]}


def _patch(cluster: Cluster, name: str, spec: Mapping[str, Any]) -> None:
    cluster.kubectl("patch", name, "-n", NAMESPACE, "--type=merge", "-p", json.dumps({"spec": spec}))


def _wait(cluster: Cluster, field: str, value: int) -> None:
    def reached() -> bool:
        shown = cluster.kubectl("get", "kgp/random-ids", "-n", NAMESPACE, f"-o=jsonpath={{.status.{field}}}").stdout
        return shown == str(value)

    wait_for(reached, lambda: release.explain(cluster), _SECONDS)


def _blocked(cluster: Cluster) -> str:
    path = "-o=jsonpath={.status.conditions[?(@.type=='DeletionBlocked')].reason}"
    return cluster.kubectl("get", "kgp/random-ids", "-n", NAMESPACE, path).stdout
