"""How the checks spell times."""

from __future__ import annotations

from datetime import datetime, timedelta


def whole_seconds(value: timedelta) -> timedelta:
    return timedelta(seconds=value // timedelta(seconds=1))


def told_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
