"""The CRDs of this program, and the fields of their schemas."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping
from typing import Any

import yaml

# Also in the CRDs themselves, and in what grants rights on them.
GROUP, VERSION = "grouphygiene.io", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PLURALS = {
    "GroupPolicy": "grouppolicies",
    "KafkaConnection": "kafkaconnections",
    "GroupRestore": "grouprestores",
    "GroupKeep": "groupkeeps",
}


def crd_text(kind: str) -> str:
    """The YAML of a kind's CRD in this package, with comments and a final newline."""
    return (importlib.resources.files("group_hygiene") / "crds" / f"{PLURALS[kind]}.yaml").read_text("utf-8")


def load_crd(kind: str) -> Any:
    """The CRD of a kind in this package."""
    return yaml.safe_load(crd_text(kind))


def fields_of(crd: Mapping[str, Any], version: str) -> frozenset[str]:
    """The paths of all fields that a version of a CRD has, like `spec.match.groups[]`; empty = no such version."""
    served = [each for each in crd["spec"]["versions"] if each["name"] == version and each["served"]]
    return frozenset[str]().union(*(fields_of_schema(each["schema"]["openAPIV3Schema"]) for each in served))


def fields_of_schema(schema: Mapping[str, Any]) -> frozenset[str]:
    """The paths of all fields that a schema has, in the format of `fields_of`."""
    found: set[str] = set()

    def collect(schema: Mapping[str, Any], path: str) -> None:
        for name, child in (schema.get("properties") or {}).items():
            found.add(f"{path}{name}")
            collect(child, f"{path}{name}.")
        if "items" in schema:
            collect(schema["items"], f"{path.removesuffix('.')}[].")

    collect(schema, "")
    return frozenset(found)


@functools.cache
def spec_fields(kind: str) -> frozenset[str]:
    """The paths of all fields of a kind's spec in this program."""
    found = load_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return frozenset(path for path in fields_of_schema(found) if path.startswith("spec."))
