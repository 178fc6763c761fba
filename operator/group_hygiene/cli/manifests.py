"""Parse documents as policies and connections, or report all their errors at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from group_hygiene.cli.documents import read_documents
from group_hygiene.controller.objects import connection_of
from group_hygiene.errors import UsageError
from group_hygiene.model.naming import printable, truncated_list
from group_hygiene.restore.grouprestore import parse_restore
from group_hygiene.spec.connection import Connection, parse_connection
from group_hygiene.spec.crds import API_VERSION, PLURALS, violations
from group_hygiene.spec.patterns import is_like_a_pattern
from group_hygiene.spec.policy import Policy, parse_keep, parse_policy

_SHOWN = 3


@dataclass
class Manifests:
    """The contents of the files. connections: (namespace, name) -> Connection. skipped: kinds of ignored objects.

    titles: kind, namespace and name of each object of our CRDs. named: the connections that valid objects name. notes:
    one for each GroupKeep and GroupRestore whose ids look like patterns.
    """

    policies: list[Policy] = field(default_factory=list)
    connections: dict[tuple[str, str], Connection] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    titles: list[str] = field(default_factory=list)
    named: set[tuple[str, str]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def read_manifests(names: Sequence[str], namespace: str = "default", policy_needed: bool = True) -> Manifests:
    """The policies and connections of all files; `namespace` is the default for objects without one, as in kubectl.

    Raises UsageError with one line for each mistake in any of them, or if a policy is needed, and there is none.
    """
    manifests = Manifests()
    documents, unread = read_documents(names)
    mistakes: list[str] = []
    for document in documents:
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
        obj, metadata = document.content, document.content.get("metadata")
        named = metadata if isinstance(metadata, dict) else {}
        if named and not named.get("namespace"):
            named = {**named, "namespace": namespace}
            obj = {**obj, "metadata": named}
        wrong = sorted(violations(obj), key=lambda violation: (document.line(violation.path), violation.field))
        title = f"{kind} {named.get('namespace') or 'default'}/{named.get('name') or ''}"
        mistakes += [f"{document.at(v.path)}: {title}: {f'{v.field}: ' if v.path else ''}{v.message}" for v in wrong]
        if title in manifests.titles:
            mistakes.append(f"{document.at()}: {title} is given twice")
        manifests.titles.append(title)
        if not wrong:
            _add(kind, title, obj, manifests)
    if unread or mistakes:
        raise UsageError(
            "\n".join([*unread, *(["the files are not valid:"] if mistakes else []), *map(printable, mistakes)])
        )
    if policy_needed and not manifests.policies:
        raise UsageError(f"there is no GroupPolicy in {', '.join('stdin' if name == '-' else name for name in names)}")
    return manifests


def _add(kind: str, title: str, obj: dict[str, Any], manifests: Manifests) -> None:
    parsed = _PARSERS[kind](obj)
    if not isinstance(parsed, Connection):
        manifests.named.add(connection_of(obj))
    if isinstance(parsed, Policy):
        # Observations of a policy are stored by its uid, and an unapplied policy has none.
        manifests.policies.append(structs.replace(parsed, uid=parsed.uid or parsed.key))
    elif isinstance(parsed, Connection):
        manifests.connections[parsed.namespace, parsed.name] = parsed
    else:
        manifests.skipped.add(kind)
        if like := [name for name in obj["spec"].get("groups") or () if is_like_a_pattern(name)]:
            shown = printable(truncated_list(like, _SHOWN))
            manifests.notes.append(f"{title}: spec.groups has exact ids, and no patterns like {shown}")


_UNAPPLIED = {"uid": "", "namespace": ""}
_PARSERS: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "GroupPolicy": parse_policy,
    "KafkaConnection": parse_connection,
    "GroupRestore": lambda obj: parse_restore(obj | {"metadata": _UNAPPLIED | obj["metadata"]}),
    "GroupKeep": lambda obj: parse_keep(obj | {"metadata": _UNAPPLIED | obj["metadata"]}),
}
