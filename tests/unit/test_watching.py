"""Watched time: what counts as a look, when the count starts anew, and that it never exceeds what really passed."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from group_hygiene.decide import unchanged as watching
from group_hygiene.model.entries import LogPlace, Seen, Watch
from group_hygiene.spec.policy import Policy
from tests.unit.make import NOW, alert, delete

_POLICY = delete()
_INTERVAL = _POLICY.interval.total_seconds()
_SAME, _OTHER = b"same", b"other"


@dataclass
class World:
    """One policy's looks at group `a`, with a wall clock that may be wrong. real: seconds that really passed."""

    policy: Policy = _POLICY
    real: float = 1_000.0
    offset: timedelta = timedelta(0)
    watch: Watch | None = None
    seen: dict[str, Seen] = field(default_factory=dict)
    scans: watching.ScanHistory = field(default_factory=watching.ScanHistory)

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.real) + self.offset

    def look(self, *read: tuple[str, bytes], unread: tuple[str, ...] = (), lost: bool = False) -> None:
        """A look that reads these groups, and fails to read those."""
        watch = watching.record_scan(self.watch, self.policy, self.now, self.real, self.scans, lost)
        for name, print_ in read:
            new = watching.seen_again(self.seen.get(name), watch, self.scans, name, print_, self.now)
            if new is not None:
                self.seen[name] = new
        self.watch, ended = watching.end_scan(watch, self.scans, self.seen, unread)
        for name in ended:
            del self.seen[name]

    def restart(self) -> None:
        self.scans = watching.ScanHistory()

    def observed(self, name: str = "a") -> float | None:
        """Seconds for which the group was seen unchanged; None = not seen."""
        unchanged = watching.unchanged(self.seen.get(name), self.watch)
        return None if unchanged is None else unchanged.observed.total_seconds()

    def missed(self, name: str = "a") -> timedelta | None:
        unchanged = watching.unchanged(self.seen.get(name), self.watch, self.scans)
        return None if unchanged is None else unchanged.missed


@pytest.fixture
def world() -> World:
    """Two looks, an interval apart, that saw `a` unchanged."""
    world = World()
    world.look(("a", _SAME))
    world.real += _INTERVAL
    world.look(("a", _SAME))
    return world


def test_time_adds_up(world: World) -> None:
    """Looks at a steady interval add up to the whole time, and the first of them is the date."""
    since = world.seen["a"].since
    for _ in range(431):
        world.real += _INTERVAL
        world.look(("a", _SAME))
    assert world.observed() == 432 * _INTERVAL
    unchanged = watching.unchanged(world.seen["a"], world.watch)
    assert unchanged is not None
    assert unchanged.since == since == NOW + timedelta(seconds=1_000)


def test_nothing_to_write_while_nothing_changes(world: World) -> None:
    """An unchanged group costs no entry: only the watch moves."""
    assert world.watch is not None
    before = world.seen["a"]
    world.real += _INTERVAL
    world.look(("a", _SAME))
    assert world.seen["a"] is before


@pytest.mark.parametrize(
    ("gap", "observed"),
    [
        pytest.param(_INTERVAL, 2 * _INTERVAL, id="in-time"),
        pytest.param(2 * _INTERVAL, 3 * _INTERVAL, id="two-intervals"),
        pytest.param(2 * _INTERVAL + 0.001, 0.0, id="missed"),
        pytest.param(0.0, _INTERVAL, id="at-once"),
    ],
)
def test_missed_look(world: World, gap: float, observed: float) -> None:
    """Looks more than two intervals apart start anew, and say so: the group may have been used in between."""
    world.real += gap
    world.look(("a", _SAME))
    assert world.observed() == observed
    assert world.missed() == (None if observed else timedelta(seconds=gap))
    world.real += _INTERVAL
    world.look(("a", _SAME))
    assert world.missed() is None


@pytest.mark.parametrize("step", [timedelta(days=400), timedelta(days=-9)], ids=["forward", "back"])
def test_clock_step_within_a_process(world: World, step: timedelta) -> None:
    """A clock that is set while the process runs neither adds nor costs anything."""
    world.offset += step
    world.real += _INTERVAL
    world.look(("a", _SAME))
    assert world.observed() == 2 * _INTERVAL


@pytest.mark.parametrize(
    ("away", "step", "observed"),
    [
        pytest.param(_INTERVAL, 0.0, _INTERVAL, id="short"),
        pytest.param(2 * _INTERVAL, 0.0, _INTERVAL, id="two-intervals"),
        pytest.param(2 * _INTERVAL + 1, 0.0, 0.0, id="long"),
        pytest.param(1.0, 3 * _INTERVAL, 0.0, id="clock-forward"),
        pytest.param(30.0, -31.0, 0.0, id="clock-back"),
    ],
)
def test_restart(world: World, away: float, step: float, observed: float) -> None:
    """A restart adds nothing; a long one, and one during which the clock went back, starts anew."""
    world.restart()
    world.real += away
    world.offset += timedelta(seconds=step)
    world.look(("a", _SAME))
    assert world.observed() == observed


def test_restart_counts_from_the_last_complete_look(world: World) -> None:
    """Nobody remembers after a restart which groups the last looks could not read."""
    world.real += 1.5 * _INTERVAL
    world.look(unread=("a",))
    assert world.observed() == 2.5 * _INTERVAL
    world.restart()
    world.real += _INTERVAL
    world.look(("a", _SAME))
    assert world.observed() == 0


def test_unread_before_and_after_a_restart(world: World) -> None:
    """The time for which a group goes unread adds up over a restart."""
    world.restart()
    world.real += 1.5 * _INTERVAL
    world.look(unread=("a",))
    world.real += _INTERVAL
    world.look(("a", _SAME))
    assert world.observed() == 0


def test_unread_look(world: World) -> None:
    """A group that can't be read for a while is neither counted nor forgotten; for longer, it starts anew."""
    world.real += _INTERVAL
    world.look(unread=("a",))
    world.real += _INTERVAL
    world.look(("a", _SAME))
    assert world.observed() == 3 * _INTERVAL
    for _ in range(2):
        world.real += _INTERVAL
        world.look(unread=("a",))
        assert "a" in world.seen
    world.real += _INTERVAL
    world.look(unread=("a",))
    assert "a" not in world.seen
    world.look(("a", _SAME))
    assert world.observed() == 0


@pytest.mark.parametrize("edited", [pytest.param(replace(_POLICY, digest="other"), id="digest")])
def test_edited_policy(world: World, edited: Policy) -> None:
    """What was seen for another policy counts nothing, and does not come back when the edit is undone."""
    world.policy = edited
    world.look(("a", _SAME))
    assert world.observed() == 0
    world.policy = _POLICY
    world.look(("a", _SAME))
    assert world.observed() == 0


def test_changed_offsets(world: World) -> None:
    """Another fingerprint starts anew, for this group alone."""
    world.look(("a", _SAME), ("b", _SAME))
    world.real += _INTERVAL
    world.look(("a", _OTHER), ("b", _SAME))
    assert (world.observed("a"), world.observed("b")) == (0, _INTERVAL)


def test_not_looked_for(world: World) -> None:
    """A group that a look had no reason to read (in use, gone, protected) starts anew, also over a restart."""
    world.real += _INTERVAL
    world.look()
    assert world.seen == {}
    world.restart()
    world.look(("a", _SAME))
    assert world.observed() == 0


def test_lost_watch_revives_nothing(world: World) -> None:
    """Entries of a watch that was lost belong to no later one."""
    world.watch = None
    world.restart()
    world.real += 5 * _INTERVAL
    before = dict(world.seen)
    world.look(unread=("a",))
    assert watching.unchanged(before["a"], world.watch) is None


def test_epochs_grow(world: World) -> None:
    """Each new epoch is greater than the one before, also when the clock went back by years."""
    assert world.watch is not None
    before = world.watch.epoch
    world.offset -= timedelta(days=4_000)
    world.real += 3 * _INTERVAL
    world.look()
    assert world.watch.epoch == before + 1


def test_unchanged_of_nothing(world: World) -> None:
    """Without a watch or an entry, or with one of another epoch, nothing is known."""
    seen, watch = world.seen["a"], world.watch
    assert watch is not None
    assert watching.unchanged(None, watch) is None
    assert watching.unchanged(seen, None) is None
    assert watching.unchanged(structs.replace(seen, epoch=0), watch) is None


def test_what_a_plan_assumes(world: World) -> None:
    """A group that the scan found Empty counts as unchanged for just as long as the policy asks; others are unknown."""
    known = watching.assumed(world.seen["a"], _POLICY, NOW)
    assert known is not None
    assert (known.observed, known.since) == (_POLICY.when.unchanged_for, NOW - known.observed)
    assert watching.assumed(None, _POLICY, NOW) is None
    assert watching.assumed(world.seen["a"], alert(), NOW) is None


_STEPS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, _INTERVAL, 1.5 * _INTERVAL, 2 * _INTERVAL, 5 * _INTERVAL])),
    st.tuples(st.just("look"), st.sampled_from([_SAME, _SAME, _SAME, _OTHER])),
    st.tuples(st.just("unread"), st.just(None)),
    st.tuples(st.just("unasked"), st.just(None)),
    st.tuples(st.just("clock"), st.sampled_from([-86_400.0, -5.0, 5.0, _INTERVAL, 86_400.0])),
    st.tuples(st.just("restart"), st.just(None)),
    st.tuples(st.just("edit"), st.sampled_from([_POLICY, replace(_POLICY, digest="other")])),
)


@given(st.lists(_STEPS, max_size=60))
def test_observed_never_exceeds_what_passed(steps: list[tuple[str, object]]) -> None:
    """Whatever looks, gaps, restarts and clock steps: never longer unchanged than since the last change in real time.

    And in that time no two looks of one process that read the group were more than two intervals apart.
    """
    world = World()
    first: float | None = None
    last: tuple[float, bytes, str] | None = None
    restarted = False
    for what, value in steps:
        match what:
            case "wait":
                assert isinstance(value, float)
                world.real += value
            case "clock":
                assert isinstance(value, float)
                world.offset += timedelta(seconds=value)
            case "restart":
                world.restart()
                restarted = True
            case "edit":
                assert isinstance(value, Policy)
                world.policy = value
            case "unread":
                world.look(unread=("a",))
            case "unasked":
                world.look()
                first = last = None
            case "look":
                assert isinstance(value, bytes)
                world.look(("a", value))
                missed = last is not None and not restarted and world.real - last[0] > 2 * _INTERVAL
                if last is None or missed or last[1:] != (value, world.policy.digest):
                    first = world.real
                last, restarted = (world.real, value, world.policy.digest), False
        observed = world.observed()
        if observed is not None and what in ("look", "unread"):
            assert first is not None
            assert observed <= world.real - first + 1e-6


def test_it_begins_again_after_lost_records_of_the_log(world: World) -> None:
    """They may have been of any group. How far the log was read stays in the watch, for the next scan to read on."""
    assert world.watch is not None
    world.watch = structs.replace(world.watch, log={3: LogPlace(70, 1)})
    world.real += _INTERVAL
    world.look(("a", _SAME), lost=True)
    assert world.observed() == 0.0
    assert world.watch.log == {3: LogPlace(70, 1)}
    world.real += _INTERVAL
    world.look(("a", _SAME))
    assert (world.observed(), world.watch.log) == (_INTERVAL, {3: LogPlace(70, 1)})
