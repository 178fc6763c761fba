"""The CRD of GroupKeep on a real API server, and the same judged offline: what both accept and refuse."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import CustomObjectsApi

from group_hygiene.errors import SpecError
from group_hygiene.model.group_keep import KeptGroup
from group_hygiene.observe.of_objects import build_keep_status
from group_hygiene.spec.crds import violations
from group_hygiene.spec.policy import parse_keep
from testing.sandbox.kubernetes import ApiServer
from tests.kube.test_crd_grouprestore import refusal

EXAMPLE = Path(__file__).parents[2] / "examples" / "keep.yaml"
PLACE = ("grouphygiene.io", "v1alpha1", "kafka", "groupkeeps")


def a_keep(spec: dict[str, Any]) -> dict[str, Any]:
    """The smallest one, with `spec` over its spec; None takes a field away."""
    merged = {"connectionRef": {"name": "main"}, "groups": ["a"], "reason": "needed"} | spec
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupKeep",
        "metadata": {"name": "candidate", "namespace": "kafka"},
        "spec": {key: value for key, value in merged.items() if value is not None},
    }


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="smallest"),
        pytest.param({"groups": [f"group-{number}" for number in range(100)]}, id="groups-most"),
        pytest.param({"groups": ["x" * 1000]}, id="group-longest"),
        pytest.param({"connectionRef": {"name": "main", "namespace": "other"}}, id="other-namespace"),
        pytest.param({"until": "2030-01-31T12:00:00Z"}, id="until"),
        pytest.param({"until": "2299-12-31T23:59:59Z"}, id="until-latest"),
        pytest.param({"reason": "x" * 256}, id="reason-longest"),
    ],
)
def test_keep_is_accepted(api: CustomObjectsApi, spec: dict[str, Any]) -> None:
    stored = api.create_namespaced_custom_object(*PLACE, a_keep(spec), dry_run="All", field_validation="Strict")
    assert parse_keep(stored).groups == tuple(stored["spec"]["groups"])
    assert stored["status"] == {"observedGeneration": -1}
    assert violations(a_keep(spec)) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"groups": None}, "spec.groups", id="no-groups"),
        pytest.param({"groups": []}, "spec.groups", id="groups-empty"),
        pytest.param({"groups": [f"group-{number}" for number in range(101)]}, "spec.groups", id="groups-too-many"),
        pytest.param({"groups": ["a", "a"]}, "spec.groups", id="group-twice"),
        pytest.param({"groups": [""]}, "spec.groups", id="group-empty"),
        pytest.param({"groups": ["x" * 1001]}, "spec.groups", id="group-too-long"),
        pytest.param({"reason": None}, "spec.reason", id="no-reason"),
        pytest.param({"reason": ""}, "spec.reason", id="reason-empty"),
        pytest.param({"reason": "x" * 257}, "spec.reason", id="reason-too-long"),
        pytest.param({"until": "tomorrow"}, "spec.until", id="until-is-no-time"),
        pytest.param({"until": "2300-01-01T00:00:00Z"}, "spec.until", id="until-too-late"),
        pytest.param({"until": "1969-12-31T23:59:59Z"}, "spec.until", id="until-too-early"),
        pytest.param({"connectionRef": None}, "spec.connectionRef", id="no-connection"),
        pytest.param({"connectionRef": {"name": "Main"}}, "spec.connectionRef.name", id="connection-name"),
    ],
)
def test_keep_is_refused(api: CustomObjectsApi, spec: dict[str, Any], field: str) -> None:
    """By the API server, offline, and (but for names) by the parser."""
    obj = a_keep(spec)
    says = refusal(lambda: api.create_namespaced_custom_object(*PLACE, obj, dry_run="All", field_validation="Strict"))
    assert says
    assert all(text.startswith(field) for text in says)
    assert violations(obj)
    if field != "spec.connectionRef.name":
        with pytest.raises(SpecError):
            parse_keep(obj | {"metadata": obj["metadata"] | {"uid": "u"}})


def test_example_and_columns(api_server: ApiServer) -> None:
    """The example is accepted as it stands; kubectl shows what it came to, and `describe` each group's verdict."""
    kept = json.loads(api_server.kubectl("apply", "--validate=strict", "-f", str(EXAMPLE), "-o", "json").stdout)
    found = [KeptGroup("billing", True, "", "", "Empty")]
    status = build_keep_status(kept, found, datetime(2030, 1, 31, 12, 0, tzinfo=UTC))
    name, patch = kept["metadata"]["name"], json.dumps({"status": status})
    api_server.kubectl("patch", "kgk", name, "-n", "kafka", "--subresource=status", "--type=merge", "-p", patch)
    header, line = api_server.kubectl("get", "kgk", name, "-n", "kafka", "-o", "wide").stdout.splitlines()
    assert header.split() == ["NAME", "CONNECTION", "GROUPS", "KEPT", "REASON", "UNTIL", "AGE", "MESSAGE"]
    assert line.split()[:5] == [name, "main", "1", "True", "Kept"]
    described = api_server.kubectl("describe", "kgk", name, "-n", "kafka").stdout
    assert re.search(r"Exists:\s+true\n\s+Group:\s+billing\n\s+Protected:\s+true\n\s+State:\s+Empty", described)
    api_server.kubectl("delete", "-f", str(EXAMPLE))
