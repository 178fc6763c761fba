"""Durations as Prometheus writes them ("72h", "3d12h"), and times in Kubernetes' format. No I/O."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from group_hygiene.errors import SpecError

# docs/patterns.md describes it, and `make docs` writes it into the CRDs. The empty text matches, too.
DURATION = re.compile("([0-9]{1,4}d)?([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?([0-9]{1,5}ms)?")
_UNITS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DAY = 24 * _UNITS["h"]


class Duration(timedelta):
    """A duration of a spec. A type of its own, since msgspec reads a timedelta in ISO 8601."""


def parse_duration(text: str, field: str) -> Duration:
    """A duration ("72h", "3d12h", "1h30m", "500ms"); a day has 24 hours. Raises SpecError, which names `field`."""
    if not isinstance(text, str) or not text or not DURATION.fullmatch(text):
        raise SpecError(f"{field} must be a duration like 72h, 3d or 1h30m, not {text!r}")
    parts = re.findall(r"([0-9]+)(d|h|ms|m|s)", text)
    return Duration(milliseconds=sum(int(number) * _UNITS.get(unit, _DAY) for number, unit in parts))


def format_duration(value: timedelta) -> str:
    """A timedelta as the shortest Go-style duration: 259200 s -> "72h", 90 s -> "1m30s", 0 -> "0s"."""
    rest = value // timedelta(milliseconds=1)
    out = ""
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            out += f"{count}{unit}"
    return out or "0s"


def whole_seconds(value: timedelta) -> timedelta:
    """A duration for messages, without its fraction of a second."""
    return timedelta(seconds=value // timedelta(seconds=1))


def timestamp(moment: datetime, timespec: str = "seconds") -> str:
    """RFC 3339 in UTC, as in Kubernetes. timespec: as in `datetime.isoformat`; smaller units are truncated."""
    return moment.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
