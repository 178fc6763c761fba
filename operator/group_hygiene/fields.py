"""The fields of specs: that there are such, and that this version knows those of a policy which decide. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from group_hygiene.errors import SpecError

# What decides which groups a policy concerns, and how many: as in the CRD.
DECISIVE: Mapping[str, frozenset[str]] = {
    "match": frozenset(
        {"groups", "exclude", "states", "types", "protocolTypes", "topics", "excludeTopics", "unprotect"}
    ),
    "when": frozenset({"idleFor", "unchangedFor", "committed", "topics", "lag", "outOfRange", "expiresWithin"}),
    "delete": frozenset({"gracePeriod", "maxPerRun", "maxPercent", "backupRetention"}),
}


def parse_mapping(value: Any, field: str) -> Mapping[str, Any]:
    """The value, if it is a mapping; raises SpecError, which names `field`, if not."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{field} must be given, as a mapping")
    return value


def parse_decisive(spec: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """A part of a policy's spec, if it is a mapping of known fields; all but `match` may be left out. Raises SpecError.

    The CRD may be of a later version than this program: a field that narrows what matches must not be passed over.
    """
    given = spec.get(part)
    value = parse_mapping({} if given is None and part != "match" else given, f"spec.{part}")
    unknown = sorted(set(map(str, value)) - DECISIVE[part])
    if unknown:
        raise SpecError(f"spec.{part}.{unknown[0]} must not be given: it is of a later version than this program")
    return value
