"""The check of pull requests in examples/gitops: the very commands of its workflow that plan, on a real broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_hygiene.kafka.client import connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, read_cluster, topic_ids
from group_hygiene.model.groups import Cluster
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, soon
from tests.warehouse import Warehouse, idle

ROOT = Path(__file__).parents[2]
GITOPS = ROOT / "examples" / "gitops"
WORKFLOW = yaml.safe_load((GITOPS / ".github" / "workflows" / "hygiene.yml").read_text())

Check = Callable[[str], subprocess.CompletedProcess[str]]


def commands(job: str, program: str) -> str:
    """The commands of the step that calls `group-hygiene <program>`."""
    steps: list[Any] = WORKFLOW["jobs"][job]["steps"]
    (script,) = [step["run"] for step in steps if f"group-hygiene {program} " in step.get("run", "")]
    return str(script)


@pytest.fixture
def repository(kafka: KafkaCluster, groups: Maker, tmp_path: Path) -> Path:
    """A copy of the example, but that the connections' tables are on this machine, and written by the test."""
    client = connect(Settings(tuple(kafka.bootstrap_servers.split(","))))
    cluster = read_cluster(client, soon())
    assert isinstance(cluster, Cluster)
    topic_id = topic_ids(client, [OFFSETS_TOPIC], soon())[OFFSETS_TOPIC]
    client.close()
    assert isinstance(topic_id, str)
    Warehouse(tmp_path / "tables", kafka.cluster_id, topic_id, len(cluster.leaders)).write([idle("left-classic", 100)])
    copy = tmp_path / "repository"
    shutil.copytree(GITOPS, copy)
    for file in copy.glob("clusters/*/connection.yaml"):
        file.write_text(file.read_text().replace(f"s3://kafka-hygiene/{file.parent.name}", str(tmp_path / "tables")))
    return copy


@pytest.fixture
def check(kafka: KafkaCluster, repository: Path, tmp_path: Path) -> Check:
    """The step that plans one cluster, in a shell as GitHub starts it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "group-hygiene").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m group_hygiene.cli "$@"\n')
    (programs / "group-hygiene").chmod(0o755)

    def run(cluster: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "operator"),
            "CLUSTER": cluster,
            "RUNNER_TEMP": str(tmp_path),
            "KAFKA_PROPERTIES": f"bootstrap.servers={kafka.bootstrap_servers}",
        }
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", commands("plan", "plan")]
        return subprocess.run(shell, env=environment, cwd=repository, capture_output=True, text=True, check=False)

    return run


def test_it_tells_what_would_be_deleted(check: Check, repository: Path, tmp_path: Path) -> None:
    """Matches are no failure; teams are planned with the cluster that they use; the properties do not stay there."""
    done = check("production")
    assert done.returncode == 0, done.stderr
    plan = (repository / "plan.txt").read_text()
    headers = [line for line in plan.splitlines() if line.startswith("GroupPolicy ")]
    assert headers == [
        "GroupPolicy kafka-production/abandoned (Delete, DryRun)",
        "GroupPolicy kafka-production/expires-soon (Alert, DryRun)",
        "GroupPolicy kafka-production/random-ids (Delete, Enforce)",
        "GroupPolicy team-a/retired-jobs (Delete, DryRun)",
    ]
    assert "left-classic" in plan
    assert not (tmp_path / "client.properties").exists()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        pytest.param("unchangedFor: 72h", "unchangedFor: 3w", "must be a duration", id="invalid"),
        pytest.param("unchangedFor: 72h", "unchangedFro: 72h", "unknown field", id="misspelt"),
    ],
)
def test_it_fails_for_what_is_wrong(
    check: Check, repository: Path, tmp_path: Path, before: str, after: str, says: str
) -> None:
    """The comment has the reason."""
    file = repository / "policies" / "random-ids.yaml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    done = check("staging")
    assert done.returncode == 1
    (tmp_path / "results" / "plan staging").mkdir(parents=True)
    shutil.copy(repository / "plan.txt", tmp_path / "results" / "plan staging")
    comment = make_comment(tmp_path)
    assert comment.startswith("### plan staging\n\n    Error: ")
    assert says in comment


def test_the_comment_has_all_results(tmp_path: Path) -> None:
    """Each under a title, and indented: nothing in an id becomes Markdown. A long one is cut, but not its errors."""
    for name, text in (("plan production", "```\n@all\n"), ("plan staging", "x\n" * 20_000 + "Error: e\n")):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "plan.txt").write_text(text)
    comment = make_comment(tmp_path)
    assert comment.startswith("### plan production\n\n    ```\n    @all\n\n\n### plan staging\n\n    x\n")
    assert all(line[:4] in ("", "    ", "### ") for line in comment.splitlines())
    assert comment.endswith("    x\n    Error: e\n\n\n")
    assert len(comment) < 65_536


def make_comment(folder: Path) -> str:
    """The comment that the workflow's step makes of `results` in the folder."""
    (script,) = [step["run"] for step in WORKFLOW["jobs"]["comment"]["steps"] if "run" in step]
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    subprocess.run(shell, cwd=folder, check=True)
    return (folder / "comment.md").read_text()
