"""Read YAML files as documents with line numbers. Does not interpret the documents."""

from __future__ import annotations

import itertools
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from group_hygiene.errors import UsageError

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
