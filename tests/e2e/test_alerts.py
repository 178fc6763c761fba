"""Alerts from the real operator to real receivers: who hears of what, how often, and what no receiver can hold up."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testing.sandbox.alertmanager import Alertmanager
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.oauth import TokenEndpoint
from testing.sandbox.manifests import operators_account
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import (
    FLOORS,
    ROOT,
    Groups,
    Object,
    RunningOperator,
    World,
    connection,
    new_world,
    policy,
    running_operator,
)
from tests.e2e.test_secrecy import LOUD
from tests.leaks import leaks
from tests.receiving import Receiver, Request

TOKEN, KEY, PATH = "bearer-never-to-be-seen-55", "hmac-never-to-be-seen-66", "slack-never-to-be-seen-77"
FLAGS = ("--log-level", "debug", "--lease-duration", "60")
ALLOWED = ("--allow-receiver", "127.0.0.0/8")


@pytest.fixture(scope="module")
def other() -> Iterator[World]:
    """An API server of its own: the operators of this file must be the ones that lead there."""
    with new_world() as made:
        yield made


@pytest.fixture(scope="module")
def people() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture(scope="module")
def alertmanager(people: Receiver) -> Iterator[Alertmanager]:
    """One that tells people at once, and of the end as well."""
    times = {"group_wait": "1s", "group_interval": "2s", "repeat_interval": "24h"}
    hooks = [{"url": people.url("/from-alertmanager"), "send_resolved": True}]
    route = {"receiver": "people", "group_by": ["alertname", "namespace", "policy"]} | times
    with Alertmanager({"route": route, "receivers": [{"name": "people", "webhook_configs": hooks}]}) as running:
        yield running


@pytest.fixture(scope="module")
def loud(other: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningOperator]:
    """An operator whose every logger is at DEBUG, which may tell receivers of this machine."""
    log = tmp_path_factory.mktemp("alerts") / "operator.log"
    account = operators_account(other.server)
    with running_operator(account, log, *FLAGS, *ALLOWED, start=("-c", LOUD)) as process:
        yield process
        assert process.process.poll() is None, f"the operator died:\n{process.log()[-3000:]}"


def secret(namespace: str, **values: str) -> Object:
    metadata = {"name": "alerts", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}


def ref(key: str) -> Object:
    return {"name": "alerts", "key": key}


def telling(namespace: str, kafka: KafkaCluster, places: Mapping[str, str], **spec: Any) -> Object:
    """A connection with a ledger of its own, whose receivers are webhooks, by name, at these addresses."""
    receivers = [{"name": name, "type": "Webhook", "webhook": {"address": place}} for name, place in places.items()]
    fields = {"ledger": {"topic": f"{namespace}-ledger"}, "receivers": receivers} | spec
    return connection(namespace, kafka.bootstrap_servers, **fields)


def alert(namespace: str, name: str, groups: str, **spec: Any) -> Object:
    """A policy that alerts of groups whose ids begin so."""
    return policy(namespace, name, match={"groups": [f"{groups}*"]}, when=None, action="Alert", **spec)


def set_interval(world: World, namespace: str, name: str, interval: str) -> None:
    text = json.dumps({"spec": {"interval": interval}})
    world.server.kubectl("patch", "kgp", name, "-n", namespace, "--type=merge", "-p", text)


def run_again(world: World, namespace: str, name: str) -> None:
    """Make a policy run, by an edit that decides nothing, and wait until it has."""
    interval = world.get("kgp", namespace, name)["spec"]["interval"]
    set_interval(world, namespace, name, ("6" if interval[0] == "5" else "5") + interval[1:])

    def written() -> bool:
        obj = world.get("kgp", namespace, name)
        return bool(obj["status"]["observedGeneration"] == obj["metadata"]["generation"])

    wait_for(written)


def alerts_in(request: Request) -> list[tuple[str, str, str]]:
    """What a message to a webhook says: policy, kind, status."""
    return [(alert["policy"], alert["kind"], alert["status"]) for alert in request.json["alerts"]]


def condition(world: World, namespace: str, name: str, kind: str, reason: str) -> Object:
    """Wait until a condition of a policy has this reason."""

    def there() -> Object | None:
        found = world.condition("kgp", namespace, name, kind)
        return found if found is not None and found["reason"] == reason else None

    return dict(wait_for(there))


def test_one_message_a_run_and_none_twice(
    other: World,
    kafka: KafkaCluster,
    groups: Groups,
    people: Receiver,
    alertmanager: Alertmanager,
    tmp_path: Path,
) -> None:
    """All policies of a run in one message to each receiver; a restart repeats none; the end is told."""
    namespace, account = other.namespace("notified"), operators_account(other.server)
    topic = groups.topic("notified")
    for name in ("told-a-1", "told-a-2", "told-b-1"):
        groups.simple(name, topic)
    other.apply(
        secret(namespace, slack=people.url(f"/{PATH}"), token=TOKEN, hmac=KEY),
        connection(
            namespace,
            kafka.bootstrap_servers,
            ledger={"topic": "told-ledger"},
            receivers=[
                {"name": "am", "type": "Alertmanager", "alertmanager": {"address": alertmanager.url}},
                {"name": "chat", "type": "Slack", "slack": {"urlSecretRef": ref("slack")}},
                {
                    "name": "bot",
                    "type": "Webhook",
                    "webhook": {
                        "address": people.url("/bot"),
                        "tokenSecretRef": ref("token"),
                        "hmacSecretRef": ref("hmac"),
                    },
                },
            ],
        ),
        alert(namespace, "a", "told-a-"),
        alert(namespace, "b", "told-b-"),
    )
    both = [("a", "GroupsMatched", "firing"), ("b", "GroupsMatched", "firing")]
    with running_operator(account, tmp_path / "log-1", *FLAGS, *ALLOWED) as first:
        wait_for(lambda: people.at("/bot") and people.at(f"/{PATH}") and len(people.at("/from-alertmanager")) == 2)
        condition(other, namespace, "a", "AlertsDelivered", "AllDelivered")
        condition(other, namespace, "a", "Alerting", "GroupsMatched")
        for name in ("a", "b"):
            run_again(other, namespace, name)
        assert [alerts_in(request) for request in people.at("/bot")] == [both], "one message for both policies"
        assert people.at("/bot")[0].headers["Authorization"] == f"Bearer {TOKEN}"
        assert len(people.at(f"/{PATH}")) == 1
        assert len(people.at("/from-alertmanager")) == 2, "it groups by policy itself"
        metrics = first.http("/metrics")[1]
        assert 'group_hygiene_alerting{namespace="notified",policy="a"} 1.0' in metrics
        labels = 'connection="main",namespace="notified",result="delivered",type="webhook"'
        sent = f"group_hygiene_alerts_sent_total{{{labels}}} 1.0"
        assert sent in metrics
        assert first.stop() == 0
    with running_operator(account, tmp_path / "log-2", *FLAGS, *ALLOWED) as second:
        for name in ("a", "b"):
            run_again(other, namespace, name)
            run_again(other, namespace, name)
        assert len(people.at("/bot")) == 1, "a restart repeats nothing"
        assert len(people.at(f"/{PATH}")) == 1
        groups.simple("told-b-2", topic)
        wait_for(lambda: len(people.at("/bot")) == 2)
        (item,) = people.at("/bot")[1].json["alerts"]
        assert (item["policy"], item["groups"][0], item["new"], item["total"]) == ("b", "told-b-2", 1, 2)
        run_again(other, namespace, "b")
        second.kill(other.server, "group-hygiene")
    with running_operator(account, tmp_path / "log-3", *FLAGS, *ALLOWED) as third:
        for name in ("told-a-1", "told-a-2", "told-b-1", "told-b-2"):
            groups.admin.delete_groups([name])
        ends = {("a", "GroupsMatched", "resolved"), ("b", "GroupsMatched", "resolved")}
        wait_for(lambda: ends <= {item for request in people.at("/bot")[1:] for item in alerts_in(request)})
        wait_for(lambda: alertmanager.alerts() == [])
        condition(other, namespace, "a", "Alerting", "NoGroupsMatched")
        for name in ("a", "b"):
            run_again(other, namespace, name)
        heard = [item for request in people.at("/bot") for item in alerts_in(request)]
        assert sorted(heard) == sorted([*both, both[1], *ends])
        assert third.stop() == 0
    logs = [(tmp_path / f"log-{number}").read_text() for number in (1, 2, 3)]
    seen = other.server.kubectl("get", "kconn,kgp,events", "-n", namespace, "-o", "yaml").stdout
    assert leaks([TOKEN, KEY, PATH], [*logs, metrics, seen]) == set()
    other.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


OWNERS = [
    {"name": "payments", "groups": ["*-pay-*"], "receiver": "payments"},
    {"name": "core", "groups": ["*-core-*", "*-pay-*"], "receiver": "core"},
]


def owned(groups: Groups, namespace: str, kafka: KafkaCluster, people: Receiver, **spec: Any) -> list[Object]:
    """A connection with owners, and a policy that marks a group of each and one of none; a receiver has the path of
    its name below the namespace's.
    """
    topic = groups.topic(namespace)
    groups.produce(topic)
    for name in ("pay-1", "core-1", "other"):
        groups.abandoned(f"{namespace}-{name}", topic)
    groups.produce(topic)
    places = {name: people.url(f"/{namespace}/{name}") for name in ("platform", "payments", "core")}
    link = people.url("/keep?group={group}")
    return [
        telling(namespace, kafka, places, owners=OWNERS, keepLink=link, **spec),
        marking(namespace, "p", f"{namespace}-*", notify={"receiverNames": ["platform"]}),
    ]


def marking(namespace: str, name: str, groups: str, **spec: Any) -> Object:
    """A policy that marks these groups, and deletes none within a test."""
    delete = {"gracePeriod": "1h", "maxPercent": 100}
    return policy(namespace, name, match={"groups": [groups]}, mode="Enforce", delete=delete, **spec)


def received(people: Receiver, path: str) -> list[tuple[str, str | None, str, list[str]]]:
    """Policy, owner, status and groups of each mark that was announced there."""
    items = [item for request in people.at(path) for item in request.json["alerts"]]
    assert {item["kind"] for item in items} <= {"GroupsMarked"}
    return [(item["policy"], item["owner"], item["status"], item["groups"]) for item in items]


def test_owners_get_their_groups(
    other: World, kafka: KafkaCluster, groups: Groups, people: Receiver, tmp_path: Path
) -> None:
    """Also of a policy of another namespace, whose status shows nothing of them; the policy's receivers get all."""
    namespace, team = other.namespace("owned"), other.namespace("owned-team")
    access = [{"namespaces": {"names": [team]}, "groups": ["owned-pay-*"], "actions": ["Delete", "Keep"]}]
    reference = {"connectionRef": {"name": "main", "namespace": namespace}, "notify": {"receiverNames": []}}
    other.apply(
        *owned(groups, namespace, kafka, people, access=access, limits=FLOORS),
        marking(team, "q", "owned-*", **reference),
    )
    with running_operator(operators_account(other.server), tmp_path / "log", *FLAGS, *ALLOWED) as process:
        wait_for(lambda: len(received(people, "/owned/payments")) == 2 and people.at("/owned/core"))
        wait_for(lambda: people.at("/owned/platform"))
        for _ in range(2):
            run_again(other, namespace, "p")
            run_again(other, team, "q")
        of_payments = [(name, "payments", "firing", ["owned-pay-1"]) for name in ("p", "q")]
        assert sorted(received(people, "/owned/payments")) == of_payments
        assert received(people, "/owned/core") == [("p", "core", "firing", ["owned-core-1"])]
        all_groups = ["owned-core-1", "owned-other", "owned-pay-1"]
        assert received(people, "/owned/platform") == [("p", None, "firing", all_groups)]
        sample = other.get("kgp", namespace, "p")["status"]["sample"]
        owners = {entry["group"]: entry.get("owner") for entry in sample}
        assert owners == {"owned-pay-1": "payments", "owned-core-1": "core", "owned-other": None}
        condition(other, namespace, "p", "AlertsDelivered", "AllDelivered")
        (seen,) = other.get("kgp", team, "q")["status"]["sample"]
        assert (seen["group"], "owner" in seen) == ("owned-pay-1", False)
        assert other.condition("kgp", team, "q", "AlertsDelivered") is None
        metrics = process.http("/metrics")[1]
        series = 'group_hygiene_groups_matched_by_owner{{namespace="owned",owner="{}",policy="p"}} 1.0'
        assert all(series.format(owner) in metrics for owner in ("payments", "core", ""))
        assert 'groups_matched_by_owner{namespace="owned-team"' not in metrics
        # The object of the message, as the team creates it.
        created = people.at("/owned/payments")[0].json["alerts"][0]["keepObject"]
        create = ("create", "-f", "-", "-n", team, "-o", "name")
        name = other.server.kubectl(*create, input=json.dumps(created)).stdout.strip().partition("/")[2]
        other.wait_ready("kgk", team, name, "Kept")
        run_again(other, namespace, "p")
        wait_for(lambda: ("p", "payments", "resolved", []) in received(people, "/owned/payments"))
        assert process.stop() == 0
    for name in (team, namespace):
        other.server.kubectl("delete", "kgp,kgk,kconn", "--all", "-n", name)


def test_an_owner_keeps_a_group(
    other: World, kafka: KafkaCluster, groups: Groups, people: Receiver, tmp_path: Path
) -> None:
    """By the command of the message, which ends the warning. A restart repeats nothing, and an owner that is removed
    gets the end.
    """
    namespace, account = other.namespace("keeping"), operators_account(other.server)
    other.apply(*owned(groups, namespace, kafka, people))
    with running_operator(account, tmp_path / "log-1", *FLAGS, *ALLOWED) as first:
        # A message whose answer did not arrive before the stop is sent again.
        labels = 'connection="main",namespace="keeping",result="delivered",type="webhook"'
        wait_for(lambda: f"group_hygiene_alerts_sent_total{{{labels}}} 3.0" in first.http("/metrics")[1])
        assert first.stop() == 0
    (item,) = people.at("/keeping/payments")[0].json["alerts"]
    assert item["keepLinks"] == {"keeping-pay-1": people.url("/keep?group=keeping-pay-1")}
    program, *words = shlex.split(item["keepCommands"]["keeping-pay-1"])
    assert program == "group-hygiene"
    # A pause of more than two intervals ends marks, and on a busy machine a restart takes longer than 10 s.
    set_interval(other, namespace, "p", "5m")
    with running_operator(account, tmp_path / "log-2", *FLAGS, *ALLOWED) as second:
        for _ in range(2):
            run_again(other, namespace, "p")
        of_owners = [*received(people, "/keeping/payments"), *received(people, "/keeping/core")]
        assert [status for _, _, status, _ in of_owners] == ["firing", "firing"]
        where = {"KUBECONFIG": str(other.server.kubeconfig), "PYTHONPATH": str(ROOT / "operator")}
        subprocess.run([sys.executable, "-m", "group_hygiene.cli", *words], env={**os.environ, **where}, check=True)
        run_again(other, namespace, "p")
        wait_for(lambda: ("p", "payments", "resolved", []) in received(people, "/keeping/payments"))
        assert len(people.at("/keeping/core")) == 1
        patch = json.dumps({"spec": {"owners": OWNERS[:1]}})
        other.server.kubectl("patch", "kconn", "main", "-n", namespace, "--type=merge", "-p", patch)
        wait_for(lambda: ("p", "core", "resolved", []) in received(people, "/keeping/core"))
        for _ in range(2):
            run_again(other, namespace, "p")
        assert [len(people.at(f"/keeping/{name}")) for name in ("payments", "core", "platform")] == [2, 2, 1]
        assert second.stop() == 0
    other.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


def test_by_default_no_receiver_of_this_machine(
    other: World, kafka: KafkaCluster, groups: Groups, people: Receiver, tmp_path: Path
) -> None:
    """Loopback and link-local are refused, and the status says so; nothing is sent, and nothing crashes."""
    namespace = other.namespace("refused")
    groups.simple("refused-1", groups.topic("refused"))
    places = {"loopback": people.url("/refused"), "metadata": "http://169.254.169.254/latest"}
    other.apply(
        telling(namespace, kafka, places),
        *(alert(namespace, name, "refused-", notify={"receiverNames": [name]}) for name in places),
    )
    with running_operator(operators_account(other.server), tmp_path / "log", *FLAGS) as guarded:
        for name in places:
            found = condition(other, namespace, name, "AlertsDelivered", "ReceiverRefused")
            assert "--allow-receiver" in found["message"]
            assert other.condition("kgp", namespace, name, "Ready")["status"] == "True"  # type: ignore[index]
        assert guarded.process.poll() is None
    assert people.at("/refused") == []
    other.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


@pytest.mark.slow
def test_by_default_no_token_endpoint_of_this_machine(other: World, kafka: KafkaCluster, tmp_path: Path) -> None:
    """A KafkaConnection names it, too: it is not asked, and the connection says why."""
    namespace = other.namespace("tokens")
    with TokenEndpoint({"hygiene": TOKEN}) as endpoint:
        oauth = {"tokenEndpoint": endpoint.url, "clientID": "hygiene", "clientSecretRef": ref("token")}
        spec = {"sasl": {"mechanism": "OAUTHBEARER", "oauth": oauth}}
        other.apply(secret(namespace, token=TOKEN), connection(namespace, kafka.bootstrap_servers, **spec))
        other.apply(alert(namespace, "p", "tokens-"))
        with running_operator(operators_account(other.server), tmp_path / "log", *FLAGS):
            wait_for(
                lambda: (
                    (found := other.condition("kconn", namespace, "main", "Ready")) is not None
                    and found["reason"] == "AuthenticationFailed"
                    and "--allow-receiver" in found["message"]
                )
            )
        assert endpoint.asked == 0
    other.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


@pytest.mark.slow
def test_a_stop_waits_for_no_receiver(
    other: World, kafka: KafkaCluster, groups: Groups, people: Receiver, tmp_path: Path
) -> None:
    """An operator that is told to stop while a receiver hangs ends in order; what it owed, the next one delivers."""
    namespace = other.namespace("stopping")
    groups.simple("stopping-1", groups.topic("stopping"))
    people.answers["/stopping"] = None
    other.apply(
        telling(namespace, kafka, {"r": people.url("/stopping")}),
        alert(namespace, "p", "stopping-"),
    )
    account = operators_account(other.server)
    with running_operator(account, tmp_path / "log-1", *FLAGS, *ALLOWED) as first:
        wait_for(lambda: people.at("/stopping"))
        assert first.stop() == 0
        assert "have not ended" not in first.log()
    people.answers["/stopping"] = 200
    before = len(people.at("/stopping"))
    with running_operator(account, tmp_path / "log-2", *FLAGS, *ALLOWED) as second:
        wait_for(lambda: len(people.at("/stopping")) > before)
        assert second.stop() == 0
    assert alerts_in(people.at("/stopping")[-1]) == [("p", "GroupsMatched", "firing")]
    other.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


@pytest.mark.slow
def test_a_stop_repeats_nothing_that_arrived(
    other: World, kafka: KafkaCluster, groups: Groups, people: Receiver, tmp_path: Path
) -> None:
    """What is answered while the operator is told to stop is noted: the next one does not tell it again."""
    namespace = other.namespace("noting")
    topic = groups.topic("noting")
    groups.simple("noting-1", topic)
    other.apply(
        telling(namespace, kafka, {"r": people.url("/noting")}),
        alert(namespace, "p", "noting-"),
    )
    account = operators_account(other.server)
    with running_operator(account, tmp_path / "log-1", *FLAGS, *ALLOWED) as first:
        people.then["/noting"] = first.process.terminate
        wait_for(lambda: people.at("/noting"))
        assert first.process.wait(60) == 0
        assert "have not ended" not in first.log()
    people.then.clear()
    with running_operator(account, tmp_path / "log-2", *FLAGS, *ALLOWED) as second:
        groups.simple("noting-2", topic)
        wait_for(lambda: len(people.at("/noting")) == 2)
        assert second.stop() == 0
    items = [request.json["alerts"][0] for request in people.at("/noting")]
    assert [(item["new"], item["total"]) for item in items] == [(1, 1), (1, 2)], "only what is new"
    other.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


def test_who_hangs_or_fails_holds_up_nothing(
    other: World, kafka: KafkaCluster, groups: Groups, people: Receiver, loud: RunningOperator
) -> None:
    """Scans go on, other receivers hear at once, and who failed hears it when it can."""
    namespace = other.namespace("failing")
    topic = groups.topic("failing")
    groups.simple("failing-1", topic)
    people.answers |= {"/hangs": None, "/fails": 500, "/leads-away": (302, {"Location": people.url("/inside")})}
    other.apply(
        telling(namespace, kafka, {name: people.url(f"/{name}") for name in ("hangs", "fails", "leads-away", "works")}),
        alert(namespace, "p", "failing-"),
    )
    wait_for(lambda: people.at("/works") and people.at("/hangs") and people.at("/fails") and people.at("/leads-away"))
    runs = other.get("kgp", namespace, "p")["status"]["lastRunTime"]
    for _ in range(3):
        run_again(other, namespace, "p")
    assert other.get("kgp", namespace, "p")["status"]["lastRunTime"] >= runs
    assert other.condition("kgp", namespace, "p", "Ready")["status"] == "True"  # type: ignore[index]
    found = condition(other, namespace, "p", "AlertsDelivered", "ReceiverFailed")
    assert found["status"] == "False"
    assert "receiver fails: it answers 500" in found["message"]
    wait_for(lambda: len(people.at("/fails")) >= 2)
    assert len(people.at("/works")) == 1
    assert people.at("/inside") == []
    people.answers |= {"/hangs": 200, "/fails": 204, "/leads-away": 200}
    condition(other, namespace, "p", "AlertsDelivered", "AllDelivered")
    counts = {name: len(people.at(f"/{name}")) for name in ("hangs", "fails", "leads-away")}
    run_again(other, namespace, "p")
    assert {name: len(people.at(f"/{name}")) for name in counts} == counts, "once it arrived, it is told"


@pytest.mark.slow
def test_marks_deletions_and_refusals_are_sent(
    other: World, kafka: KafkaCluster, groups: Groups, people: Receiver, loud: RunningOperator
) -> None:
    """The warning with its date, why nothing is deleted, and at the end what was; then that nothing waits any more."""
    namespace = other.namespace("enforcing")
    topic = groups.topic("enforcing")
    groups.produce(topic)
    groups.abandoned("enforcing-1", topic)
    groups.produce(topic)
    other.apply(
        telling(namespace, kafka, {"enforcing": people.url("/enforcing")}, limits={"maxPercent": 1}),
        policy(
            namespace,
            "p",
            match={"groups": ["enforcing-*"]},
            mode="Enforce",
            delete={"gracePeriod": "2s", "maxPercent": 100},
        ),
    )

    def heard() -> list[tuple[str, str, str]]:
        return [item for request in people.at("/enforcing") for item in alerts_in(request)]

    wait_for(lambda: ("p", "GroupsMarked", "firing") in heard())
    marked = next(item for r in people.at("/enforcing") for item in r.json["alerts"] if item["kind"] == "GroupsMarked")
    assert (marked["groups"], marked["total"]) == (["enforcing-1"], 1)
    assert marked["firstDueTime"] is not None
    wait_for(lambda: ("p", "DeletionBlocked", "firing") in heard())
    patch = '{"spec":{"limits":{"maxPercent":100}}}'
    other.server.kubectl("patch", "kconn", "main", "-n", namespace, "--type=merge", "-p", patch)
    ends = {("p", "DeletionBlocked", "resolved"), ("p", "GroupsDeleted", "notice"), ("p", "GroupsMarked", "resolved")}
    wait_for(lambda: ends <= set(heard()))
    run_again(other, namespace, "p")
    assert len(heard()) == len(set(heard())), "each once"
    assert "enforcing-1" not in groups.names()


def test_what_is_taken_away_is_resolved(
    other: World, kafka: KafkaCluster, groups: Groups, people: Receiver, loud: RunningOperator
) -> None:
    """A policy that is suspended or deleted, a receiver that is taken out of the spec, and a connection that goes."""
    namespace = other.namespace("leaving")
    topic = groups.topic("leaving")
    groups.simple("leaving-1", topic)
    names = ("suspended", "deleted", "stays")
    receivers = [
        {"name": name, "type": "Webhook", "webhook": {"address": people.url(f"/leaving-{name}")}}
        for name in ("one", "two")
    ]
    other.apply(
        connection(namespace, kafka.bootstrap_servers, ledger={"topic": "leaving-ledger"}, receivers=receivers),
        *(alert(namespace, name, "leaving-") for name in names),
    )

    def heard(path: str) -> set[tuple[str, str]]:
        return {(name, state) for request in people.at(path) for name, _, state in alerts_in(request)}

    wait_for(lambda: all({(name, "firing") for name in names} <= heard(f"/leaving-{r}") for r in ("one", "two")))
    patch = '{"spec":{"suspend":true}}'
    other.server.kubectl("patch", "kgp", "suspended", "-n", namespace, "--type=merge", "-p", patch)
    wait_for(lambda: ("suspended", "resolved") in heard("/leaving-one"))
    other.server.kubectl("delete", "kgp", "deleted", "-n", namespace)
    wait_for(lambda: ("deleted", "resolved") in heard("/leaving-one"))
    kept = json.dumps({"spec": {"receivers": receivers[:1]}})
    other.server.kubectl("patch", "kconn", "main", "-n", namespace, "--type=merge", "-p", kept)
    wait_for(lambda: ("stays", "resolved") in heard("/leaving-two"))
    assert ("stays", "resolved") not in heard("/leaving-one")
    other.server.kubectl("delete", "kconn", "main", "-n", namespace)
    wait_for(lambda: ("stays", "resolved") in heard("/leaving-one"))


def test_thresholds_and_names_of_receivers(
    other: World, kafka: KafkaCluster, groups: Groups, people: Receiver, loud: RunningOperator
) -> None:
    """A policy tells whom it names, from so many groups on; one that can't be told is named in its status."""
    namespace = other.namespace("choosing")
    topic = groups.topic("choosing")
    groups.simple("choosing-1", topic)
    names = ("named", "unnamed")
    places: dict[str, Object] = {name: {"address": people.url(f"/choosing-{name}")} for name in names}
    places |= {"hidden": {"urlSecretRef": ref("url")}, "secretless": {"urlSecretRef": {"name": "none", "key": "url"}}}
    receivers = [{"name": name, "type": "Webhook", "webhook": place} for name, place in places.items()]
    other.apply(
        secret(namespace, url=people.url("/own-never-to-be-seen")),
        telling(namespace, kafka, {}, receivers=receivers),
        alert(namespace, "many", "choosing-", notify={"groupsAtLeast": 2, "receiverNames": ["named", "hidden"]}),
        alert(namespace, "nobody", "choosing-", notify={"receiverNames": []}),
        alert(namespace, "unknown", "choosing-", notify={"receiverNames": ["z"]}),
        alert(namespace, "secretless", "choosing-", notify={"receiverNames": ["secretless"]}),
    )
    found = condition(other, namespace, "unknown", "AlertsDelivered", "ReceiverNotFound")
    assert "'z'" in found["message"]
    condition(other, namespace, "secretless", "AlertsDelivered", "SecretNotFound")
    condition(other, namespace, "many", "Alerting", "TooFewGroups")
    assert other.get("kgp", namespace, "many")["status"]["groups"]["matched"] == 1
    condition(other, namespace, "nobody", "Alerting", "GroupsMatched")
    assert other.condition("kgp", namespace, "nobody", "AlertsDelivered") is None
    groups.simple("choosing-2", topic)
    wait_for(lambda: people.at("/choosing-named") and people.at("/own-never-to-be-seen"))
    condition(other, namespace, "many", "Alerting", "GroupsMatched")
    for path in ("/choosing-named", "/own-never-to-be-seen"):
        assert [alerts_in(request) for request in people.at(path)] == [[("many", "GroupsMatched", "firing")]]
    assert people.at("/choosing-unnamed") == []
    events = [event["message"] for event in other.events(namespace) if event["involvedObject"]["name"] == "many"]
    assert not [text for text in events if text.startswith("1 group match")]


def test_no_secret_is_seen(other: World, loud: RunningOperator) -> None:
    """Of all that the tests above made receivers of, although every logger is at DEBUG."""
    seen = other.server.kubectl("get", "kconn,kgp,events", "-A", "-o", "yaml").stdout
    assert "debug is on" in loud.log()
    assert leaks(["own-never-to-be-seen"], [loud.log(), loud.http("/metrics")[1], seen]) == set()


def test_broken_ledger_stops_no_alert(
    other: World, kafka: KafkaCluster, groups: Groups, people: Receiver, loud: RunningOperator
) -> None:
    """A topic that is no ledger: nothing can be remembered there, and alerts go out all the same."""
    namespace = other.namespace("ledgerless")
    topic = groups.topic("ledgerless")
    groups.produce(topic)
    groups.simple("ledgerless-1", topic)
    other.apply(
        telling(namespace, kafka, {"r": people.url("/ledgerless")}, ledger={"topic": topic}),
        alert(namespace, "p", "ledgerless-"),
    )
    wait_for(lambda: people.at("/ledgerless"))
    run_again(other, namespace, "p")
    assert [alerts_in(request) for request in people.at("/ledgerless")] == [[("p", "GroupsMatched", "firing")]]
    ready = other.condition("kconn", namespace, "main", "LedgerReady")
    assert ready is not None
    assert ready["status"] == "False"
