"""The JSON Schemas for editors and kubeconform: all examples fit them, and unknown fields do not."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from docsite.json_schema import json_schema
from group_hygiene.spec.crds import API_VERSION, PLURALS

ROOT = Path(__file__).parents[2]
Object = dict[str, Any]


def _examples() -> Iterator[Any]:
    for file in sorted((ROOT / "examples").rglob("*.yaml")):
        found = [obj for obj in yaml.safe_load_all(file.read_text()) if obj and obj.get("apiVersion") == API_VERSION]
        for index, obj in enumerate(found):
            yield pytest.param(obj, id=f"{file.relative_to(ROOT / 'examples')}-{index}")


EXAMPLES = list(_examples())


@cache
def _validator(kind: str) -> Any:
    schema = json_schema(kind)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def _errors(obj: Object) -> list[str]:
    return [error.message for error in _validator(obj["kind"]).iter_errors(obj)]


def test_each_kind_has_an_example() -> None:
    """So no schema is tested by nothing."""
    assert {param.values[0]["kind"] for param in EXAMPLES} == set(PLURALS)


@pytest.mark.parametrize("obj", EXAMPLES)
def test_examples_fit(obj: Object) -> None:
    """All of them, without an error."""
    assert _errors(obj) == []


@pytest.mark.parametrize("obj", EXAMPLES)
def test_unknown_fields_are_refused(obj: Object) -> None:
    """In each mapping of an example, however deep."""
    paths = list(_mappings(obj))
    assert {(), ("metadata",), ("spec",)} <= set(paths)
    for path in paths:
        changed = copy.deepcopy(obj)
        place: Any = changed
        for step in path:
            place = place[step]
        place["anUnknownField"] = "x"
        assert len(_errors(changed)) == 1, path


def _mappings(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of mappings with fields; labels and annotations have any keys."""
    if isinstance(value, dict) and path[-1:] not in {("labels",), ("annotations",), ("matchLabels",)}:
        yield path
        for key, child in value.items():
            yield from _mappings(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _mappings(child, (*path, index))


@pytest.mark.parametrize(
    ("patch", "complaint"),
    [
        pytest.param({"kind": "GroupPolicies"}, "'GroupPolicy' was expected", id="kind"),
        pytest.param({"apiVersion": "v1"}, f"'{API_VERSION}' was expected", id="version"),
        pytest.param({"metadata": {}}, "'name' is a required property", id="no-name"),
        pytest.param({"spec": {"action": "Delet"}}, "'Delet' is not one of", id="enum"),
        pytest.param({"spec": {"mode": True}}, "True is not of type 'string'", id="type"),
    ],
)
def test_what_is_refused(patch: Object, complaint: str) -> None:
    """What an editor marks."""
    policy = next(param.values[0] for param in EXAMPLES if param.values[0]["kind"] == "GroupPolicy")
    wrong = {**policy, **patch, "spec": {**policy["spec"], **patch.get("spec", {})}}
    errors = [error.message for error in _validator("GroupPolicy").iter_errors(wrong)]
    assert [error for error in errors if complaint in error] != []


def test_the_files_have_the_names_that_kubeconform_looks_for(tmp_path: Path) -> None:
    """{{.Group}}/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json, the kind in lower case; no extension of Kubernetes."""
    program = [sys.executable, "-m", "docsite.json_schema", str(tmp_path)]
    subprocess.run(program, cwd=ROOT, env={"PYTHONPATH": "operator:."}, check=True)
    group, version = API_VERSION.split("/")
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.json")}
    assert files == {Path(group) / f"{kind.lower()}_{version}.json" for kind in PLURALS}
    for file in files:
        text = (tmp_path / file).read_text()
        assert "x-kubernetes-" not in text
        assert json.loads(text)["$schema"] == "http://json-schema.org/draft-07/schema#"
