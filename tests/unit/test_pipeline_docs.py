"""docs/pipeline-tables.md and the tables agree."""

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from group_hygiene.pipeline import tables

_PAGE = (Path(__file__).parents[2] / "docs" / "pipeline-tables.md").read_text()
_TABLES = [value for value in vars(tables).values() if isinstance(value, tables.Table)]


def _documented(table: str) -> list[str]:
    section = re.search(rf"^## {table}\n(.*?)(?=^## )", _PAGE, re.DOTALL | re.MULTILINE)
    assert section, f"docs/pipeline-tables.md has no section {table}"
    return re.findall(r"^\| `(\w+)` \| .+\. \|$", section[1], re.MULTILINE)


@pytest.mark.parametrize("table", [pytest.param(table, id=table.name) for table in _TABLES])
def test_every_column_is_documented(table: tables.Table) -> None:
    """Each table has its section, with a row for each of its columns, in their order, and none for others."""
    assert _documented(table.name) == table.schema.names


def test_every_field_of_an_offset_is_documented() -> None:
    """The row of `offsets` names each field that an element has."""
    (row,) = re.findall(r"^\| `offsets` \|.*$", _PAGE, re.MULTILINE)
    (offsets,) = [field for field in tables.ACTIVITY.schema.fields if field.name == "offsets"]
    fields = offsets.dataType.elementType.names  # type: ignore[attr-defined]
    assert [name for name in fields if f"`{name}`" not in row] == []
