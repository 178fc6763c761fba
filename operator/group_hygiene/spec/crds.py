"""The CRDs of this program, and the fields of their schemas."""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

# Also in the CRDs themselves, and in what grants rights on them.
GROUP, VERSION = "grouphygiene.io", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
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
    return msgspec.yaml.decode(crd_text(kind))


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


def dropped_fields(obj: Mapping[str, Any]) -> list[str]:
    """The fields of a spec that a user applied, and that neither this program nor the object has: the CRD lost them.

    The API server drops them whenever it reads the object, and what they left out is selected then. What was applied
    stands in the managed fields (KEP-555) or, by kubectl's older way, in an annotation, until it is applied again.
    Users write annotations: one that can't be read, or is nested more deeply than Python reads, is left out.
    """
    kind, metadata = obj.get("kind"), obj["metadata"]
    if kind not in PLURALS:
        return []
    applied: set[str] = set()
    for manager in metadata.get("managedFields") or ():
        if manager.get("operation") == "Apply":
            applied |= _unknown_fields(kind, (manager.get("fieldsV1") or {}).get("f:spec"))
    with suppress(ValueError, AttributeError, RecursionError):
        whole = json.loads((metadata.get("annotations") or {}).get(_APPLIED, "{}"))
        applied |= _unknown_fields(kind, whole.get("spec"))
    return sorted(applied - _unknown_fields(kind, obj.get("spec"))) if applied else []


def _unknown_fields(kind: str, spec: Any) -> set[str]:
    """The paths of fields that this program does not know. spec: a spec, or that of a FieldsV1 (`f:name`, `k:item`)."""
    known, parents = spec_fields(kind), _parents(kind)
    found: set[str] = set()

    def collect(value: Any, path: str) -> None:
        item = f"{path}[]"
        if isinstance(value, list):
            for inner in value if item in parents else ():
                collect(inner, item)
        for name, inner in value.items() if isinstance(value, Mapping) else ():
            below = item if name.startswith("k:") else f"{path}.{name.removeprefix('f:')}"
            if below in known or below in parents:
                collect(inner, below)
            elif path in parents and name != ".":
                found.add(below)

    collect(spec, "spec")
    return found


@functools.cache
def _parents(kind: str) -> frozenset[str]:
    """The paths of all objects of a kind's spec with fields of their own; other maps have keys of the user's choice."""
    return frozenset(path.rpartition(".")[0] for path in spec_fields(kind))


@functools.cache
def spec_fields(kind: str) -> frozenset[str]:
    """The paths of all fields of a kind's spec in this program."""
    found = load_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return frozenset(path for path in fields_of_schema(found) if path.startswith("spec."))
