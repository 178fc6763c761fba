"""The rooms of the package: what their docstrings, the import rules and docs/architecture.md say about them is so."""

import ast
import configparser
import re
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
SHARED = {"groups", "offsets", "unread", "evidence", "restores", "__init__", "__main__"}


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
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter")
    layers = re.findall(r"\w+", rules["importlinter:contract:layers"]["layers"])
    table = PAGE.partition("## Rooms")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE) == [layer for layer in layers if layer != "errors"]
    named = re.findall(r"`(\w+(?:/\w+)+\.py)`", PAGE)
    assert len(re.findall(r"^\d\. `\w", PAGE, re.MULTILINE)) == 6
    assert [name for name in named if not (PACKAGE / name).exists()] == []
