"""The spec of a GroupKeep, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from group_hygiene.model.group_keep import GroupKeep
from group_hygiene.spec.fields import Decisive, ObjectRef, convert
from group_hygiene.spec.judge import judged

GROUPS_MAX = 100


class _Spec(Decisive, frozen=True, kw_only=True):
    connection_ref: ObjectRef
    groups: tuple[str, ...]
    reason: str
    until: datetime | None = None
    ignore_not_found: bool


def parse_keep(obj: Mapping[str, Any]) -> GroupKeep:
    """Raises SpecError."""
    metadata, spec = obj["metadata"], convert(judged("GroupKeep", obj), _Spec, "spec")
    return GroupKeep(metadata["namespace"], metadata["name"], metadata["uid"], spec.groups, spec.reason, spec.until)
