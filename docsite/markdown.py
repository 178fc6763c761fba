"""Converts texts to Markdown: literal texts and tables. No I/O."""

import re
from collections.abc import Sequence

_CODE = re.compile(r"(`[^`]*`)")
_SPECIAL = re.compile(r"([\\*_<>\[\]|])")


def plain(text: str) -> str:
    """Escape a text so that only `code` is Markdown."""
    parts = _CODE.split(text)
    return "".join(part if _CODE.fullmatch(part) else _SPECIAL.sub(r"\\\1", part) for part in parts)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells in Markdown; line ends in cells are preserved."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    # A bar ends a cell even within code, unless it is escaped; renderers remove the escape.
    within = re.sub(r"(?<!\\)\|", r"\\|", text)
    return within.replace("\n", "<br>")
