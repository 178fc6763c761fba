"""docs/safety-proofs.md: docsite/proofs.md with the lists of `engine.executor` and `engine.settle`.

Reads only that file and docsite/preconditions.yaml.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from docsite.markdown import plain, table
from group_hygiene.engine.executor import PRECONDITIONS, Moment
from group_hygiene.engine.settle import ROWS, DeletionState, Open, Presence, RequestState, Row, Target
from group_hygiene.model.entries import OutcomeType

_HERE = Path(__file__).parent
_NOTICE = "<!-- Made by `make docs` of docsite/proofs.md, docsite/preconditions.yaml and engine/: edit these. -->\n\n"
_DEFAULTS = {"lasts": "one run", "unknown": "nothing is deleted", "right": "none"}
_PRECONDITION = ("precondition", "protects from", "proof", "holds for", "if unknown", "reasons", "right in Kafka")
_OUTCOME = ("Row", "In the ledger", "Target", "Request", "In Kafka", "Outcome", "Backup")


def page() -> str:
    """The text."""
    title, text = (_HERE / "proofs.md").read_text().split("\n\n", 1)
    text = text.replace("@preconditions", "\n".join(map(_proved, Moment)).rstrip())
    return f"{title}\n\n{_NOTICE}{text.replace('@rows', table(_OUTCOME, list(map(_outcome, ROWS))).rstrip())}"


@cache
def texts() -> dict[str, dict[str, Any]]:
    """Name of a precondition -> its texts, as described in the file."""
    found = yaml.safe_load((_HERE / "preconditions.yaml").read_text())
    return {name: _DEFAULTS | each for name, each in found.items()}


def _proved(moment: Moment) -> str:
    rows = [_precondition(each.name) for each in PRECONDITIONS if moment in each.moments]
    return f"### Proved {moment.value}\n\n{table(_PRECONDITION, rows)}"


def _precondition(name: str) -> tuple[str, ...]:
    each = texts()[name]
    reasons = ", ".join(f"`{reason}`" for reason in each["reasons"])
    return name, each["protects"], each["proof"], each["lasts"], each["unknown"], reasons, each["right"]


def _outcome(row: Row) -> list[str]:
    then = row.then
    if isinstance(then, Open):
        end, backup = f"open: {then.why}", "stays"
    else:
        kind = "as answered" if then.kind is None else "deleted" if then.kind is OutcomeType.DELETED else "not deleted"
        reason = f", `{then.reason}`" if then.reason else ""
        end = f"{kind}{reason}{', in doubt' if then.in_doubt else ''}"
        backup = "removed" if then.removes_backup else "stays"
    facts = ((row.states, DeletionState), (row.targets, Target), (row.requests, RequestState), (row.found, Presence))
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
