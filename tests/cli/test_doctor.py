"""`group-hygiene doctor` where Kafka alone is asked: by address, or by a KafkaConnection in a file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from group_hygiene.cli.doctor import CheckResult, Finding
from group_hygiene.cli.doctor_kafka import CheckedCluster, examine_kafka, group_findings
from group_hygiene.cli.target import Session
from group_hygiene.kafka.client import CLIENT_ID, Client
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model.groups import Fault
from group_hygiene.process.clock import SystemClock
from group_hygiene.spec.connection import Connection, MirrorMakerSpec
from testing.sandbox.kafka import KafkaCluster
from tests.cli.conftest import Answer, Run
from tests.kafka.makers import Maker, at
from tests.warehouse import Warehouse, idle, now

WRITES = (
    *("PRODUCE", "INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN", "END_TXN", "OFFSET_COMMIT", "OFFSET_DELETE"),
    *("DELETE_GROUPS", "DELETE_TOPICS", "DELETE_RECORDS", "INCREMENTAL_ALTER_CONFIGS", "CREATE_ACLS", "JOIN_GROUP"),
)


def results(answer: Answer) -> Mapping[str, str]:
    return {check["check"]: check["result"] for check in answer.json["checks"]}


def found(answer: Answer, check: str) -> Any:
    (one,) = [each for each in answer.json["checks"] if each["check"] == check]
    return one


def warehouse(folder: Path, kafka: KafkaCluster, partitions: int, **coverage: Any) -> Warehouse:
    made = Warehouse(folder, kafka.cluster_id, partitions=partitions)
    made.write([idle("left-classic")], **coverage)
    return made


@pytest.fixture
def partitions(groups: Maker) -> int:
    return len(groups.admin.list_topics("__consumer_offsets").topics["__consumer_offsets"].partitions)


def test_all_is_fine_and_nothing_is_written(
    on: Run, kafka: KafkaCluster, groups: Maker, partitions: int, tmp_path: Path
) -> None:
    """Each line has its mark, the exit code is 0, and brokers were asked for nothing but what reads."""
    tables = warehouse(tmp_path, kafka, partitions)
    topics = set(groups.admin.list_topics().topics)
    before = kafka.mark()
    answer = on("doctor", "--activity", tables.uri)
    asked = {api: kafka.count_requests(api, client_id=CLIENT_ID, since=before) for api in ("METADATA", *WRITES)}
    assert answer.code == 0, answer.out + answer.err
    lines = answer.out.splitlines()
    assert [line[0] for line in lines] == ["✓"] * len(lines)
    assert lines[1].startswith("✓ brokers: 1 of 1 answer (1 of Kafka 4.4); cluster id ")
    assert "\x1b" not in answer.out
    assert [api for api, counts in asked.items() if sum(counts.values())] == ["METADATA"]
    assert set(groups.admin.list_topics().topics) == topics
    as_json = on("doctor", "--activity", tables.uri, "-o", "json")
    assert set(results(as_json).values()) == {"Ok"}
    assert as_json.json["exitCode"] == 0
    assert yaml.safe_load(on("doctor", "-o", "yaml", "--activity", tables.uri).out) == as_json.json


@pytest.mark.parametrize(
    ("coverage", "says"),
    [
        pytest.param({"read_at": now() - timedelta(days=9)}, "EvidenceStale", id="stale"),
        pytest.param({"only": [0]}, "EvidenceIncomplete", id="incomplete"),
        pytest.param({"cluster_id": "other"}, "EvidenceOfAnotherCluster", id="another-cluster"),
        pytest.param(None, "EvidenceMissing", id="missing"),
    ],
)
@pytest.mark.usefixtures("groups")
def test_evidence_that_may_not_decide(
    on: Run, kafka: KafkaCluster, partitions: int, tmp_path: Path, coverage: Any, says: str
) -> None:
    """The reason of the operator, what to do, and 15; all else is looked at as well."""
    if coverage is not None:
        warehouse(tmp_path, kafka, partitions, **coverage)
    answer = on("doctor", "--activity", tmp_path, "-o", "json")
    evidence = found(answer, "evidence")
    assert (answer.code, answer.json["exitCode"]) == (15, 15)
    assert evidence["result"] == "Failed"
    assert evidence["found"].startswith(f"{says}: ")
    assert evidence["advice"] == f"docs/reasons.md, {says}"
    assert results(answer)["clock of the brokers"] == "Ok"


def test_an_api_server_that_does_not_answer(process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10, with its address and what to do, and no check that needs it."""
    server = {"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    file = tmp_path / "config"
    file.write_text(
        yaml.safe_dump(
            {"clusters": [server], "contexts": [context], "users": [{"name": "x", "user": {}}], "current-context": "x"}
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(file))
    answer = process("doctor", "--connection", "main")
    assert answer.code == 10
    (line,) = answer.out.splitlines()
    assert line.startswith("✗ API server: ApiServerError: the API server does not answer at 127.0.0.1:1: ")
    assert "kubectl cluster-info" in line
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    nowhere = process("doctor", "--connection", "main", "-o", "json")
    assert (nowhere.code, nowhere.json["exitCode"]) == (10, 10)
    (check,) = nowhere.json["checks"]
    assert check["found"].startswith("ApiServerError: no Kubernetes API server is configured ")
    assert check["found"].endswith(f": there is no file {tmp_path / 'none'}")


def test_a_malformed_kubeconfig(process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in one line, without the file's content."""
    file = tmp_path / "config"
    file.write_text("{{{ token: confidential")
    monkeypatch.setenv("KUBECONFIG", str(file))
    answer = process("list", "--connection", "main")
    assert answer.code == 1
    (line,) = answer.err.splitlines()
    assert "the kubeconfig can't be read" in line
    assert "confidential" not in line


class Ahead(SystemClock):
    """Two hours ahead of the brokers: to doctor, the brokers are behind."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=2)


def test_a_broker_whose_clock_is_behind(client: Client, make: Maker) -> None:
    """It shows once the broker writes into the offsets log while doctor looks, by the times of these records."""
    make.simple(make.name(), at(make.topic(records=1)))
    connection = Connection()
    session = Session(client, connection, clock=Ahead())
    cluster = CheckedCluster(connection, client.settings)
    findings: list[Finding] = []
    for finding in examine_kafka(session, cluster):
        findings.append(finding)
        # A client commits meanwhile.
        make.simple(make.name(), at(make.topic(records=1)))
    (clock,) = [each for each in findings if each.check == "clock of the brokers"]
    assert clock.result is CheckResult.FAILED
    assert clock.found.startswith("broker 1 has just written records with times before ")
    assert "its clock is behind, or this machine's is ahead" in clock.found


def test_checkpoints_that_can_not_be_read(client: Client) -> None:
    """Any group may be mirrored, so no policy deletes one: the topic and the cause are named."""
    connection = Connection()
    connection = structs.replace(connection, mirror_maker=MirrorMakerSpec(frozenset({"gone.checkpoints.internal"})))
    session = Session(client, connection, clock=SystemClock())
    findings = list(examine_kafka(session, CheckedCluster(connection, client.settings)))
    (mirror,) = [each for each in findings if each.check == "MirrorMaker 2"]
    assert mirror.result is CheckResult.FAILED
    assert "MirrorMakerTarget: " in mirror.found
    assert "topic gone.checkpoints.internal: " in mirror.found


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [1, 3])
def test_a_ledger_with_fewer_replicas_than_the_spec(
    run: Run, kafka: KafkaCluster, ledger: Ledger, tmp_path: Path, wanted: int
) -> None:
    """A warning: it works, but backups are lost with the broker. This cluster has one."""
    file = tmp_path / "connection.yaml"
    spec = {
        "bootstrapServers": [kafka.bootstrap_servers],
        "ledger": {"topic": ledger.topic, "replicationFactor": wanted},
    }
    document = {"kind": "KafkaConnection", "metadata": {"name": "main"}, "spec": spec}
    file.write_text(yaml.safe_dump({"apiVersion": "grouphygiene.io/v1alpha1"} | document))
    answer = run("doctor", "--connection-file", file, "-o", "json")
    if wanted == 1:
        assert "ledger's replicas" not in results(answer)
    else:
        check = found(answer, "ledger's replicas")
        assert check["result"] == "Warning"
        assert f"topic {ledger.topic} has 1 replicas, and ledger.replicationFactor asks for 3" in check["found"]
    assert answer.code == 0


def test_a_new_cluster_stays_as_it_was(run: Run) -> None:
    """The first question about a group makes a broker create the offsets log: it is not asked, and that is told."""
    with KafkaCluster() as new:
        answer = run("doctor", "--bootstrap-server", new.bootstrap_servers, "-o", "json")
        make = Maker(new.bootstrap_servers)
        topics = set(make.admin.list_topics().topics)
        make.close()
    assert topics == set()
    assert answer.code == 0, answer.out
    assert {check for check, result in results(answer).items() if result != "Ok"} == {"groups", "clock of the brokers"}
    assert found(answer, "groups")["found"].startswith("not checked: no group and no __consumer_offsets is visible")


_DENIED, _SLOW = Fault("GROUP_AUTHORIZATION_FAILED", ""), Fault("REQUEST_TIMED_OUT", "no answer in time")


@pytest.mark.parametrize(
    ("answer", "deletes", "result", "says"),
    [
        pytest.param(frozenset({3, 6, 8}), True, None, "", id="all"),
        pytest.param(None, True, None, "", id="not-told"),
        pytest.param(frozenset({3, 8}), False, "Warning", "DELETE is denied on 1 of 1 groups", id="no-delete"),
        pytest.param(frozenset({3, 8}), True, "Failed", "DELETE is denied on 1 of 1 groups", id="no-delete-enforced"),
        pytest.param(frozenset({6, 8}), True, "Warning", "READ is denied on 1 of 1 groups", id="no-read"),
        pytest.param(_DENIED, True, "Failed", "DESCRIBE is denied on 1 groups (g)", id="denied"),
        pytest.param(_SLOW, True, "Warning", "permissions on 1 groups (g) could not be read: REQ", id="not-read"),
    ],
)
def test_permissions_on_a_group(answer: Any, deletes: bool, result: str | None, says: str) -> None:
    """Each that is missing has its line, and so has an answer that did not come."""
    findings = list(group_findings({"g": answer}, deletes))
    assert [str(finding.result) for finding in findings] == ([] if result is None else [result])
    assert all(finding.found.startswith(says) for finding in findings)


def test_a_topic_that_is_no_ledger_and_an_unreachable_address(
    run: Run, kafka: KafkaCluster, groups: Maker, tmp_path: Path
) -> None:
    """By a KafkaConnection in a file: 14 for its ledger, 12 for its address; one that is no file is wrong usage."""
    file = tmp_path / "connection.yaml"

    def written(**spec: Any) -> Path:
        servers = kafka.bootstrap_servers.split(",")
        document = {
            "kind": "KafkaConnection",
            "metadata": {"name": "main"},
            "spec": {"bootstrapServers": servers} | spec,
        }
        file.write_text(yaml.safe_dump({"apiVersion": "grouphygiene.io/v1alpha1"} | document))
        return file

    del groups
    answer = run("doctor", "--connection-file", written(ledger={"topic": "orders"}), "-o", "json")
    assert answer.code == 14, answer.out
    assert "the settings of the topic orders are not those of a ledger" in found(answer, "ledger")["found"]
    away = run("doctor", "--connection-file", written(bootstrapServers=["127.0.0.1:1"]))
    assert away.code == 12
    assert away.out.startswith("✗ Kafka: BrokersUnreachable: ")
    assert run("doctor", "--connection-file", tmp_path / "none.yaml").code == 1
    assert run("doctor").code == 1


def test_the_name_of_a_service_outside_of_its_cluster(run: Run) -> None:
    """The advice is the command that runs in the operator's pod, in the namespace of the operator."""
    server = ("--bootstrap-server", "my-cluster-kafka-bootstrap.kafka.invalid:9093", "--timeout", "5s")
    answer = run("doctor", *server, "--operator-namespace", "hygiene", "-o", "json")
    assert answer.code == 12
    check = found(answer, "Kafka")
    assert "does not resolve" in check["found"]
    assert "kubectl exec -n hygiene deploy/group-hygiene -- group-hygiene doctor" in check["advice"]
