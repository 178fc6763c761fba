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
OPERATOR, SANDBOX = ROOT / "operator" / "group_hygiene", ROOT / "testing" / "sandbox"
GENERATED = {f"docs/{name}" for name in pages()}
# Longer than this, a page is shortened. References are searched, not read: the generated ones, and these.
LONGEST_PAGE = 1_500
REFERENCES = {f"docs/{name}.md" for name in ("alerts", "kafka-permissions", "pipeline-tables", "runbook", "security")}
LONGEST_REFERENCE, ALL_PAGES, MOST_PAGES = 2_700, 34_500, 30

_FENCE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2`*$", re.MULTILINE | re.DOTALL)
_NO_PROSE = re.compile(r"<!--.*?-->|(`+)[^`]+?\1|(?<=\])\([^)\s]+\)", re.DOTALL)
# Between the words of a name such as AllTold or clusterID.
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
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


def manifests() -> Iterator[tuple[str, str]]:
    """The names and values of examples/, the alerting rules, and the titles and descriptions of the dashboard."""
    rules, dashboard = ROOT / "deploy" / "prometheus" / "rules.yaml", ROOT / "deploy" / "grafana" / "dashboard.json"
    for file in [*sorted((ROOT / "examples").rglob("*.yaml")), rules]:
        yield f"{file.relative_to(ROOT)} values", f"{in_words(file.stem)}\n{in_words(file.read_text())}"
    texts = re.findall(r'"(?:description|title)": "(.+)"', dashboard.read_text())
    yield str(dashboard.relative_to(ROOT)), "\n".join(texts)


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


def strings() -> Iterator[tuple[str, str]]:
    """The string constants of the operator and the sandbox, without docstrings; `{}` for each value of an f-string.

    They include the values of reasons and enums. The words of a name such as `AllTold` are searched one by one.
    """
    for name, source in (*_modules(), *_modules(SANDBOX)):
        tree = ast.parse(source)
        docs = _docstrings(tree)
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        texts: list[tuple[int, str]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                texts.append((node.lineno, in_words(_joined(node))))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | parts:
                texts.append((node.lineno, in_words(node.value)))
        yield f"{name} strings", _at_lines(texts)


def identifiers() -> Iterator[tuple[str, str]]:
    """The names that the operator defines: of modules, classes, functions, parameters, variables and attributes."""
    for name, source in _modules():
        texts = [(1, Path(name).stem)]
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    texts.append((node.lineno, node.name))
                case ast.arg():
                    texts.append((node.lineno, node.arg))
                case ast.Name(ctx=ast.Store()):
                    texts.append((node.lineno, node.id))
                case ast.Attribute(ctx=ast.Store()):
                    texts.append((node.lineno, node.attr))
        # Each name once: loops and assignments repeat many.
        first = dict.fromkeys(text for _, text in texts)
        lines = {text: number for number, text in reversed(texts)}
        yield f"{name} identifiers", _at_lines((lines[text], f"{in_words(text)};") for text in first)


def in_words(name: str) -> str:
    """Names in snake_case, UPPER_CASE or camelCase as separate words."""
    return _CAMEL.sub(" ", name).replace("_", " ")


def _docstrings(tree: ast.Module) -> set[int]:
    """The ids of the constants that are docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and node.body]
    return {id(statement.value) for statement in first if isinstance(statement, ast.Expr)}


def _joined(node: ast.JoinedStr) -> str:
    """An f-string, with the constants in its expressions after it."""
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    inner = (each for part in node.values if isinstance(part, ast.FormattedValue) for each in ast.walk(part.value))
    return " ".join([text, *(e.value for e in inner if isinstance(e, ast.Constant) and isinstance(e.value, str))])


def _at_lines(texts: Iterable[tuple[int, str]]) -> str:
    """One text, in which each of these begins at its line of the source."""
    lines: dict[int, str] = {}
    for first, text in texts:
        for number, line in enumerate(text.split("\n"), first):
            lines[number] = f"{lines.get(number, '')} {line}"
    return "\n".join(lines.get(number, "") for number in range(1, max(lines, default=0) + 1))


@cache
def _modules(folder: Path = OPERATOR) -> tuple[tuple[str, str], ...]:
    return tuple((str(file.relative_to(ROOT)), file.read_text()) for file in sorted(folder.rglob("*.py")))


PROSE: tuple[Callable[[], Iterator[tuple[str, str]]], ...] = (
    *(markdown, comments, chart, manifests, crds, command_help),
    *(docstrings, code_comments, strings, identifiers),
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
    # `Kept` is a condition of a GroupKeep.
    pytest.param(r"(?-i:kept)", "not deleted (because ...); stored, retained, protected", id="kept"),
    pytest.param(r"hangs? on", "depends on", id="hangs-on"),
    pytest.param(r"owed|(?:is|are|was|were) meant", "pending; intended, target", id="owed-and-meant"),
    pytest.param(r"kinds(?! of)", "custom resources, CRDs", id="kinds"),
    pytest.param(r"(?:by|of) which", "that, whose, or a noun", id="by-which"),
    pytest.param(r"litter|littered|swarms?|hurts?|fate|tid(?:y|ies|ied)", "unused groups; false positive", id="litter"),
    pytest.param(r"in (?:a|one) line", "one-line summary", id="in-a-line"),
    pytest.param(r"news", "change", id="news"),
    pytest.param(r"tak(?:e|es|en|ing) (?:\S+ ){0,3}for granted", "assume", id="for-granted"),
    pytest.param(r"spoken to|hears? (?:of|about)", "send a request to; receive", id="spoken-to"),
]
# In identifiers alone: in texts these words are fine.
PRIVATE_NAMES = [
    pytest.param(r"who|whom|somebody", "user, subject, client", id="who"),
    pytest.param(r"said|got", "message, state; received", id="said"),
    pytest.param(r"looks?(?! ups?)", "scan, observation; look_up", id="look"),
]
# Where such a word is the right one: the name of a text and the phrase in it, with the reason.
ALLOWED = {
    ("operator/group_hygiene/controller/api.py identifiers", "KINDS"): "kinds of the Kubernetes API",
    ("operator/group_hygiene/controller/api.py identifiers", "claiming kinds"): "kinds of the Kubernetes API",
    ("operator/group_hygiene/controller/claims.py identifiers", "KINDS"): "kinds of the Kubernetes API",
    ("operator/group_hygiene/controller/claims.py identifiers", "kinds"): "kinds of the Kubernetes API",
    ("operator/group_hygiene/controller/api.py identifiers", "kinds"): "kinds of the Kubernetes API",
}


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


@pytest.mark.parametrize(("pattern", "instead"), PRIVATE_NAMES)
def test_no_private_name(pattern: str, instead: str) -> None:
    """No identifier of the operator has this word as a part."""
    assert found(pattern, dict(identifiers())) == [], f"instead: {instead}"


def test_each_exception_is_needed() -> None:
    """A phrase that is allowed stands in that text."""
    assert [(name, phrase) for name, phrase in ALLOWED if phrase not in texts()[name]] == []


def test_reasons_and_values_of_enums_are_searched() -> None:
    """Their words one by one, as those of other names."""
    for file, words in (("model/reasons.py", "All Delivered"), ("model/entries.py", "Not Deleted")):
        assert words in texts()[f"operator/group_hygiene/{file} strings"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("AllTold", "All Told", id="camel-case"),
        pytest.param("SUBSCRIPTION_NOT_TOLD", "SUBSCRIPTION NOT TOLD", id="upper-case"),
        pytest.param("_is_told", " is told", id="snake-case"),
        pytest.param("clusterID", "cluster ID", id="abbreviation"),
    ],
)
def test_names_are_split_into_words(name: str, words: str) -> None:
    """So that a private word in them is found."""
    assert in_words(name) == words


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


def test_docstrings_comments_and_strings_are_searched() -> None:
    """Each at its line, private ones and parts of f-strings included."""
    source = texts()
    file = "operator/group_hygiene/pipeline/jobs.py"
    lines = (ROOT / file).read_text().splitlines()
    for what, words in (
        ("docstrings", "Whether its Java process answers"),
        ("comments", "With other jobs, once a day is enough"),
        ("strings", "contains % or"),
    ):
        number = next(number for number, line in enumerate(lines) if words in line)
        assert words in " ".join(source[f"{file} {what}"].splitlines()[number - 1 : number + 1])


def _words(file: Path) -> int:
    """As `wc -w` counts them."""
    return len(file.read_text().split())


def _pages() -> dict[str, Path]:
    """Path in the repository -> each page of docs/ but the decisions."""
    pages = (ROOT / "docs").rglob("*.md")
    return {str(file.relative_to(ROOT)): file for file in sorted(pages) if file.parent.name != "adr"}


@pytest.mark.parametrize("file", sorted((ROOT / "docs").rglob("*.md")), ids=lambda file: file.name)
def test_no_page_is_long(file: Path) -> None:
    """What users read takes some minutes."""
    name = str(file.relative_to(ROOT))
    if name not in GENERATED:
        assert _words(file) <= (LONGEST_REFERENCE if name in REFERENCES else LONGEST_PAGE)


def test_there_is_little_to_read() -> None:
    """Few pages, and few words in those that are written by hand."""
    pages = _pages()
    assert len(pages) <= MOST_PAGES
    assert sum(_words(file) for name, file in pages.items() if name not in GENERATED) <= ALL_PAGES


def test_the_readme_is_short() -> None:
    """It is for people in a hurry."""
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 1_300
    assert text.count("\n") <= 150
