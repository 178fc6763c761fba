"""Watched time: what counts as a look, when the count starts anew, and that it never exceeds what really passed."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from group_hygiene.decide import unchanged as watching
from group_hygiene.model.entries import ScanClock, Seen, Watch
from group_hygiene.model.evidence import Unchanged
from group_hygiene.spec.policy import Policy
from tests.unit.make import NOW, alert, delete, group

_POLICY = delete()
_INTERVAL = _POLICY.interval.total_seconds()
_SAME, _OTHER = b"same", b"other"


@dataclass
class World:
    """Scans of groups, with a wall clock that may be wrong. policies: those that scan, of which the first is measured.

    real: seconds that really passed.
    """

    policies: tuple[Policy, ...] = (_POLICY,)
    real: float = 1_000.0
    offset: timedelta = timedelta(0)
    clock: ScanClock | None = None
    watches: dict[str, Watch] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    scans: dict[str, watching.ScanHistory] = field(default_factory=dict)
    last: float | None = None
    first: float = 0.0
    reads: dict[str, float] = field(default_factory=dict)

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.real) + self.offset

    @property
    def watch(self) -> Watch:
        return self.watches[self.policies[0].uid]

    def look(self, *read: tuple[str, bytes], unread: tuple[str, ...] = (), due: tuple[Policy, ...] = ()) -> None:
        """A scan that reads these groups, and fails to read those; all others are in use. due: who scans."""
        due = due or self.policies
        if self.clock is None:
            self.seen.clear()
        self.clock = watching.advance(self.clock, "connection", self.real, self.last)
        self.first = self.clock.seconds if self.last is None else self.first
        self.last = self.real
        time = watching.ScanTime(self.clock.seconds, self.now, self.real, self.first)
        for policy in due:
            history = self.scans.setdefault(policy.uid, watching.ScanHistory())
            self.watches[policy.uid] = watching.record_scan(self.watches.get(policy.uid), policy, time, history)
        time.tolerated = watching.tolerated(self.watches, self.scans, time)
        floor = max(self.scans[policy.uid].floor for policy in due)
        for name, print_ in read:
            last = self.reads.get(name, floor)
            new = watching.seen_again(self.seen.get(name), "connection", group(name), print_, time, last)
            self.reads[name] = time.watched
            if new is not None:
                self.seen[name] = new
        longest = watching.longest_gap(self.watches, self.scans)
        for name in watching.ended(self.seen, self.reads, time, longest, lambda name: name not in unread):
            del self.seen[name]
        if not any(name in self.seen for name in unread):
            for policy in due:
                watch = self.watches[policy.uid]
                self.watches[policy.uid] = structs.replace(watch, complete_at=watch.at)

    def restart(self) -> None:
        self.scans, self.reads, self.last = {}, {}, None

    def observed(self, name: str = "a", policy: Policy | None = None) -> float | None:
        """Seconds for which the group was seen unchanged, by the first policy or this one; None = not seen."""
        unchanged = self._unchanged(name, policy or self.policies[0])
        return None if unchanged is None else unchanged.observed.total_seconds()

    def missed(self, name: str = "a") -> timedelta | None:
        unchanged = self._unchanged(name, self.policies[0])
        return None if unchanged is None else unchanged.missed

    def _unchanged(self, name: str, policy: Policy) -> Unchanged | None:
        watch, history = self.watches.get(policy.uid), self.scans.get(policy.uid)
        return watching.unchanged(self.seen.get(name), watch, self.clock, history, policy)


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
    unchanged = world._unchanged("a", _POLICY)
    assert unchanged is not None
    assert unchanged.since == since == NOW + timedelta(seconds=1_000)


def test_nothing_to_write_while_nothing_changes(world: World) -> None:
    """An unchanged group costs no entry: only the watch moves."""
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
    assert world.observed() == pytest.approx(observed, abs=1e-3)
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
    assert world.observed() == pytest.approx(observed, abs=1e-3)


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
    world.policies = (edited,)
    world.look(("a", _SAME))
    assert world.observed() == 0
    world.policies = (_POLICY,)
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


@pytest.mark.parametrize("lost", ["watch", "clock"])
def test_a_lost_entry_revives_nothing(world: World, lost: str) -> None:
    """What counted before counts no more, neither at once nor later."""
    world.restart()
    if lost == "watch":
        world.watches.clear()
    else:
        world.clock = None
    world.look(("a", _SAME))
    assert world.observed() == 0
    world.real += _INTERVAL
    world.look(("a", _SAME))
    assert world.observed() == _INTERVAL


def test_unchanged_of_nothing(world: World) -> None:
    """Without one of the entries, nothing is known."""
    seen, watch, clock = world.seen["a"], world.watch, world.clock
    assert watching.unchanged(None, watch, clock, None, _POLICY) is None
    assert watching.unchanged(seen, None, clock, None, _POLICY) is None
    assert watching.unchanged(seen, watch, None, None, _POLICY) is None


# Of another policy that scans the same groups: more often, and less often.
_OFTEN = replace(_POLICY, uid="often", interval=_POLICY.interval / 10)
_SELDOM = replace(_POLICY, uid="seldom", interval=_POLICY.interval * 10)


@pytest.mark.parametrize("other", [pytest.param(_OFTEN, id="often"), pytest.param(_SELDOM, id="seldom")])
def test_another_policys_misses_are_its_own(world: World, other: Policy) -> None:
    """A policy that is new, misses scans or is edited restarts its own counts alone."""
    world.look(("a", _SAME), due=(other,))
    for number in range(1, 50):
        world.real += _INTERVAL
        # It scans for a while, pauses for longer than it tolerates, and is edited.
        late = () if 10 < number < 40 else (replace(other, digest=str(number // 45)),)
        world.look(("a", _SAME), due=(_POLICY, *late))
    assert world.observed() == pytest.approx(50 * _INTERVAL)
    assert (world.observed(policy=other) or 0) < 11 * _INTERVAL


def test_a_gap_counts_for_those_that_do_not_tolerate_it(world: World) -> None:
    """A group that could not be read for three intervals: the policy that scans seldom goes on."""
    world.look(("a", _SAME), due=(_SELDOM,))
    for _ in range(2):
        world.real += _INTERVAL
        world.look(unread=("a",))
    world.real += _INTERVAL
    world.look(("a", _SAME))
    assert world.observed() == 0
    assert world.observed(policy=_SELDOM) == pytest.approx(3 * _INTERVAL)
    world.restart()
    world.real += _INTERVAL
    world.look(("a", _SAME), due=(_POLICY, _SELDOM))
    assert world.observed() == pytest.approx(0, abs=1e-3)
    assert world.observed(policy=_SELDOM) == pytest.approx(3 * _INTERVAL)


def test_a_group_that_no_policy_reads_is_forgotten(world: World) -> None:
    """Once no policy could count on from its last read."""
    world.look(("a", _SAME), due=(_SELDOM,))
    for _ in range(20):
        world.real += _INTERVAL
        world.look(unread=("a",))
    assert "a" in world.seen
    world.real += _INTERVAL
    world.look(unread=("a",))
    assert "a" not in world.seen


def test_in_use_right_after_a_restart(world: World) -> None:
    """The first scan of a process ends the counts of groups that it does not find Empty."""
    world.restart()
    world.look()
    assert world.seen == {}


def test_what_a_plan_assumes(world: World) -> None:
    """A group that the scan found Empty counts as unchanged for just as long as the policy asks; others are unknown."""
    known = watching.assumed(world.seen["a"], _POLICY, NOW)
    assert known is not None
    assert (known.observed, known.since) == (_POLICY.when.unchanged_for, NOW - known.observed)
    assert watching.assumed(None, _POLICY, NOW) is None
    assert watching.assumed(world.seen["a"], alert(), NOW) is None


_POLICIES = (_POLICY, _OFTEN, _SELDOM)
_DUE = st.sets(st.sampled_from(range(len(_POLICIES))), min_size=1)
_STEPS = st.one_of(
    st.tuples(
        st.just("wait"),
        st.sampled_from([0.0, 1.0, _INTERVAL / 5, _INTERVAL, 1.5 * _INTERVAL, 2 * _INTERVAL, 5 * _INTERVAL]),
        _DUE,
    ),
    st.tuples(st.just("look"), st.sampled_from([_SAME, _SAME, _SAME, _OTHER]), _DUE),
    st.tuples(st.just("unread"), st.just(None), _DUE),
    st.tuples(st.just("used"), st.just(None), _DUE),
    st.tuples(st.just("clock"), st.sampled_from([-86_400.0, -5.0, 5.0, _INTERVAL, 86_400.0]), _DUE),
    st.tuples(st.just("restart"), st.just(None), _DUE),
    st.tuples(st.just("edit"), st.sampled_from(["", "other"]), _DUE),
)


def _pass(world: World, what: str, value: object) -> None:
    """Time passes, or the process starts again."""
    if what == "restart":
        world.restart()
    if what == "wait" and isinstance(value, float):
        world.real += value
    if what == "clock" and isinstance(value, float):
        world.offset += timedelta(seconds=value)


@given(st.lists(_STEPS, max_size=60))
def test_observed_never_exceeds_what_passed(steps: list[tuple[str, object, set[int]]]) -> None:
    """Whatever scans, gaps, restarts and clock steps of three policies: never longer unchanged than since the last
    change, or the policy's edit, in real time.

    And in that time no two reads of the group were further apart than the policy tolerates, nor two of its scans, as
    far as one process can know.
    """
    world, policies = World(), list(_POLICIES)
    began: dict[int, float | None] = dict.fromkeys(range(3))
    last: tuple[float, bytes] | None = None
    # As this process knows it: the last read of the group is in `last`, if `sure`.
    scanned: dict[int, float] = {}
    sure, new = False, set(range(3))
    for what, value, due in steps:
        scanning = tuple(policies[index] for index in sorted(due))
        if what == "edit":
            for index in due:
                policies[index] = replace(_POLICIES[index], digest=f"{value}{index}")
            new |= due
        _pass(world, what, value)
        if what == "restart":
            scanned, sure = {}, False
        if what not in ("look", "unread", "used"):
            continue
        read = [("a", value)] if isinstance(value, bytes) else []
        world.look(*read, unread=("a",) if what == "unread" else (), due=scanning)
        for index in due:
            if index in new or world.real - scanned.get(index, world.real) > watching.max_gap(policies[index]) + 1e-3:
                began[index] = world.real
            scanned[index] = world.real
        new -= due
        if what == "used":
            last = None
        if isinstance(value, bytes):
            for index, policy in enumerate(policies):
                gap = last is not None and sure and world.real - last[0] > watching.max_gap(policy) + 1e-3
                if last is None or last[1] != value or gap:
                    began[index] = world.real
            last, sure = (world.real, value), True
        for index in due:
            observed, start = world.observed(policy=policies[index]), began[index]
            assert last is not None or observed is None
            assert observed is None or start is None or observed <= world.real - start + 1e-3
            assert start is not None or not observed
