"""When deletions may happen: weekly windows of wall-clock time. No I/O, no clock of its own.

A time of day that the clock skips (daylight saving) counts as that much later; one that occurs twice counts as the
first of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo

from msgspec import field

from group_hygiene.spec.fields import Decisive


class Weekday(StrEnum):
    """In the order of `datetime.weekday`."""

    MONDAY = "Monday"
    TUESDAY = "Tuesday"
    WEDNESDAY = "Wednesday"
    THURSDAY = "Thursday"
    FRIDAY = "Friday"
    SATURDAY = "Saturday"
    SUNDAY = "Sunday"


# A window may be empty on the one day of the year at which the clock skips it.
_DAYS_AHEAD = 15
_WEEKDAYS = tuple(Weekday)


class Window(Decisive, frozen=True, kw_only=True):
    """Opens at `start` on each of `days`, and closes at `end`, on the next day if that is not later than `start`.

    days: empty = every day. time_zone: a name of the IANA time zone database.
    """

    days: frozenset[Weekday] = frozenset()
    start: str = field(name="from")
    end: str = field(name="to")
    time_zone: str = "UTC"

    def __str__(self) -> str:
        days = ", ".join(day for day in Weekday if day in self.days) or "every day"
        return f"{days} {self.start} to {self.end} {self.time_zone}"

    def around(self, now: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The next times (opens, closes) in UTC, in their order, from the day before `now` on; none that is empty."""
        zone, start, end = ZoneInfo(self.time_zone), time.fromisoformat(self.start), time.fromisoformat(self.end)
        today, overnight = now.astimezone(zone).date(), timedelta(days=end <= start)
        for day in (today + timedelta(days=ahead) for ahead in range(-1, _DAYS_AHEAD)):
            if self.days and _WEEKDAYS[day.weekday()] not in self.days:
                continue
            opens, closes = _moment(day, start, zone), _moment(day + overnight, end, zone)
            if opens < closes:
                yield opens, closes


# All marks of one run have the same date.
@lru_cache(maxsize=1_000)
def next_open(windows: tuple[Window, ...], now: datetime) -> datetime:
    """The first moment from `now` on at which one of the windows is open: `now` if one is, or if there are none."""
    if not windows:
        return now
    times = (
        next(((opens, closes) for opens, closes in window.around(now) if now < closes), None) for window in windows
    )
    # If there were none in all of these days, none would be open now.
    return max(now, min((span[0] for span in times if span), default=now + timedelta(days=_DAYS_AHEAD)))


def _moment(day: date, at: time, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, at, zone).astimezone(UTC)
