"""The spec of a GroupKeep, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta

from group_hygiene.model.group_keep import GroupKeep
from group_hygiene.spec.fields import Decisive, ObjectRef, Text, convert, require

GROUPS_MAX = 100
# The ledger reads no time outside of these.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC)


class _Spec(Decisive, frozen=True, kw_only=True):
    connection_ref: ObjectRef
    groups: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=1000)], ...], Meta(max_length=GROUPS_MAX)]
    reason: Annotated[Text, Meta(max_length=256)]
    until: Annotated[datetime, Meta(tz=True)] | None = None
    ignore_not_found: bool = False

    def __post_init__(self) -> None:
        require(self.groups, "groups must hold at least one group")
        require(len(set(self.groups)) == len(self.groups), "groups must not hold a group twice")
        require(self.until is None or _FIRST <= self.until < _LAST, "until must be between the years 1970 and 2299")


def parse_keep(obj: Mapping[str, Any]) -> GroupKeep:
    """Raises SpecError."""
    metadata, spec = obj["metadata"], convert(obj.get("spec"), _Spec, "spec")
    return GroupKeep(metadata["namespace"], metadata["name"], metadata["uid"], spec.groups, spec.reason, spec.until)
