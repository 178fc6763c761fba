"""docs/pipeline-tables.md and the tables agree."""

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from group_hygiene.pipeline import tables
from group_hygiene.pipeline.store import Table

_PAGE = (Path(__file__).parents[2] / "docs" / "pipeline-tables.md").read_text()
_TABLES = [value for value in vars(tables).values() if isinstance(value, Table)]


def _documented(table: str) -> list[str]:
    section = re.search(rf"^## {table}\n(.*?)(?=^## )", _PAGE, re.DOTALL | re.MULTILINE)
    assert section, f"docs/pipeline-tables.md has no section {table}"
    return re.findall(r"^\| `(\w+)` \| .+\. \|$", section[1], re.MULTILINE)


@pytest.mark.parametrize("table", [pytest.param(table, id=table.name) for table in _TABLES])
def test_every_column_is_documented(table: Table) -> None:
    """Each table has its section, with a row for each of its columns, in their order, and none for others."""
    assert _documented(table.name) == table.schema.names


def test_every_field_of_an_offset_is_documented() -> None:
    """The row of `offsets` names each field that an element has."""
    (row,) = re.findall(r"^\| `offsets` \|.*$", _PAGE, re.MULTILINE)
    fields = tables.ACTIVITY.schema.field("offsets").type.value_type
    assert [field.name for field in fields if f"`{field.name}`" not in row] == []
