"""What helps those who look after an operator: one id in log, status and Event, and `doctor`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_hygiene.engine.executor import open_ledger
from group_hygiene.kafka.client import connect
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.observe.conditions import QUIET_PERIOD
from group_hygiene.spec.client_settings import Settings
from testing.faults.offsets_log import ends
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.manifests import operators_account
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import (
    ROOT,
    Groups,
    Object,
    RunningOperator,
    World,
    connection,
    doctor,
    new_world,
    policy,
    running_operator,
    scans,
)
from tests.kafka.makers import soon
from tests.warehouse import Warehouse, idle, now

pytestmark = pytest.mark.slow

NAMESPACE, LEDGER, FOREIGN = "supported", "support-ledger", "support-foreign"
LOG_PARTITIONS = 5
TOKEN = "never-to-be-seen-71Kq"
SAID = f"{NAMESPACE}/main, reported by the operator: "


@dataclass(frozen=True)
class Place:
    """An operator that logs JSON, and what it looks after."""

    world: World
    operator: RunningOperator
    groups: Groups
    folder: Path

    def lines(self) -> list[dict[str, Any]]:
        """The log; each line must be an object."""
        return [json.loads(line) for line in self.operator.log().splitlines()]

    def doctor(self, *arguments: str, kubeconfig: Path | None = None) -> tuple[int, list[dict[str, Any]], str]:
        """Exit code, checks, and all that it printed."""
        return doctor(kubeconfig or self.world.server.kubeconfig, NAMESPACE, *arguments)


@pytest.fixture(scope="module")
def place(kafka: KafkaCluster, groups: Groups, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A group was deleted under a policy with a receiver, by the shipped account; tables of a pipeline are fresh."""
    folder = tmp_path_factory.mktemp("support")
    with ExitStack() as stack:
        world = stack.enter_context(new_world())
        topic = groups.topic("support")
        groups.produce(topic)
        groups.abandoned("support-old", topic)
        groups.produce(topic)
        world.namespace(NAMESPACE)
        world.apply(secret(), *objects(kafka, folder))
        account = operators_account(world.server)
        tables_of(groups, folder)
        options = ("--log-format", "json", "--lease-duration", "180", "--allow-receiver", "127.0.0.1")
        tables = ("--allow-local-activity", str(folder))
        operator = stack.enter_context(running_operator(account, folder / "operator.log", *options, *tables))
        made = Place(world, operator, groups, folder)
        wait_for(lambda: "support-old" not in groups.names())
        # The run after the deletion writes that nothing matches any more; from then on there is no news.
        wait_for(lambda: settled(world.get("kgp", NAMESPACE, "p").get("status") or {}))
        yield made
        assert operator.process.poll() in (None, 0), f"the operator died:\n{operator.log()[-3000:]}"


def settled(status: Object) -> bool:
    return (status.get("totals"), (status.get("groups") or {}).get("matched")) == ({"deleted": 1}, 0)


def secret() -> Object:
    metadata = {"name": "hook", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": TOKEN}}


def objects(kafka: KafkaCluster, folder: Path) -> tuple[Object, Object]:
    hook = {"address": "http://127.0.0.1:9/", "tokenSecretRef": {"name": "hook", "key": "token"}}
    main = connection(
        NAMESPACE,
        kafka.plaintext_bootstrap,
        ledger={"topic": LEDGER, "replicationFactor": 1},
        activity={"uri": str(folder / "tables"), "maxAge": "1h"},
        receivers=[{"name": "hook", "type": "Webhook", "webhook": hook}],
    )
    delete = policy(
        NAMESPACE,
        "p",
        mode="Enforce",
        match={"groups": ["support-*"]},
        delete={"maxPercent": 100},
        notify={"receiverNames": []},
    )
    return main, delete


def fresh(place: Place, **coverage: Any) -> None:
    tables_of(place.groups, place.folder, **coverage)


def tables_of(groups: Groups, folder: Path, **coverage: Any) -> None:
    cluster = groups.admin.describe_cluster()["cluster_id"]
    tables = Warehouse(folder / "tables", cluster, partitions=LOG_PARTITIONS)
    tables.write([idle("support-none")], ends=ends(groups.bootstrap), **coverage)


def test_one_id_in_log_status_and_event(place: Place) -> None:
    """The run that deleted a group: its log line and Event name it; the status names a later one, which has no line."""
    line = next(line for line in place.lines() if "'support-old': Deleted" in line["message"])
    assert (line["level"], line["connection"], line["namespace"]) == ("info", "main", NAMESPACE)
    assert line["policy"] == f"{NAMESPACE}/p"
    assert line["time"].endswith("Z")
    (event,) = [e for e in place.world.events(NAMESPACE) if e["reason"] == "GroupsDeleted"]
    assert event["metadata"]["annotations"] == {"grouphygiene.io/run-id": line["run"]}
    assert line["run"] not in event["message"]
    status = place.world.get("kgp", NAMESPACE, "p")["status"]
    assert re.fullmatch("[0-9a-f]{8}", status["lastRunID"])
    assert status["lastRunID"] != line["run"]
    loggers = {found["logger"].partition(".")[0] for found in place.lines()}
    assert loggers >= {"group_hygiene"}


def test_a_run_by_itself_writes_no_status(place: Place) -> None:
    """Several runs later nothing has changed, so the id of the status is not theirs."""
    before = place.world.get("kgp", NAMESPACE, "p")
    known = scans(place.operator, NAMESPACE)
    wait_for(lambda: scans(place.operator, NAMESPACE) >= known + 2)
    after = place.world.get("kgp", NAMESPACE, "p")
    assert now() - datetime.fromisoformat(before["status"]["lastRunTime"]) < QUIET_PERIOD, "too late to tell"
    assert after["status"] == before["status"]


def test_an_event_that_comes_again_is_counted(place: Place) -> None:
    """It is not created again. No run wrote it, so neither it nor the status names one."""

    def suspend(on: bool) -> None:
        patch = json.dumps({"spec": {"suspend": on}})
        place.world.server.kubectl("patch", "kgp", "p", "-n", NAMESPACE, "--type=merge", "-p", patch)
        place.world.wait_ready("kgp", NAMESPACE, "p", "Suspended" if on else "Succeeded")

    def event(count: int) -> Object | None:
        found = [e for e in place.world.events(NAMESPACE) if e["reason"] == "Suspended" and e["count"] == count]
        return found[0] if found else None

    for count in (1, 2):
        suspend(True)
        recorded = wait_for(lambda count=count: event(count))  # type: ignore[misc]
        assert "grouphygiene.io/run-id" not in recorded["metadata"].get("annotations", {})
        assert "lastRunID" not in place.world.get("kgp", NAMESPACE, "p")["status"]
        suspend(False)
        assert place.world.get("kgp", NAMESPACE, "p")["status"]["lastRunID"]


def test_doctor_finds_all_fine(place: Place) -> None:
    """Asked by an administrator for the operator's account, and by that account itself; no Secret is shown."""
    fresh(place)
    code, checks, text = place.doctor("--service-account", "group-hygiene/group-hygiene")
    assert [check for check in checks if check["result"] != "Ok"] == []
    assert code == 0
    said = {check["check"]: check["found"] for check in checks}
    assert (
        said["rights in Kubernetes"] == "ServiceAccount group-hygiene/group-hygiene may do all that the operator needs"
    )
    assert "holds Lease group-hygiene/group-hygiene, renewed " in said["Lease"]
    assert said["receivers"] == "1, each with valid settings and Secrets (nothing was sent)"
    assert said["ledger"].startswith(f"topic {LEDGER}, owner ")
    assert said["evidence"].startswith(f"the tables cover all {LOG_PARTITIONS} partitions of the offsets log")
    assert TOKEN not in text
    own, checks, _ = place.doctor(kubeconfig=operators_account(place.world.server))
    assert [check for check in checks if check["result"] != "Ok"] == []
    assert own == 0


def test_doctor_writes_nothing(place: Place) -> None:
    """The API server's own log: of the administrator only reads, and access reviews, which it does not keep."""
    start = len(place.world.server.audit_events())
    assert place.doctor()[0] == 0
    asked = [e for e in place.world.server.audit_events()[start:] if not e["user"]["username"].startswith("system:")]
    assert asked
    writes = {e["objectRef"]["resource"] for e in asked if e["verb"] not in ("get", "list", "watch")}
    assert writes <= {"selfsubjectaccessreviews", "selfsubjectreviews"}


def _without_secret(place: Place, kafka: KafkaCluster) -> tuple[str, ...]:
    place.world.server.kubectl("delete", "secret", "hook", "-n", NAMESPACE)
    return ()


def _foreign_ledger(place: Place, kafka: KafkaCluster) -> tuple[str, ...]:
    client = connect(Settings((kafka.plaintext_bootstrap,)))
    settings = LedgerSettings(installation="somebody-else", writer="x", topic=FOREIGN)
    open_ledger(client, settings, soon(), create=True, claim=True)
    client.close()
    place.world.server.kubectl("delete", "kconn", "main", "-n", NAMESPACE)
    other, _ = objects(kafka, place.folder)
    place.world.apply({**other, "spec": {**other["spec"], "ledger": {"topic": FOREIGN}}})
    wait_for(lambda: place.world.condition("kconn", NAMESPACE, "main", "LedgerReady"))
    return ()


def _stale(place: Place, kafka: KafkaCluster) -> tuple[str, ...]:
    fresh(place, read_at=now() - timedelta(days=2))
    return ()


def _without_rights(place: Place, kafka: KafkaCluster) -> tuple[str, ...]:
    return ("--service-account", f"{NAMESPACE}/nobody")


def _no_login(place: Place, kafka: KafkaCluster) -> tuple[str, ...]:
    main, _ = objects(kafka, place.folder)
    sasl = {"mechanism": "PLAIN", "username": "hygiene", "passwordSecretRef": {"name": "nothing", "key": "password"}}
    place.world.apply({**main, "spec": {**main["spec"], "sasl": sasl}})
    place.world.wait_ready("kconn", NAMESPACE, "main", "SecretNotFound")
    return ()


def _by_labels(place: Place, kafka: KafkaCluster) -> tuple[str, ...]:
    main, _ = objects(kafka, place.folder)
    labelled = {"namespaces": {"selector": {"matchLabels": {"team": "a"}}}, "groups": ["a-*"], "actions": ["Alert"]}
    place.world.apply({**main, "spec": {**main["spec"], "access": [labelled]}})
    return ("--service-account", f"{NAMESPACE}/nobody")


def _older_crd(place: Place, kafka: KafkaCluster) -> tuple[str, ...]:
    crd = yaml.safe_load((ROOT / "crds" / "grouprestores.yaml").read_text())
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["lastRunID"]
    place.world.server.kubectl("replace", "-f", "-", input=json.dumps(crd))
    return ()


@pytest.mark.parametrize(
    ("breaks", "code", "says"),
    [
        pytest.param(_without_secret, 11, {"receiver": "hook: SecretNotFound: "}, id="secret"),
        pytest.param(
            _no_login, 11, {"Secret": "SecretNotFound: ", "KafkaConnection": f"{SAID}SecretNotFound: "}, id="login"
        ),
        pytest.param(_stale, 15, {"evidence": "EvidenceStale: "}, id="stale"),
        pytest.param(
            _without_rights, 10, {"rights in Kubernetes": f"ServiceAccount {NAMESPACE}/nobody may not "}, id="rights"
        ),
        pytest.param(
            _by_labels, 10, {"rights in Kubernetes": ".*; no namespace is admitted by its labels"}, id="labels"
        ),
        pytest.param(
            _foreign_ledger,
            14,
            {
                "ledger": r"LedgerOwnedByAnother: .* somebody-else, not to (\S+)-group-hygiene, nor to \1$",
                "LedgerReady": f"{SAID}LedgerOwnedByAnother: .* \\(since ",
            },
            id="ledger",
        ),
        pytest.param(_older_crd, 0, {"CRD GroupRestore": "is of another version than this program: "}, id="older-crd"),
    ],
)
def test_doctor_finds_what_is_wrong(
    place: Place, kafka: KafkaCluster, breaks: Any, code: int, says: dict[str, str]
) -> None:
    """One thing at a time; it is told in its own line with what to do, and all else is looked at as well."""
    arguments = breaks(place, kafka)
    try:
        found, checks, text = place.doctor(*arguments)
    finally:
        mend(place, kafka)
    for check, pattern in says.items():
        (finding,) = [each for each in checks if each["check"] == check]
        assert re.match(pattern, finding["found"]), text
        assert finding["advice"]
        assert finding["result"] == ("Failed" if code else "Warning")
    assert found == code, text
    names = {each["check"] for each in checks}
    assert {"API server", "Lease", "KafkaConnection"} <= names
    assert ("evidence" in names) == ("Secret" not in says)
    assert TOKEN not in text


def mend(place: Place, kafka: KafkaCluster) -> None:
    """As it was, but for what a deletion of objects made anew."""
    place.world.apply(secret())
    place.world.server.kubectl("apply", "-f", str(ROOT / "crds"))
    main, _ = objects(kafka, place.folder)
    held = place.world.get("kconn", NAMESPACE, "main")["spec"]
    if held["ledger"]["topic"] != LEDGER or "sasl" in held:
        place.world.server.kubectl("delete", "kconn", "main", "-n", NAMESPACE)
    place.world.apply(main)
    fresh(place)


def test_doctor_misses_who_leads(place: Place) -> None:
    """The operator stopped: no process holds the Lease, and a CRD may go."""
    patch = json.dumps({"spec": {"suspend": True}})
    place.world.server.kubectl("patch", "kgp", "p", "-n", NAMESPACE, "--type=merge", "-p", patch)
    place.world.wait_ready("kgp", NAMESPACE, "p", "Suspended")
    assert place.operator.stop() == 0
    assert place.lines()[-1]["message"] == "stopped"
    place.world.server.kubectl("delete", "crd", "grouprestores.grouphygiene.io")
    code, checks, text = place.doctor()
    found = {check["check"]: (check["result"], check["found"]) for check in checks}
    assert code == 10, text
    assert found["CRD GroupRestore"] == ("Failed", "is not installed")
    assert found["CRD GroupPolicy"][0] == "Ok"
    assert found["Lease"] == ("Failed", "no operator holds Lease group-hygiene/group-hygiene")
