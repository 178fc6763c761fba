"""Does the ledger tell the whole story of a purge? Pure: of what was committed, and of the ledger's records.

It shares no code with the operator.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from testing.faults.groups import Offsets
from testing.sandbox.ledger_log import Record

_LEFT = ("mark", "seen", "intent")
_GROUP_AT = {"mark": 2, "seen": 2}


def problems(records: Iterable[Record], deleted: Mapping[str, Offsets]) -> list[str]:
    """One line for each group of `deleted` (what it had committed) about which the ledger is wrong.

    Right is: one Outcome that says Deleted, under its id a whole backup of exactly what was committed, and neither an
    intent nor a mark nor a count of unchanged looks that is left. Nothing else may be told as deleted either.
    """
    standing: dict[tuple[str, ...], Any] = {}
    for record in records:
        if record.value is None:
            standing.pop(record.key, None)
        else:
            standing[record.key] = record.value
    by_group: dict[str, list[tuple[tuple[str, ...], Any]]] = defaultdict(list)
    for key, value in standing.items():
        at = _GROUP_AT.get(key[0], 1)
        if len(key) > at:
            by_group[key[at]].append((key, value))
    found = []
    for name in sorted({*deleted, *by_group}):
        wrong = _wrong(by_group[name], deleted.get(name))
        if wrong:
            found.append(f"{name}: {wrong}")
    return found


def _wrong(entries: list[tuple[tuple[str, ...], Any]], had: Offsets | None) -> str:
    deletions = [key[2] for key, value in entries if key[0] == "outcome" and value["what"] == "Deleted"]
    if had is None:
        return "told as deleted, and was not" if deletions else ""
    if len(deletions) != 1:
        return f"{len(deletions)} outcomes say that it was deleted"
    left = [key[0] for key, _ in entries if key[0] in _LEFT]
    if left:
        return f"left after its deletion: {', '.join(left)}"
    parts = {value["part"]: value for key, value in entries if key[0] == "backup" and key[2] == deletions[0]}
    if not parts or set(parts) != set(range(next(iter(parts.values()))["parts"])):
        return "no whole backup"
    saved = {
        (topic, row[0]): row[1] for part in parts.values() for topic, rows in part["offsets"].items() for row in rows
    }
    return "" if saved == had else f"its backup is not what it had committed: {len(saved)} offsets of {len(had)}"
