"""Parse documents as policies and connections, or report all their errors at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from group_hygiene.cli.documents import read_documents
from group_hygiene.cli.validation import API_VERSION, PLURALS, Violation, violations, without_nulls
from group_hygiene.errors import SpecError, UsageError
from group_hygiene.spec.connection import Connection, parse_connection
from group_hygiene.spec.policy import Policy, parse_policy


@dataclass
class Manifests:
    """The contents of the files. connections: (namespace, name) -> Connection. skipped: kinds of ignored objects."""

    policies: list[Policy] = field(default_factory=list)
    connections: dict[tuple[str, str], Connection] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)


def read_manifests(names: Sequence[str], namespace: str = "default") -> Manifests:
    """The policies and connections of all files; `namespace` is the default for objects without one, as in kubectl.

    Raises UsageError with one line for each mistake in any of them.
    """
    manifests = Manifests()
    mistakes: list[str] = []
    seen = set[tuple[str, str, str]]()
    for document in read_documents(names):
        kind, version = document.content.get("kind"), document.content.get("apiVersion")
        if not isinstance(kind, str) or not isinstance(version, str):
            mistakes.append(f"{document.at()}: must have apiVersion and kind")
            continue
        if version.partition("/")[0] != API_VERSION.partition("/")[0]:
            manifests.skipped.add(kind)
            continue
        if version != API_VERSION or kind not in PLURALS:
            mistakes.append(
                f"{document.at(['kind'])}: {version} {kind} is not known: {API_VERSION} {', '.join(PLURALS)}"
            )
            continue
        obj = _with_namespace(without_nulls(document.content), namespace)
        wrong = violations(obj) or list(_parse(kind, obj, manifests))
        key = (kind, *_key(obj))
        wrong.sort(key=lambda violation: document.line(violation.path))
        mistakes += [f"{document.at(v.path)}: {_title(key)}: {_text(v)}" for v in wrong]
        if key in seen:
            mistakes.append(f"{document.at()}: {_title(key)} is given twice")
        seen.add(key)
    if mistakes:
        raise UsageError("\n".join(["the files are not valid:", *mistakes]))
    if not manifests.policies:
        raise UsageError(f"there is no GroupPolicy in {', '.join('stdin' if name == '-' else name for name in names)}")
    return manifests


def _parse(kind: str, obj: Mapping[str, Any], manifests: Manifests) -> Iterator[Violation]:
    """Parse into `manifests`; yields errors that the schema can't find."""
    try:
        if kind == "GroupPolicy":
            _parse_policy(obj, manifests)
        elif kind == "GroupRestore":
            manifests.skipped.add(kind)
        else:
            _parse_connection(obj, manifests)
    except SpecError as error:
        yield Violation((), str(error))


def _parse_policy(obj: Mapping[str, Any], manifests: Manifests) -> None:
    spec = obj["spec"]
    if spec["action"] == "Alert" and spec.get("when") == {}:
        raise SpecError("spec.when must name at least one condition, or be left out")
    policy = parse_policy(obj)
    # Observations of a policy are stored by its uid, and an unapplied policy has none.
    manifests.policies.append(replace(policy, uid=policy.uid or policy.key))


def _parse_connection(obj: Mapping[str, Any], manifests: Manifests) -> None:
    connection = parse_connection(obj)
    manifests.connections[connection.namespace, connection.name] = connection


def _with_namespace(obj: dict[str, Any], namespace: str) -> dict[str, Any]:
    metadata = obj.get("metadata")
    if not isinstance(metadata, Mapping) or metadata.get("namespace"):
        return obj
    return obj | {"metadata": {**metadata, "namespace": namespace}}


def _key(obj: Mapping[str, Any]) -> tuple[str, str]:
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    return str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")


def _title(key: tuple[str, str, str]) -> str:
    kind, namespace, name = key
    return f"{kind} {namespace}/{name}"


def _text(violation: Violation) -> str:
    return f"{violation.field}: {violation.message}" if violation.path else violation.message
