"""`group-hygiene alert test` as users run it: a real API server, real receivers, one result for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.sandbox.alertmanager import Alertmanager
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install_crds
from tests.leaks import leaks
from tests.receiving import Receiver

pytestmark = pytest.mark.slow  # a process for each test

ROOT = Path(__file__).parents[2]
TOKEN, PATH = "token-never-to-be-seen-88", "path-never-to-be-seen-99"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        install_crds(running)
        yield running


@pytest.fixture(scope="module")
def people() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture(scope="module")
def applied(server: ApiServer, people: Receiver) -> Iterator[Alertmanager]:
    """A connection with a receiver of each type, and policies; and the Alertmanager that one of them is."""
    people.answers["/fails"] = 503
    with Alertmanager({"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}) as alertmanager:
        ref = {"name": "alerts", "key": "url"}
        token = {"name": "alerts", "key": "token"}
        receivers = [
            {"name": "am", "type": "Alertmanager", "alertmanager": {"address": alertmanager.url}},
            {"name": "chat", "type": "Slack", "slack": {"urlSecretRef": ref}},
            {"name": "bot", "type": "Webhook", "webhook": {"address": people.url("/bot"), "tokenSecretRef": token}},
        ]
        fails = {
            "name": "fails",
            "type": "Webhook",
            "webhook": {"address": people.url("/fails"), "tokenSecretRef": token},
        }
        impossible = {"name": "impossible", "type": "Webhook", "webhook": {"address": "http://a:99999/"}}
        unreadable = {
            "name": "unreadable",
            "type": "Slack",
            "slack": {"urlSecretRef": {"name": "alerts", "key": "not-a-url"}},
        }
        match: Any = {"connectionRef": {"name": "main"}, "match": {"groups": ["*"]}, "action": "Alert"}
        broken = match | {"connectionRef": {"name": "broken"}}
        objects: list[Any] = [
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "alerts"}}
            | {"stringData": {"url": people.url(f"/{PATH}"), "token": TOKEN, "not-a-url": "no"}},
            _object("KafkaConnection", "main", {"bootstrapServers": ["nobody:9092"], "receivers": receivers}),
            _object(
                "KafkaConnection",
                "broken",
                {"bootstrapServers": ["nobody:9092"], "receivers": [*receivers, fails, impossible, unreadable]},
            ),
            _object("KafkaConnection", "silent", {"bootstrapServers": ["nobody:9092"]}),
            _object("GroupPolicy", "own", broken | {"notify": {"receiverNames": ["bot", "fails"]}}),
            _object(
                "GroupPolicy", "broken", broken | {"notify": {"receiverNames": ["bot", "impossible", "unreadable"]}}
            ),
            _object("GroupPolicy", "unknown", match | {"notify": {"receiverNames": ["nobody"]}}),
        ]
        server.kubectl("apply", "-n", "default", "-f", "-", input=yaml.safe_dump_all(objects))
        yield alertmanager


def _object(kind: str, name: str, spec: Any) -> Any:
    return {"apiVersion": "grouphygiene.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def run(server: ApiServer, *arguments: str, allow: bool = True) -> subprocess.CompletedProcess[str]:
    allowed = ["--allow-receiver", "127.0.0.0/8"] if allow else []
    return subprocess.run(
        [sys.executable, "-m", "group_hygiene.cli", "alert", "test", *arguments, *allowed],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig), "PYTHONPATH": str(ROOT / "operator")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_receiver_gets_a_test(server: ApiServer, people: Receiver, applied: Alertmanager) -> None:
    """One that nobody takes for news, in each of the three forms; no secret is shown."""
    done = run(server, "main", "-n", "default", "-o", "json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [(r["receiver"], r["type"], r["result"]) for r in results] == [
        ("am", "alertmanager", "Delivered"),
        ("chat", "slack", "Delivered"),
        ("bot", "webhook", "Delivered"),
    ]
    (alert,) = applied.alerts()
    assert alert["labels"]["alertname"] == "Test"
    assert "only a test" in alert["annotations"]["summary"]
    (message,) = people.at("/bot")
    assert message.json["test"] is True
    assert message.headers["Authorization"] == f"Bearer {TOKEN}"
    (text,) = people.at(f"/{PATH}")
    assert "only a test" in text.json["text"]
    assert leaks([TOKEN, PATH], [done.stdout, done.stderr]) == set()


def test_receivers_of_a_policy(server: ApiServer, people: Receiver, applied: Alertmanager) -> None:
    """Those that it names; who fails is an error, and the others are shown."""
    before = len(people.at("/bot"))
    done = run(server, "--policy", "own", "-n", "default")
    assert done.returncode == 1
    assert len(people.at("/bot")) == before + 1
    assert people.at("/bot")[-1].json["alerts"][0]["policy"] == "own"
    assert "Delivered" in done.stdout
    assert "Error: receiver fails: ReceiverFailed: it answers 503" in done.stderr


def test_one_that_cannot_be_spoken_to_hides_no_other(
    server: ApiServer, people: Receiver, applied: Alertmanager
) -> None:
    """Each has its result, and its name once."""
    done = run(server, "--policy", "broken", "-n", "default", "-o", "json")
    assert done.returncode == 1
    results = {result["receiver"]: result for result in json.loads(done.stdout)["results"]}
    assert {name: (result["result"], result["reason"]) for name, result in results.items()} == {
        "bot": ("Delivered", None),
        "impossible": ("Failed", "InvalidSpec"),
        "unreadable": ("Failed", "SecretInvalid"),
    }
    assert "Error: receiver unreadable: SecretInvalid: key 'not-a-url' of Secret alerts is no http" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["main", "--receiver", "nobody"], "has no receiver 'nobody'", id="no-such-receiver"),
        pytest.param(["silent"], "has no receivers", id="without-receivers"),
        pytest.param(["other"], "there is no KafkaConnection default/other", id="no-such-connection"),
        pytest.param(["--policy", "other"], "there is no GroupPolicy default/other", id="no-such-policy"),
        pytest.param(["--policy", "unknown"], "has no receiver 'nobody'", id="policy-names-nobody"),
        pytest.param([], "either CONNECTION or --policy must be given", id="nothing"),
        pytest.param(
            ["main", "--policy", "own"],
            "either CONNECTION or --policy must be given",
            id="both",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_mistakes_are_reported(server: ApiServer, applied: Alertmanager, arguments: list[str], said: str) -> None:
    """In one line, with exit code 1."""
    done = run(server, *arguments, "-n", "default")
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_egress_holds_here_too(server: ApiServer, people: Receiver, applied: Alertmanager) -> None:
    """Loopback must be allowed, as for the operator."""
    before = len(people.requests)
    done = run(server, "main", "-n", "default", "-o", "yaml", allow=False)
    assert done.returncode == 1
    assert {result["reason"] for result in yaml.safe_load(done.stdout)["results"]} == {"ReceiverRefused"}
    assert len(people.requests) == before
