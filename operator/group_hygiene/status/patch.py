"""Whether a change of a status is worth a write, and the patch that makes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from group_hygiene.model import reasons

# Shorter than a minute, so that each run of a policy that runs every minute is shown.
QUIET_PERIOD = timedelta(seconds=55)
RUN_ID = "lastRunID"
# Conditions whose message says what is wrong.
_EXPLAINING = ("Ready", "Kept", "LedgerReady", "EvidenceReady", "TopicsVisible", "AlertsDelivered")
# Reasons whose messages contain numbers that change with every scan.
COUNTING = (reasons.LIMIT_EXCEEDED, reasons.CLUSTER_TOO_SMALL)


def needs_write(old: Mapping[str, Any], new: Mapping[str, Any], now: datetime) -> bool:
    """Whether to write the new status: at once if an important field changed, else at most once a minute."""
    if _important(old) != _important(new):
        return True
    if _without_run(old) == _without_run(new):
        return False
    written = old.get("lastRunTime") or old.get("lastScanTime")
    return not written or now - datetime.fromisoformat(written) >= QUIET_PERIOD


def changed_conditions(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The conditions of the new status that are new, or whose status or reason changed."""
    before = {c["type"]: (c["status"], c["reason"]) for c in old.get("conditions") or []}
    return [c for c in new.get("conditions") or [] if before.get(c["type"]) != (c["status"], c["reason"])]


def signed(new: Mapping[str, Any], run: str | None) -> dict[str, Any]:
    """The status with the id of the run that writes it; None = it was no run, and the status shows no id."""
    return _without_run(new) | ({RUN_ID: run} if run else {})


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that turns `old` into `new`: removed keys become null."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if nested := merge_patch(before, value):
                patch[key] = nested
        elif value != before or key not in old:
            patch[key] = value
    return patch


def _without_run(status: Mapping[str, Any]) -> dict[str, Any]:
    """Without the run's id, which always differs."""
    return {key: value for key, value in status.items() if key != RUN_ID}


def _important(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """The fields whose change is written at once: no times, no number of scanned groups, no reasons of skipped groups.

    Messages count only if something is wrong: other messages contain numbers that change with every scan.
    """
    groups = status.get("groups") or {}
    return (
        status.get("observedGeneration"),
        [
            (
                c["type"],
                c["status"],
                c["reason"],
                c["message"]
                if c["type"] in _EXPLAINING and c["status"] == "False" and c["reason"] not in COUNTING
                else "",
            )
            for c in status.get("conditions") or []
        ],
        [groups.get(key) for key in ("matched", "marked", "due", "wouldDelete", "deleted", "failed", "total")],
        status.get("totals"),
        status.get("lastMarkedTime"),
        [entry["group"] for entry in status.get("sample") or [] if entry["verdict"] == "Match"],
        [status.get(key) for key in ("clusterID", "brokers", "features", "ledger", "servedBy")],
    )
