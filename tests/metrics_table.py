"""docs/runbook.md as data: every metric with its type and labels, for tests of whatever names metrics."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "runbook.md"
_SECTION_LABELS = {
    "Metrics of policies": ("namespace", "policy"),
    "Metrics of connections": ("namespace", "connection"),
}
_ROW = re.compile(r"^\| `(group_hygiene_\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \| `([^|]+)` \|$", re.MULTILINE)


@dataclass(frozen=True)
class Documented:
    """A metric as documented. labels: all of them, `le` of a histogram too."""

    name: str
    type: str
    labels: frozenset[str]
    meaning: str
    query: str


def documented() -> list[Documented]:
    """Each row of the tables, in their order."""
    found: list[Documented] = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        common = _SECTION_LABELS.get(section.partition("\n")[0], ())
        for name, type_, labels, meaning, query in _ROW.findall(section):
            found.append(
                Documented(name, type_, frozenset(common) | set(re.findall(r"`(\w+)`", labels)), meaning, query)
            )
    return found


def series() -> dict[str, frozenset[str]]:
    """What a query may name -> its labels: of a histogram, its three series."""
    known: dict[str, frozenset[str]] = {}
    for metric in documented():
        if metric.type == "histogram":
            known[f"{metric.name}_bucket"] = metric.labels
            known |= {f"{metric.name}_{end}": metric.labels - {"le"} for end in ("sum", "count")}
        else:
            known[metric.name] = metric.labels
    return known
