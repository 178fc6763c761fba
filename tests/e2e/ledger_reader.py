"""The ledger as any program can read it: a topic of JSON. For comparing what the operator says with what it wrote."""

from __future__ import annotations

from typing import Any

from testing.sandbox.ledger_log import LedgerLog


def ledger_entries(bootstrap: str, topic: str = "__group_hygiene") -> list[dict[str, Any]]:
    """The values of all committed records that are no tombstones, oldest first."""
    return [record.value for record in LedgerLog(bootstrap, topic).read() if record.value is not None]


def outcomes(bootstrap: str, group: str, topic: str = "__group_hygiene") -> list[tuple[str, str]]:
    """What became of a group, and why, oldest first."""
    entries = ledger_entries(bootstrap, topic)
    return [(e["what"], e["reason"]) for e in entries if e["kind"] == "outcome" and e["group"] == group]
