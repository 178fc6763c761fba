"""The API group has one constant in the operator, and files that can't import it agree with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from group_hygiene.spec.crds import GROUP, PLURALS

ROOT = Path(__file__).parents[2]
_KINDS, _PLURALS = "|".join(PLURALS), "|".join(PLURALS.values())
# Where a file names the group of our resources.
_PLACES = {
    "apiVersion of an object": rf"apiVersion: *([\w.-]+)/\w+,?\s+kind: *(?:{_KINDS})\b",
    "group of a CRD": rf"\n  group: (\S+)\n  scope: \w+\n  names:\n    kind: (?:{_KINDS})\n",
    "name of a CRD": rf"\b(?:{_PLURALS})\.([a-z0-9-]+\.[a-z0-9.-]*[a-z0-9])\b",
    "rule of a role": rf"apiGroups: *\[([^\]]*)\]\s+resources: *\[[^\]]*\b(?:{_PLURALS})\b",
    "health check of Argo CD": rf"customizations\.health\.([\w.-]+)_(?:{_KINDS})\b",
}


def _texts(*folders: str, ending: str = "") -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob(f"*{ending}")):
            if path.is_file() and path.suffix in (".md", ".py", ".tpl", ".txt", ".yaml"):
                yield str(path.relative_to(ROOT)), path.read_text()


@pytest.mark.parametrize("place", _PLACES)
def test_all_files_have_the_same_group(place: str) -> None:
    """The CRDs, the chart, the manifests, the examples and the pages."""
    found = [
        (name, group)
        for name, text in _texts("crds", "deploy", "examples", "docs", "docsite")
        for group in re.findall(_PLACES[place], text)
    ]
    assert found
    assert [each for each in found if each[1] != GROUP] == []


def test_the_operator_has_it_once() -> None:
    """All else is derived from the constant."""
    found = [name for name, text in _texts("operator", "docsite", ending=".py") for _ in range(text.count(GROUP))]
    assert found == ["operator/group_hygiene/spec/crds.py"]
