"""Deletion by Kafka's offsets log, as users see it: on good evidence it comes, on any other everything stays."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from group_hygiene.kafka.offsets_log import partition_of
from testing.faults.offsets_log import ends
from testing.sandbox.spark.jars import jars
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import ROOT, Groups, RunningOperator, World, connection, policy
from tests.warehouse import Warehouse, idle, in_use, now

# The few that the brokers of the sandbox have.
LOG_PARTITIONS = 5
SPARK_SECONDS = 900


@dataclass(frozen=True)
class Place:
    """Where it all happens. tables: the folder of which the operator may read."""

    world: World
    operator: RunningOperator
    groups: Groups
    topic: str
    cluster: str
    tables: Path

    def warehouse(self, name: str, cluster: str = "") -> Warehouse:
        return Warehouse(self.tables / name, cluster or self.cluster, partitions=LOG_PARTITIONS)

    def fresh(self, name: str, *groups: str) -> Warehouse:
        """Tables that say of these groups that nobody used them for days, and that cover the whole log as it is now."""
        made = self.warehouse(name)
        made.write([idle(group) for group in groups], ends=ends(self.groups.bootstrap))
        return made

    def abandoned(self, *names: str) -> None:
        """Groups for which records wait."""
        for name in names:
            self.groups.abandoned(name, self.topic)
        self.groups.produce(self.topic)

    def apply(self, name: str, uri: str, mode: str = "Enforce", idle_for: str = "20s") -> None:
        """A namespace with a connection to these tables and a policy for the groups of that prefix."""
        self.world.namespace(name)
        self.world.apply(
            connection(name, self.groups.bootstrap, activity={"uri": uri, "maxAge": "1h"}),
            policy(
                name,
                "p",
                mode=mode,
                match={"groups": [f"{name}-*"]},
                when={"idleFor": idle_for},
                delete={"maxPercent": 100},
            ),
        )

    def entry(self, name: str, group: str) -> dict[str, Any]:
        """What the policy's status says of a group."""
        sample = self.world.get("kgp", name, "p").get("status", {}).get("sample") or []
        return next((row for row in sample if row["group"] == group), {})

    def evidence(self, name: str) -> str | None:
        found = self.world.condition("kgp", name, "p", "EvidenceReady")
        return None if found is None else f"{found['status']} {found['reason']}"

    def runs(self, name: str, count: int) -> None:
        """Wait for so many more runs of the policy."""
        for _ in range(count):
            before = self._last_run(name)
            wait_for(lambda before=before: self._last_run(name) > before)  # type: ignore[misc]

    def _last_run(self, name: str) -> float:
        series = f'group_hygiene_policy_last_run_timestamp_seconds{{namespace="{name}",policy="p"}} '
        return float(self.operator.http("/metrics")[1].partition(series)[2].partition("\n")[0] or 0)


@pytest.fixture(scope="module")
def place(world: World, operator: RunningOperator, groups: Groups, tables: Path) -> Place:
    """The shared operator, and the folder in which it may read."""
    return Place(
        world, operator, groups, groups.topic("evidence"), groups.admin.describe_cluster()["cluster_id"], tables
    )


@pytest.fixture(autouse=True)
def cleared(place: Place) -> Iterator[None]:
    """At the end, the operator has nothing more to do in the namespaces that the test made.

    Each of its scans reads the tables in a process of its own.
    """
    before = len(place.world.namespaces)
    yield
    for namespace in place.world.namespaces[before:]:
        place.world.clear(namespace)


@contextmanager
def commits_again_and_again(groups: Groups, same: str, moving: str, topic: str) -> Iterator[None]:
    """Two groups that only commit, all the time: one the same offset from the first commit on, one the next each time.

    Records always wait for both.
    """
    ending = threading.Event()
    groups.simple(same, topic, 1)
    groups.simple(moving, topic, 1)

    def work() -> None:
        offset = 1
        while not ending.wait(0.5):
            offset += 1
            groups.produce(topic, 1)
            groups.simple(same, topic, 1)
            groups.simple(moving, topic, offset)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def run_pipeline(bootstrap: str, warehouse: str, log: Path) -> None:
    """`group-hygiene pipeline run`, once."""
    command = [sys.executable, "-m", "group_hygiene.cli", "pipeline", "run", "--bootstrap-server", bootstrap]
    command += ["--warehouse", warehouse, "--jars", str(jars()), "--memory", "1g", "--log-file", str(log)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SPARK_SECONDS, check=False)
    assert done.returncode == 0, done.stderr


def test_the_idle_goes_and_who_commits_the_same_again_stays(place: Place, tmp_path: Path) -> None:
    """By tables that Spark made: `idleFor: 20s` deletes what was left alone, and keeps what commits one offset forever.

    Both have the same offsets at every look, and records wait for both. Beside them, a group that commits and moves on:
    it never has a member either, and stays.
    """
    groups, warehouse, busy = place.groups, place.warehouse("real"), ("real-busy", "real-moving")
    place.abandoned("real-old")
    groups.simple("real-old-simple", place.topic, 1)
    with commits_again_and_again(groups, *busy, place.topic):
        # Longer than idleFor, counted up to the moment when the log is read.
        old_enough = time.monotonic() + 25
        wait_for(lambda: time.monotonic() > old_enough)
        run_pipeline(groups.bootstrap, warehouse.uri, tmp_path / "spark.log")
        place.apply("real", warehouse.uri)
        wait_for(lambda: not {"real-old", "real-old-simple"} & groups.names())
        for name in busy:
            wait_for(lambda name=name: place.entry("real", name).get("reason") in ("TooRecent", "RecentlyActive"))  # type: ignore[misc]
        place.runs("real", 3)
        for name in busy:
            assert name in groups.names()
            # In the status since the tables told of it.
            assert "idleSince" in place.entry("real", name)
    assert place.evidence("real") == "True EvidenceReady"


BAD = {
    "stale": "EvidenceStale",
    "missing": "EvidenceMissing",
    "alien": "EvidenceOfAnotherCluster",
    "holes": "EvidenceIncomplete",
    "broken": "EvidenceUnreadable",
}


def damage(place: Place, name: str) -> str:
    """Tables with that fault, which else would have its group deleted; answers with where they are."""
    group, log = f"{name}-old", ends(place.groups.bootstrap)
    if name == "missing":
        return place.warehouse(name).uri
    if name == "alien":
        made = place.warehouse(name, cluster="another-cluster")
        made.write([idle(group)], ends=log)
        return made.uri
    made = place.fresh(name, group)
    if name == "stale":
        made.cover(ends=log, read_at=now() - timedelta(hours=2))
    elif name == "holes":
        made.cover(
            only=[index for index in range(LOG_PARTITIONS) if index != partition_of(group, LOG_PARTITIONS)], ends=log
        )
    else:
        for file in (made.folder / "activity" / "_delta_log").iterdir():
            file.write_bytes(b"no JSON")
    return made.uri


@pytest.mark.slow
def test_on_bad_evidence_everything_stays(place: Place) -> None:
    """Stale, missing, another cluster's, with holes, broken: the group stays, and the status says which of it."""
    place.abandoned(*[f"{name}-old" for name in BAD], "good-old")
    for name in BAD:
        place.apply(name, damage(place, name))
    place.apply("good", place.fresh("good", "good-old").uri)
    # The very same, without a fault.
    wait_for(lambda: "good-old" not in place.groups.names())
    for name, reason in BAD.items():
        wait_for(lambda name=name, reason=reason: place.entry(name, f"{name}-old").get("reason") == reason)  # type: ignore[misc]
        wait_for(lambda name=name, reason=reason: place.evidence(name) == f"False {reason}")  # type: ignore[misc]
    for name in BAD:
        place.runs(name, 2)
    assert {f"{name}-old" for name in BAD} <= place.groups.names()


def test_a_policy_without_tables_says_that_it_can_match_nothing(place: Place) -> None:
    """Not Ready, Stalled, with an Event and a gauge; Ready once it asks what needs no tables."""
    place.abandoned("bare-old")
    place.world.namespace("bare")
    asks = {"match": {"groups": ["bare-*"]}, "when": {"idleFor": "20s"}}
    place.world.apply(connection("bare", place.groups.bootstrap), policy("bare", "p", **asks))
    wait_for(lambda: place.evidence("bare") == "False EvidenceNotConfigured")
    for kind, status in (("Ready", "False"), ("Stalled", "True")):
        condition = place.world.condition("kgp", "bare", "p", kind)
        assert condition is not None
        assert (condition["status"], condition["reason"]) == (status, "EvidenceNotConfigured")
    wait_for(lambda: any(event["reason"] == "EvidenceNotConfigured" for event in place.world.events("bare")))
    series = 'group_hygiene_policy_evidence_ready{namespace="bare",policy="p"} '
    wait_for(lambda: f"{series}0.0" in place.operator.http("/metrics")[1])
    place.world.apply(policy("bare", "p", **asks | {"when": {"unchangedFor": "20s"}}))
    place.world.wait_ready("kgp", "bare", "p", "Succeeded")
    wait_for(lambda: series not in place.operator.http("/metrics")[1])


def test_tables_that_were_replaced_by_older_ones_decide_nothing(place: Place) -> None:
    """Seen once as they were, older ones put in their place are known for what they are; newer ones decide again."""
    place.abandoned("back-old")
    made = place.fresh("back", "back-old")
    older = place.tables / "back-older"
    shutil.copytree(made.folder, older)
    place.fresh("back", "back-old")
    place.apply("back", made.uri, "DryRun")
    wait_for(lambda: place.entry("back", "back-old").get("verdict") == "Match")
    newer = made.folder.rename(place.tables / "back-newer")
    older.rename(made.folder)
    wait_for(lambda: place.evidence("back") == "False EvidenceWentBack")
    place.world.apply(
        policy(
            "back",
            "p",
            mode="Enforce",
            match={"groups": ["back-*"]},
            when={"idleFor": "20s"},
            delete={"maxPercent": 100},
        )
    )
    wait_for(lambda: place.entry("back", "back-old").get("reason") == "EvidenceWentBack")
    place.runs("back", 3)
    assert "back-old" in place.groups.names()
    made.folder.rename(older)
    newer.rename(made.folder)
    wait_for(lambda: "back-old" not in place.groups.names())


def test_a_commit_of_the_same_offset_after_the_tables_keeps(place: Place) -> None:
    """Neither the tables nor the group's offsets tell of it, only the log after the place where the tables end."""
    place.abandoned("late-old", "late-used")
    made = place.fresh("late", "late-old", "late-used")
    (committed,) = place.groups.admin.list_group_offsets("late-used")["late-used"].values()
    place.groups.simple("late-used", place.topic, committed.offset)
    place.apply("late", made.uri)
    wait_for(lambda: "late-old" not in place.groups.names())
    wait_for(lambda: place.entry("late", "late-used").get("reason") == "RecentlyActive")
    place.runs("late", 2)
    assert "late-used" in place.groups.names()


def test_expiring_groups_are_reported_with_their_date(place: Place) -> None:
    """An Empty group, and one in use that no longer reads a topic: in the status, by an Event, and as a metric."""
    place.abandoned("soon-empty", "soon-later")
    member = place.groups.member("soon-in-use", place.topic)
    # The broker keeps offsets for 7 days.
    empty, used, later = idle("soon-empty", 160), in_use("soon-in-use", left=150), idle("soon-later", 10)
    made = place.warehouse("soon")
    made.write([empty, used, later], ends=ends(place.groups.bootstrap))
    place.apply("soon", made.uri, "DryRun")
    fields = {"match": {"groups": ["soon-*"]}, "action": "Alert"}
    place.world.apply(policy("soon", "p", when={"expiresWithin": "48h"}, **fields))
    wait_for(lambda: place.entry("soon", "soon-in-use").get("verdict") == "Match")
    status = place.world.get("kgp", "soon", "p")["status"]
    times = [empty["empty_since"], used["oldest_commit"], later["empty_since"]]
    dates = [f"{at + timedelta(days=7):%Y-%m-%dT%H:%M:%SZ}" for at in times]
    assert [(row["group"], row["verdict"], row["expiresTime"]) for row in status["sample"]] == [
        ("soon-empty", "Match", dates[0]),
        ("soon-in-use", "Match", dates[1]),
        ("soon-later", "Skip", dates[2]),
    ]
    assert status["nextExpiryTime"] == dates[0]
    series = 'group_hygiene_offsets_first_expiry_timestamp_seconds{namespace="soon",policy="p"} '
    value = place.operator.http("/metrics")[1].partition(series)[2].partition("\n")[0]
    assert abs(float(value) - (times[0] + timedelta(days=7)).timestamp()) < 1
    wait_for(lambda: any(event["reason"] == "GroupsMatched" for event in place.world.events("soon")))
    place.world.apply(policy("soon", "p", when={"expiresWithin": "1h"}, **fields))
    place.world.wait_ready("kgp", "soon", "p", "MayWarnLate")
    assert "nextExpiryTime" not in place.world.get("kgp", "soon", "p")["status"]
    wait_for(lambda: series not in place.operator.http("/metrics")[1])
    member.close()
