"""Watched time: what counts as a look, when the count starts anew, and that it never exceeds what really passed."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from group_hygiene.engine import unchanged as watching
from group_hygiene.model.entries import Gap, ScanClock, Seen, Watch
from group_hygiene.model.evidence import Unchanged
from group_hygiene.spec.patterns import Patterns
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
    # How many Seen were written.
    writes: int = 0

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.real) + self.offset

    @property
    def watch(self) -> Watch:
        return self.watches[self.policies[0].uid]

    def look(self, *read: tuple[str, bytes], unread: tuple[str, ...] = (), due: tuple[Policy, ...] = ()) -> None:
        """A scan that reads these groups, and fails to read those; all others are in use. due: who scans.

        It reads only groups that a policy selects.
        """
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
        for name, print_ in read:
            floors = [self.scans[policy.uid].floor for policy in due if policy.match.selects(group(name))]
            if not floors:
                unread += (name,)
                continue
            last = self.reads.get(name, max(floors))
            new = watching.seen_again(self.seen.get(name), "connection", group(name), print_, time, last)
            self.reads[name] = time.watched
            if new is not None:
                self.seen[name] = new
                self.writes += 1
        longest = watching.longest_gap(self.watches, self.scans)
        for name in watching.ended(self.seen, self.reads, time, longest, lambda name: name not in unread):
            del self.seen[name]
        for policy in due:
            watch = self.watches[policy.uid]
            if not any(name in self.seen and policy.match.selects(group(name)) for name in unread):
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


def _granted(*groups: str) -> Policy:
    """The policy, of a namespace that is granted these groups."""
    return structs.replace(_POLICY, match=structs.replace(_POLICY.match, within=Patterns(groups)))


@pytest.mark.parametrize(
    "edited",
    [pytest.param(structs.replace(_POLICY, digest="other"), id="digest"), pytest.param(_granted("a", "b"), id="grant")],
)
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
_OFTEN = structs.replace(_POLICY, uid="often", interval=_POLICY.interval / 10)
_SELDOM = structs.replace(_POLICY, uid="seldom", interval=_POLICY.interval * 10)


@pytest.mark.parametrize("other", [pytest.param(_OFTEN, id="often"), pytest.param(_SELDOM, id="seldom")])
def test_another_policys_misses_are_its_own(world: World, other: Policy) -> None:
    """A policy that is new, misses scans or is edited restarts its own counts alone."""
    world.look(("a", _SAME), due=(other,))
    for number in range(1, 50):
        world.real += _INTERVAL
        # It scans for a while, pauses for longer than it tolerates, and is edited.
        late = () if 10 < number < 40 else (structs.replace(other, digest=str(number // 45)),)
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


def _seconds(uid: str, interval: int, *groups: str) -> Policy:
    """A policy with an interval of so many seconds, that selects groups by these patterns."""
    match = delete({"groups": list(groups)}).match
    return structs.replace(_POLICY, uid=uid, interval=timedelta(seconds=interval), match=match)


# They select the group `a`, every 10 minutes and every hour; and other groups, every minute.
_P, _H = _seconds("p", 600, "a"), _seconds("h", 3_600, "*")
_T = _seconds("t", 60, "tenant-*")


def _pass_minutes(world: World, minutes: int, *policies: Policy, unread: bool = False) -> None:
    """Scans of those of the policies that are due; each that selects the group `a` reads it, or fails to."""
    for _ in range(minutes):
        world.real += 60
        due = tuple(policy for policy in policies if world.real % policy.interval.total_seconds() == 0)
        reading = any(policy.match.selects(group("a")) for policy in due)
        read = [("a", _SAME)] if reading and not unread else []
        if due:
            world.look(*read, unread=() if read else ("a",), due=due)


def test_a_short_interval_does_not_restart_the_counts_of_others() -> None:
    """A policy that scans other groups often, and a gap that is over: the others count from its end on."""
    world = World((_P, _H, _T), real=0.0)
    world.look(("a", _SAME))
    _pass_minutes(world, 120, _P, _H, _T)
    assert world.observed() == pytest.approx(7_200)
    assert world.writes == 1
    _pass_minutes(world, 29, _P, _H, _T, unread=True)
    _pass_minutes(world, 1, _P, _H, _T)
    assert world.observed() == 0
    assert world.observed(policy=_H) == pytest.approx(9_000)
    assert world.writes == 2
    _pass_minutes(world, 3 * 24 * 60, _P, _H, _T)
    assert world.observed() == pytest.approx(3 * 86_400)
    assert world.observed(policy=_H) == pytest.approx(9_000 + 3 * 86_400)
    assert world.writes == 2


def test_a_policy_that_selects_the_group_and_seldom_reads_it_restarts_its_own_count() -> None:
    """Each gap is too long for it; those who tolerate it go on from their own last gap, also after a restart."""
    often = _seconds("often", 60, "a")
    world = World((_P, often), real=0.0)
    world.look(("a", _SAME))
    _pass_minutes(world, 29, _P, unread=True)
    _pass_minutes(world, 1, _P)
    began = world.real
    for number in range(1, 500):
        for _ in range(9):
            world.real += 60
            world.look(unread=("a",), due=(often,))
        world.real += 60
        world.look(("a", _SAME), due=(_P, often))
        # The time between the last scan before a restart and the first one after it does not count.
        lost = 60 if number > 250 else 0
        assert world.observed() == pytest.approx(world.real - began - lost)
        assert world.observed(policy=often) == pytest.approx(0)
        assert len(world.seen["a"].gaps) <= 2
        if number == 250:
            world.restart()


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=40), st.floats(1, 1e6))
def test_gaps_are_few_and_none_is_lost(lengths: list[float], most: float) -> None:
    """However many gaps: at most eight stay, and a policy counts from the last one that it does not tolerate, or from a
    later one, and from none if it tolerates all.
    """
    gaps: tuple[Gap, ...] = ()
    for end, seconds in enumerate(lengths):
        gaps = watching._with_gap(gaps, Gap(seconds, end, NOW))
        assert gaps[-1].end_watched == end
        assert len(gaps) <= 8
        assert all(one.seconds > two.seconds for one, two in pairwise(gaps))
        assert all(one.end_watched < two.end_watched for one, two in pairwise(gaps))
    needed = max((end for end, seconds in enumerate(lengths) if seconds > most), default=-1)
    begins = max((gap.end_watched for gap in gaps if gap.seconds > most), default=-1)
    assert begins >= needed
    if max(lengths) <= most:
        assert begins == -1


def test_many_short_gaps_leave_the_long_one() -> None:
    """Reads that are ever so little closer to each other than the ones before become one gap."""
    gaps: tuple[Gap, ...] = (Gap(1_800.0, 0.0, NOW),)
    for end in range(1, 100):
        gaps = watching._with_gap(gaps, Gap(600.0 - end / 1_000, float(end), NOW))
    assert gaps[0] == Gap(1_800.0, 0.0, NOW)
    assert all(gap.seconds < 601 for gap in gaps[1:])


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
    known = watching.assumed(world.seen["a"], _POLICY)
    assert known is not None
    assert (known.observed, known.since) == (_POLICY.when.unchanged_for, world.seen["a"].since)
    assert watching.assumed(None, _POLICY) is None
    assert watching.assumed(world.seen["a"], alert()) is None


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
    st.tuples(st.just("edit"), st.sampled_from(["", "other", "grant"]), _DUE),
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
    world, policies = World(), [structs.replace(policy, digest=str(index)) for index, policy in enumerate(_POLICIES)]
    began: dict[int, float | None] = dict.fromkeys(range(3))
    last: tuple[float, bytes] | None = None
    # As this process knows it: the last read of the group is in `last`, if `sure`.
    scanned: dict[int, float] = {}
    sure = False
    # The last edit of each policy, and the one that it had at its last scan.
    edits, scanned_with = dict.fromkeys(range(3), ""), dict[int, str]()
    for what, value, due in steps:
        scanning = tuple(policies[index] for index in sorted(due))
        if what == "edit":
            for index in due:
                # Without the grant, it does not select the group.
                edited = _granted("b").match if value == "grant" else _POLICY.match
                digest = f"{'' if value == 'grant' else value}{index}"
                policies[index] = structs.replace(_POLICIES[index], digest=digest, match=edited)
                edits[index] = str(value)
        _pass(world, what, value)
        if what == "restart":
            scanned, sure = {}, False
        if what not in ("look", "unread", "used"):
            continue
        read = [("a", value)] if isinstance(value, bytes) else []
        world.look(*read, unread=("a",) if what == "unread" else (), due=scanning)
        selecting = {index for index, policy in enumerate(policies) if policy.match.selects(group("a"))}
        for index in due:
            missed = world.real - scanned.get(index, world.real) > watching.max_gap(policies[index]) + 1e-3
            if scanned_with.get(index) != edits[index] or missed:
                began[index] = world.real
            scanned[index], scanned_with[index] = world.real, edits[index]
        if what == "used":
            last = None
        if isinstance(value, bytes) and selecting & due:
            for index, policy in enumerate(policies):
                gap = last is not None and sure and world.real - last[0] > watching.max_gap(policy) + 1e-3
                if last is None or last[1] != value or gap:
                    began[index] = world.real
            last, sure = (world.real, value), True
        for index in selecting & due:
            observed, start = world.observed(policy=policies[index]), began[index]
            assert last is not None or observed is None
            assert observed is None or start is None or observed <= world.real - start + 1e-3
            assert start is not None or not observed
