"""What people read uses the terms of Kafka and Kubernetes, and pages are short.

`PROSE` lists the texts to search. To search more, add a function that yields texts with their names; generated pages
are covered by their sources.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from io import StringIO
from pathlib import Path

import click
import pytest
import yaml

from docsite.__main__ import pages
from docsite.schema import fields, parse_kind, rules
from group_hygiene.cli import main

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "group-hygiene"
OPERATOR = ROOT / "operator" / "group_hygiene"
GENERATED = {f"docs/{name}" for name in pages()}
# Longer than this, a page is split. Generated references are searched, not read.
LONGEST_PAGE = 1_500

_FENCE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2`*$", re.MULTILINE | re.DOTALL)
_NO_PROSE = re.compile(r"<!--.*?-->|(`+)[^`]+?\1|(?<=\])\([^)\s]+\)", re.DOTALL)
_COMMENTED = {".yaml", ".yml", ".sh", ".tpl", ".lua"}
_COMMENT = re.compile(r"(?:^|\s)#(.*)$", re.MULTILINE)


def markdown() -> Iterator[tuple[str, str]]:
    """README, SECURITY.md, docs/ and the chart's README, and sources of generated pages; without code and addresses."""
    files = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
    files += [*sorted((ROOT / "docsite").rglob("*.md")), CHART / "README.md"]
    for file in files:
        name = str(file.relative_to(ROOT))
        # The page of reasons has no other source than a list of them.
        if name not in GENERATED or name == "docs/reasons.md":
            yield name, prose(file.read_text())


def comments() -> Iterator[tuple[str, str]]:
    """The comments of examples/, of files that users apply or give to Helm, and of the Makefile, with its help."""
    folders = [ROOT / "examples", *(ROOT / "deploy" / name for name in ("helm", "kustomize", "pipeline", "argocd"))]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in _COMMENTED]
    for file in [ROOT / "Makefile", *sorted(file for file in files if CHART / "files" not in file.parents)]:
        lines = (match[1] if (match := _COMMENT.search(line)) else "" for line in file.read_text().splitlines())
        yield str(file.relative_to(ROOT)), "\n".join(lines)


def chart() -> Iterator[tuple[str, str]]:
    """The notes that Helm prints after an installation, and the descriptions of values.schema.json."""
    notes, schema = CHART / "templates" / "NOTES.txt", CHART / "values.schema.json"
    yield str(notes.relative_to(ROOT)), notes.read_text()
    texts = re.findall(r'"(?:description|title)": "(.+)"', schema.read_text())
    yield str(schema.relative_to(ROOT)), "\n".join(texts)


def crds() -> Iterator[tuple[str, str]]:
    """The descriptions of fields and columns, and the messages of CEL rules."""
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        kind = parse_kind(yaml.safe_load(file.read_text()))
        name = str(file.relative_to(ROOT))
        for column in kind.columns:
            yield f"{name} {column['name']}", column.get("description", "")
        for field in fields(kind.schema):
            yield f"{name} {field.path}", prose(field.description)
        yield f"{name} messages", "\n".join(rule.message for rule in rules(kind.schema, ""))


def command_help() -> Iterator[tuple[str, str]]:
    """The `--help` of the program and of each command, each paragraph in one line."""
    return _help(main, "group-hygiene")


def _help(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    yield f"{name} --help", command.get_help(click.Context(command, info_name=name, terminal_width=10_000))
    for word, below in sorted(command.commands.items() if isinstance(command, click.Group) else ()):
        yield from _help(below, f"{name} {word}")


_LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical"}


def docstrings() -> Iterator[tuple[str, str]]:
    """The docstrings of the operator, also of private functions and classes."""
    for name, source in _modules():
        texts = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node, clean=False)
                texts += [] if text is None else [(node.body[0].lineno, prose(text))]
        yield f"{name} docstrings", _at_lines(texts)


def code_comments() -> Iterator[tuple[str, str]]:
    """The comments of the operator."""
    for name, source in _modules():
        tokens = tokenize.generate_tokens(StringIO(source).readline)
        texts = [(token.start[0], prose(token.string)) for token in tokens if token.type == tokenize.COMMENT]
        yield f"{name} comments", _at_lines(texts)


def messages() -> Iterator[tuple[str, str]]:
    """The constant texts of log calls, raised errors and refusals of the operator; `{}` for each value."""
    for name, source in _modules():
        nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise | ast.Call))
        yield f"{name} messages", _at_lines((node.lineno, _constants(node)) for node in nodes if _has_message(node))


def _has_message(node: ast.Raise | ast.Call) -> bool:
    if isinstance(node, ast.Raise):
        return isinstance(node.exc, ast.Call)
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in _LOG_CALLS
    return isinstance(node.func, ast.Name) and node.func.id == "Refusal"


def _constants(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_constants(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return " ".join(map(_constants, ast.iter_child_nodes(node)))


def _at_lines(texts: Iterable[tuple[int, str]]) -> str:
    """One text, in which each of these begins at its line of the source."""
    lines: dict[int, str] = {}
    for first, text in texts:
        for number, line in enumerate(text.split("\n"), first):
            lines[number] = f"{lines.get(number, '')} {line}"
    return "\n".join(lines.get(number, "") for number in range(1, max(lines, default=0) + 1))


@cache
def _modules() -> tuple[tuple[str, str], ...]:
    return tuple((str(file.relative_to(ROOT)), file.read_text()) for file in sorted(OPERATOR.rglob("*.py")))


PROSE: tuple[Callable[[], Iterator[tuple[str, str]]], ...] = (
    *(markdown, comments, chart, crds, command_help),
    *(docstrings, code_comments, messages),
)


@cache
def texts() -> dict[str, str]:
    """What is searched, by its name."""
    return {name: text for source in PROSE for name, text in source()}


# The word, and what to write instead.
PRIVATE = [
    pytest.param(r"tell|tells|told|telling|untold", "report, notify, show, return", id="tell"),
    pytest.param(
        r"(?:an?|one|each|every|another|first|last|next|earlier|no|two|the|its|these|those|between) looks?"
        r"|(?:that|this) look",
        "scan, observation; check, compare",
        id="look",
    ),
    pytest.param(r"anew", "again, recreated", id="anew"),
    pytest.param(
        r"anybody|nobody|somebody|everybody|whoever|of whom", "user, client, team, consumer, tenant", id="whoever"
    ),
    pytest.param(r"kept", "not deleted (because ...); stored, retained", id="kept"),
    pytest.param(r"hangs? on", "depends on", id="hangs-on"),
    pytest.param(r"owed|(?:is|are|was|were) meant", "pending; intended, target", id="owed-and-meant"),
    pytest.param(r"kinds(?! of)", "custom resources, CRDs", id="kinds"),
    pytest.param(r"(?:by|of) which", "that, whose, or a noun", id="by-which"),
    pytest.param(r"litter|littered|swarms?|hurts?|fate|tid(?:y|ies|ied)", "unused groups; false positive", id="litter"),
    pytest.param(r"in (?:a|one) line", "one-line summary", id="in-a-line"),
]
# Where such a word is the right one: a file, and the phrase in it.
ALLOWED: set[tuple[str, str]] = set()


def prose(text: str) -> str:
    """Markdown without fences, code, comments and addresses of links; each line where it was."""
    return _NO_PROSE.sub(_blank, _FENCE.sub(_blank, text))


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n") or " "


def found(pattern: str, texts: dict[str, str]) -> list[str]:
    """Each place with that word: file, line and what stands there."""
    word = re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)
    places = []
    for name, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            left = line
            for file, phrase in ALLOWED:
                left = left.replace(phrase, "") if file == name else left
            places += [f"{name}:{number}: {left[max(0, m.start() - 30) : m.end() + 30]}" for m in word.finditer(left)]
    return places


@pytest.mark.parametrize(("pattern", "instead"), PRIVATE)
def test_no_private_word(pattern: str, instead: str) -> None:
    """It stands in no text, but where it is allowed by name."""
    assert found(pattern, texts()) == [], f"instead: {instead}"


def test_each_exception_is_needed() -> None:
    """A phrase that is allowed stands in that file."""
    assert [(name, phrase) for name, phrase in ALLOWED if phrase not in texts()[name]] == []


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        pytest.param("It was told.", 1, id="prose"),
        pytest.param("`It was told`, [told](told.md)", 1, id="code-and-address"),
        pytest.param("```\nIt was told\n```\n", 0, id="fence"),
        pytest.param("untoldness", 0, id="within-another-word"),
    ],
)
def test_what_the_check_finds(text: str, hits: int) -> None:
    """A check that finds nothing proves nothing."""
    assert len(found("told", {"a.md": prose(text)})) == hits


def test_docstrings_comments_and_messages_are_searched() -> None:
    """Each at its line, private ones and parts of f-strings included."""
    source = texts()
    file = "operator/group_hygiene/pipeline/jobs.py"
    lines = (ROOT / file).read_text().splitlines()
    for what, words in (
        ("docstrings", "Whether its Java process answers"),
        ("comments", "With other jobs, once a day is enough"),
        ("messages", "contains % or"),
    ):
        number = next(number for number, line in enumerate(lines) if words in line)
        assert words in " ".join(source[f"{file} {what}"].splitlines()[number - 1 : number + 1])


@pytest.mark.parametrize("file", sorted((ROOT / "docs").rglob("*.md")), ids=lambda file: file.name)
def test_no_page_is_long(file: Path) -> None:
    """Words as `wc -w` counts them."""
    if str(file.relative_to(ROOT)) not in GENERATED:
        assert len(file.read_text().split()) <= LONGEST_PAGE


def test_the_readme_is_short() -> None:
    """It is for people in a hurry."""
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 1_300
    assert text.count("\n") <= 150
