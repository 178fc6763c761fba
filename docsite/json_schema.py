"""A JSON Schema of each CRD, for editors and kubeconform: `python -m docsite.json_schema FOLDER`.

Unknown fields are errors, as with `kubectl apply --validate=strict`. Rules in CEL are not part of it: the API server
and `group-hygiene plan --validate-only` check these.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from group_hygiene.cli.validation import schema_of
from group_hygiene.spec.crds import API_VERSION, GROUP, PLURALS, VERSION


def write(folder: Path) -> None:
    """Write one file for each kind, by the names that kubeconform and the CRDs catalog use."""
    (folder / GROUP).mkdir(parents=True, exist_ok=True)
    for kind in PLURALS:
        text = json.dumps(json_schema(kind), indent=2, ensure_ascii=False)
        (folder / GROUP / f"{kind.lower()}_{VERSION}.json").write_text(f"{text}\n")


def json_schema(kind: str) -> dict[str, Any]:
    """The schema of the objects of a kind, as JSON Schema."""
    schema: dict[str, Any] = _plain(schema_of(kind))
    schema["properties"] |= {"apiVersion": {"const": API_VERSION}, "kind": {"const": kind}}
    schema["required"] = sorted({*schema["required"], "apiVersion", "kind"})
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": kind, **schema}


def _plain(value: Any) -> Any:
    """Without the extensions of Kubernetes."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {key: _plain(entry) for key, entry in value.items() if not key.startswith("x-kubernetes-")}


if __name__ == "__main__":
    write(Path(sys.argv[1]))
