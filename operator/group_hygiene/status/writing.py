"""Whether a change of a status is worth a write, and the patch that makes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

QUIET_PERIOD = timedelta(minutes=5)
RUN_ID = "lastRunID"
# Conditions whose message somebody must read to mend what is wrong.
_TELLING = ("Ready", "LedgerReady", "EvidenceReady", "AlertsDelivered")


def needs_write(old: Mapping[str, Any], new: Mapping[str, Any], now: datetime) -> bool:
    """Whether the difference is worth a write: at once for what people act on, else at most every five minutes."""
    if _telling(old) != _telling(new):
        return True
    if _without_run(old) == _without_run(new):
        return False
    written = old.get("lastRunTime") or old.get("lastScanTime")
    return not written or now - datetime.fromisoformat(written) >= QUIET_PERIOD


def signed(new: Mapping[str, Any], run: str | None) -> dict[str, Any]:
    """The status with the id of the run that writes it; None = it was no run, and the status says nothing of one."""
    return _without_run(new) | ({RUN_ID: run} if run else {})


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that turns `old` into `new`: what vanished becomes null."""
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
    """Each run has another id: that alone is no news."""
    return {key: value for key, value in status.items() if key != RUN_ID}


def _telling(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a change of is news: not times, not how many groups were looked at, not why groups stay.

    Messages count only where something is wrong: the others tell numbers that change with every scan.
    """
    groups = status.get("groups") or {}
    return (
        status.get("observedGeneration"),
        [
            (
                c["type"],
                c["status"],
                c["reason"],
                c["message"] if c["type"] in _TELLING and c["status"] == "False" else "",
            )
            for c in status.get("conditions") or []
        ],
        [groups.get(key) for key in ("matched", "marked", "due", "deleted", "failed", "total")],
        status.get("totals"),
        status.get("lastMarkedTime"),
        [entry["group"] for entry in status.get("sample") or [] if entry["verdict"] == "Match"],
        [status.get(key) for key in ("clusterId", "brokers", "features", "ledger")],
    )
