"""The documents agree with the code: every reason is documented and used, and nothing else is documented."""

import ast
import json
import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml

from docsite import reason_page
from group_hygiene import errors
from group_hygiene.cli import main
from group_hygiene.engine.plan import FAILURES
from group_hygiene.model import reasons
from group_hygiene.observe import conditions
from group_hygiene.process import runs

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "operator" / "group_hygiene").rglob("*.py"))
CONSTANTS = {name: value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}
PLACES = {
    "sample",
    "reasons",
    "Ready",
    "DeletionBlocked",
    "LedgerReady",
    "EvidenceReady",
    "MayNeverMatch",
    "TopicsVisible",
    "PatternsMatch",
    "Alerting",
    "AlertsDelivered",
    "Kept",
    "keep",
    "alert",
    "event",
    "restore",
    "metrics",
    "history",
    "log",
}
_ROW = re.compile(r"^\| `(\w+)` *\| ([^|]+?) *\| ([^|]+?) *\| ([^|]+?) *\|$", re.MULTILINE)


def _rows() -> list[tuple[str, str, str, str]]:
    return _ROW.findall((ROOT / "docs" / "reasons.md").read_text())


def test_every_reason_is_documented_once() -> None:
    """docs/reasons.md has one row for each reason that exists, and none for others."""
    rows = Counter(reason for reason, *_ in _rows())
    assert set(rows) == reasons.all_reasons()
    assert [reason for reason, count in rows.items() if count > 1] == []


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in _rows()])
def test_row_says_where_and_what(row: tuple[str, str, str, str]) -> None:
    """Each row says where the reason shows, what it means and what to do, the latter two in sentences."""
    _, where, meaning, advice = row
    assert {place.strip() for place in where.split(",")} <= PLACES
    assert meaning.endswith(".")
    assert advice.endswith(".")


@cache
def _used() -> set[str]:
    """Names of constants that code outside of reasons.py uses; errors name theirs by value, importing nothing."""
    by_value = {value: name for name, value in CONSTANTS.items()}
    used: set[str] = set()
    for source in SOURCES:
        if source.name == "reasons.py":
            continue
        for node in ast.walk(ast.parse(source.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="reasons"), attr=name):
                    used.add(name)
                case ast.Assign(targets=[ast.Name(id="reason")], value=ast.Constant(value=str(value))):
                    used.add(by_value.get(value, value))
                case ast.Call(func=ast.Name(id=called), args=args) if hasattr(errors, called):
                    values = [arg.value for arg in args[1:] if isinstance(arg, ast.Constant)]
                    used.update(by_value.get(str(value), str(value)) for value in values)
    return used


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in CONSTANTS])
def test_reason_is_used(name: str) -> None:
    """No reason is left that nothing gives."""
    assert name in _used()


def test_reasons_are_distinct_words() -> None:
    """Each reason is one word in PascalCase, as Kubernetes wants it, and stands for one thing."""
    assert len(set(CONSTANTS.values())) == len(CONSTANTS)
    assert [value for value in CONSTANTS.values() if not re.fullmatch(r"([A-Z]+[a-z]*)+", value)] == []


def _errors(kind: type[errors.HygieneError] = errors.HygieneError) -> list[type[errors.HygieneError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _errors(child))]


@pytest.mark.parametrize("error", [pytest.param(error, id=error.__name__) for error in _errors()])
def test_errors_have_documented_reasons(error: type[errors.HygieneError]) -> None:
    """Every error that can end up in a status carries a documented reason; two only end the command line."""
    assert error.reason in reasons.all_reasons() | {"UsageError", "PipelineFailed"}
    assert error("text", "SecretForbidden").reason == "SecretForbidden"


def test_the_kinds_have_each_condition() -> None:
    """A row in at least one of their pages."""
    sections = [page.read_text().partition("\n## Conditions\n")[2] for page in (ROOT / "docs" / "kinds").glob("*.md")]
    found = {name for section in sections for name in re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)}
    assert found == set(conditions.TYPES)


def test_each_reason_of_a_condition_says_what_to_check() -> None:
    """What to look at first, in sentences; `Nothing.` where nothing is wrong."""
    of_conditions = [reason for reason in reason_page.reasons() if set(reason.where) & set(conditions.TYPES)]
    assert {"Ready", "DeletionBlocked"} <= {place for reason in of_conditions for place in reason.where}
    assert [reason.name for reason in of_conditions if reason.check[-1:] not in (".", "?")] == []


def test_every_reason_that_code_gives_a_condition_is_documented_as_one() -> None:
    """What fails a run, and what ends in a problem of an object, by the code itself."""
    documented = {reason for reason, where, *_ in _rows() if "Ready" in where.replace("LedgerReady", "")}
    given = FAILURES | {error.reason for error in _errors(errors.ConnectError)} | {errors.SpecError.reason}
    status = ast.parse((ROOT / "operator" / "group_hygiene" / "controller" / "turns.py").read_text())
    given |= {
        CONSTANTS[node.args[0].attr]
        for node in ast.walk(status)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Refusal"
        and isinstance(node.args[0], ast.Attribute)
        and node.args[0].attr in CONSTANTS
    }
    assert given - documented == set()


def test_log_fields_are_documented() -> None:
    """The page of the command `operator` has each field that a line may have."""
    logs = (ROOT / "docsite" / "commands" / "operator.md").read_text()
    fields = set(re.findall("`([a-z]+)`", "".join(re.findall(r"^\| (`[^|]+) \|", logs, re.MULTILINE))))
    assert fields == {*runs.FIELDS, "time", "level", "logger", "message", "traceback", "stack"}


def _promises() -> str:
    """The pages that promise something, with the tests and faults that prove it."""
    pages = sorted([*(ROOT / "docs").glob("safety*.md"), *(ROOT / "docs").glob("security*.md")])
    return "\n".join(page.read_text() for page in pages)


def _proofs() -> list[str]:
    return re.findall(r"`(tests/[a-z_0-9/]+\.py(?:::\w+)?)`", _promises())


def test_each_promise_has_a_proof() -> None:
    """Each row of a table of promises names a test, a fault or a target of make."""
    tables = re.findall(r"^\| promise \| proof \|\n\| --- \| --- \|\n((?:\|.*\n)+)", _promises(), re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 80
    assert [row for row in rows if not re.search(r"`tests/|faults? `|`make [a-z-]+`", row.split(" | ")[1])] == []


@pytest.mark.parametrize("proof", _proofs())
def test_each_proof_of_safety_exists(proof: str) -> None:
    """A promise stands on a test that is there."""
    file, _, name = proof.partition("::")
    text = (ROOT / file).read_text()
    assert not name or re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)


def test_each_fault_that_safety_names_exists() -> None:
    """By the name under which `make faults` runs it."""
    named = {
        name
        for text in re.findall(r"faults? ((?:`[a-z-]+`(?:, )?)+)", _promises())
        for name in re.findall("`([^`]+)`", text)
    }
    there = "\n".join(file.read_text() for file in (ROOT / "testing" / "faults").glob("*.py"))
    assert named
    assert {name for name in named if f"def {name.replace('-', '_')}(" not in there} == set()


def _workflow_commands() -> list[list[str]]:
    """Each call of the program in the workflows that users copy, in words."""
    calls: list[list[str]] = []
    for file in sorted([*(ROOT / "deploy").rglob("*.yml"), *(ROOT / "examples").rglob("*.yml")]):
        for job in yaml.safe_load(file.read_text()).get("jobs", {}).values():
            lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
            calls += [
                shlex.split(line.partition("|")[0])
                for line in map(str.strip, lines)
                if line.startswith("group-hygiene ")
            ]
    return calls


def test_workflows_call_what_there_is() -> None:
    """The commands and the options of workflows in deploy/ and examples/ are the program's own."""
    calls = _workflow_commands()
    assert calls
    for _, name, *arguments in calls:
        command = main.commands[name]
        known = {spelling for parameter in command.params for spelling in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in arguments if word.startswith("-")} <= known


@pytest.mark.parametrize("page", ["README.md", "docs/install.md", "docs/runbook.md"])
def test_doctor_of_a_connection_runs_in_the_pod(page: str) -> None:
    """The connection of the quickstart names a Service, which resolves only in the Kubernetes cluster."""
    lines = re.findall(r"^.*group-hygiene doctor --connection .*$", (ROOT / page).read_text(), re.MULTILINE)
    assert lines
    pod = "kubectl exec -n group-hygiene deploy/group-hygiene -- group-hygiene doctor "
    assert [line for line in lines if not line.startswith(pod)] == []


def test_the_readme_quotes_the_bench() -> None:
    """Its figures of a broker are those of the last run that is stored, rounded."""
    text = " ".join((ROOT / "README.md").read_text().split())
    result = json.loads((ROOT / "testing" / "bench" / "results" / "broker.json").read_text())["result"]
    most, after = result["groups"]["500000"], result["after_clean_up"]
    for quoted in (
        f"hold {most['heap_mb'] / 1024:.1f} GB of its heap ({result['bytes_per_group'] / 1000:.1f} KB each)",
        f"take {most['loading_s']:.1f} s of its start",
        f"answers with {most['list_mb']:.0f} MB in {most['list_ms'] / 1000:.2f} s",
        f"takes an exporter {most['scrape_s']:.1f} s",
        f"it is {after['heap_mb'] / 1024:.2f} GB, {after['list_ms'] / 1000:.2f} s and {after['scrape_s']:.2f} s",
        f"a start still takes {after['loading_s']:.1f} s",
    ):
        assert quoted in text
