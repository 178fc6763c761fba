"""docs/reasons.md: the text of docsite/reasons.md with the tables of docsite/reasons.yaml. Reads only these."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from docsite.markdown import table

_HERE = Path(__file__).parent
_NOTICE = "<!-- Made by `make docs` of docsite/reasons.md and docsite/reasons.yaml: edit these. -->\n\n"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. where: places as in docsite/reasons.md. check: what to check first, may be empty."""

    name: str
    where: tuple[str, ...]
    means: str
    check: str
    do: str


@dataclass(frozen=True, slots=True)
class Section:
    """Reasons under one heading; intro may be empty."""

    title: str
    intro: str
    reasons: tuple[Reason, ...]


@cache
def sections() -> tuple[Section, ...]:
    """All sections, in the order of the page."""
    found = yaml.safe_load((_HERE / "reasons.yaml").read_text())
    return tuple(
        Section(
            section["title"],
            section.get("intro", ""),
            tuple(
                Reason(row["reason"], tuple(row["where"]), row["means"], row.get("check", ""), row["do"])
                for row in section["reasons"]
            ),
        )
        for section in found
    )


def reasons() -> list[Reason]:
    """The reasons of all sections."""
    return [reason for section in sections() for reason in section.reasons]


def page() -> str:
    """The text."""
    title, text = (_HERE / "reasons.md").read_text().split("\n\n", 1)
    return f"{title}\n\n{_NOTICE}{text.replace('@sections', ''.join(map(_section, sections())).rstrip())}"


def _section(section: Section) -> str:
    rows = [[f"`{r.name}`", ", ".join(r.where), r.means, _advice(r)] for r in section.reasons]
    intro = f"{section.intro}\n\n" if section.intro else ""
    return f"## {section.title}\n\n{intro}{table(['Reason', 'Where it shows', 'What it means', 'What to do'], rows)}\n"


def _advice(reason: Reason) -> str:
    return f"*Check:* {reason.check}\n{reason.do}" if reason.check not in ("", "Nothing.") else reason.do
