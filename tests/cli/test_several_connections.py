"""`plan` and `explain` of files with policies of several KafkaConnections, and of connections that files don't hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.sandbox.kafka import KafkaCluster
from tests.cli.conftest import Run
from tests.kafka.makers import Maker

UNKNOWN = "is in none of the files: its protect and limits are not known here"

MISNAMED = "spec.connectionRef: KafkaConnection kafka/other is in none of the files, which have kafka/main"


def policy(name: str, connection: str, **spec: Any) -> dict[str, Any]:
    spec = {"connectionRef": {"name": connection}, "match": {"groups": ["left-*"]}, "action": "Alert"} | spec
    return _object("GroupPolicy", name, spec)


def connection(name: str, servers: str) -> dict[str, Any]:
    return _object("KafkaConnection", name, {"bootstrapServers": [servers]})


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "kafka"}
    return {"apiVersion": "grouphygiene.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def planned(answer: Any) -> list[str]:
    return [policy["name"] for policy in answer.json["policies"]]


@pytest.fixture
def where(request: pytest.FixtureRequest, kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The ways to lead to one cluster without a KafkaConnection."""
    if request.param == "environment":
        monkeypatch.setitem(os.environ, "GROUP_HYGIENE_BOOTSTRAP_SERVER", kafka.bootstrap_servers)
        return []
    if request.param == "option":
        return ["--bootstrap-server", kafka.bootstrap_servers]
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={kafka.bootstrap_servers}\n")
    return ["--command-config", file]


@pytest.mark.parametrize("where", ["option", "environment", "properties"], indirect=True)
@pytest.mark.parametrize("command", [["plan"], ["explain", "left-848"]], ids=["plan", "explain"])
def test_policies_of_two_connections_are_not_put_onto_one_cluster(run: Run, where: Any, command: list[str]) -> None:
    """Refused, with what to do instead: it would be the wrong cluster for some of them."""
    files = yaml.safe_dump_all([policy("a", "main"), policy("b", "other")])
    answer = run(*command, "-f", "-", *where, stdin=files)
    assert (answer.code, answer.out) == (1, "")
    assert "GroupPolicies of 2 KafkaConnections (kafka/main, kafka/other)" in answer.err
    assert "or choose one with --connection" in answer.err


def test_what_would_not_run_is_of_no_connection(on: Run) -> None:
    """A suspended policy, and one that the operator refuses, don't make two."""
    others = [policy("b", "other", suspend=True), policy("c", "x", connectionRef={"name": "x", "namespace": "other"})]
    answer = on("plan", "-f", "-", "-o", "json", stdin=yaml.safe_dump_all([policy("a", "main"), *others]))
    assert planned(answer) == ["a"]


def test_each_connection_in_the_files_has_its_own_cluster(
    run: Run, kafka: KafkaCluster, groups: Maker, tmp_path: Path
) -> None:
    """Also with properties that name no cluster."""
    servers = kafka.bootstrap_servers
    every = [policy("a", "main"), policy("b", "other"), connection("main", servers), connection("other", servers)]
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=PLAINTEXT\n")
    for more in ([], ["--command-config", properties]):
        answer = run("plan", "-f", "-", "-o", "json", *more, stdin=yaml.safe_dump_all(every))
        assert (answer.code, planned(answer), answer.json["errors"]) == (0, ["a", "b"], [])
        assert UNKNOWN not in answer.err


@pytest.mark.parametrize("command", [["plan"], ["explain", "left-848"]], ids=["plan", "explain"])
@pytest.mark.parametrize(
    ("more", "says"),
    [
        pytest.param([], f"GroupPolicy kafka/b: {MISNAMED}", id="misnamed"),
        pytest.param(
            [connection("other", "127.0.0.1:1")], "GroupPolicy kafka/b: no bootstrap server answers", id="dead"
        ),
    ],
)
def test_a_connection_that_cannot_be_used_does_not_stop_the_others(
    run: Run, kafka: KafkaCluster, groups: Maker, command: list[str], more: list[dict[str, Any]], says: str
) -> None:
    """Its policies are an error; those of the other connection are answered."""
    every = [policy("b", "other"), policy("a", "main"), connection("main", kafka.bootstrap_servers), *more]
    answer = run(*command, "-f", "-", "-o", "json", "--timeout", "30s", stdin=yaml.safe_dump_all(every))
    assert (answer.code, planned(answer)) == (1, ["a"])
    (error,) = answer.json["errors"]
    assert error.startswith(says)


def test_a_connection_that_is_in_no_file_is_noted(on: Run, kafka: KafkaCluster) -> None:
    """Once: what it protects and limits is not known."""
    two = [policy("a", "main"), policy("b", "main")]
    answer = on("plan", "-f", "-", "-o", "json", stdin=yaml.safe_dump_all(two))
    assert [note for note in answer.json["notes"] if UNKNOWN in note] == [f"KafkaConnection kafka/main {UNKNOWN}"]
    held = [*two, connection("main", kafka.bootstrap_servers)]
    assert UNKNOWN not in on("plan", "-f", "-", stdin=yaml.safe_dump_all(held)).err


@pytest.mark.parametrize("command", [["plan"], ["explain", "left-848"]], ids=["plan", "explain"])
def test_a_misnamed_connection_is_an_error(on: Run, kafka: KafkaCluster, command: list[str]) -> None:
    """Also where an option names the cluster: without its `protect` the plan would show too much."""
    files = [policy("b", "other"), connection("main", kafka.bootstrap_servers)]
    answer = on(*command, "-f", "-", stdin=yaml.safe_dump_all(files))
    assert (answer.code, "b" in answer.out) == (1, False)
    assert f"Error: GroupPolicy kafka/b: {MISNAMED}\n" in answer.err


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[KafkaCluster]:
    """Another cluster, with no groups."""
    with KafkaCluster() as cluster:
        yield cluster


@pytest.mark.slow
def test_explain_a_group_that_only_one_cluster_has(
    run: Run, kafka: KafkaCluster, groups: Maker, elsewhere: KafkaCluster
) -> None:
    """Explained where it is, and a note says where it is not."""
    every = [policy("a", "main"), policy("b", "other"), connection("main", kafka.bootstrap_servers)]
    every.append(connection("other", elsewhere.bootstrap_servers))
    answer = run("explain", "left-848", "-f", "-", "-o", "json", stdin=yaml.safe_dump_all(every))
    assert (answer.code, planned(answer)) == (0, ["a"])
    assert "there is no group left-848 in the cluster of KafkaConnection kafka/other" in answer.json["notes"]
