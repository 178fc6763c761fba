"""The kustomization and the commands of docs/install.md, by what `kubectl kustomize` makes of them. No API server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests import install_page

ROOT = Path(__file__).parents[2]


def _built(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def test_the_kustomization_sets_the_image(tmp_path: Path) -> None:
    """No container is left with the name of an image that no registry has."""
    content = install_page.kustomization()
    (overlay,) = content["resources"]
    content["resources"] = [os.path.relpath((ROOT / install_page.FOLDER / overlay).resolve(), tmp_path.resolve())]
    (tmp_path / "kustomization.yaml").write_text(json.dumps(content))
    pods = [obj["spec"]["template"]["spec"] for obj in _built(tmp_path) if obj["kind"] == "Deployment"]
    images = [container["image"] for pod in pods for container in pod["containers"]]
    (image,) = content["images"]
    assert images == [f"{image['newName']}:{image['newTag']}"]


def test_the_binding_names_what_the_manifests_have() -> None:
    """The ClusterRole for Secrets and the ServiceAccount of the operator, for the namespace of the quickstart."""
    built = {
        (obj["kind"], obj["metadata"]["name"]): obj for obj in _built(ROOT / "deploy/kustomize/overlays/cluster-wide")
    }
    *_, words = install_page.commands()
    options = dict(word[2:].split("=") for word in words if word.startswith("--"))
    assert ("ClusterRole", options["clusterrole"]) in built
    namespace, name = options["serviceaccount"].split(":")
    assert built["ServiceAccount", name]["metadata"]["namespace"] == namespace
    connection, policy = yaml.safe_load_all((ROOT / "examples" / "quickstart.yaml").read_text())
    assert {obj["metadata"]["namespace"] for obj in (connection, policy)} == {words[words.index("-n") + 1]}


def _example(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "examples" / name).read_text())
    return content


def test_the_examples_of_idle_evidence_fit_the_shipped_pipeline() -> None:
    """The CronJob reads the connection of the example, and writes where that one has its tables, but for the bucket."""
    (job,) = [obj for obj in _built(ROOT / "deploy" / "pipeline") if obj["kind"] == "CronJob"]
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    options = dict(word[2:].split("=", 1) for word in container["args"] if word.startswith("--"))
    connection = _example("connection-activity.yaml")
    assert (options["connection"], options["namespace"]) == (
        connection["metadata"]["name"],
        connection["metadata"]["namespace"],
    )
    uri = connection["spec"]["activity"]["uri"]
    assert options["warehouse"].replace("REPLACE-WITH-YOUR-BUCKET", "my-bucket") == uri.replace("s3:", "s3a:")
    (of_the_chart,) = yaml.safe_load((ROOT / "deploy/helm/values/pipeline.yaml").read_text())["pipeline"]["connections"]
    assert of_the_chart["warehouse"] == uri.replace("s3:", "s3a:")
    for name in ("policy-idle.yaml", "policy-alert-expires.yaml", "policy-stale-offsets.yaml"):
        policy = _example(name)
        assert policy["spec"]["connectionRef"] == {"name": connection["metadata"]["name"]}
        assert policy["metadata"]["namespace"] == connection["metadata"]["namespace"]
    quickstart = next(yaml.safe_load_all((ROOT / "examples" / "quickstart.yaml").read_text()))
    without = {key: value for key, value in connection["spec"].items() if key != "activity"}
    assert without == quickstart["spec"]
