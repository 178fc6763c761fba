"""docs/safety-outcomes.md: the table of `reconcile.settle`, with the text of docsite/settle.md. Reads only that."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from pathlib import Path

from docsite.markdown import plain, table
from group_hygiene.model.verdicts import OutcomeKind
from group_hygiene.reconcile.settle import ROWS, Found, Open, Request, Row, State, Target

_PROSE = Path(__file__).parent / "settle.md"
_NOTICE = (
    "<!-- Made by `make docs` of docsite/settle.md and operator/group_hygiene/reconcile/settle.py: edit these. -->\n\n"
)
_TITLES = ("Row", "In the ledger", "Target", "Request", "In Kafka", "Outcome", "Backup")


def page() -> str:
    """The text."""
    title, text = _PROSE.read_text().split("\n\n", 1)
    return f"{title}\n\n{_NOTICE}{text.replace('@rows', table(_TITLES, list(map(_cells, ROWS))).rstrip())}"


def _cells(row: Row) -> list[str]:
    then = row.then
    if isinstance(then, Open):
        end, backup = f"open: {then.why}", "stays"
    else:
        kind = "as answered" if then.kind is None else "deleted" if then.kind is OutcomeKind.DELETED else "not deleted"
        reason = f", `{then.reason}`" if then.reason else ""
        end = f"{kind}{reason}{', in doubt' if then.in_doubt else ''}"
        backup = "removed" if then.removes_backup else "stays"
    facts = ((row.states, State), (row.targets, Target), (row.requests, Request), (row.found, Found))
    return [f"`{row.name}`", *(_values(values, whole) for values, whole in facts), plain(end), backup]


def _values(values: Collection[Enum], whole: type[Enum]) -> str:
    """All values by name; the others if these are fewer."""
    others = [each for each in whole if each not in values]
    if not others:
        return "any"
    if len(others) < len(values):
        return f"any but: {_joined(others)}"
    return _joined([each for each in whole if each in values])


def _joined(values: Collection[Enum]) -> str:
    return " / ".join(str(each.value) for each in values)
