"""Texts as Markdown: what is to be shown as it is, and tables. No I/O."""

import re
from collections.abc import Sequence

_CODE = re.compile(r"(`[^`]*`)")
_SPECIAL = re.compile(r"([\\*_<>\[\]|])")


def plain(text: str) -> str:
    """A text of which only `code` is Markdown: all else is shown as it is."""
    parts = _CODE.split(text)
    return "".join(part if _CODE.fullmatch(part) else _SPECIAL.sub(r"\\\1", part) for part in parts)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are Markdown; a line end in one is shown as such."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    # A bar ends a cell also within code, unless it is escaped; what reads it takes the escape away.
    within = re.sub(r"(?<!\\)\|", r"\\|", text)
    return within.replace("\n", "<br>")
