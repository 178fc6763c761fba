"""The rooms of the package: what their docstrings, the import rules and docs/architecture.md say about them is so."""

import ast
import configparser
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "operator" / "group_hygiene"
ROOMS = sorted(
    path.parent for path in PACKAGE.rglob("__init__.py") if path.parent not in (PACKAGE, PACKAGE / "kafka/schemas")
)
PAGE = (ROOT / "docs" / "architecture.md").read_text()
# The same subject in several rooms: requests, records, commands or checks of it.
SHARED = {"groups", "offsets", "__init__", "__main__"}
RULES = configparser.ConfigParser()
RULES.read(ROOT / ".importlinter")
# For each contract of `.importlinter`: a module, and what it must not import.
FORBIDDEN = {
    "layers": [("model.groups", "group_hygiene.kafka.client")],
    "pipeline-layers": [("pipeline.store", "group_hygiene.pipeline.jobs")],
    "kafka-python": [("cli.groups", "kafka"), ("ledger.journal", "kafka")],
    "changes": [
        ("cli.keep_requests", "group_hygiene.kafka.changes"),
        ("cli.keep_requests", "group_hygiene.ledger.records"),
        ("controller.policies", "group_hygiene.ledger.records"),
        ("engine.restoration", "group_hygiene.kafka.changes"),
        ("engine.deletion", "group_hygiene.kafka.changes"),
        ("engine.recovery", "group_hygiene.ledger.records"),
    ],
    "ledger": [("cli.history", "group_hygiene.ledger.ledger"), ("engine.recovery", "group_hygiene.ledger.ledger")],
    "kubernetes": [("cli.target", "kopf"), ("engine.scan", "kubernetes")],
    "controller-kafka": [("controller.policies", "group_hygiene.kafka.groups")],
    "deltalake": [("evidence.trust", "deltalake")],
    "spark": [("evidence.trust", "pyspark")],
    "pipeline-alone": [("pipeline.store", "group_hygiene.ledger.journal")],
    "spark-workers": [("kafka.codecs", "kafka")],
    "report": [("controller.policies", "group_hygiene.observe.page")],
    "drawing": [("cli.output", "jinja2")],
    "aws": [("kafka.client", "botocore")],
    "pure": [
        ("engine.plan", "group_hygiene.kafka.client"),
        ("engine.checks.used", "group_hygiene.evidence.reader"),
        ("observe.of_objects", "group_hygiene.ledger.journal"),
    ],
    "shown-apart": [("observe.page", "group_hygiene.observe.outbox")],
}


@pytest.mark.parametrize("room", [pytest.param(room, id=str(room.relative_to(PACKAGE))) for room in ROOMS])
def test_a_room_lists_its_modules(room: Path) -> None:
    """The docstring has one line for each module and each room in it."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    modules = {path.stem for path in room.glob("*.py")} - {"__init__", "__main__"}
    rooms = {path.parent.name for path in room.glob("*/__init__.py")}
    assert sorted(re.findall(r"^    (\w+)  +\S", text, re.MULTILINE)) == sorted(modules | rooms)


def test_only_errors_are_outside_of_a_room() -> None:
    """Every other module is in a room."""
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "errors.py"}


def test_a_name_stands_for_one_thing() -> None:
    """No two modules have the same name, but for those that are about the same subject."""
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        places[path.stem].append(path)
    assert {name for name, paths in places.items() if len(paths) > 1} <= SHARED


def test_the_page_has_the_rooms_in_the_order_of_imports() -> None:
    """Each room of `.importlinter` has a row, from the top down; the files to start with are there."""
    layers = re.findall(r"\w+", RULES["importlinter:contract:layers"]["layers"])
    table = PAGE.partition("## Rooms")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE) == [layer for layer in layers if layer != "errors"]
    named = re.findall(r"`(\w+(?:/\w+)+\.py)`", PAGE)
    assert len(re.findall(r"^\d\. `\w", PAGE, re.MULTILINE)) == 6
    assert [name for name in named if not (PACKAGE / name).exists()] == []


def test_a_forbidden_import_breaks_its_contract(tmp_path: Path) -> None:
    """`make imports` fails and names it, for each contract: above all, a module that changes Kafka by itself."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for module, imported in [each for of_contract in FORBIDDEN.values() for each in of_contract]:
        with (tmp_path / PACKAGE.name / f"{module.replace('.', '/')}.py").open("a") as file:
            file.write(f"\nimport {imported}\n")
    program = Path(sys.executable).with_name("lint-imports")
    command = [str(program), "--config", str(ROOT / ".importlinter"), "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    prefix = "importlinter:contract:"
    assert {f"{prefix}{contract}" for contract in FORBIDDEN} == {each for each in RULES if each.startswith(prefix)}
    broken = done.stdout.partition("Broken contracts")[2]
    for contract, imports in FORBIDDEN.items():
        name = RULES[f"{prefix}{contract}"]["name"]
        found = re.search(rf"^{re.escape(name)}\n-+\n(.*?)(?=^[^\n]+\n-{{3,}}\n|\Z)", broken, re.MULTILINE | re.DOTALL)
        assert found is not None, (name, done.stdout)
        for module, imported in imports:
            assert re.search(rf"group_hygiene\.{module} -> {re.escape(imported)} \(", found[1]), (
                name,
                module,
                imported,
            )
