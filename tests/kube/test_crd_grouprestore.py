"""The CRD of GroupRestore on a real API server: what it accepts, refuses and fills in."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException, CustomObjectsApi

from group_hygiene.engine.restorable import GroupResult, ResultKind, parse_restore
from group_hygiene.observe.of_objects import build_restore_status
from testing.sandbox.kubernetes import ApiServer
from tests.kube.test_crd_rules import CRDS

EXAMPLE = Path(__file__).parents[2] / "examples" / "restore.yaml"
PLACE = ("grouphygiene.io", "v1alpha1", "kafka", "grouprestores")
TIME = "2030-01-31T12:00:00Z"


@pytest.fixture(scope="module", autouse=True)
def _leave_nothing(api_server: ApiServer) -> Iterator[None]:
    yield
    api_server.kubectl("delete", "grouprestores", "--all", "-n", "kafka")


def a_restore(spec: dict[str, Any], name: str = "candidate") -> dict[str, Any]:
    """The smallest one, with `spec` over its spec; None takes a field away."""
    merged = {"connectionRef": {"name": "main"}, "groups": ["a"]} | spec
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupRestore",
        "metadata": {"name": name, "namespace": "kafka"},
        "spec": {key: value for key, value in merged.items() if value is not None},
    }


def refusal(call: Any) -> list[str]:
    """What the API server says against it; empty = accepted."""
    try:
        call()
    except ApiException as error:
        causes = json.loads(error.body)["details"]["causes"]
        return [f"{cause['field']}: {cause['message']}" for cause in causes if "not checked" not in cause["message"]]
    return []


POLICY = {"groups": None, "policyRef": {"name": "unused"}, "deletedAfter": TIME}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="groups"),
        pytest.param({"groups": [f"group-{number}" for number in range(1000)]}, id="groups-most"),
        pytest.param({"connectionRef": {"name": "main", "namespace": "other"}}, id="other-namespace"),
        pytest.param(POLICY, id="policy"),
        pytest.param(
            {"at": TIME, "outOfRangeOffsets": "Clamp", "allowUnknownTopicIdentity": True, "overwriteLater": True},
            id="options",
        ),
        pytest.param({"ttlSecondsAfterFinished": 0}, id="deleted-at-once"),
    ],
)
def test_restore_is_accepted(api: CustomObjectsApi, spec: dict[str, Any]) -> None:
    """Each of these is a restore, and what was left out is filled in."""
    stored = api.create_namespaced_custom_object(*PLACE, a_restore(spec), dry_run="All", field_validation="Strict")
    assert stored["spec"]["outOfRangeOffsets"] == spec.get("outOfRangeOffsets", "Skip")
    assert parse_restore(stored | {"metadata": stored["metadata"] | {"uid": "u"}})[1].overwrite_later is (
        "overwriteLater" in spec
    )
    assert stored["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        pytest.param({"groups": None}, "spec: must have either groups or policyRef", id="neither"),
        pytest.param(POLICY | {"groups": ["a"]}, "spec: must have either", id="both"),
        pytest.param({"deletedAfter": TIME}, "spec.deletedAfter: must be given with policyRef", id="after"),
        pytest.param(POLICY | {"deletedAfter": None}, "spec.deletedAfter: must be given", id="no-after"),
        pytest.param({"groups": []}, "spec.groups: Invalid value", id="no-group"),
        pytest.param({"groups": [str(n) for n in range(1001)]}, "spec.groups: Too many", id="too-many"),
        pytest.param({"groups": ["a", "a"]}, "spec.groups[1]: Duplicate value", id="twice"),
        pytest.param({"groups": [""]}, "spec.groups[0]: Invalid value", id="empty-id"),
        pytest.param({"connectionRef": None}, "spec.connectionRef: Required value", id="no-connection"),
        pytest.param({"connectionRef": {"name": "Main"}}, "spec.connectionRef.name: must be", id="name"),
        pytest.param({"at": "yesterday"}, "spec.at: Invalid value", id="no-time"),
        pytest.param({"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished: Invalid value", id="ttl"),
        pytest.param({"outOfRangeOffsets": "Guess"}, "spec.outOfRangeOffsets: Unsupported value", id="mode"),
    ],
)
def test_restore_is_refused(api: CustomObjectsApi, spec: dict[str, Any], says: str) -> None:
    """One defect, and one complaint about it."""
    said = refusal(lambda: api.create_namespaced_custom_object(*PLACE, a_restore(spec), dry_run="All"))
    assert len(said) == 1
    field, _, text = says.partition(": ")
    assert said[0].startswith(f"{field}: ")
    assert text in said[0]


# Field -> a change of it in the restore of the next test, or in the one of a policy.
CHANGES: dict[str, Any] = {
    "connectionRef": {"name": "other"},
    "groups": ["b"],
    "policyRef": {"name": "other"},
    "deletedAfter": "2030-01-30T12:00:00Z",
    "at": "2030-02-01T12:00:00Z",
    "outOfRangeOffsets": "Clamp",
    "allowUnknownTopicIdentity": True,
    "overwriteLater": True,
}


def test_restore_is_immutable(api: CustomObjectsApi) -> None:
    """What was asked for stays as it is; labels may change, and when the object is deleted."""
    schema = CRDS["GroupRestore"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert {*CHANGES, "ttlSecondsAfterFinished"} == set(schema["properties"])
    api.create_namespaced_custom_object(*PLACE, a_restore({}, "fixed"))
    api.create_namespaced_custom_object(*PLACE, a_restore(POLICY | {"at": TIME}, "fixed-policy"))

    def said(name: str, change: dict[str, Any]) -> list[str]:
        return refusal(lambda: api.patch_namespaced_custom_object(*PLACE, name, change))

    for field, value in CHANGES.items():
        name = "fixed-policy" if field in ("policyRef", "deletedAfter", "at") else "fixed"
        (only,) = said(name, {"spec": {field: value}})
        assert "must not be changed" in only, field
    assert "must not be changed" in " ".join(said("fixed", {"spec": {"at": TIME}}))
    assert "must not be changed" in " ".join(said("fixed-policy", {"spec": {"at": None}}))
    for seconds in (60, 5, None):
        assert said("fixed", {"spec": {"ttlSecondsAfterFinished": seconds}}) == []
    assert said("fixed", {"metadata": {"labels": {"team": "a"}}}) == []


def test_example_and_columns(api_server: ApiServer) -> None:
    """The example is accepted as it stands, and kubectl shows it under the short name."""
    api_server.kubectl("apply", "--validate=strict", "-f", str(EXAMPLE))
    shown = api_server.kubectl("get", "kgr", "-n", "kafka", "-o", "wide").stdout
    assert shown.split("\n")[0].split() == [
        "NAME",
        "CONNECTION",
        "GROUPS",
        "RESTORED",
        "READY",
        "REASON",
        "AGE",
        "MESSAGE",
    ]


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind) for kind in ResultKind])
def test_status_fits(api: CustomObjectsApi, kind: ResultKind) -> None:
    """What the operator would write is stored as it is: no field of it is unknown or of another type."""
    now = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
    stored = api.create_namespaced_custom_object(*PLACE, a_restore({}, f"told-{kind.lower()}"))
    status = build_restore_status(stored, [GroupResult("a", kind, "GroupActive", "why", now)], now)
    name = stored["metadata"]["name"]
    after = api.patch_namespaced_custom_object_status(*PLACE, name, {"status": status}, field_validation="Strict")
    assert after["status"] == status
