"""What a run asks a real API server again before each batch of deletions."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import new_client_from_config

from group_hygiene.controller import api as api_module
from group_hygiene.controller.admission import ObjectGuard, read_grant
from group_hygiene.controller.api import Api
from group_hygiene.controller.objects import CONNECTIONS, POLICIES, refuse_unusable
from group_hygiene.errors import SpecError
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.conditions import redact_problem
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.crds import PLURALS, load_crd
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import use_crds
from testing.sandbox.waiting import wait_for
from tests.kube.access import make_namespaces

OWNER, TEAM = "guard-owner", "guard-team"
_BY_LABEL = {"namespaces": {"selector": {"matchLabels": {"team": "x"}}}, "groups": ["x-*"], "actions": ["Delete"]}
_BY_NAME = {"namespaces": {"names": [TEAM]}, "groups": ["named-*"], "actions": ["Delete"]}


@pytest.fixture
def api(api_server: ApiServer) -> Iterator[Api]:
    make_namespaces(api_server, OWNER, TEAM)
    with new_client_from_config(str(api_server.kubeconfig)) as client:
        yield Api(client)
    for namespace in (OWNER, TEAM):
        api_server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


def _guard(server: ApiServer, api: Api, namespace: str, access: list[dict[str, Any]]) -> ObjectGuard:
    """Of a run that begins now, of a policy of that namespace."""
    version = "grouphygiene.io/v1alpha1"
    reference = {"connectionRef": {"name": "main", "namespace": OWNER}, "match": {"groups": ["*"]}, "action": "Alert"}
    objects = [
        {"kind": "KafkaConnection", "metadata": {"name": "main", "namespace": OWNER}},
        {"kind": "GroupPolicy", "metadata": {"name": "tidy", "namespace": namespace}, "spec": reference},
    ]
    objects[0]["spec"] = {"bootstrapServers": ["kafka:9092"], "access": access}
    server.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([{"apiVersion": version} | each for each in objects]))
    obj, policy = api.get(CONNECTIONS, OWNER, "main"), api.get(POLICIES, namespace, "tidy")
    granted = read_grant(api, parse_connection(obj), namespace)
    return ObjectGuard(api, lambda: 60.0, threading.Event(), ((POLICIES, policy), (CONNECTIONS, obj)), granted)


@pytest.mark.parametrize(
    ("namespace", "access", "goes_on"),
    [
        pytest.param(TEAM, [_BY_LABEL], False, id="refused-now"),
        pytest.param(TEAM, [_BY_LABEL, _BY_NAME], False, id="granted-less-now"),
        pytest.param(TEAM, [_BY_NAME], True, id="by-name"),
        pytest.param(OWNER, [_BY_LABEL], True, id="own-namespace"),
    ],
)
def test_labels_are_read_again(
    api_server: ApiServer, api: Api, namespace: str, access: list[dict[str, Any]], goes_on: bool
) -> None:
    """A namespace that loses the label by which it was let in deletes nothing from then on, also during a run."""
    api_server.kubectl("label", "namespace", TEAM, "team=x", "--overwrite")
    guard = _guard(api_server, api, namespace, access)
    assert guard.refusal() is None
    api_server.kubectl("label", "namespace", TEAM, "other=y", "--overwrite")
    assert guard.refusal() is None
    api_server.kubectl("label", "namespace", TEAM, "team-")
    stop = guard.refusal()
    assert (stop is None) is goes_on
    assert stop is None or stop.reason == reasons.POLICY_CHANGED


def test_messages_of_the_api_server_do_not_leak_to_other_namespaces(api_server: ApiServer, api: Api) -> None:
    """An object that can't be read ends the run; the error's text may name hosts and rights of the operator."""
    nowhere = ApiClient(Configuration(host="https://127.0.0.1:1"))
    nowhere.configuration.retries = 0
    guard = replace(_guard(api_server, api, TEAM, [_BY_NAME]), api=Api(nowhere))
    stop = guard.refusal()
    assert stop is not None
    assert "could not be read again" in stop.message
    problem = Refusal(stop.reason, stop.message)
    assert redact_problem(problem, OWNER, f"{OWNER}/main") == problem
    assert "127.0.0.1" not in redact_problem(problem, TEAM, f"{OWNER}/main").message


@pytest.mark.parametrize("kind", ["GroupPolicy", "KafkaConnection"])
def test_an_older_crd_ends_the_run(api_server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It drops fields of stored objects, which changes no generation: a policy may then select more groups."""
    monkeypatch.setattr(api_module, "SCHEMAS_S", 0.0)
    guard, crd = _guard(api_server, api, OWNER, []), load_crd(kind)
    assert guard.refusal() is None
    older = copy.deepcopy(crd)
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    (spec["properties"]["match"] if kind == "GroupPolicy" else spec)["properties"].pop(
        "unprotect" if kind == "GroupPolicy" else "protect"
    )
    spec.get("properties", {}).get("match", {}).pop("x-kubernetes-validations", None)
    spec.pop("x-kubernetes-validations", None)
    try:
        use_crds(api_server, older)
        stop = wait_for(guard.refusal)
        assert stop.reason == reasons.CRD_OUTDATED
        assert f"the CRD of {kind} in the API server is older than the operator" in stop.message
    finally:
        use_crds(api_server, crd)
        wait_for(lambda: (again := guard.refusal()) is None or again.reason != reasons.CRD_OUTDATED)


@pytest.mark.parametrize(("number", "kind"), [(0, "GroupPolicy"), (1, "KafkaConnection")])
def test_an_object_that_a_watch_reported_in_part(api_server: ApiServer, api: Api, number: int, kind: str) -> None:
    """A watch that began under an older CRD drops the new fields, which changes neither version nor generation."""
    guard = _guard(api_server, api, OWNER, [_BY_NAME])
    objects = list(guard.objects)
    plural, whole = objects[number]
    dropped = "match" if kind == "GroupPolicy" else "access"
    objects[number] = (
        plural,
        whole | {"spec": {name: value for name, value in whole["spec"].items() if name != dropped}},
    )
    assert guard.refusal() is None
    stop = replace(guard, objects=tuple(objects)).refusal()
    assert stop is not None
    assert stop.reason == reasons.POLICY_CHANGED


def test_a_deleted_connection_is_a_change(api_server: ApiServer, api: Api) -> None:
    """It says so, to everybody."""
    guard = _guard(api_server, api, TEAM, [_BY_NAME])
    api_server.kubectl("delete", "kconn", "main", "-n", OWNER)
    assert guard.refusal() == Refusal(
        reasons.POLICY_CHANGED, "KafkaConnection main was edited or deleted during the run"
    )


@pytest.mark.parametrize("how", [(), ("--server-side",)])
@pytest.mark.parametrize(
    ("kind", "within"),
    [("GroupPolicy", "match"), ("GroupPolicy", ""), ("KafkaConnection", ""), ("GroupRestore", ""), ("GroupKeep", "")],
)
def test_a_field_that_the_crd_lost_makes_an_object_unusable(
    api_server: ApiServer, api: Api, kind: str, within: str, how: tuple[str, ...]
) -> None:
    """The API server drops it from stored objects, which changes no generation; what it left out would be selected."""
    crd, plural = load_crd(kind), PLURALS[kind]
    earlier = copy.deepcopy(crd)
    spec = earlier["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    (spec["properties"][within] if within else spec)["properties"]["but"] = {
        "type": "array",
        "items": {"type": "string"},
    }
    specs: dict[str, Any] = {
        "GroupPolicy": {"connectionRef": {"name": "main"}, "match": {"groups": ["*"]}, "action": "Alert"},
        "KafkaConnection": {"bootstrapServers": ["kafka:9092"], "access": [_BY_LABEL]},
        "GroupRestore": {"connectionRef": {"name": "main"}, "groups": ["g"]},
        "GroupKeep": {"connectionRef": {"name": "main"}, "groups": ["g"], "reason": "needed"},
    }
    obj = {"apiVersion": "grouphygiene.io/v1alpha1", "kind": kind, "metadata": {"name": "old", "namespace": OWNER}}
    whole = copy.deepcopy(specs[kind])
    (whole[within] if within else whole)["but"] = ["payments-*"]
    apply = ("apply", *how, "-f", "-")
    try:
        use_crds(api_server, earlier)
        wait_for(lambda: "but" in str(_applied(api_server, obj | {"spec": whole}, *apply)))
    finally:
        use_crds(api_server, crd)
    found = wait_for(lambda: (now := api.get(plural, OWNER, "old")) and "but" not in str(now["spec"]) and now)
    with pytest.raises(
        SpecError, match=f"it was written with {'.'.join(filter(None, ('spec', within, 'but')))}, which"
    ):
        refuse_unusable(found)
    if kind != "GroupRestore":
        # A user who applies the spec again knows what it says now.
        api_server.kubectl(*apply, input=yaml.safe_dump(obj | {"spec": specs[kind]}))
        refuse_unusable(api.get(plural, OWNER, "old"))
    api_server.kubectl("delete", plural, "old", "-n", OWNER)


def _applied(server: ApiServer, obj: dict[str, Any], *arguments: str) -> Any:
    return yaml.safe_load(server.kubectl(*arguments, "-o", "yaml", input=yaml.safe_dump(obj)).stdout)["spec"]
