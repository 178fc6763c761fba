"""Checks that specs are mappings, and that this version knows all fields that affect decisions. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from group_hygiene.errors import SpecError

Fields = Mapping[str, frozenset[str]]

# The fields that affect which groups are selected, how many, and by whom: field -> its fields, as in the CRD.
POLICY: Fields = {
    "spec": frozenset({"connectionRef", "interval", "suspend", "mode", "match", "when", "action", "delete", "alert"}),
    "spec.match": frozenset(
        {"groups", "exclude", "states", "types", "protocolTypes", "topics", "excludeTopics", "unprotect"}
    ),
    "spec.when": frozenset({"idleFor", "unchangedFor", "offsets", "deletedTopics", "lag", "expiresWithin"}),
    "spec.when.lag": frozenset({"atLeast"}),
    "spec.delete": frozenset({"gracePeriod", "maxPerRun", "maxPercent", "backupRetention"}),
}
CONNECTION: Fields = {
    "spec": frozenset(
        {"bootstrapServers", "tls", "sasl", "role", "scan", "protect", "limits", "ledger", "mirrorMaker"}
        | {"activity", "access", "receivers"}
    ),
    "spec.mirrorMaker": frozenset({"checkpointTopics"}),
    "spec.limits": frozenset({"maxPerRun", "maxPercent", "requestsPerSecond"}),
    "spec.access[]": frozenset({"namespaces", "groups", "actions"}),
    "spec.access[].namespaces": frozenset({"names", "selector"}),
}

_INDEX = re.compile(r"\[\d+\]")


def parse_mapping(value: Any, field: str) -> Mapping[str, Any]:
    """The value, if it is a mapping; else raises SpecError, which names `field`."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{field} must be given, as a mapping")
    return value


def parse_known(value: Any, field: str, known: Fields) -> Mapping[str, Any]:
    """The value, if it is a mapping of fields that this program knows. field: as in `spec.access[0]`. Raises SpecError.

    The CRD may be of a later version: a field that restricts matches or deletions must not be ignored.
    """
    found = parse_mapping(value, field)
    unknown = sorted(set(map(str, found)) - known[_INDEX.sub("[]", field)])
    if unknown:
        raise SpecError(f"{field}.{unknown[0]} must not be given: this version of the program does not know it")
    return found


def parse_decisive(spec: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """A part of a policy's spec, by `parse_known`; all but `match` are optional. Raises SpecError."""
    given = spec.get(part)
    return parse_known({} if given is None and part != "match" else given, f"spec.{part}", POLICY)
