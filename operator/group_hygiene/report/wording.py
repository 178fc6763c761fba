"""Names, numbers and times as the report shows them. The results are plain text: the caller escapes them."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from group_hygiene.model import naming

IDLE = timedelta(days=7)


def printable(name: str) -> str:
    """A name as one line without invisible or bidirectional control characters; an empty name is shown as quotes."""
    return naming.printable(name) or '""'


def number(count: int) -> str:
    """12345 -> 12,345."""
    return f"{count:,}"


def counted(count: int, one: str, several: str = "") -> str:
    """A number with its noun: "1 group", "2 groups"."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def duration(time: timedelta) -> str:
    """In the largest unit that is at least 1: 12 d, 5 h, 3 min; less than a minute is 0 min. As in `page.js`."""
    minutes = max(0, int(time.total_seconds())) // 60
    if minutes >= 1440:
        return f"{minutes // 1440:,} d"
    return f"{minutes // 60} h" if minutes >= 60 else f"{minutes} min"


def period(time: timedelta) -> str:
    """In whole days, else in hours: 2 d, 36 h."""
    hours = time / timedelta(hours=1)
    return f"{hours / 24:,.0f} d" if hours % 24 == 0 else f"{hours:,g} h"


def moment(time: datetime) -> str:
    """To the minute: 2030-01-31 12:00."""
    return f"{time:%Y-%m-%d %H:%M}"


def weekday(day: date) -> str:
    """Mon 23 Nov, in English in any locale."""
    return f"{_WEEKDAYS[day.weekday()]} {day.day} {_MONTHS[day.month - 1]}"


_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
