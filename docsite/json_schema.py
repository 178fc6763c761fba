"""A JSON Schema of each CRD, for editors and kubeconform: `python -m docsite.json_schema FOLDER`.

Unknown fields are errors, as with `kubectl apply --validate=strict`. Rules in CEL are not part of it: the API server
and `group-hygiene plan --validate-only` check these.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from group_hygiene.spec.crds import API_VERSION, GROUP, PLURALS, VERSION, schema_of


def write(folder: Path) -> None:
    """Write one file for each kind, by the names that kubeconform and the CRDs catalog use."""
    (folder / GROUP).mkdir(parents=True, exist_ok=True)
    for kind in PLURALS:
        text = json.dumps(json_schema(kind), indent=2, ensure_ascii=False)
        (folder / GROUP / f"{kind.lower()}_{VERSION}.json").write_text(f"{text}\n")


def json_schema(kind: str) -> dict[str, Any]:
    """The schema of the objects of a kind, as JSON Schema."""
    schema: dict[str, Any] = _strict(schema_of(kind))
    schema["properties"] |= {"apiVersion": {"const": API_VERSION}, "kind": {"const": kind}}
    schema["required"] = sorted({*schema["required"], "apiVersion", "kind"})
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": kind, **schema}


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A structural schema as JSON Schema, without the extensions of Kubernetes."""
    strict = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if "properties" in schema:
        strict["properties"] = {name: _strict(child) for name, child in schema["properties"].items()}
        strict["additionalProperties"] = False
    if "items" in schema:
        strict["items"] = _strict(schema["items"])
    if schema.get("x-kubernetes-list-type") == "set":
        strict["uniqueItems"] = True
    return strict


if __name__ == "__main__":
    write(Path(sys.argv[1]))
