"""Windows of deletions: wall-clock times of weekdays, whatever the time zone's clock does."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from group_hygiene.errors import SpecError
from group_hygiene.spec.crds import judged_part
from group_hygiene.spec.fields import convert
from group_hygiene.spec.policy import Weekday, Window, next_open

BERLIN = "Europe/Berlin"
ZONES = [
    BERLIN,
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "Pacific/Apia",
    "UTC",
]
MINUTES = st.integers(0, 24 * 60 - 1).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
WINDOWS = st.builds(
    lambda days, start, end, zone: window(start, end, *days, zone=zone),
    st.sets(st.sampled_from(Weekday)),
    MINUTES,
    MINUTES,
    st.sampled_from(ZONES),
)
# Years with each of these zones' changes of the clock; Apia skipped a whole day at the end of 2011.
MOMENTS = st.datetimes(datetime(2011, 1, 1), datetime(2031, 1, 1), timezones=st.just(UTC))


def window(start: str, end: str, *days: str, zone: str = BERLIN) -> Window:
    spec = {"from": start, "to": end, "timeZone": zone} | ({"days": list(days)} if days else {})
    return convert(spec, Window, "window")


def local(text: str, zone: str = BERLIN) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


@pytest.mark.parametrize(
    ("start", "end", "days", "now", "opens"),
    [
        pytest.param("22:00", "23:00", [], "2030-01-07T21:59", "2030-01-07T22:00", id="before"),
        pytest.param("22:00", "23:00", [], "2030-01-07T22:00", "2030-01-07T22:00", id="from-is-inside"),
        pytest.param("22:00", "23:00", [], "2030-01-07T23:00", "2030-01-08T22:00", id="to-is-outside"),
        pytest.param("22:00", "04:00", [], "2030-01-07T03:59", "2030-01-07T03:59", id="overnight"),
        pytest.param("22:00", "04:00", ["Monday"], "2030-01-08T03:59", "2030-01-08T03:59", id="opened-on-monday"),
        pytest.param("22:00", "04:00", ["Monday"], "2030-01-07T03:59", "2030-01-07T22:00", id="did-not-open-on-sunday"),
        pytest.param("00:00", "00:00", ["Sunday"], "2030-01-07T00:00", "2030-01-13T00:00", id="a-whole-day"),
        pytest.param("02:15", "02:45", ["Sunday"], "2030-03-31T01:00", "2030-03-31T03:15", id="a-skipped-hour"),
        pytest.param("02:30", "03:15", ["Sunday"], "2030-03-31T01:00", "2030-04-07T02:30", id="ends-before-it-opens"),
        pytest.param("02:30", "03:00", [], "2030-10-27T02:20", "2030-10-27T02:30", id="the-first-of-two"),
        pytest.param("22:00", "04:00", [], "2030-03-31T12:00", "2030-03-31T22:00", id="by-the-clock-after-the-change"),
    ],
)
def test_next_open(start: str, end: str, days: list[str], now: str, opens: str) -> None:
    """By the wall clock of the zone, from `from` on until before `to`. 2030-01-07 is a Monday."""
    assert next_open((window(start, end, *days),), local(now)) == local(opens)


def test_any_of_several() -> None:
    """One open window is enough; else the one that opens first counts. No window at all is open always."""
    week, weekend = window("22:00", "23:00", "Monday"), window("10:00", "12:00", "Sunday", zone="Asia/Kathmandu")
    assert next_open((week, weekend), local("2030-01-07T22:30")) == local("2030-01-07T22:30")
    assert next_open((week, weekend), local("2030-01-08T00:00")) == local("2030-01-13T10:00", "Asia/Kathmandu")
    assert next_open((), local("2030-01-08T00:00")) == local("2030-01-08T00:00")


def is_open(one: Window, now: datetime) -> bool:
    """By definition, in the plainest way: an offset of the clock is that which it has at the moment of its change."""
    zone = ZoneInfo(one.time_zone)
    for back in (0, 1, 2):
        day = now.astimezone(zone).replace(tzinfo=None, fold=0) - timedelta(days=back)
        if one.days and list(Weekday)[day.weekday()] not in one.days:
            continue
        opens = day.replace(hour=int(one.start[:2]), minute=int(one.start[3:]), second=0, microsecond=0)
        closes = day.replace(hour=int(one.end[:2]), minute=int(one.end[3:]), second=0, microsecond=0)
        if closes <= opens:
            closes += timedelta(days=1)
        if opens.replace(tzinfo=zone).timestamp() <= now.timestamp() < closes.replace(tzinfo=zone).timestamp():
            return True
    return False


@given(windows=st.lists(WINDOWS, min_size=1, max_size=3), now=MOMENTS)
@example(windows=[window("02:30", "03:15", "Sunday")], now=datetime(2030, 3, 31, 0, tzinfo=UTC))
@example(windows=[window("02:15", "02:45")], now=datetime(2030, 10, 27, 0, 50, tzinfo=UTC))
@example(windows=[window("12:00", "13:00", "Friday", zone="Pacific/Apia")], now=datetime(2011, 12, 28, tzinfo=UTC))
def test_the_first_open_moment(windows: list[Window], now: datetime) -> None:
    """It is open at that moment, and at none between now and then; `now` itself, if it is open now."""
    opens = next_open(tuple(windows), now)
    assert now <= opens <= now + timedelta(days=15)
    assert any(is_open(each, opens) for each in windows)
    step = max((opens - now) / 50, timedelta(minutes=1))
    before = (now + number * step for number in range(50))
    assert not any(is_open(each, moment) for moment in before if moment < opens for each in windows)
    assert not any(is_open(each, max(now, opens - timedelta(seconds=1))) for each in windows) or opens == now


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"timeZone": "Europe/Atlantis"}, "window.timeZone: must be a name of the IANA", id="unknown-zone"),
        pytest.param({"timeZone": "leapseconds"}, "window.timeZone: must be a name of the IANA", id="no-zone-file"),
        pytest.param({"timeZone": "localtime"}, "window.timeZone: must be a name of the IANA", id="of-the-machine"),
        pytest.param({"timeZone": "posixrules"}, "window.timeZone: must be a name of the IANA", id="posix-rules"),
        pytest.param({"timeZone": "right/Europe/Berlin"}, "window.timeZone: must be a name", id="with-leap-seconds"),
        pytest.param({"timeZone": "Factory"}, "window.timeZone: must be a name of the IANA", id="no-place"),
        pytest.param({"timeZone": "../UTC"}, "window.timeZone", id="a-path"),
        pytest.param({"timeZone": "Europe"}, "window.timeZone: must be a name", id="a-directory"),
        pytest.param({"from": "24:00"}, "window.from", id="no-hour-24"),
        pytest.param({"to": "4:00"}, "window.to", id="two-digits"),
        pytest.param({"to": "04:00\n"}, "window.to", id="line-end"),
        pytest.param({"timeZone": "UTC\n"}, "window.timeZone", id="zone-with-line-end"),
        pytest.param({"days": ["Mon"]}, "window.days", id="short-day"),
    ],
)
def test_refused(spec: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        judged_part("GroupPolicy", "spec.delete.windows[]", {"from": "22:00", "to": "04:00"} | spec, "window")
