"""The objects of the operator's CRDs as its loops see them: only the fields that are input, in the form of the CRD."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

Object = dict[str, Any]

_METADATA = ("name", "namespace", "uid", "generation", "resourceVersion", "deletionTimestamp")


class _Condition(msgspec.Struct):
    """A metav1.Condition."""

    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: str


class _Row(msgspec.Struct):
    group: str
    verdict: str


class _Ledger(msgspec.Struct):
    id: str | None = None
    topic: str | None = None


# The fields of statuses that are read again, and what they must be.
_STATUS: Mapping[str, Any] = {
    "conditions": list[_Condition],
    "sample": list[_Row],
    "groups": dict[str, Any],
    "totals": dict[str, int],
    "ledger": _Ledger,
    "clusterID": str,
    "lastRunTime": datetime,
    "lastScanTime": datetime,
    "startTime": str,
    "completionTime": str,
}


def trimmed(obj: Mapping[str, Any]) -> Object:
    """Without annotations and managed fields, and without fields of the status that lack the form of the CRD.

    An object that was stored under a laxer CRD may have any shape; who reads a spec parses it.
    """
    status = obj.get("status")
    fields = status.items() if isinstance(status, Mapping) else ()
    return {
        "kind": obj.get("kind"),
        "metadata": {key: obj["metadata"][key] for key in _METADATA if key in obj["metadata"]},
        "spec": obj.get("spec"),
        "status": {key: value for key, value in fields if key not in _STATUS or _fits(value, _STATUS[key])},
    }


def _fits(value: Any, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True
