"""The chart as Helm renders it, and what RBAC of any manifests comes to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testing.sandbox.helm import helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "group-hygiene"
VALUES = {"default": None} | {file.stem: file for file in sorted((ROOT / "deploy" / "helm" / "values").glob("*.yaml"))}
RELEASE, NAMESPACE = "group-hygiene", "group-hygiene"
# What has no default, as the manifests leave it: nobody publishes images yet.
_REGISTRY = "REPLACE-WITH-YOUR-REGISTRY"
IMAGE = [
    "--set",
    f"image.repository={_REGISTRY}/group-hygiene,pipeline.image.repository={_REGISTRY}/group-hygiene-pipeline",
]
Object = dict[str, Any]


def chosen(name: str) -> list[str]:
    """The options of helm for an example of values, or for `default`."""
    file = VALUES[name]
    return IMAGE if file is None else ["--values", str(file)]


@cache
def rendered(*options: str) -> str:
    """`helm template` of a release, without the CRDs and what `helm test` creates."""
    without = ("--skip-tests", "--set", "crds.enabled=false")
    done = helm("template", RELEASE, CHART, "--namespace", NAMESPACE, *IMAGE, *without, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> list[Object]:
    # libyaml: a tenth of the CPU time of safe_load.
    return [obj for obj in yaml.load_all(text, yaml.CSafeLoader) if obj]


def one(found: Iterable[Object], kind: str) -> Object:
    (obj,) = [obj for obj in found if obj["kind"] == kind]
    return obj


def pod_of(obj: Object) -> Object:
    """The template of the pods of a Deployment or a CronJob."""
    spec = obj["spec"]["jobTemplate"]["spec"] if obj["kind"] == "CronJob" else obj["spec"]
    return dict(spec["template"])


def rights(found: Iterable[Object]) -> set[tuple[str, str, str, str]]:
    """Who may do what and where, whatever the roles are called: (account, kind of role, namespace or "*", rules)."""
    everything = list(found)
    roles = {_key(obj): obj for obj in everything if obj["kind"] in ("Role", "ClusterRole")}
    granted: set[tuple[str, str, str, str]] = set()
    for binding in everything:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        namespace, reference = binding["metadata"].get("namespace", "*"), binding["roleRef"]
        place = namespace if reference["kind"] == "Role" else "*"
        rules = roles[reference["kind"], place, reference["name"]]["rules"]
        for subject in binding["subjects"]:
            account = f"{subject['namespace']}/{subject['name']}"
            granted.add((account, reference["kind"], namespace, json.dumps(rules, sort_keys=True)))
    return granted


def aggregated(found: Iterable[Object]) -> dict[str, Any]:
    """By what it is added to: the rules of each ClusterRole that is added to another."""
    return {
        label: obj["rules"]
        for obj in found
        if obj["kind"] == "ClusterRole"
        for label in obj["metadata"]["labels"]
        if "aggregate-to" in label
    }


def _key(obj: Object) -> tuple[str, str, str]:
    return obj["kind"], obj["metadata"].get("namespace", "*"), obj["metadata"]["name"]
