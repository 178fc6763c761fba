"""Random histories of a cluster, its policies, the clock and faults: no group is ever deleted that may not be.

The world below does with `unchanged`, `checks` and `plan` what a run does, and keeps books of its own about what really
happened. What a run is about to delete is held against these books.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import event, given, settings
from hypothesis import strategies as st

from group_hygiene.decide import checks
from group_hygiene.decide import unchanged as watching
from group_hygiene.decide.plan import Conditions, Plan, due_groups, make_plan
from group_hygiene.evidence.reader import Covered, Reading
from group_hygiene.evidence.trust import Log, activity_of, next_mark, refusals_by_partition
from group_hygiene.ledger.contents import Contents
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, KeepRequest, Key, Mark, Outcome, OutcomeType, Removal
from group_hygiene.model.evidence import Activity, Evidence, Protections
from group_hygiene.model.groups import (
    NO_LEADER_EPOCH,
    Bounds,
    CommittedOffset,
    Group,
    GroupState,
    GroupType,
    Partition,
    fingerprint,
)
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.verdicts import Need, Verdict
from group_hygiene.spec.policy import Limits, Mode, Policy, parse_policy
from tests.examples import examples
from tests.unit.make import FAULT, NOW, policy_object

_HOUR = 3600.0
# Longer than the grace period: a group that is used while it is marked must not be deleted when it is due.
_UNCHANGED_FOR, _RETENTION = 3 * _HOUR, 12 * _HOUR
_SKEW = 300.0
_CONNECTION_LIMITS = Limits(max_per_run=3, max_percent=40)
_OTHERS = 8
_P0 = Partition("orders", 0)
_NAMES = tuple(f"g{number}" for number in range(6))
# Three policies that overlap.
_SELECTS = {"uid-1": list(_NAMES[:4]), "uid-2": list(_NAMES[2:]), "uid-3": list(_NAMES[3:])}
# What the third one looks at: the offsets log, as a pipeline read it.
_IDLE = "uid-3"
_MAX_AGE = timedelta(hours=2)
_LOG = Log("cluster-1", None, 1)
_UIDS = tuple(_SELECTS)


@dataclass
class _Group:
    """A group as it really is. committed, left: in real seconds, when it last committed, and when it became Empty."""

    present: bool = True
    empty: bool = True
    offset: int = 1
    behind: int = 5
    committed: float = 0.0
    left: float = 0.0

    @property
    def used(self) -> float:
        return max(self.committed, self.left)


@dataclass
class _Tables:
    """What a run of the pipeline left, in real seconds."""

    read_at: float
    groups: dict[str, _Group]

    def reading(self, version: int) -> Reading:
        """As the operator reads it. Brokers' clocks are right."""
        read_at = NOW + timedelta(seconds=self.read_at)
        known = {name: _activity(group, read_at) for name, group in self.groups.items()}
        return Reading(
            "cluster-1",
            "table",
            version,
            {0: Covered(None, int(self.read_at), read_at, leader_epoch=NO_LEADER_EPOCH)},
            known,
        )


def _activity(group: _Group, read_at: datetime) -> Activity:
    state = "Gone" if not group.present else "Empty" if group.empty else "Active"
    committed, left = (NOW + timedelta(seconds=seconds) for seconds in (group.committed, group.left))
    since = left if group.present and group.empty else None
    return Activity(GroupType.CLASSIC, "consumer", state, None, committed, committed, since, 0, 0, read_at)


class _Read(NamedTuple):
    """Since when, in real seconds, a policy's looks have read a group as Empty with one fingerprint; and the last."""

    first: float
    last: float
    print_: bytes


@dataclass
class _Books:
    """What the process could know of the past. marked: when, and under which policy, a mark was made and has held."""

    reads: dict[tuple[str, str], _Read] = field(default_factory=dict)
    marked: dict[tuple[str, str], tuple[float, Policy]] = field(default_factory=dict)


class _Run(NamedTuple):
    """What goes wrong in one run. unread: groups whose offsets get no answer; absent: what an incomplete list lacks."""

    ledger: bool = True
    total: bool = True
    hidden: bool = False
    unread: frozenset[str] = frozenset()
    absent: frozenset[str] | None = None


def _policy(uid: str, **changes: Any) -> Policy:
    """A Delete policy; grace in hours."""
    spec = {"mode": "Enforce", "grace": 2, "percent": 34, "per_run": 2, **changes}
    obj = policy_object(
        "Delete",
        {"idleFor": "3h"} if uid == _IDLE else {"unchangedFor": "3h"},
        {"groups": _SELECTS[uid]},
        mode=spec["mode"],
        interval="1h",
        delete={
            "gracePeriod": f"{spec['grace']}h",
            "maxPercent": spec["percent"],
            "maxPerRun": spec["per_run"],
            "backupRetention": "12h",
        },
    )
    obj["metadata"] |= {"name": uid, "uid": uid}
    return parse_policy(obj)


class World:
    """real: seconds that really passed. offset: by how many seconds the operator's clock is wrong."""

    def __init__(self) -> None:
        self.real = 0.0
        self.offset = 0.0
        self.stepped_at = -1.0
        self.groups = {name: _Group() for name in _NAMES}
        self.specs: dict[str, dict[str, Any]] = {uid: {} for uid in _UIDS}
        self.deleted: list[tuple[str, str]] = []
        self.deleted_at: dict[str, float] = {}
        self.asked_until: dict[str, datetime] = {}
        self.log, self.contents = Contents(), Contents()
        self.unwritten: dict[Key, Change] = {}
        self.scans = {uid: watching.ScanHistory() for uid in _UIDS}
        self.books, self.saved_books = _Books(), _Books()
        self.tables = [_Tables(0.0, copy.deepcopy(self.groups))]
        self.served = 0

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.real + self.offset)

    # What happens beside runs

    def run_pipeline(self) -> None:
        self.tables.append(_Tables(self.real, copy.deepcopy(self.groups)))
        self.served = len(self.tables) - 1

    def put_back(self, by: int) -> None:
        """Older tables take the place of those that are there."""
        self.served = max(0, self.served - by)

    def step_clock(self, offset: float) -> None:
        self.offset, self.stepped_at = offset, self.real

    def restart(self) -> None:
        """A new process knows what the ledger holds, and no more."""
        self.contents, self.unwritten = copy.deepcopy(self.log), {}
        self.scans = {uid: watching.ScanHistory() for uid in _UIDS}
        self.books = copy.deepcopy(self.saved_books)

    def use(self, name: str, how: str) -> None:
        group = self.groups[name]
        match how:
            case "commit":
                group.offset += 1
                group.committed = self.real
            case "commit-the-same":
                group.committed = self.real
            case "join":
                group.present, group.empty = True, False
            case "leave":
                group.left = group.left if group.empty else self.real
                group.empty = True
            case "catch-up":
                group.behind = 0
            case "fall-behind":
                group.behind = 5
            case "vanish":
                group.present = False
            case "appear":
                group.committed = group.committed if group.present else self.real
                group.left = group.left if group.present else self.real
                group.present = True

    def come_back(self) -> None:
        for name in _NAMES:
            self.use(name, "appear")

    def ask_to_keep(self, name: str, hours: float) -> None:
        until = self.now + timedelta(hours=hours)
        self.asked_until[name] = until
        request = KeepRequest(group=name, until=until, why="audit", by="ann", at=self.now)
        for contents in (self.log, self.contents):
            contents.apply([request])

    # A run

    def run(self, trouble: _Run) -> None:
        """One run of all policies, as the operator does it, up to the deletions."""
        policies = [_policy(uid, **self.specs[uid]) for uid in _UIDS]
        listed = {name: self._listed(name) for name, group in self.groups.items() if group.present and group.empty}
        if trouble.absent is not None:
            listed = {name: group for name, group in listed.items() if name not in trouble.absent}
        verdicts = {
            policy.uid: self._look_at_tables(policy, listed, trouble)
            if policy.uid == _IDLE
            else self._look(policy, listed, trouble)
            for policy in policies
        }
        refusals: list[Refusal] = []
        if not trouble.ledger:
            refusals.append(Refusal(reasons.LEDGER_UNAVAILABLE, "no ledger"))
        elif abs(self.offset) > _SKEW:
            refusals.append(Refusal(reasons.CLOCK_SKEW, "the broker's clock differs"))
        if trouble.hidden:
            refusals.append(Refusal(reasons.TOPICS_HIDDEN, "topics are hidden"))
        total = len([group for group in self.groups.values() if group.present]) + _OTHERS
        conditions = Conditions(
            limits=_CONNECTION_LIMITS,
            total=total if trouble.total else None,
            refusals=refusals,
            complete=trouble.absent is None,
        )
        due = {p.uid: due_groups(p, verdicts[p.uid], self._marks(p), self.now) for p in policies}
        budget = _CONNECTION_LIMITS.max_per_run
        plans: list[Plan] = []
        for policy in policies:
            elsewhere = {name for uid, names in due.items() if uid != policy.uid for name in names}
            # That every mark was told is what tests/unit/test_plan.py is about.
            own = replace(conditions, due_elsewhere=elsewhere, announced=datetime.max.replace(tzinfo=UTC))
            plan = make_plan(policy, verdicts[policy.uid], self._marks(policy), own, self.now)
            plan = plan.at_turn(self.now, budget)
            self._check_books(plan, trouble)
            plan = self._note_marks(plan, trouble.ledger)
            budget -= len(plan.actions)
            plans.append(plan)
        self._check_run(plans, verdicts, total, trouble)
        for plan in plans:
            for name in plan.actions:
                self._delete(plan.policy, name)
        if trouble.ledger:
            self._write(())
            self.saved_books = copy.deepcopy(self.books)

    def _look(self, policy: Policy, listed: Mapping[str, Group], trouble: _Run) -> dict[str, Verdict]:
        scans, contents = self.scans[policy.uid], self.contents
        watch = watching.record_scan(contents.watches.get(policy.uid), policy, self.now, self.real, scans)
        changes: list[Change] = []
        verdicts: dict[str, Verdict] = {}
        unread = set() if trouble.absent is None else set(_NAMES) - set(listed)
        for group in policy.match.select(listed):
            name = group.id
            request, deleted = contents.keeps.get(name), contents.deletions.get(name)
            known = Evidence(Protections(), keep_request=request, deleted=deleted)
            verdict = checks.judge(policy, group, known, self.now)
            if verdict.need is Need.OFFSETS:
                known = replace(known, offsets=FAULT)
                if name in trouble.unread:
                    unread.add(name)
                else:
                    truth = self.groups[name]
                    offsets = {_P0: CommittedOffset(truth.offset)}
                    print_ = fingerprint(group, offsets)
                    before = contents.seen.get(policy.uid, {}).get(name)
                    again = watching.seen_again(before, watch, scans, name, watching.Observed(print_), self.now)
                    changes += [again] if again else []
                    unchanged = watching.unchanged(again or before, watch)
                    known = replace(
                        known,
                        offsets=offsets,
                        bounds={_P0: Bounds(0, truth.offset + truth.behind)},
                        records={_P0: truth.offset + truth.behind - 1},
                        unchanged=unchanged,
                    )
                    self._book_read(policy, name, print_)
                verdict = checks.judge(policy, group, known, self.now)
            verdicts[name] = verdict
        contents.apply(changes)
        watch, ended = watching.end_scan(watch, scans, contents.seen.get(policy.uid, {}), unread)
        changes += [watch, *(Removal(("seen", policy.uid, name)) for name in ended)]
        contents.apply(changes)
        self.unwritten |= {_key(change): change for change in changes}
        for name in set(_NAMES) - set(verdicts) - unread:
            self.books.reads.pop((policy.uid, name), None)
        return verdicts

    def _look_at_tables(self, policy: Policy, listed: Mapping[str, Group], trouble: _Run) -> dict[str, Verdict]:
        contents = self.contents
        reading, before = self.tables[self.served].reading(self.served), contents.covered.get("uid")
        faults = refusals_by_partition(reading, _LOG, before, _MAX_AGE, self.now)
        verdicts: dict[str, Verdict] = {}
        for group in policy.match.select(listed):
            name, truth = group.id, self.groups[group.id]
            known = Evidence(
                Protections(),
                keep_request=contents.keeps.get(name),
                deleted=contents.deletions.get(name),
                activity=activity_of(name, reading, _LOG, faults),
                offsets=FAULT if name in trouble.unread else {_P0: CommittedOffset(truth.offset)},
                bounds={_P0: Bounds(0, truth.offset + truth.behind)},
                records={_P0: truth.offset + truth.behind - 1},
            )
            verdicts[name] = checks.judge(policy, group, known, self.now)
        mark = next_mark(reading, _LOG, before, "uid", self.now)
        assert mark is not None
        contents.apply([mark])
        self.unwritten[mark.key] = mark
        return verdicts

    def _in_the_tail(self, policy: Policy, name: str) -> bool:
        """Whether the log has something of it that the tables have not: then it is kept when it is read again."""
        return policy.uid == _IDLE and self.groups[name].used > self.tables[self.served].read_at

    def _note_marks(self, plan: Plan, ledger: bool) -> Plan:
        policy = plan.policy
        marks: list[Change] = [
            Mark(
                policy_uid=policy.uid,
                group=name,
                policy=policy.key,
                digest=policy.digest,
                since=plan.at,
                due=plan.at + policy.grace_period,
            )
            for name in plan.marking
        ]
        ended: list[Change] = [Removal(("mark", policy.uid, name)) for name in plan.unmarking]
        if not ledger:
            # What ends a mark is remembered at least by this process.
            assert not marks
            self.contents.apply(ended)
            self.unwritten |= {_key(change): change for change in ended}
            return plan
        self._write([*marks, *ended])
        for name in plan.marking:
            self.books.marked[policy.uid, name] = (self.real, policy)
        return plan

    def _delete(self, policy: Policy, name: str) -> None:
        if not self.groups[name].present or self._in_the_tail(policy, name):
            # Another policy was first, or it was used since: reading it again tells.
            return
        self.groups[name].present = False
        self.deleted.append((policy.uid, name))
        self.deleted_at[name] = self.real
        self.books.marked.pop((policy.uid, name), None)
        outcome = Outcome(
            group=name,
            id=str(len(self.deleted)),
            at=self.now,
            what=OutcomeType.DELETED,
            reason=reasons.DELETED,
            message="",
            policy=policy.key,
            policy_uid=policy.uid,
            generation=1,
            expires=self.now + policy.backup_retention,
        )
        self._write([outcome, Removal(("mark", policy.uid, name)), Removal(("seen", policy.uid, name))])

    def _write(self, changes: Iterable[Change]) -> None:
        every = [*self.unwritten.values(), *changes]
        self.unwritten = {}
        self.log.apply(every)
        self.contents.apply(every)

    def _marks(self, policy: Policy) -> Mapping[str, Mark]:
        return dict(self.contents.marks.get(policy.uid, {}))

    def _listed(self, name: str) -> Group:
        return Group(name, GroupType.CLASSIC, "consumer", GroupState.EMPTY, 0)

    # The books

    def _book_read(self, policy: Policy, name: str, print_: bytes) -> None:
        key, patience = (policy.uid, name), 2 * policy.interval.total_seconds()
        known = self.books.reads.get(key)
        # Over a restart a gap can only be told by the clock, which may have been set.
        missed = known is not None and self.real - known.last > patience and self.stepped_at < known.last
        if known is None or missed or known.print_ != print_:
            self.books.reads[key] = _Read(self.real, self.real, print_)
        else:
            self.books.reads[key] = known._replace(last=self.real)

    def _check_books(self, plan: Plan, trouble: _Run) -> None:
        """Marks that can't hold any more, by what this run could see."""
        for uid, name in list(self.books.marked):
            if uid != plan.policy.uid:
                continue
            verdict = plan.verdicts.get(name)
            seen = trouble.absent is None if verdict is None else not self._unknown(verdict, name, trouble)
            if plan.policy.mode is Mode.DRY_RUN or (seen and (verdict is None or not verdict.matches)):
                del self.books.marked[uid, name]

    def _unknown(self, verdict: Verdict, name: str, trouble: _Run) -> bool:
        """Whether this run could not tell: its offsets gave no answer, or the tables may not decide."""
        if verdict.refusal is not None and verdict.refusal.reason.startswith("Evidence"):
            return True
        if verdict.evidence.activity is None:
            return name in trouble.unread
        return verdict.refusal is not None and verdict.refusal.reason == reasons.OFFSETS_UNKNOWN

    def _check_run(
        self, plans: list[Plan], verdicts: Mapping[str, Mapping[str, Verdict]], total: int, trouble: _Run
    ) -> None:
        """Everything that must hold for whatever this run is about to delete."""
        together = {name for plan in plans for name in plan.actions}
        assert sum(len(plan.actions) for plan in plans) <= _CONNECTION_LIMITS.max_per_run
        assert len(together) * 100 <= _CONNECTION_LIMITS.max_percent * total
        if together:
            all_due = {name for plan in plans for name in plan.due}
            assert len(all_due) * 100 <= _CONNECTION_LIMITS.max_percent * total
            assert trouble.ledger
            assert trouble.total
            assert not trouble.hidden
            assert trouble.absent is None
            assert abs(self.offset) <= _SKEW
        for plan in plans:
            policy, limits = plan.policy, plan.policy.limits
            assert policy.mode is Mode.ENFORCE or not (plan.actions or plan.marking)
            assert not (plan.refusal and plan.actions)
            assert len(plan.actions) <= limits.max_per_run
            if plan.actions:
                assert len(plan.due) * 100 <= limits.max_percent * total
            for name in plan.actions:
                if not self._in_the_tail(policy, name):
                    self._check_deletion(policy, name, verdicts[policy.uid][name], trouble)

    def _check_deletion(self, policy: Policy, name: str, verdict: Verdict, trouble: _Run) -> None:
        truth = self.groups[name]
        assert truth.present
        assert truth.empty
        assert verdict.matches
        assert name not in trouble.unread
        marked_at, marked_by = self.books.marked[policy.uid, name]
        assert marked_by.digest == policy.digest
        assert marked_by.grace_period == policy.grace_period
        # Two looks at a clock, each of which may be wrong by what ClockSkew tolerates.
        assert self.real - marked_at >= policy.grace_period.total_seconds() - 2 * _SKEW
        if policy.uid == _IDLE:
            assert self.real - truth.used >= _UNCHANGED_FOR - _SKEW
            assert self.real - self.tables[self.served].read_at <= _MAX_AGE.total_seconds() + _SKEW
            assert truth.behind > 0 or truth.committed <= truth.left
            assert truth.used <= marked_at + 2 * _SKEW
        else:
            read = self.books.reads[policy.uid, name]
            assert read.last == self.real
            assert self.real - read.first >= _UNCHANGED_FOR
            assert read.first <= marked_at
            assert truth.behind > 0
        assert self.asked_until.get(name, self.now) <= self.now
        assert self.real - self.deleted_at.get(name, -1e9) >= _RETENTION - 2 * _SKEW


def _key(change: Change) -> Key:
    return change.key


_CLEAN = _Run()


def _steadily(world: World, hours: int) -> None:
    for _ in range(hours):
        world.real += _HOUR
        world.run_pipeline()
        world.run(_CLEAN)


def test_patience_deletes() -> None:
    """In a world without trouble, litter is deleted when its time has come, and no sooner."""
    world = World()
    world.groups |= {name: _Group(present=False) for name in _NAMES[2:]}
    _steadily(world, 4)
    assert set(world.contents.marks["uid-1"]) == set(_NAMES[:2])
    _steadily(world, 1)
    assert world.deleted == []
    _steadily(world, 1)
    assert [name for _, name in world.deleted] == list(_NAMES[:2])


def test_the_log_deletes() -> None:
    """A restart costs idleFor nothing, but without fresh tables nothing is due."""
    world = World()
    world.groups |= {name: _Group(present=False) for name in _NAMES[:5]}
    _steadily(world, 3)
    assert set(world.contents.marks[_IDLE]) == {_NAMES[5]}
    world.real += 4 * _HOUR
    world.restart()
    world.run(_CLEAN)
    assert world.deleted == []
    _steadily(world, 1)
    assert [(uid, name) for uid, name in world.deleted if uid == _IDLE] == [(_IDLE, _NAMES[5])]


def test_a_mark_made_before_the_last_use() -> None:
    """Marked, used while nobody read the log, and idle again: it is marked again, and deleted after a grace period."""
    world, name = World(), _NAMES[5]
    world.groups |= {other: _Group(present=False) for other in _NAMES[:5]}
    _steadily(world, 3)
    before = world.contents.marks[_IDLE][name]
    world.real += _HOUR / 2
    world.use(name, "commit")
    world.real += 6 * _HOUR
    _steadily(world, 1)
    assert world.deleted == []
    assert world.contents.marks[_IDLE][name].since > before.since
    _steadily(world, 2)
    assert [deleted for deleted in world.deleted if deleted[0] == _IDLE] == [(_IDLE, name)]


_ANY_NAME = st.sampled_from(_NAMES)
_FEW = st.frozensets(_ANY_NAME, min_size=1, max_size=4)
_TROUBLE = st.one_of(
    st.sampled_from([_Run(ledger=False), _Run(total=False), _Run(hidden=True)]),
    st.builds(_Run, unread=_FEW),
    st.builds(_Run, absent=_FEW),
    st.builds(_Run, ledger=st.booleans(), total=st.booleans(), unread=_FEW, absent=st.one_of(st.none(), _FEW)),
)
_EDITS = st.one_of(
    st.fixed_dictionaries({"mode": st.sampled_from(["Enforce", "Enforce", "DryRun"])}),
    st.fixed_dictionaries({"grace": st.sampled_from([2, 1, 6])}),
    st.fixed_dictionaries({"percent": st.sampled_from([10, 34, 100]), "per_run": st.integers(1, 4)}),
)
_HOWS = st.sampled_from(
    ["commit", "commit-the-same", "join", "leave", "catch-up", "fall-behind", "vanish", "appear", "appear"]
)
_STEPS = st.one_of(
    st.tuples(st.just("steadily"), st.integers(1, 5)),
    st.tuples(st.just("steadily"), st.integers(1, 5)),
    st.tuples(st.just("trouble"), _TROUBLE),
    st.tuples(st.just("trouble"), _TROUBLE),
    st.tuples(st.just("trouble"), _TROUBLE),
    st.tuples(st.just("pause"), st.sampled_from([60.0, _HOUR, 2 * _HOUR, 3 * _HOUR, 14 * _HOUR])),
    st.tuples(st.just("use"), st.tuples(_ANY_NAME, _HOWS)),
    st.tuples(st.just("use"), st.tuples(_ANY_NAME, _HOWS)),
    st.tuples(st.just("keep"), st.tuples(_ANY_NAME, st.sampled_from([1.0, 5.0, 30.0]))),
    st.tuples(st.just("dry-run"), st.tuples(st.sampled_from(_UIDS), st.integers(1, 3))),
    st.tuples(st.just("edit"), st.tuples(st.sampled_from(_UIDS), _EDITS)),
    st.tuples(st.just("clock"), st.sampled_from([-30 * _HOUR, -200.0, 0.0, 0.0, 200.0, 4 * _HOUR, 30 * _HOUR])),
    st.tuples(st.just("wrong-clock"), st.tuples(st.sampled_from([-30 * _HOUR, 30 * _HOUR]), st.integers(1, 4))),
    st.tuples(st.just("tables"), st.sampled_from([0, 0, 0, 1, 2, 5])),
    st.tuples(st.just("come-back"), st.none()),
    st.tuples(st.just("restart"), st.none()),
)


def _do(world: World, what: str, value: Any) -> None:
    match what:
        case "steadily":
            _steadily(world, value)
        case "trouble":
            world.real += _HOUR
            world.run(value)
        case "pause":
            world.real += value
        case "tables":
            world.put_back(value) if value else world.run_pipeline()
        case "use":
            world.use(*value)
        case "come-back":
            world.come_back()
        case "keep":
            world.ask_to_keep(*value)
        case "dry-run":
            uid, hours = value
            world.specs[uid]["mode"] = "DryRun"
            _steadily(world, hours)
            world.specs[uid]["mode"] = "Enforce"
        case "edit":
            uid, change = value
            world.specs[uid] |= change
        case "clock":
            world.step_clock(value)
        case "wrong-clock":
            offset, hours = value
            world.step_clock(offset)
            _steadily(world, hours)
            world.step_clock(0.0)
        case "restart":
            world.restart()


@settings(max_examples=examples(1000, few=60), deadline=None)
@given(st.frozensets(_ANY_NAME, min_size=1), st.integers(0, 4), st.lists(_STEPS, min_size=4, max_size=30))
def test_no_history_deletes_what_it_must_not(present: frozenset[str], hours: int, steps: list[tuple[str, Any]]) -> None:
    """Never without a mark older than its grace, made by the policy as it is; a match at every run since; what decides
    read in this run; within all limits; and never in a dry run, in a refused run, or while somebody asks to keep it."""
    world = World()
    for name in set(_NAMES) - present:
        world.use(name, "vanish")
    _steadily(world, hours)
    for what, value in steps:
        _do(world, what, value)
    event(f"deleted: {min(len(world.deleted), 3)}")
    event(f"deleted by the log: {any(uid == _IDLE for uid, _ in world.deleted)}")
