"""The CRDs of this program, the fields of their schemas, and the one judge of objects by them."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.resources
import importlib.util
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.machinery import PathFinder
from itertools import islice
from typing import Annotated, Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from group_hygiene.errors import SpecError

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


# Judges objects by the CRDs of this package, without an API server: their structure, and their rules in CEL. Pure.
#
# The only place for these rules. The operator judges each spec that it reads, as it may have been stored under an older
# CRD, and commands judge files. No message contains a value of an object, except patterns of names: a user may have
# written a password in place of the name of a Secret.
#
# An expression that can't be evaluated is a violation. Only verdicts whose expressions were all evaluated are
# remembered.

# White space as Go's TrimSpace defines it: without four control characters that Python counts.
WHITE_SPACE = "".join(c for c in map(chr, range(0x3001)) if c.isspace() and not "\x1c" <= c <= "\x1f")
# Far more than the largest object that the operator stores takes.
_CPU_S = 5.0
# Far more than the levels of any CRD.
_LEVELS = 64
# The verdicts that are remembered, and the violations that each shows.
_VERDICTS, _SHOWN = 10_000, 3
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_METADATA_FIELDS = (
    *("annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers"),
    *("generateName", "generation", "labels", "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid"),
)
_METADATA: Mapping[str, Any] = {
    "type": "object",
    "required": ["name"],
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


def _hour(moment: datetime, zone: str) -> int:
    """-1 = an unknown zone. The library logs what a function raises, with the value."""
    return moment.astimezone(ZoneInfo(zone)).hour if zone in _zones() else -1


def _substring(text: str, begin: int, end: int) -> str:
    if not 0 <= begin <= end <= len(text):
        raise IndexError("substring: out of range")
    return text[begin:end]


_TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "string": ("a text", lambda value: isinstance(value, str)),
    "integer": ("a whole number", lambda n: isinstance(n, int) and not isinstance(n, bool) and -(2**63) <= n < 2**63),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "array": ("a list", lambda value: isinstance(value, list)),
    "object": ("a mapping", lambda value: isinstance(value, Mapping)),
}
# What Kubernetes adds to CEL, as far as the CRDs use it.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "length": len,
    "substring": lambda text, begin, end=None: _substring(text, begin, len(text) if end is None else end),
    "indexOf": lambda text, part: text.find(part),
    "trim": lambda text: text.strip(WHITE_SPACE),
    "replace": lambda text, old, new: text.replace(old, new),
    "getMilliseconds": lambda duration: int(duration.total_seconds() * 1000),
    "getHours": _hour,
}


_Time = Annotated[datetime, msgspec.Meta(tz=True)]
# The generation and a hash of the spec; None = the spec is not JSON.
_Form = tuple[int, bytes] | None


class Violation(NamedTuple):
    """An error in one field: its path in the object, and what is expected."""

    path: tuple[str | int, ...]
    message: str

    @property
    def field(self) -> str:
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return text.removeprefix(".")


@dataclass(frozen=True, slots=True)
class SpecVerdict:
    """What is wrong with a spec, as a text; "" = nothing. fields: those right below the spec that are wrong."""

    problem: str = ""
    fields: frozenset[str] = frozenset()


def violations(obj: Mapping[str, Any]) -> list[Violation]:
    """All violations of the CRD of the object's kind, sorted by field; unknown fields are some.

    The API server reports those of the structure first, and then those of the rules. Here a rule is checked, too,
    unless the structure of its own field is so wrong that the API server would check none. Nulls count as in a
    server-side apply, which refuses those of fields without a default: `tls:` with nothing after it may be a mistake.
    """
    kind = str(obj["kind"])
    schema = schema_of(kind)
    judging = _Judging(schema, is_strict=True)
    judging.judge(_filled(obj, schema), schema, ())
    if not judging.found:
        _remember(kind, obj, _form(obj), SpecVerdict())
    return sorted(set(judging.found), key=lambda violation: (violation.field, violation.message))


def verdict(kind: str, obj: Mapping[str, Any]) -> SpecVerdict:
    """The verdict on the spec of an object of any shape; unknown fields, which the API server drops, are none.

    Raises SpecError if it can't be judged.
    """
    form = _form(obj)
    known = _verdicts.get(_identity(kind, obj))
    if form is not None and known is not None and known[0] == form:
        return known[1]
    spec, schema = obj.get("spec"), schema_of(kind)["properties"]["spec"]
    if spec is None or is_deep(spec):
        return SpecVerdict(f"spec: must {'be given' if spec is None else f'have at most {_LEVELS} levels'}")
    judging = _Judging(schema)
    judging.judge(_filled(spec, schema), schema, ("spec",))
    fields = frozenset(str(each.path[1]) for each in judging.found if len(each.path) > 1)
    found = SpecVerdict(_text(judging.found), fields)
    if not judging.has_failed:
        _remember(kind, obj, form, found)
    return found


def judged(kind: str, obj: Mapping[str, Any], blocks: Collection[str] = ()) -> dict[str, Any]:
    """The spec of an object with the CRD's defaults. blocks: fields that count as {} if they are left out.

    Raises SpecError, which states the first violations, or why it can't be judged.
    """
    if problem := verdict(kind, obj).problem:
        raise SpecError(problem)
    return with_defaults(kind, obj["spec"], blocks)


def with_defaults(kind: str, spec: Mapping[str, Any], blocks: Collection[str] = ()) -> dict[str, Any]:
    """A valid spec with the CRD's defaults. blocks: as for `judged`."""
    return dict(_filled({**{name: {} for name in blocks}, **spec}, schema_of(kind)["properties"]["spec"]))


def judged_part(kind: str, path: str, value: Any, shown: str | None = None) -> Any:
    """A value of one field (`spec.match.groups[]`) with the CRD's defaults.

    Raises SpecError, which names it `shown`; None = by its path.
    """
    schema = schema_of(kind)
    for step in path.replace("[]", ".[]").split("."):
        schema = schema["items"] if step == "[]" else schema["properties"][step]
    judging = _Judging(schema)
    filled = _filled(value, schema)
    judging.judge(filled, schema, (path if shown is None else shown,))
    if problem := _text(judging.found):
        raise SpecError(problem)
    return filled


def _text(found: Sequence[Violation]) -> str:
    """The first violations."""
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(f"{each.field}: {each.message}" for each in found[:_SHOWN]) + more


class _Judging:
    """One pass over a value. root: the schema in which similar names are searched; is_strict: no field is unknown.

    has_failed: whether an expression could not be evaluated.
    """

    def __init__(self, root: Mapping[str, Any], is_strict: bool = False) -> None:
        self._root, self._is_strict = root, is_strict
        self._end = time.thread_time() + _CPU_S
        # Those of a structure in which no rule can be checked, and the others.
        self._blocking, self._others = list[Violation](), list[Violation]()
        self.has_failed = False

    @property
    def found(self) -> list[Violation]:
        return self._blocking + self._others

    def judge(self, value: Any, schema: Mapping[str, Any], path: tuple[str | int, ...]) -> Any:
        """Note the violations of a value. Returns it as rules see it: without unknown fields, and with times.

        Goes as deep as the schema, and no further into a list than the schema allows.
        """
        before = len(self._blocking)
        if problem := _blocking_problem(value, schema):
            self._blocking.append(Violation(path, problem))
        elif problem := _other_problem(value, schema):
            self._others.append(Violation(path, problem))
        elif schema.get("format") == "date-time":
            value = _time(value)
        if "properties" in schema or "additionalProperties" in schema:
            value = self._judge_fields(value, schema, path) if isinstance(value, Mapping) else value
        elif "items" in schema and isinstance(value, list):
            self._others += [Violation((*path, at), message) for at, message in _repeated(value, schema)]
            items = enumerate(value[: schema.get("maxItems")])
            value = [self.judge(each, schema["items"], (*path, at)) for at, each in items]
        if len(self._blocking) == before:
            self._check_rules(value, schema, path)
        return value

    def _judge_fields(
        self, value: Mapping[str, Any], schema: Mapping[str, Any], path: tuple[str | int, ...]
    ) -> dict[str, Any]:
        fields, other = schema.get("properties") or {}, schema.get("additionalProperties")
        missing = [name for name in schema.get("required", ()) if value.get(name) is None]
        self._blocking += [Violation((*path, name), "must be given") for name in missing]
        if other:
            return {
                str(name): self.judge(each, other, (*path, str(name)))
                for name, each in islice(value.items(), schema.get("maxProperties"))
            }
        if self._is_strict:
            for name in map(str, value.keys() - fields.keys()):
                self._blocking.append(Violation((*path, name), f"unknown field{self._suggestion(name, fields)}"))
        return {
            name: self.judge(value[name], child, (*path, name))
            for name, child in fields.items()
            if name in value and name not in missing
        }

    def _check_rules(self, value: Any, schema: Mapping[str, Any], path: tuple[str | int, ...]) -> None:
        # A new object has no old one.
        rules = [rule for rule in schema.get("x-kubernetes-validations", ()) if "oldSelf" not in rule["rule"]]
        for rule in rules:
            if time.thread_time() > self._end:
                late = f"it could not be judged within {_CPU_S:.0f} s of CPU time: make it smaller"
                raise SpecError(late)
            holds = self._evaluated(rule["rule"], value)
            if holds is not True:
                at = (*path, *filter(None, rule.get("fieldPath", "").split(".")))
                message = self._evaluated(rule["messageExpression"], value) if "messageExpression" in rule else None
                failed = " (the rule could not be evaluated)" if holds is None else ""
                self._others.append(Violation(at, (message or rule["message"]) + failed))

    def _evaluated(self, expression: str, value: Any) -> Any:
        """The value of a CEL expression; None = it can't be evaluated."""
        cel, program = _cel(), _compiled(expression)
        try:
            return program.execute(cel.Context(variables={"self": value}, functions=_FUNCTIONS))
        except Exception:
            self.has_failed = True
            return None

    def _suggestion(self, name: str, known: Collection[str]) -> str:
        """A known field with a similar name, or with this former one; else one of this name elsewhere in the spec."""
        if _FORMER.get(name) in known:
            return f"; did you mean {_FORMER[name]}?"
        places = sorted(path for path in fields_of_schema(self._root) if path.startswith("spec."))
        elsewhere = [path for path in places if path.rpartition(".")[2] == name]
        near = difflib.get_close_matches(name, known, 1) or elsewhere[:1]
        return f"; did you mean {near[0]}?" if near else ""


def _blocking_problem(value: Any, schema: Mapping[str, Any]) -> str:
    """What is wrong with a value, apart from its fields and items, so that no rule can be checked; "" = nothing."""
    kind = schema.get("type")
    if kind is None:
        return ""
    wanted, fits = _TYPES[kind]
    if not fits(value):
        return f"must be {wanted}{', or be left out' if value is None else ''}"
    if kind == "string" and _SURROGATE.search(value):
        return "must be valid Unicode"
    if value not in schema.get("enum", [value]):
        return f"must be one of {', '.join(map(str, schema['enum']))}"
    most = schema.get(f"max{_SIZES.get(kind)}")
    if most is not None and len(value) > most:
        return f"must have at most {most} {'characters' if kind == 'string' else 'entries'}"
    if schema.get("format") == "date-time" and _time(value) is None:
        return "must be a time, like 2030-01-31T12:00:00Z"
    return ""


def _other_problem(value: Any, schema: Mapping[str, Any]) -> str:
    """What else is wrong with it."""
    if "minimum" in schema and value < schema["minimum"]:
        return f"must be at least {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        return f"must be at most {schema['maximum']}"
    least = schema.get(f"min{_SIZES.get(schema.get('type', ''))}", 0)
    if least and len(value) < least:
        return "must not be empty" if least == 1 else f"must have at least {least} entries"
    return ""


# Former names of fields that are not similar to those of today.
_FORMER = {"alert": "notify"}
_SIZES = {"string": "Length", "array": "Items", "object": "Properties"}


def _repeated(value: Sequence[Any], schema: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The places of items of a set or map that an earlier item has, too, with a message."""
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys", ())
    if kind not in ("set", "map"):
        return
    seen = set[str]()
    for at, item in enumerate(value[: schema.get("maxItems")]):
        parts = [item.get(key) for key in keys] if kind == "map" and isinstance(item, Mapping) else [item]
        # What is no text has a violation of its own.
        if all(isinstance(part, str) for part in parts):
            if str(parts) in seen:
                what = f"have the {' and '.join(keys)} of" if kind == "map" else "be the same as"
                yield at, f"must not {what} an earlier one"
            seen.add(str(parts))


def _time(text: str) -> datetime | None:
    """A time with its zone (RFC 3339); None = it is none."""
    try:
        return msgspec.convert(text, _Time)
    except msgspec.ValidationError:
        return None


def _filled(value: Any, schema: Mapping[str, Any]) -> Any:
    """With the schema's defaults, as the API server fills them in: also in place of nulls."""
    if isinstance(value, Mapping) and "properties" in schema:
        fields = schema["properties"]
        defaults = {
            name: each["default"] for name, each in fields.items() if "default" in each and value.get(name) is None
        }
        return {name: _filled(each, fields.get(name) or {}) for name, each in {**value, **defaults}.items()}
    if isinstance(value, list) and "items" in schema:
        return [_filled(each, schema["items"]) for each in value]
    return value


def is_deep(value: Any) -> bool:
    """Whether a value from JSON has more levels than any CRD: too many for a recursion."""
    level = [value]
    for _ in range(_LEVELS):
        inner = [
            each.values() if isinstance(each, Mapping) else each for each in level if isinstance(each, Mapping | list)
        ]
        level = [each for values in inner for each in values]
    return bool(level)


# Kind and uid -> the last form of the object that was judged, and the verdict on it.
_verdicts: dict[tuple[str, str], tuple[_Form, SpecVerdict]] = {}
_LOCK = threading.Lock()


def _form(obj: Mapping[str, Any]) -> _Form:
    """An object that is stored again with another spec has another form, whatever its generation is."""
    try:
        digest = hashlib.sha256(msgspec.json.encode(obj.get("spec"))).digest()
    except (RecursionError, TypeError, ValueError):
        return None
    return int((obj.get("metadata") or {}).get("generation") or 0), digest


def _remember(kind: str, obj: Mapping[str, Any], form: _Form, found: SpecVerdict) -> None:
    if form is not None:
        with _LOCK:
            _verdicts.pop(_identity(kind, obj), None)
            _verdicts[_identity(kind, obj)] = form, found
            if len(_verdicts) > _VERDICTS:
                del _verdicts[next(iter(_verdicts))]


def _identity(kind: str, obj: Mapping[str, Any]) -> tuple[str, str]:
    """Files have no uid: the verdict on one is needed once more, right after."""
    return kind, (obj.get("metadata") or {}).get("uid") or ""


@functools.cache
def schema_of(kind: str) -> Mapping[str, Any]:
    """The schema of the objects of a kind, with their metadata: as in the CRD, with the extensions of Kubernetes."""
    versions = load_crd(kind)["spec"]["versions"]
    schema: Mapping[str, Any] = next(v for v in versions if v["name"] == VERSION)["schema"]["openAPIV3Schema"]
    text = {"type": "string"}
    fields = {**schema["properties"], "apiVersion": text, "kind": text, "metadata": _METADATA}
    return {**schema, "properties": fields, "required": [*schema["required"], "metadata"]}


@functools.cache
def _zones() -> frozenset[str]:
    """The names in the IANA database, by the package tzdata: a machine has more files, like its own `localtime`."""
    # Factory is the zone of a machine that has not been set up.
    return frozenset(importlib.resources.files("tzdata").joinpath("zones").read_text().split()) - {"Factory"}


@functools.cache
def _compiled(expression: str) -> Any:
    """Of the CRDs, so there are few. `size` of the library counts the bytes of a text, and can't be replaced."""
    return _cel().compile(expression.replace(".size()", ".length()"))


def _cel() -> Any:
    """CEL, compiled: only the extension of the package, as its command line takes 0.2 s and 25 MB more to import."""
    with _LOCK:
        return _extension()


@functools.cache
def _extension() -> Any:
    if "cel.cel" in sys.modules:
        return sys.modules["cel.cel"]
    package = importlib.util.find_spec("cel")
    found = PathFinder.find_spec("cel.cel", package.submodule_search_locations if package else [])
    if found is None or found.loader is None:
        raise ImportError("the package common-expression-language is not complete")
    # It can be loaded once in a process: `import cel` finds it there.
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
