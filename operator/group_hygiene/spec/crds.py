"""The CRDs of this program, and the fields of their schemas."""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import yaml

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


def dropped_fields(obj: Mapping[str, Any]) -> list[str]:
    """The fields of a spec that a user applied, and that neither this program nor the object has: the CRD lost them.

    The API server drops them whenever it reads the object, and what they left out is selected then. What was applied
    stands in the managed fields (KEP-555) or, by kubectl's older way, in an annotation, until it is applied again.
    """
    kind, metadata = obj.get("kind"), obj["metadata"]
    known = spec_fields(kind) if kind in PLURALS else frozenset()
    # Other maps have keys of the user's choice.
    with_fields = {path.rpartition(".")[0] for path in known}

    def collect(value: Any, path: str, found: set[str]) -> set[str]:
        for name, inner in value.items() if isinstance(value, Mapping) and path in with_fields else ():
            below = f"{path}.{name}"
            collect(inner, below, found) if below in known else found.add(below)
        for inner in value if isinstance(value, list) else ():
            collect(inner, f"{path}[]", found)
        return found

    applied: set[str] = set()
    for manager in metadata.get("managedFields") or ():
        if manager.get("operation") == "Apply":
            collect(_managed((manager.get("fieldsV1") or {}).get("f:spec")), "spec", applied)
    with suppress(ValueError, AttributeError):
        collect(json.loads((metadata.get("annotations") or {}).get(_APPLIED, "{}")).get("spec"), "spec", applied)
    return sorted(applied - collect(obj.get("spec"), "spec", set()) if applied else ())


def _managed(fields: Any) -> Any:
    """The fields of a FieldsV1 as an object, without values."""
    if not isinstance(fields, Mapping):
        return None
    items = [_managed(inner) for name, inner in fields.items() if name.startswith("k:")]
    return items or {name[2:]: _managed(inner) for name, inner in fields.items() if name.startswith("f:")}


@functools.cache
def spec_fields(kind: str) -> frozenset[str]:
    """The paths of all fields of a kind's spec in this program."""
    found = load_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return frozenset(path for path in fields_of_schema(found) if path.startswith("spec."))
