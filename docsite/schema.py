"""A CRD as data for a page: its columns, the fields of spec and status, and their validation rules. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule. path: of the field that has it. at: of the nested field to which the message belongs."""

    path: str
    at: str
    message: str
    expression: str


@dataclass(frozen=True, slots=True)
class Field:
    """One field with its path, such as `match.groups[]`; limits and default as texts, None = none."""

    path: str
    type: str
    required: bool
    default: str | None
    limits: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True)
class Kind:
    """One CRD: names, the columns of `kubectl get`, and the schema of its version."""

    name: str
    short: str
    plural: str
    version: str
    columns: tuple[Mapping[str, Any], ...]
    schema: Schema


def parse_kind(crd: Mapping[str, Any]) -> Kind:
    """Parse a CustomResourceDefinition with one version."""
    spec = crd["spec"]
    (version,) = spec["versions"]
    return Kind(
        name=spec["names"]["kind"],
        short=spec["names"]["shortNames"][0],
        plural=spec["names"]["plural"],
        version=f"{spec['group']}/{version['name']}",
        columns=tuple(version["additionalPrinterColumns"]),
        schema=version["schema"]["openAPIV3Schema"],
    )


def fields(schema: Schema, path: str = "", required: bool = False) -> Iterator[Field]:
    """A field and all below it, in the order of the CRD; lists of scalars have no separate field for their entries."""
    items = schema.get("items")
    yield Field(
        path,
        _type(schema),
        required,
        _shown(schema["default"]) if "default" in schema else None,
        tuple(_limits(schema)),
        schema.get("description", "").strip(),
    )
    inner = schema if items is None else items
    below = path if items is None else f"{path}[]"
    for name, child in inner.get("properties", {}).items():
        yield from fields(child, f"{below}.{name}" if below else name, name in inner.get("required", ()))


def rules(schema: Schema, path: str) -> Iterator[Rule]:
    """All CEL rules of a field and of the fields below it."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield Rule(path, rule.get("fieldPath", ""), rule["message"].strip(), " ".join(rule["rule"].split()))
    if "items" in schema:
        yield from rules(schema["items"], f"{path}[]")
    for name, child in schema.get("properties", {}).items():
        yield from rules(child, f"{path}.{name}")


def _type(schema: Schema) -> str:
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"map to {_type(schema['additionalProperties'])}"
    if schema.get("format") == "date-time":
        return "time"
    return str(schema["type"])


def _limits(schema: Schema) -> Iterator[str]:
    if "enum" in schema:
        yield "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        yield f"{least} to {most}"
    elif least is not None:
        yield f"at least {least}"
    elif most is not None:
        yield f"at most {most}"
    for key, text in (("maxItems", "at most {} entries"), ("maxProperties", "at most {} keys")):
        if key in schema:
            yield text.format(schema[key])
    if "maxLength" in schema and "enum" not in schema:
        yield f"at most {schema['maxLength']} characters"
    if "pattern" in schema:
        yield f"`{schema['pattern']}`"
    if "items" in schema:
        yield from (f"each {limit}" for limit in _limits(schema["items"]))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(entry)}" for key, entry in value.items()) + "}"
    return str(value)
