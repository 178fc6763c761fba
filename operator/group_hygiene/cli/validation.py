"""Validate objects against the CRDs, without an API server: their structure, and CEL rules of a simple form.

`policy.parse_policy` and `connection.parse_connection` check rules that compare fields. No message contains a value: a
user may have written a password in place of the name of a Secret.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jsonschema

from group_hygiene.spec.crds import VERSION, fields_of_schema, load_crd

_NAME = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_METADATA_FIELDS = (
    *("annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers"),
    *("generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences"),
    *("resourceVersion", "selfLink", "uid"),
)
_METADATA = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        **{field: {} for field in _METADATA_FIELDS},
        "namespace": {"type": "string"},
        "name": {
            "type": "string",
            "maxLength": 253,
            "x-kubernetes-validations": [
                {"rule": f"self.matches('{_NAME}')", "message": "must be lower-case letters, digits, '-' and '.'"}
            ],
        },
    },
}
_MATCHES = re.compile(r"self\.matches\(\s*(r?)'((?:[^'\\]|\\.)*)'\s*\)")
_TYPES = {
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


class Violation(NamedTuple):
    """An error in one field: its path in the object, and what is expected."""

    path: tuple[str | int, ...]
    message: str

    @property
    def field(self) -> str:
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return text.removeprefix(".")


def without_nulls(value: Any) -> Any:
    """Without fields that are null, as the API server prunes them."""
    if isinstance(value, Mapping):
        return {key: without_nulls(child) for key, child in value.items() if child is not None}
    return [without_nulls(child) for child in value] if isinstance(value, list) else value


def violations(obj: Mapping[str, Any]) -> list[Violation]:
    """All violations of the CRD of the object's kind, in the order of the fields."""
    kind = str(obj["kind"])
    found = [each for error in _validator(kind).iter_errors(obj) for each in _violations_of(kind, error)]
    return sorted(set(found), key=lambda violation: (violation.field, violation.message))


@functools.cache
def _validator(kind: str) -> Any:
    validator = jsonschema.validators.extend(jsonschema.Draft7Validator, {"x-kubernetes-validations": _check_rules})
    return validator(schema_of(kind))


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind's objects, as JSON Schema with the extensions of Kubernetes; unknown fields are refused."""
    versions = load_crd(kind)["spec"]["versions"]
    version = next(v for v in versions if v["name"] == VERSION)
    schema = _strict(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _METADATA}
    schema["required"] = [*schema.get("required", ()), "metadata"]
    return schema


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A structural schema as JSON Schema that refuses unknown fields, as `kubectl apply --validate=strict` does."""
    strict = dict(schema)
    if "properties" in schema:
        strict["properties"] = {name: _strict(child) for name, child in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            strict.setdefault("additionalProperties", False)
    if "items" in schema:
        strict["items"] = _strict(schema["items"])
    if schema.get("x-kubernetes-list-type") == "set":
        strict["uniqueItems"] = True
    return strict


def _check_rules(
    validator: Any, rules: Sequence[Mapping[str, str]], instance: Any, schema: Mapping[str, Any]
) -> Iterator[jsonschema.ValidationError]:
    """Check rules that need no CEL. As in the CRDs, each guards those after it, so one mistake is one violation."""
    if not validator.is_type(instance, schema.get("type", "object")):
        return
    for rule in rules:
        if rule_holds(rule["rule"], instance) is False:
            yield jsonschema.ValidationError(rule["message"])
            return


def rule_holds(rule: str, value: Any) -> bool | None:
    """Whether a CEL rule of the form `self.size() > 0` or `self.matches('...') && ...` holds; None = another form."""
    if rule.strip() == "self.size() > 0":
        return len(value) > 0
    patterns = [text if raw else text.replace("\\\\", "\\") for raw, text in _MATCHES.findall(rule)]
    if not patterns or _MATCHES.sub("", rule).replace("&&", "").strip():
        return None
    # In Go, `$` matches only at the end of a text; in Python, a newline may follow.
    return all(re.search(re.sub(r"\$$", r"\\Z", pattern), value) for pattern in patterns)


def _suggestion(kind: str, name: str, known: Collection[str]) -> str:
    """A known field with a similar name, or else one with this name in another place of the spec."""
    places = sorted(path for path in fields_of_schema(_validator(kind).schema) if path.startswith("spec."))
    elsewhere = [path for path in places if path.rpartition(".")[2] == name]
    near = difflib.get_close_matches(name, known, 1) or elsewhere[:1]
    return f"; did you mean {near[0]}?" if near else ""


def _violations_of(kind: str, error: Any) -> Iterator[Violation]:
    path, wanted = tuple(error.absolute_path), error.validator_value
    match error.validator:
        case "additionalProperties":
            known = error.schema["properties"]
            for name in map(str, error.instance):
                if name not in known:
                    yield Violation((*path, name), f"unknown field{_suggestion(kind, name, known)}")
        case "required":
            missing = [name for name in wanted if name not in error.instance]
            yield from (Violation((*path, name), "must be given") for name in missing)
        case "type":
            yield Violation(path, f"must be {_TYPES.get(wanted, wanted)}")
        case "enum":
            yield Violation(path, f"must be one of {', '.join(map(str, wanted))}")
        case "minimum" | "maximum":
            bound = "at least" if error.validator == "minimum" else "at most"
            yield Violation(path, f"must be {bound} {wanted}")
        case "minItems" | "minLength" if wanted == 1:
            yield Violation(path, "must not be empty")
        case "maxItems" | "maxLength" | "maxProperties":
            unit = "characters" if error.validator == "maxLength" else "entries"
            yield Violation(path, f"must have at most {wanted} {unit}")
        case "uniqueItems":
            yield Violation(path, "must not hold the same value twice")
        case "x-kubernetes-validations":
            yield Violation(path, error.message)
        case other:
            yield Violation(path, f"does not fit the schema ({other})")
