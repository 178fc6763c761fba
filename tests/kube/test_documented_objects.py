"""The objects that README, docs/ and examples/ show, on a real API server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes.client import CustomObjectsApi

from group_hygiene.spec.crds import API_VERSION, PLURALS
from group_hygiene.spec.fields import timestamp
from testing.sandbox import argocd
from testing.sandbox.kubernetes import ApiServer
from tests.kube.test_crd_rules import BASES
from tests.kube.test_crds import DELETE, Object, a_policy, complaints

ROOT = Path(__file__).parents[2]
_NAMESPACE = "kafka"


def shown_objects() -> dict[str, Object]:
    """Each whole object of ours in a block of YAML of a page, or in a file of examples/, by its place and name."""
    texts = [
        (page.stem, block)
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    examples = ROOT / "examples"
    texts += [
        (str(file.relative_to(examples).with_suffix("")), file.read_text()) for file in sorted(examples.rglob("*.yaml"))
    ]
    found: dict[str, Object] = {}
    for place, text in texts:
        for obj in yaml.safe_load_all(text):
            if isinstance(obj, dict) and obj.get("apiVersion") == API_VERSION:
                # Times as the text has them.
                plain = json.loads(json.dumps(obj, default=timestamp))
                name, number = f"{place}-{obj['metadata']['name']}", len(found)
                found[f"{name}-{number}" if name in found else name] = plain
    return found


SHOWN = shown_objects()


def in_namespace(obj: Object, name: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "name": name, "namespace": _NAMESPACE}}


@pytest.mark.parametrize("obj", [pytest.param(obj, id=place) for place, obj in SHOWN.items()])
def test_documented_object_is_accepted(api: CustomObjectsApi, obj: Object) -> None:
    """Without an unknown field, in whichever namespace."""
    assert complaints(api, in_namespace(obj, obj["metadata"]["name"])) == []


@pytest.fixture(scope="module", autouse=True)
def _leave_nothing(api_server: ApiServer) -> Iterator[None]:
    yield
    api_server.kubectl("delete", ",".join(PLURALS.values()), "--all", "-n", _NAMESPACE)


def _quiet_objects() -> dict[str, Object]:
    """Those that are shown; and, since users write less, one whose window has only what it must have."""
    window = {"from": "22:00", "to": "04:00"}
    made = {"least-window": a_policy({**DELETE, "delete": {"windows": [window]}})}
    for kind, specs in BASES.items():
        for number, spec in enumerate(specs):
            made[f"{kind}-{number}"] = {"apiVersion": API_VERSION, "kind": kind, "metadata": {}, "spec": spec}
    return {**SHOWN, **made}


def _applied(server: ApiServer, objects: list[Object], *options: str) -> list[Object]:
    """Apply them, and what the API server has then."""
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    server.kubectl("apply", *options, "-f", "-", input=json.dumps(listed))
    stored = json.loads(server.kubectl("get", ",".join(PLURALS.values()), "-n", _NAMESPACE, "-o", "json").stdout)
    by_name = {item["metadata"]["name"]: item for item in stored["items"]}
    return [by_name[obj["metadata"]["name"]] for obj in objects]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="client-side"),
        pytest.param(("--server-side", "--field-manager=argocd-controller"), id="server-side"),
    ],
)
def test_git_and_a_second_manager_stay_quiet(api_server: ApiServer, options: tuple[str, ...]) -> None:
    """Argo CD shows none of these objects as OutOfSync, and another program may apply them, too, without a conflict.

    The API server adds nothing that either would take for an edit.
    """
    prefix = "quiet-server" if options else "quiet"
    places = _quiet_objects()
    objects = [in_namespace(obj, f"{prefix}-{number}") for number, obj in enumerate(places.values())]

    def noisy(live: list[Object]) -> list[str]:
        found = argocd.out_of_sync(list(zip(objects, live, strict=True)))
        return [place for place, is_noisy in zip(places, found, strict=True) if is_noisy]

    assert noisy(_applied(api_server, objects, *options)) == []
    # kubectl names the objects with a conflict, and fails.
    again = _applied(api_server, objects, "--server-side", "--field-manager=second")
    assert noisy(again) == []


def test_argo_cd_would_show_an_edit(api_server: ApiServer) -> None:
    """Else the test above would prove nothing: an item that the API server adds is a difference."""
    git = a_policy({"match": {"groups": ["a"]}}, "edited")
    (live,) = _applied(api_server, [git])
    assert argocd.out_of_sync([(git, live)]) == [False]
    live["spec"]["match"]["groups"] += ["b"]
    assert argocd.out_of_sync([(git, live)]) == [True]
