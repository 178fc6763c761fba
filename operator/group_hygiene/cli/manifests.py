"""Reads YAML files, and parses their documents as policies and connections, or reports all their errors at once."""

from __future__ import annotations

import itertools
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from msgspec import structs

from group_hygiene.controller.objects import connection_of
from group_hygiene.errors import UsageError
from group_hygiene.model.naming import printable, truncated_list
from group_hygiene.restore.restorable import parse_restore
from group_hygiene.spec.connection import Connection, parse_connection
from group_hygiene.spec.crds import API_VERSION, PLURALS, violations
from group_hygiene.spec.patterns import is_like_a_pattern
from group_hygiene.spec.policy import Policy, parse_keep, parse_policy

_SUFFIXES = (".yaml", ".yml", ".json")
_TAG = "tag:yaml.org,2002:"
# Far more than a List of all objects that a cluster can hold in one answer.
_VALUES_MAX = 1_000_000


class _Loader(yaml.SafeLoader):
    """Loads like kubectl: a duplicate key is an error, and dates and times of day are strings."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
        # In YAML 1.1, 20:00 is a number of base 60.
        base_60 = tag in (f"{_TAG}int", f"{_TAG}float") and ":" in value
        return f"{_TAG}str" if base_60 or tag == f"{_TAG}timestamp" else tag

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen and name != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {name!r}", key.start_mark)
            seen.add(name)
        return dict(super().construct_mapping(node, deep))


@dataclass(frozen=True, slots=True)
class Document:
    """One object, and its place in a file."""

    source: str
    content: dict[str, Any]
    node: yaml.Node

    def at(self, path: Sequence[str | int] = ()) -> str:
        """`file:line` of a field, or of its nearest parent that exists."""
        return f"{self.source}:{self.line(path)}"

    def line(self, path: Sequence[str | int]) -> int:
        node, line = self.node, self.node.start_mark.line
        for step in path:
            found: yaml.Node | None = None
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == step:
                        found, line = value, key.start_mark.line
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                found = node.value[step]
                line = found.start_mark.line
            if found is None:
                break
            node = found
        return line + 1


def read_documents(names: Sequence[str]) -> tuple[list[Document], list[str]]:
    """The documents of all files, of all YAML files in folders, and of stdin for `-`; each item of a List is one.

    And a message for each file that can't be read to its end, with file and line, but without content: it may be a
    secret.
    """
    documents: list[Document] = []
    problems: list[str] = []
    for name in names:
        try:
            files: Sequence[Path | None] = [None] if name == "-" else _files(name)
        except UsageError as error:
            problems.append(str(error))
            continue
        for file in files:
            try:
                text = _read("stdin", sys.stdin.buffer.read) if file is None else _read(str(file), file.read_bytes)
                documents.extend(_parse("stdin" if file is None else str(file), text))
            except UsageError as error:
                problems.append(str(error))
    return documents, problems


def _files(name: str) -> list[Path]:
    """The file of that name, or the YAML files in the folder of that name."""
    if not name:
        raise UsageError("a file must have a name: -f is empty")
    path = Path(name)
    try:
        # Unlike is_dir(), raises the cause if it can't be read.
        if not stat.S_ISDIR(path.stat().st_mode):
            return [path]
        files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror}") from error
    if not files:
        raise UsageError(f"there is no YAML file in {name}")
    return files


def _read(source: str, read: Callable[[], bytes]) -> str:
    try:
        return read().decode("utf-8")
    except OSError as error:
        raise UsageError(f"{source} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text") from error


def _parse(source: str, text: str) -> Iterator[Document]:
    """The documents before the first error, and UsageError for that."""
    try:
        yield from _documents(source, _Loader(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{source}{line}: is not valid YAML: {error.problem or 'it ends too early'}") from None
    except yaml.YAMLError:
        raise UsageError(f"{source}: is not valid YAML: it contains forbidden characters") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{source}: is not readable YAML") from None


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """The number of values of a node, with those that its aliases repeat: a small file may stand for a huge document.

    sizes: of other nodes, by their `id`. Raises ConstructorError for too many, and for an alias within its anchor.
    """
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in sizes:
        # While its own values are counted.
        sizes[id(node)] = _VALUES_MAX
        values = itertools.chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        sizes[id(node)] = 1 + sum(_size(value, sizes) for value in values)
    if sizes[id(node)] > _VALUES_MAX:
        problem = f"it has more than {_VALUES_MAX:,} values, with its aliases"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return sizes[id(node)]


def _documents(source: str, loader: _Loader) -> Iterator[Document]:
    while loader.check_node():
        node = loader.get_node()
        if node is None:
            continue
        _size(node, {})
        content = loader.construct_document(node)
        if content is None:
            continue
        document = Document(source, content, node)
        if not isinstance(content, dict):
            raise UsageError(f"{document.at()}: must be a mapping with apiVersion and kind")
        items = content.get("items")
        if content.get("kind") != "List" or not isinstance(items, list):
            yield document
            continue
        item_nodes = next(value for key, value in node.value if key.value == "items").value
        for item, item_node in zip(items, item_nodes, strict=True):
            if isinstance(item, dict):
                yield Document(source, item, item_node)


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
