"""Validate objects against the CRDs, without an API server: their structure, and their CEL rules.

No message contains a value: a user may have written a password in place of the name of a Secret.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import jsonschema

from group_hygiene.spec.crds import VERSION, fields_of_schema, load_crd
from group_hygiene.spec.patterns import WHITE_SPACE

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
_Path = tuple[str | int, ...]
# What Kubernetes adds to CEL, as far as the CRDs use it.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "substring": lambda text, begin, end=None: text[begin:end],
    "indexOf": lambda text, part: text.find(part),
    "trim": lambda text: text.strip(WHITE_SPACE),
    "replace": lambda text, old, new: text.replace(old, new),
    "getMilliseconds": lambda duration: int(duration.total_seconds() * 1000),
    "getHours": lambda moment, zone="UTC": _hour(moment, zone),
}
_FORMATS = jsonschema.FormatChecker(())
_TYPES = {
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


def _hour(moment: datetime, zone: str) -> int:
    """In a time zone; -1 = it is not known. The library logs what a function raises, with the value."""
    try:
        return moment.astimezone(ZoneInfo(zone)).hour
    except (ValueError, OSError, KeyError):
        return -1


def _is_time(text: object) -> bool:
    return not isinstance(text, str) or ("T" in text and datetime.fromisoformat(text).tzinfo is not None)


_FORMATS.checks("date-time", ValueError)(_is_time)


class Violation(NamedTuple):
    """An error in one field: its path in the object, and what is expected."""

    path: tuple[str | int, ...]
    message: str

    @property
    def field(self) -> str:
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return text.removeprefix(".")


def without_nulls(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Without those null fields that a server-side apply takes for left out: of a spec, only those with a default.

    It refuses the others, which `kubectl create` prunes: `tls:` with nothing after it may be a mistake. Required ones
    are left out here, so that they are reported as missing.
    """
    spec = _validator(str(obj["kind"])).schema["properties"]["spec"]
    return {
        name: _without_nulls(child, spec if name == "spec" else {}) for name, child in obj.items() if child is not None
    }


def _without_nulls(value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        fields, required = schema.get("properties") or {}, schema.get("required") or ()
        refused = {name for name, field in fields.items() if "default" not in field and name not in required}
        return {
            name: _without_nulls(child, fields.get(name) or {})
            for name, child in value.items()
            if child is not None or name in refused
        }
    items = schema.get("items") or {}
    return [_without_nulls(child, items) for child in value] if isinstance(value, list) else value


def violations(obj: Mapping[str, Any]) -> list[Violation]:
    """All violations of the CRD of the object's kind, in the order of the fields: of its structure, and of its rules.

    The API server reports those of the structure first, and then those of the rules. Here a rule is checked too, unless
    the structure of what it is about is wrong.
    """
    kind = str(obj["kind"])
    validator = _validator(kind)
    filled = _with_defaults(obj, validator.schema)
    errors = (
        error
        for error in validator.iter_errors(filled)
        # The type of a null is wrong, too.
        if error.validator != "enum" or error.instance is not None
    )
    found = [each for error in errors for each in _violations_of(kind, error)]
    wrong = [violation.path for violation in found]
    found += _broken_rules(filled, validator.schema, wrong, ())
    return sorted(set(found), key=lambda violation: (violation.field, violation.message))


@functools.cache
def _validator(kind: str) -> Any:
    keywords = {"x-kubernetes-list-map-keys": _check_map_keys}
    validator = jsonschema.validators.extend(jsonschema.Draft7Validator, keywords)
    return validator(schema_of(kind), format_checker=_FORMATS)


def _with_defaults(value: Any, schema: Mapping[str, Any]) -> Any:
    """With the schema's defaults, as the API server fills them in."""
    if isinstance(value, Mapping):
        children: Mapping[str, Any] = schema.get("properties") or {}
        other = schema.get("additionalProperties") or {}
        missing = {
            name: child["default"] for name, child in children.items() if "default" in child and name not in value
        }
        return {name: _with_defaults(each, children.get(name) or other) for name, each in {**value, **missing}.items()}
    return [_with_defaults(each, schema.get("items") or {}) for each in value] if isinstance(value, list) else value


def _check_map_keys(
    _validator: Any, keys: Sequence[str], value: Any, _schema: Mapping[str, Any]
) -> Iterator[jsonschema.ValidationError]:
    if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        found = [str([each.get(key) for key in keys]) for each in value]
        if len(set(found)) < len(found):
            yield jsonschema.ValidationError("")


def _broken_rules(value: Any, schema: Mapping[str, Any], wrong: Collection[_Path], path: _Path) -> Iterator[Violation]:
    """wrong: the paths of violations of the structure."""
    rules = schema.get("x-kubernetes-validations")
    if rules and not any(each[: len(path)] == path[: len(each)] for each in wrong):
        typed = _typed(value, schema)
        for rule in rules:
            # A new object has no old one.
            if "oldSelf" not in rule["rule"] and not _evaluated(rule["rule"], typed):
                at = (*path, *filter(None, rule.get("fieldPath", "").split(".")))
                message = _evaluated(rule["messageExpression"], typed) if "messageExpression" in rule else ""
                yield Violation(at, message or rule["message"])
                # As in the CRDs, each guards those after it, so one mistake is one violation.
                break
    if isinstance(value, Mapping):
        for name, child in (schema.get("properties") or {}).items():
            if name in value:
                yield from _broken_rules(value[name], child, wrong, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _broken_rules(each, schema.get("items") or {}, wrong, (*path, index))


def _typed(value: Any, schema: Mapping[str, Any]) -> Any:
    """As rules see it: with times."""
    if schema.get("format") == "date-time" and isinstance(value, str):
        return datetime.fromisoformat(value)
    if isinstance(value, Mapping):
        return {name: _typed(each, (schema.get("properties") or {}).get(name, {})) for name, each in value.items()}
    return [_typed(each, schema.get("items") or {}) for each in value] if isinstance(value, list) else value


def _evaluated(expression: str, value: Any) -> Any:
    """The value of a CEL expression; None = it can't be evaluated, as where a time zone is not known."""
    # Imported here: it takes a second, and most commands read no files.
    from cel import Context

    try:
        return _compiled(expression).execute(Context(variables={"self": value}, functions=_FUNCTIONS))
    except (RuntimeError, ValueError, KeyError):
        return None


@functools.cache
def _compiled(expression: str) -> Any:
    """Of the CRDs, so there are few."""
    import cel

    return cel.compile(expression)


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
            left_out = ", or be left out" if error.instance is None else ""
            yield Violation(path, f"must be {_TYPES.get(wanted, wanted)}{left_out}")
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
        case "uniqueItems" | "x-kubernetes-list-map-keys":
            yield Violation(path, "must not hold the same value twice")
        case "format":
            yield Violation(path, "must be a time, like 2030-01-31T12:00:00Z")
        case other:
            yield Violation(path, f"does not fit the schema ({other})")
