"""What the docs tell users of Strimzi, by Strimzi's own CRDs on a real API server. Strimzi itself is not run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import new_client_from_config

from group_hygiene.controller.api import Api
from group_hygiene.model.reasons import Refusal
from testing.sandbox.crds import strimzi
from testing.sandbox.kubernetes import ApiServer
from tests.kafka.permissions import documented

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> Iterator[ApiServer]:
    """The API server with Strimzi's KafkaUser and KafkaConnector."""
    crds = str(strimzi())
    api_server.kubectl("apply", "--server-side", "-f", crds)
    api_server.wait_established("-f", crds)
    yield api_server
    api_server.kubectl("delete", "-f", crds)


def _user() -> dict[str, Any]:
    """The documented KafkaUser with all that its sections add to its rules."""
    user: dict[str, Any] = yaml.safe_load(documented("With Strimzi", "yaml"))
    for section in ("To delete: the ledger", "To restore"):
        user["spec"]["authorization"]["acls"] += yaml.safe_load(documented(section, "yaml"))
    return user


def test_the_documented_user_is_one_of_todays_strimzi(server: ApiServer) -> None:
    """In the version that it stores, without an unknown field or word."""
    user = _user()
    crd = json.loads(server.kubectl("get", "crd", "kafkausers.kafka.strimzi.io", "-o=json").stdout)
    (stored,) = [version["name"] for version in crd["spec"]["versions"] if version["storage"]]
    assert user["apiVersion"] == f"kafka.strimzi.io/{stored}"
    applying = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    server.kubectl(*applying, input=json.dumps(user))
    user["spec"]["authorization"]["acls"][0]["operations"] = ["Delet"]
    assert "Unsupported value" in server.kubectl(*applying, input=json.dumps(user), check=False).stderr


def test_the_quickstart_names_what_strimzi_makes_of_that_user() -> None:
    """A Secret with the user's name; and of its cluster the authority's certificate and the bootstrap Service.

    Strimzi finds a user only in the namespace of its cluster, where its Secret and that of the authority are.
    """
    user = _user()["metadata"]
    cluster = user["labels"]["strimzi.io/cluster"]
    quickstart = next(yaml.safe_load_all((ROOT / "examples" / "quickstart.yaml").read_text()))
    assert user["namespace"] == quickstart["metadata"]["namespace"]
    connection = quickstart["spec"]
    assert connection["sasl"]["username"] == user["name"]
    assert connection["sasl"]["passwordSecretRef"] == {"name": user["name"], "key": "password"}
    assert connection["tls"] == {"caSecretRef": {"name": f"{cluster}-cluster-ca-cert", "key": "ca.crt"}}
    assert connection["bootstrapServers"] == [f"{cluster}-kafka-bootstrap.{user['namespace']}:9093"]


def test_the_documented_listener_lets_that_user_in() -> None:
    """On the port of the quickstart, over TLS, with the user's login and the authorization that its rules are for."""
    spec = _user()["spec"]
    kafka = yaml.safe_load(documented("Strimzi's listener", "yaml"))["spec"]["kafka"]
    assert kafka["authorization"] == {"type": spec["authorization"]["type"]}
    (listener,) = kafka["listeners"]
    connection = next(yaml.safe_load_all((ROOT / "examples" / "quickstart.yaml").read_text()))["spec"]
    assert connection["bootstrapServers"][0].endswith(f":{listener['port']}")
    assert listener["tls"] is ("tls" in connection)
    assert listener["authentication"] == spec["authentication"]
    assert connection["sasl"]["mechanism"].lower() == listener["authentication"]["type"]


def test_the_group_of_todays_connector_is_named(server: ApiServer) -> None:
    """By an object that Strimzi's schema accepts, in the version in which the API server has it."""
    connector = {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaConnector",
        "metadata": {"name": "sink", "namespace": "default", "labels": {"strimzi.io/cluster": "my-connect"}},
        "spec": {"class": "Sink", "tasksMax": 1, "config": {"consumer.override.group.id": "orders"}},
    }
    server.kubectl("create", "--validate=strict", "-f", "-", input=json.dumps(connector))
    with new_client_from_config(str(server.kubeconfig)) as client:
        claims = Api(client).claimed_groups()
    assert not isinstance(claims, Refusal), claims
    assert claims.owner("orders") == "KafkaConnector default/sink"
