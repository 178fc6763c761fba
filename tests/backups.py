"""A backup, for tests that name only what matters to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from group_hygiene.model.entries import Backup, SavedOffset

_AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def backup(group: str, offsets: dict[str, list[SavedOffset]], **changes: Any) -> Backup:
    """All in one part, kept for 30 days, of a classic group whose topics have ids."""
    made = Backup(
        group=group,
        id="id-1",
        part=0,
        parts=1,
        type="Classic",
        protocol_type="consumer",
        cluster="c",
        policy="kafka/unused",
        policy_uid="uid-1",
        generation=1,
        at=_AT,
        expires=_AT + timedelta(days=30),
        evidence="",
        offsets=offsets,
        topic_ids={topic: f"id-of-{topic}" for topic in offsets},
    )
    return structs.replace(made, **changes)
