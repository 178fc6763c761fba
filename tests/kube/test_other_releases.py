"""The CRDs, their rules and all examples on the oldest and the newest kube-apiserver that can be built here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml
from kubernetes.client import ApiException, CustomObjectsApi

from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.kubernetes.binaries import OTHER_RELEASES, kubernetes_version
from testing.sandbox.manifests import install
from tests.kube.test_crd_grouprestore import a_restore
from tests.kube.test_crd_patterns import CASES, FIELDS
from tests.kube.test_crd_rules import cases, every_rule
from tests.kube.test_crds import EXAMPLES, PLURALS, ROOT, a_connection, complaints
from tests.kube.test_documented_objects import SHOWN, in_namespace

_SLOW = pytest.mark.slow


@pytest.fixture(scope="module", params=OTHER_RELEASES)
def api_server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """With crds/ and deploy/ applied, in place of the server that the other files of this folder share."""
    with ApiServer(release=request.param) as server:
        install(server)
        server.kubectl("create", "namespace", "kafka")
        found = json.loads(server.kubectl("version", "-o", "json").stdout)["serverVersion"]["gitVersion"]
        assert found == f"v{kubernetes_version(request.param)}"
        yield server


def test_the_oldest_is_the_one_that_is_asked_for() -> None:
    """By the chart and by the page on installing."""
    oldest = kubernetes_version("oldest")
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "group-hygiene" / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={oldest}-0"
    minor = oldest.rpartition(".")[0]
    assert f"You need Kubernetes {minor} or later" in (ROOT / "docs" / "install.md").read_text()


@_SLOW
def test_rules(api: CustomObjectsApi) -> None:
    """Each accepts and refuses the same, with the same message."""
    wrong = []
    for kind, rule in every_rule():
        good, bad = cases(kind, rule)
        said = [re.sub(r"\[\d+\]", "[]", " ".join(text.split())) for text in complaints(api, bad)]
        refused = len(said) == 1 and said[0].startswith(rule.path) and rule.message in said[0]
        if complaints(api, good) or not refused:
            wrong.append((rule.path, rule.message, complaints(api, good), said))
    assert wrong == []


@_SLOW
def test_patterns(api: CustomObjectsApi) -> None:
    """Their rules compute messages, and take more of CEL than the others."""
    wrong = []
    for field, pattern, problem in CASES:
        said = complaints(api, FIELDS[field][0](pattern))
        if bool(said) is not bool(problem) or not all(text.startswith(field) and problem in text for text in said):
            wrong.append((field, pattern, said))
    assert wrong == []


@_SLOW
def test_rules_about_an_update(api: CustomObjectsApi) -> None:
    """They compare with the old object."""
    ledger = {"ledger": {"topic": "a"}}
    edits = [(a_restore({}, "fixed"), {"groups": ["b"]}), (a_connection(ledger, "fixed"), {"ledger": {"topic": "b"}})]
    for obj, edit in edits:
        place = ("grouphygiene.io", "v1alpha1", "kafka", PLURALS[obj["kind"]])
        api.create_namespaced_custom_object(*place, obj)
        with pytest.raises(ApiException, match="must not be changed"):
            api.patch_namespaced_custom_object(*place, "fixed", {"spec": edit})


@_SLOW
def test_examples(api_server: ApiServer) -> None:
    """Each file can be applied as it is, without an unknown field."""
    for file in EXAMPLES:
        api_server.kubectl("apply", "--validate=strict", "-f", str(file))


@_SLOW
def test_documented_objects(api: CustomObjectsApi) -> None:
    """All that the pages and examples/ show."""
    said = {}
    for number, (place, obj) in enumerate(SHOWN.items()):
        # The examples are there under their names.
        said[place] = complaints(api, in_namespace(obj, f"shown-{number}"))
    assert {place: texts for place, texts in said.items() if texts} == {}
