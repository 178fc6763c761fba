"""What a policy would have done to a group, look by look, and whom that would have hurt. It looks once a day here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

pytest.importorskip("duckdb")

from group_hygiene.model.groups import Partition
from group_hygiene.pipeline.backtest.replay import (
    COMMIT,
    MATCH,
    History,
    Sign,
    Span,
    Steps,
    Trial,
    untriable,
)
from group_hygiene.spec.fields import convert
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Policy, Window, parse_policy
from tests.replayed import replayed
from tests.unit import make

START = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
STEPS = Steps(START, DAY, 40)
END = STEPS.at(39)
Record = dict[str, Any]
# The least that a log can tell apart.
_MS = 1 / 86_400_000


def ms(day: float) -> int:
    return round((START + day * DAY).timestamp() * 1000)


def record(day: float, kind: str, used: bool = True, **fields: Any) -> Record:
    moment = START + timedelta(milliseconds=ms(day) - ms(0))
    same = {"slice": min(STEPS.first_from(moment), STEPS.count), "record_time": moment, "first_ms": ms(day)}
    return same | {"kind": kind, "used": used} | fields


def commit(day: float, offset: int | None = 1, aborted: bool = False) -> Record:
    fields = {"commit_ms": ms(day)} if offset is not None else {}
    place = {"topic": "orders", "partition": 0}
    return record(day, COMMIT, offset is not None, **place, committed_offset=offset, aborted=aborted, **fields)


def joined(day: float) -> Record:
    return record(day, "classic", protocol_type="consumer", members=1, state_ms=ms(day), gone=False)


def left(day: float) -> Record:
    return record(day, "classic", protocol_type="consumer", members=0, state_ms=ms(day), gone=False)


def ended(day: float) -> Record:
    return record(day, "classic", used=False, gone=True)


def policy(action: str = "Delete", **when: Any) -> Policy:
    spec: dict[str, Any] = {"interval": "24h"}
    if action == "Delete":
        spec["delete"] = {"gracePeriod": "24h", "backupRetention": "240h"}
    return parse_policy(make.policy_object(action, when or {"idleFor": "120h"}, None, **spec))


def history_of(records: Iterable[Record], complete_since: datetime | None = None) -> History:
    return replayed("group", records, START, complete_since)


def simulate(records: Iterable[Record], of: Policy | None = None, protect: Patterns | None = None) -> list[Span]:
    return Trial(of or policy(), START, END, protect).simulate(history_of(records))


def removed(found: Sequence[Span]) -> list[tuple[float, float, int | None, str | None]]:
    """Days on which it was marked and deleted, when it came back (in milliseconds) and how."""
    removals = [(one.marked, one.deleted, one.back or Sign(START, "")) for one in found if one.deleted is not None]
    return [
        (day_of(marked), day_of(at), ms(day_of(back.at)) if back.by else None, back.by or None)
        for marked, at, back in removals
    ]


def day_of(moment: datetime) -> float:
    return (moment - START) / DAY


def spans(found: Sequence[Span]) -> list[tuple[float, float]]:
    """First and last day on which it matches."""
    return [(day_of(first), STEPS.first_from(end) - 1) for first, end, *_ in found]


ONCE = [joined(0.5), commit(0.55), left(0.6)]


@pytest.mark.parametrize(
    ("records", "then"),
    [
        pytest.param([*ONCE], [(6, 7, None, None)], id="unused"),
        pytest.param([joined(0.5), left(1.0)], [(6, 7, None, None)], id="idle-for-exactly-so-long-at-a-step"),
        pytest.param([joined(0.5), left(1.0 + _MS)], [(7, 8, None, None)], id="a-millisecond-too-short-at-a-step"),
        pytest.param([*ONCE, joined(9.25)], [(6, 7, 9.25, "Join")], id="came-back"),
        pytest.param([*ONCE, commit(9.25)], [(6, 7, 9.25, "Commit"), (17, 18, None, None)], id="commits-again"),
        pytest.param(
            [*ONCE, commit(9.25, aborted=True)], [(6, 7, 9.25, "Commit"), (17, 18, None, None)], id="commits-in-vain"
        ),
        pytest.param(
            [*ONCE, left(9.25)], [(6, 7, 9.25, "Join"), (17, 18, None, None)], id="left-again-is-all-that-is-known"
        ),
        pytest.param([*ONCE, commit(9.25, None)], [(6, 7, None, None)], id="a-tombstone-is-no-life"),
        pytest.param([*ONCE, joined(39.5)], [(6, 7, 39.5, "Join")], id="came-back-after-the-last-step"),
        pytest.param([*ONCE, joined(7.0)], [], id="back-in-time-at-the-very-step"),
        pytest.param([*ONCE, joined(7.0 + _MS)], [(6, 7, 7.0 + _MS, "Join")], id="back-a-millisecond-late"),
        pytest.param([*ONCE, commit(6.5)], [(12, 13, None, None)], id="used-within-its-grace-period"),
        pytest.param([commit(0.5)], [(6, 7, None, None)], id="nobody-ever-joined"),
        pytest.param([joined(0.5)], [], id="has-members"),
        pytest.param([*ONCE, ended(6.5)], [], id="kafka-was-faster"),
        pytest.param([commit(1, aborted=True)], [], id="of-unknown-type"),
        pytest.param(
            [*ONCE, joined(9.0), left(9.25)],
            [(6, 7, 9.0, "Join"), (17, 18, None, None)],
            id="again-when-reappeared-ends",
        ),
        pytest.param(
            [*ONCE, joined(9.0), left(9.25), commit(20)],
            [(6, 7, 9.0, "Join"), (17, 18, 20.0, "Commit"), (28, 29, None, None)],
            id="hurt-twice",
        ),
    ],
)
def test_fate(records: list[Record], then: list[tuple[int, int, float | None, str | None]]) -> None:
    """Idle for five days, one of grace, looked at once a day; a deleted group that is back is kept for ten."""
    assert removed(simulate(records)) == [(*one[:2], None if one[2] is None else ms(one[2]), one[3]) for one in then]


@pytest.mark.parametrize("milliseconds", [2**62, -(2**62)])
def test_times_of_clients(milliseconds: int) -> None:
    """Below Kafka 4.0, a client could give its commit any time: this stops no backtest."""
    absurd = commit(1) | {"commit_ms": milliseconds}
    spans = Trial(policy(), START, END, None, timedelta(days=7)).simulate(history_of([absurd]))
    assert bool(spans) == (milliseconds < 0)


def test_spans() -> None:
    """It matches from its mark on to the step at which it is deleted, and not while it is gone or in use."""
    found = simulate([*ONCE, joined(9.0), left(9.25)])
    assert spans(found) == [(6, 7), (17, 18)]


def test_windows() -> None:
    """A group that is due waits for the next window; if it is used meanwhile, it stays. The first day is a Sunday."""
    windows = (convert({"days": ["Wednesday"], "from": "00:00", "to": "06:00"}, Window, "window"),)
    of = policy().with_deletion(windows=windows)
    assert removed(simulate(ONCE, of)) == [(6, 10, None, None)]
    assert removed(simulate([*ONCE, commit(9.5)], of)) == [(15, 17, None, None)]


@pytest.mark.parametrize(
    ("states", "matches"),
    [
        pytest.param(["Empty"], [(6, 8), (15, 39)], id="without-members"),
        pytest.param([], [(6, 39)], id="without-commits"),
    ],
)
def test_alert_deletes_nothing(states: list[str], matches: list[tuple[int, int]]) -> None:
    """An Alert policy matches for as long as the group has no members, or commits nothing, as it selects."""
    spec = make.policy_object("Alert", {"idleFor": "120h"}, {"states": states}, interval="24h")
    found = simulate([*ONCE, joined(9.0), left(9.25)], parse_policy(spec))
    assert removed(found) == []
    assert (spans(found)[0][0], spans(found)[-1][1], len(matches)) == (matches[0][0], matches[-1][1], len(spans(found)))


def test_other_periods() -> None:
    """A longer idleFor or grace period than the group ever needs saves it."""
    came_back = history_of([*ONCE, joined(9.25)])
    trial = Trial(policy(), START, END)
    assert removed(trial.with_idle_for(7 * DAY).simulate(came_back)) == [(8, 9, ms(9.25), "Join")]
    assert removed(trial.with_idle_for(8 * DAY).simulate(came_back)) == []
    assert removed(trial.with_grace(3 * DAY).simulate(came_back)) == [(6, 9, ms(9.25), "Join")]
    assert removed(trial.with_grace(4 * DAY).simulate(came_back)) == []


def test_unchanged_for_sees_what_commits_don_t_change() -> None:
    """A consumer that commits the same offset again and again is unchanged, and deleting its group hurts."""
    records = [joined(0.5), left(0.6), *(commit(day + 0.5, 7) for day in range(1, 12))]
    assert removed(simulate(records, policy(unchangedFor="72h"))) == [
        (5, 6, ms(6.5), "Commit"),
        # Kept as reappeared for ten days; until then, nothing changed.
        (16, 17, None, None),
    ]
    changing = [joined(0.5), left(0.6), *(commit(day + 0.5, day) for day in range(1, 12))]
    assert removed(simulate(changing, policy(unchangedFor="72h"))) == [(15, 16, None, None)]


def test_protected() -> None:
    """What the connection protects is not deleted, and a protected neighbour changes nothing."""
    assert not removed(simulate(ONCE, protect=Patterns(["gro*"])))
    assert removed(simulate(ONCE, protect=Patterns(["other"])))


def test_records_were_lost() -> None:
    """From when it is known, nobody counts as idle since before; what was known earlier was known."""
    early = history_of(ONCE, START + 4 * DAY)
    assert removed(Trial(policy(), START, END).simulate(early)) == [(9, 10, None, None)]
    late = history_of([*ONCE, joined(9.25)], START + 30 * DAY)
    assert removed(Trial(policy(), START, END).simulate(late)) == [(6, 7, ms(9.25), "Join")]


def test_it_looks_as_often_as_the_operator() -> None:
    """However coarse the slices are: a group that is deleted on Sunday evening is missed on Monday morning."""
    weekend = [joined(4.3), commit(4.5), left(4.7), joined(7.4)]
    regretted = simulate(weekend, structs.replace(policy(idleFor="24h"), interval=timedelta(minutes=10)))
    (one,) = regretted
    assert one.deleted is not None
    assert START + 6.7 * DAY <= one.deleted <= START + 6.7 * DAY + timedelta(minutes=20)
    assert one.back == Sign(START + timedelta(milliseconds=ms(7.4) - ms(0)), "Join")


@pytest.mark.parametrize(
    ("of", "retention", "why"),
    [
        pytest.param(policy("Alert", deletedTopics="All"), DAY, "when.deletedTopics can't be tried", id="topics"),
        pytest.param(policy(idleFor="24h", lag={"atLeast": 1}), DAY, "when.lag can't be tried", id="lag"),
        pytest.param(
            policy("Alert", committedOffsets="OutOfRange"), DAY, "when.committedOffsets can't be tried", id="range"
        ),
        pytest.param(policy("Alert", expiresWithin="24h"), None, "give --offsets-retention", id="retention-unknown"),
        pytest.param(policy("Alert", expiresWithin="24h"), DAY, None, id="retention-known"),
        pytest.param(policy(), None, None, id="idle"),
    ],
)
def test_what_can_t_be_tried(of: Policy, retention: timedelta | None, why: str | None) -> None:
    """A condition of which the tables tell nothing is said to be one."""
    refusal = untriable(of, retention)
    assert refusal is None if why is None else refusal is not None and why in refusal


def lives() -> st.SearchStrategy[list[Record]]:
    days = st.floats(0, 45, width=32)
    one = st.one_of(
        days.map(joined),
        days.map(left),
        days.map(ended),
        st.builds(commit, days, st.sampled_from([1, 1, 2, None]), st.booleans()),
    )
    return st.lists(one, min_size=1, max_size=12).map(lambda records: sorted(records, key=lambda it: it["first_ms"]))


def policies() -> st.SearchStrategy[Policy]:
    hours = st.integers(1, 400).map("{}h".format)
    whens = st.fixed_dictionaries({}, optional={"idleFor": hours, "unchangedFor": hours, "expiresWithin": hours})

    def built(when: dict[str, str], grace: int, retention: int, interval: int, delete: bool) -> Policy:
        delete = delete and bool(when.keys() - {"expiresWithin"})
        spec = {"delete": {"gracePeriod": f"{grace}h", "backupRetention": f"{retention}h"}} if delete else {}
        return parse_policy(
            make.policy_object("Delete" if delete else "Alert", when, None, interval=f"{interval}h", **spec)
        )

    return st.builds(built, whens, st.integers(1, 200), st.integers(1, 720), st.integers(1, 24), st.booleans())


def every_look(trial: Trial, history: History) -> list[Span]:
    """The same, told by a look at each and every interval."""
    found = list[Span]()
    looks = Steps(START, trial.policy.interval, (END - START) // trial.policy.interval + 1)
    mark, absent_until, last = None, START, None
    ends = [*(stretch.begins for stretch in history.stretches[1:]), END + timedelta(microseconds=1)]
    for now in map(looks.at, range(looks.count)):
        if now < absent_until:
            continue
        at = max((n for n, one in enumerate(history.stretches) if one.begins <= now), default=None)
        if at is None or trial._judge(history.stretches[at], now, last) != MATCH:
            mark = None
            continue
        over = mark is not None and now - mark >= trial.policy.grace_period and trial.policy.action == "Delete"
        end = now + timedelta(microseconds=1) if over else ends[at]
        if mark is None:
            mark = now
            found.append(Span(now, end))
        else:
            found[-1] = Span(mark, end)
        if over:
            back = history.back_after(now)
            found[-1] = Span(mark, end, now, back)
            if back is None:
                break
            mark, absent_until = None, back.at
            last = make.deletion(now, trial.policy.key, now + trial.policy.backup_retention)
    return found


@given(lives(), policies(), st.none() | st.floats(0, 45, width=32))
def test_not_every_look_need_be_looked_at(records: list[Record], of: Policy, lost: float | None) -> None:
    """Leaving out looks changes nothing: in a stretch, all that time does to a group is to make it match."""
    trial = Trial(of, START, END, retention=timedelta(hours=168))
    history = history_of(records, None if lost is None else START + lost * DAY)
    assert trial.simulate(history) == every_look(trial, history)


@given(lives(), policies(), st.integers(1, 20), st.integers(1, 20))
def test_who_is_not_deleted_is_not_after_longer(records: list[Record], of: Policy, one: int, more: int) -> None:
    """Who is not deleted is not deleted after a longer period either, and whom it would not hurt, it would not hurt."""
    history = history_of(records)
    trial = Trial(of, START, END)
    pairs = [(trial.with_grace(one * DAY), trial.with_grace((one + more) * DAY))]
    if of.when.idle_for or of.when.unchanged_for:
        pairs.append((trial.with_idle_for(one * DAY), trial.with_idle_for((one + more) * DAY)))
    for shorter, longer in pairs:
        before, after = shorter.simulate(history), longer.simulate(history)
        assert removed(before) or not removed(after)
        assert any(span.back for span in before) or not any(span.back for span in after)


def member(day: float, name: str, gone: bool, kind: str = "consumer-member") -> Record:
    return record(day, kind, not gone, member_id=name, gone=gone)


def test_members() -> None:
    """Each counts until it left, also after others left, and whatever records accompany its own."""
    records = [
        *(member(1, "a", False), member(1, "a", False, "consumer-target-member"), member(2, "b", False)),
        *(member(3, "b", True), member(4, "c", False), member(5, "c", True), member(6, "a", True)),
        *(member(7, "d", True), member(8, "b", False)),
    ]
    states = [stretch.activity.state for stretch in history_of(records).stretches]
    assert states == ["Active"] * 5 + ["Empty"] * 2 + ["Active"]


def test_records_of_other_partitions() -> None:
    """They show that the group was used, and say nothing of its state."""
    history = history_of([commit(1, 5), commit(2, 6) | {"own": False}])
    assert {stretch.offsets[Partition("orders", 0)].offset for stretch in history.stretches} == {5}
    assert [ms(day_of(sign.at)) for sign in history.signs] == [ms(1), ms(2)]


def test_an_era_ends() -> None:
    """With it, a group's state ends; the time of its last commit stays."""
    history = history_of([joined(1), commit(2), commit(3, None) | {"era": 1}])
    last = history.stretches[-1]
    assert (last.group, last.offsets) == (None, {})
    assert last.activity.last_commit == START + 2 * DAY
