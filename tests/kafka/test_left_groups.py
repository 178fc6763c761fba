"""What real programs leave behind, and what README's policy and the demo say about it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from group_hygiene.cli import main
from group_hygiene.spec.patterns import Patterns
from testing.sandbox.example_groups import LEFT, Kind, Shop, leave
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo"
# Of the demo, with librdkafka and kafka-python.
_CLIENTS = (
    "fraud-check",
    "checkout",
    "search-index-v2",
    "nightly-export",
    "fire-watch",
    "price-sync",
    "catalog",
    "click-*",
)
# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")


@pytest.fixture(scope="module")
def left(kafka: KafkaCluster) -> Mapping[str, Kind]:
    """Pattern -> what its programs left."""
    shop = Shop(kafka.bootstrap_servers)
    shop.fill()
    return {kind.pattern: kind for kind in leave(shop, LEFT)}


def plan(kafka: KafkaCluster, folder: Path, *policies: Any) -> Mapping[str, Mapping[str, Any]]:
    """Group -> what `plan` says about it, with the connection of the demo."""
    connection = yaml.safe_load((DEMO / "connection.yaml").read_text())
    spec = connection["spec"]
    connection["spec"] = {"bootstrapServers": [kafka.bootstrap_servers], "protect": spec["protect"]}
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all([connection, *policies]))
    done = CliRunner().invoke(main, ["plan", "-f", str(file), "-o", "json"])
    assert done.exit_code == 0, done.output
    planned: Sequence[Mapping[str, Any]] = json.loads(done.stdout)["policies"]
    return {group["group"]: group for policy in planned for group in policy["groups"]}


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.pattern) for kind in LEFT])
def test_a_program_leaves_its_groups(kafka: KafkaCluster, left: Mapping[str, Kind], tmp_path: Path, kind: Kind) -> None:
    """One for each call, which `unchangedFor` judges as the demo says, where no ledger has a request to keep it."""
    groups = left[kind.pattern].groups
    assert len(groups) == len(kind.programs + kind.anonymous)
    planned = plan(kafka, tmp_path, yaml.safe_load((DEMO / "policy-everything-unused.yaml").read_text()))
    expected = "SimpleGroup" if kind.by_log else {"KeepRequested": None}.get(kind.reason or "", kind.reason)
    assert {planned[group].get("reason") for group in groups} == {expected}


def test_a_group_that_a_tool_made(kafka: KafkaCluster, make: Maker, tmp_path: Path) -> None:
    """`kafka-consumer-groups --reset-offsets` commits without a member: the group is simple, as pages say."""
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    where = ("--bootstrap-server", kafka.bootstrap_servers, "--topic", make.topic(records=3))
    group = make.name("prepared")
    kafka.tool(tool, *where, "--group", group, "--reset-offsets", "--to-earliest", "--execute")
    planned = plan(kafka, tmp_path, yaml.safe_load((DEMO / "policy-everything-unused.yaml").read_text()))
    assert planned[group]["reason"] == "SimpleGroup"


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_pages_show_groups_that_programs_leave(page: str) -> None:
    """Each id in a table of groups is of a program that runs in the demo, or of a client that lives there."""
    known = Patterns([*(kind.pattern for kind in LEFT), *_CLIENTS])
    text = (ROOT / page).read_text()
    shown = re.findall(r"^ *(?:✓ )?(?:\d+ )?(\S+)  +.*(?:Empty|Stable)  .*$", text, re.MULTILINE)
    assert shown
    assert [group for group in shown if not known.matches(group) and group not in known.sources] == []


@pytest.mark.parametrize(
    ("pattern", "program"),
    [
        pytest.param("anonymous.{uuid}", "Spring Cloud Stream without a group", id="spring"),
        pytest.param("perf-consumer-{digits}", "kafka-consumer-perf-test", id="perf-test"),
        pytest.param("test-group-{digits}", "kafka-e2e-latency", id="latency-test"),
        pytest.param("connect-orders-sink", "Kafka Connect", id="connect"),
        pytest.param("test-{uuid}", None, id="given-by-users"),
        pytest.param("pr-123-api", None, id="given-by-users-too"),
    ],
)
def test_plan_names_the_program(
    kafka: KafkaCluster, left: Mapping[str, Kind], tmp_path: Path, pattern: str, program: str | None
) -> None:
    """Of a group whose id is like those of the catalogue, as the program really made it up."""
    planned = plan(kafka, tmp_path, yaml.safe_load((DEMO / "policy-everything-unused.yaml").read_text()))
    assert {planned[group].get("likelyProgram") for group in left[pattern].groups} == {program}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("README.md", id="readme"),
        pytest.param("examples/quickstart.yaml", id="quickstart"),
        pytest.param("examples/policy-random-ids.yaml", id="example"),
        pytest.param("examples/demo/policy-random-ids.yaml", id="demo"),
        pytest.param("examples/gitops/policies/random-ids.yaml", id="gitops"),
    ],
)
def test_the_policy_for_made_up_ids_matches_what_programs_leave(
    kafka: KafkaCluster, left: Mapping[str, Kind], tmp_path: Path, page: str
) -> None:
    """Every group whose id a program made up, and no other one."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if page.endswith(".md") else [text]
    objects = [obj for block in blocks for obj in yaml.safe_load_all(block)]
    policies = [obj for obj in objects if obj.get("kind") == "GroupPolicy"]
    for policy in policies:
        policy["metadata"]["namespace"] = "kafka"
    planned = plan(kafka, tmp_path, *policies)
    matched = {group for group, what in planned.items() if what["verdict"] == "Match"}
    assert matched == {*left["perf-consumer-{digits}"].groups, *left["anonymous.{uuid}"].groups}
