"""Random histories of runs of the operator itself: crashes, lost answers, clocks, keeps, edits, at any exchange.

The tests run the operator's own loop, from the list of policies to the status: `observe`, `decide`, `note_marks`,
`apply`, `recover_intents`, the journal, the budget. All else is in memory (see `imagined`). Plans are compared with
what their run could know (`_check_plans`), and deletions with the truth at that moment (`_check`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from group_hygiene.controller import policies
from group_hygiene.controller.admission import Grants
from group_hygiene.controller.link import Link
from group_hygiene.controller.loop import ConnectionLoop
from group_hygiene.controller.services import Services
from group_hygiene.controller.statuses import Recorder
from group_hygiene.engine import recovery
from group_hygiene.engine.context import Observation
from group_hygiene.engine.plan import Plan
from group_hygiene.errors import ApiError, LedgerFenced
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka import client as client_module
from group_hygiene.model import reasons
from group_hygiene.model.groups import Fault, Offsets, Partition
from group_hygiene.observe.metrics import Metrics
from tests.examples import examples
from tests.unit.imagined import Crash, MemoryClient, MemoryLedger, MemoryObjects, Trouble, World, topic_id
from tests.unit.make import NOW

_HOUR = 3600.0
_NAMES = tuple(f"g{number}" for number in range(6))
# Three policies that overlap. The last one reads the offsets log, as a pipeline wrote it into tables.
_IDLE = "p3"
_POLICIES = {"p1": list(_NAMES[:4]), "p2": list(_NAMES[2:5]), _IDLE: list(_NAMES[3:])}
# The first is longer than the grace period: a group that is used while it is marked must not be deleted when it is due.
_UNUSED_FOR, _RETENTION, _MAX_AGE = 3 * _HOUR, 12 * _HOUR, 2 * _HOUR
# What ClockSkew tolerates, each time that a clock is read.
_SKEW = 300.0
# For so long state and offsets may be known when a request is sent; and what the exchanges in between take.
_FRESH = 2.1


# Reasons that end a mark; others are of groups that a run could not judge.
_NOT_MATCHING = {
    reasons.TOO_RECENT,
    reasons.CAUGHT_UP,
    reasons.KEEP_REQUESTED,
    reasons.REAPPEARED,
    reasons.NOT_EMPTY,
}


def _policy(groups: list[str], condition: str = "unchangedFor") -> dict[str, Any]:
    return {
        "connectionRef": {"name": "main"},
        "interval": "1h",
        "mode": "Enforce",
        "match": {"groups": groups},
        "when": {condition: "3h"},
        "action": "Delete",
        "delete": {"gracePeriod": "2h", "maxPerRun": 2, "maxPercent": 15, "backupRetention": "12h"},
    }


class _Read(NamedTuple):
    """Since when a policy's runs have read a group as Empty with the same offsets, and when last, in real seconds."""

    first: float
    last: float
    offsets: Offsets
    decisive: Any


@dataclass
class _Books:
    """What the present process can know of earlier runs; by policy uid and group.

    reads: of policies with unchangedFor. saved: those that the ledger has. ended: when a run ended the mark.
    """

    reads: dict[tuple[str, str], _Read] = field(default_factory=dict)
    saved: dict[tuple[str, str], _Read] = field(default_factory=dict)
    ended: dict[tuple[str, str], float] = field(default_factory=dict)

    def restart(self, real: float) -> None:
        self.reads = {key: read._replace(last=real) for key, read in self.saved.items()}
        self.ended = {}


def _decisive(spec: Mapping[str, Any]) -> Any:
    """What starts counts and marks again when it is edited."""
    return spec["match"], spec["when"], spec["action"], spec["delete"]["gracePeriod"]


def _grace(spec: Mapping[str, Any]) -> float:
    return float(spec["delete"]["gracePeriod"].removesuffix("h")) * _HOUR


def _limits(world: World) -> Mapping[str, int]:
    """Of the connection, as the operator read it."""
    limits: Mapping[str, int] = world.api.specs["main", world.api.read["kafkaconnections", "main"]]["limits"]
    return limits


def _is_asked_to_keep(world: World, name: str, known_to: int) -> bool:
    position, until = world.asked.get(name, (0, NOW))
    return 0 < position <= known_to and until.timestamp() - world.now().timestamp() > _SKEW


def _note_run(world: World, books: _Books, plan: Plan, complete: bool) -> None:
    """Note what a run read, and which marks it must end."""
    uid = plan.policy.uid
    spec = world.api.specs[uid, plan.policy.generation]
    for name in spec["match"]["groups"]:
        key, verdict, scan = (uid, name), plan.verdicts.get(name), world.scanned.get(name)
        known, now = books.reads.get(key), world.began
        if verdict is not None and scan is not None and scan.at >= now:
            # After a restart, only the clock shows a gap, and it may have been set.
            missed = known is not None and now - known.last > 2 * _HOUR + 100.0 and world.stepped < known.last
            same = known is not None and (known.offsets, known.decisive) == (scan.offsets, _decisive(spec))
            first = known.first if known is not None and same and not missed else now
            books.reads[key] = _Read(first, now, scan.offsets, _decisive(spec))
        elif complete if verdict is None else not isinstance(verdict.evidence.offsets, Fault):
            books.reads.pop(key, None)
        refusal = verdict.refusal if verdict is not None else None
        if spec["mode"] == "DryRun" or (complete and verdict is None) or (refusal and refusal.reason in _NOT_MATCHING):
            books.ended[key] = world.real
        if world.latest.get(("watch", uid), (None, -1.0))[1] >= now:
            books.saved.pop(key, None)
            books.saved |= {key: books.reads[key]} if key in books.reads else {}


def _check_plans(world: World, books: _Books, plans: list[Plan], observation: Observation) -> None:
    """Everything that must hold for what a run is about to read again and delete, by what it could know so far."""
    for plan in plans:
        _note_run(world, books, plan, observation.snapshot.complete)
    due = {name for plan in plans if plan.policy.enforced for name in plan.due}
    for plan in plans:
        spec = world.api.specs[plan.policy.uid, plan.policy.generation]
        assert spec["mode"] == "Enforce" or not (plan.actions or plan.marking)
        assert not (plan.refusal and plan.actions)
        if not plan.actions:
            continue
        assert not spec.get("suspend")
        assert len(plan.actions) <= min(spec["delete"]["maxPerRun"], _limits(world)["maxPerRun"])
        assert len(plan.due) * 100 <= spec["delete"]["maxPercent"] * world.listed
        assert len(due) * 100 <= _limits(world)["maxPercent"] * world.listed
        assert world.written >= world.began
        assert observation.snapshot.complete
        assert not world.hidden or world.hidden_at >= world.began
        assert abs(world.offset) <= _SKEW or world.stepped >= world.began
        for name in plan.actions:
            assert not _is_asked_to_keep(world, name, world.known_from)
            _check_action(world, books, plan.policy.uid, spec, name)


def _check_action(world: World, books: _Books, uid: str, spec: Mapping[str, Any], name: str) -> None:
    mark, marked = world.latest["mark", uid, name]
    assert mark is not None
    assert books.ended.get((uid, name), -1.0) < marked, "a run ended its mark"
    assert _decisive(world.marked_by[uid, name]) == _decisive(spec)
    assert world.real - marked >= _grace(spec) - 2 * _SKEW
    for deletion in world.deletions:
        if deletion.group == name and not deletion.remade and deletion.at < world.began:
            assert world.real - deletion.at >= _RETENTION - 2 * _SKEW
    scan = world.scanned[name]
    assert scan.at >= world.began
    has_unread = any(offset.offset < world.end for offset in scan.offsets.values())
    if uid != _IDLE:
        read = books.reads[uid, name]
        assert read.last == world.began
        assert world.real - read.first >= _UNUSED_FOR
        assert read.first <= marked
        assert has_unread
        return
    tables = world.tables_read
    known = tables.groups[name]
    assert known.state == "Empty"
    assert tables.read_at - known.used >= _UNUSED_FOR
    assert world.real - tables.read_at <= _MAX_AGE + _SKEW
    assert tables.to >= max(map(int, world.value("covered", "main")["to"].values())), "older tables replaced them"
    assert known.used <= marked + 2 * _SKEW
    assert has_unread or known.committed <= known.left


def _check(world: World, name: str, intent: Mapping[str, Any]) -> None:
    """Everything that must hold at the moment in which a broker is about to delete a group."""
    group, uid = world.groups[name], intent["policy_uid"]
    assert intent["generation"] == world.api.read["grouppolicies", uid]
    assert world.api.read_at["grouppolicies", uid] > world.listed_at
    spec = world.api.specs[uid, intent["generation"]]
    assert spec["mode"] == "Enforce"
    assert not spec.get("suspend")
    mark, marked = world.latest["mark", uid, name]
    assert mark is not None
    assert _decisive(world.marked_by[uid, name]) == _decisive(spec)
    assert world.real - marked >= _grace(spec) - 2 * _SKEW
    answer = world.reread[name]
    assert world.sent - answer.at <= _FRESH
    if group.used <= answer.at:
        assert group.used <= marked + (2 * _SKEW if uid == _IDLE else 0), "it was used since it was marked"
        assert answer.at - group.used >= _UNUSED_FOR - _SKEW
        assert group.offsets == answer.offsets
    backup = world.value("backup", name, intent["id"], "0")
    assert backup is not None
    assert backup["parts"] == 1
    rows = [(topic, row) for topic, rows in backup["offsets"].items() for row in rows]
    saved = {Partition(topic, row[0]): (row[1], row[2], row[3]) for topic, row in rows}
    assert saved == {place: tuple(offset) for place, offset in answer.offsets.items()}
    assert backup["topic_ids"] == {place.topic: str(topic_id(place.topic)) for place in answer.offsets}
    assert not _is_asked_to_keep(world, name, world.known_to)
    assert abs(world.offset) <= _SKEW or world.stepped > world.sent
    assert world.leads or world.replaced > world.sent
    before = sum(map(len, world.run_deleted.values()))
    own = len(world.run_deleted.get(uid, ()))
    total = world.others + sum(each.present for each in world.groups.values()) + before
    assert before < _limits(world)["maxPerRun"]
    assert own < spec["delete"]["maxPerRun"]
    assert (before + 1) * 100 <= _limits(world)["maxPercent"] * total
    assert (own + 1) * 100 <= spec["delete"]["maxPercent"] * total


class Operator:
    """Processes of the operator, one after the other."""

    def __init__(self, world: World | None = None, books: _Books | None = None) -> None:
        """world: one in which other processes have run. books: of the last of them."""
        self.world = world or World(_NAMES, _check)
        _present[:] = [self.world]
        self.books = copy.deepcopy(books) if books else _Books()
        if world is None:
            self._install()
        self.restart()

    def _install(self) -> None:
        limits = {"maxPerRun": 3, "maxPercent": 20}
        spec = {"bootstrapServers": ["kafka:9092"], "limits": limits, "scan": {"timeout": "5s"}}
        spec["activity"] = {"uri": "/tables", "maxAge": "2h"}
        self.world.api.put("kafkaconnections", "main", spec)
        for name, groups in _POLICIES.items():
            spec = _policy(groups, "idleFor" if name == _IDLE else "unchangedFor")
            self.world.api.put("grouppolicies", name, spec)

    def restart(self) -> None:
        world: Any = self.world
        api: Any = world.api
        objects: Any = MemoryObjects(api)
        # Of those that no connection serves; `Unserved` writes their statuses.
        self.skipped: list[str] = []
        unserved: Any = SimpleNamespace(skip=lambda plural, key: self.skipped.append(key[1]))
        services = Services(
            api, objects, Grants(api, world), unserved, Recorder(api), Metrics(), world, world, "installation", world
        )
        self.books.restart(world.real)
        self.loop = ConnectionLoop("kafka", "main", services)
        self.wait = 0.0

    def run(self, *troubles: Trouble) -> None:
        """The next run, whatever becomes of it."""
        world = self.world
        world.real += self.wait or 1.0
        world.troubles, world.counts, world.run_deleted = list(troubles), {}, {}
        _running[:] = [self]
        world.began, world.known_from = world.real, len(world.log)
        try:
            wait = self.loop.run_due()
            self.wait = _HOUR if wait is None else wait
        except ApiError:
            self.wait = 60.0
        except (Crash, LedgerFenced):
            world.leads = True
            self.restart()
        if not world.leads:
            # A process that lost the lead ends.
            world.leads = True
            self.restart()
        world.troubles = []
        world.deliver()
        if world.failures:
            raise world.failures[0]

    def happens(self, what: str, *arguments: Any) -> None:
        """An event between runs: of the world, or `run` or `restart` of the operator."""
        world: Any = self.world
        getattr(self if what in ("run", "restart") else world, what)(*arguments)
        self.world.leads = True

    def until_due(self) -> None:
        """Up to the run before one that may delete something; or a while, if there is none."""
        end = self.world.real + 8 * _HOUR
        while self.world.real < end:
            # A second, as a run takes a moment before it decides.
            then = NOW + timedelta(seconds=self.world.real + self.wait + 1)
            marks = [value for key, (value, _) in self.world.latest.items() if key[0] == "mark" and value is not None]
            if any(datetime.fromisoformat(mark["due"]) <= then for mark in marks):
                return
            self.world.run_pipeline()
            self.run()

    def patiently(self, hours: int) -> None:
        end = self.world.real + hours * _HOUR
        while self.world.real < end:
            self.world.run_pipeline()
            self.run()


@pytest.fixture(scope="module", autouse=True)
def in_memory() -> Iterator[None]:
    """Connections and ledgers are made in memory, and the time of deadlines and pauses is the world's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "connect", lambda settings, *_: MemoryClient(_present[0], settings))
        patch.setattr(recovery, "open_ledger", _open_ledger)
        time = SimpleNamespace(monotonic=_monotonic, sleep=_sleep)
        patch.setattr(client_module, "time", time)
        patch.setattr(client_module, "elapsed", _monotonic)
        patch.setattr(recovery, "time", time)
        patch.setattr(policies, "decide", _decide)
        patch.setattr(Link, "tables", lambda _, connection: Tables(connection.activity))
        patch.setattr(Tables, "read", lambda *_: _present[0].read_tables())
        yield


# The world of the example that runs now, and its operator.
_present: list[World] = []
_running: list[Operator] = []


def _decide(
    due: policies.Due, observation: Observation, marks: Any, announced: Any, now: datetime
) -> list[policies.Decision]:
    decisions = _real_decide(due, observation, marks, announced, now)
    plans = [decision.plan for decision in decisions if isinstance(decision.plan, Plan)]
    assert len(plans) == len(decisions), "internal error"
    _check_plans(_present[0], _running[0].books, plans, observation)
    return decisions


_real_decide = policies.decide


def _monotonic() -> float:
    return _present[0].monotonic()


def _sleep(seconds: float) -> None:
    _present[0].sleep(seconds)


def _open_ledger(_: Any, ledger_settings: Any, deadline: Any, create: bool, claim: bool = False) -> MemoryLedger | None:
    if not create and not _present[0].log:
        return None
    ledger = MemoryLedger(_present[0], ledger_settings)
    if claim:
        ledger.claim(deadline)
    else:
        ledger.read_on(deadline)
    return ledger


def _settle(operator: Operator, hours: int = 4) -> None:
    """In the end all is recorded, each deletion once."""
    world = operator.world
    world.step_clock(0.0)
    world.hide_topics(False)
    world.denied.clear()
    operator.patiently(hours)
    assert [key for key, (value, _) in world.latest.items() if key[0] == "intent" and value is not None] == []
    assert [deletion for deletion in world.deletions if not deletion.remade and not world.has_outcome(deletion)] == []
    ids = [deletion.id for deletion in world.deletions]
    assert len(set(ids)) == len(ids)


def test_patience_deletes() -> None:
    """Without trouble, litter goes when its time has come, so many in a run; what is in use or kept stays."""
    operator = Operator()
    world = operator.world
    for name in _NAMES:
        world.commit(name, 1)
    world.join("g0")
    operator.patiently(1)
    world.keep("g1", 30)
    operator.patiently(3)
    assert {key[2] for key in world.latest if key[0] == "mark"} == {"g2", "g3", "g4", "g5"}
    assert world.deletions == []
    operator.patiently(5)
    assert sorted(deletion.group for deletion in world.deletions) == ["g2", "g3", "g4", "g5"]
    _settle(operator)


def test_a_group_that_is_joined_between_scans_is_kept() -> None:
    """Its consumer dies each time before it commits: Empty at every scan, with the same offsets."""
    operator = Operator()
    world = operator.world
    world.commit("g0", 1)
    world.commit("g1", 1)
    for _ in range(12):
        world.visit("g0")
        operator.patiently(1)
    assert [deletion.group for deletion in world.deletions] == ["g1"]
    operator.patiently(12)
    assert [deletion.group for deletion in world.deletions] == ["g1", "g0"], "no consumer joins it any more"


def test_marks_of_a_suspended_policy_count_for_no_limit() -> None:
    """What it marked is due and never deleted: the connection's maxPercent is about the others."""
    operator = Operator()
    world = operator.world
    world.edit("main", {"limits": {"maxPercent": 10}})
    for name in ("g0", "g1", "g4", "g5"):
        world.commit(name, 1)
    operator.patiently(3)
    for name in ("p2", "p3"):
        world.edit(name, {"suspend": True})
    operator.patiently(6)
    assert [deletion.group for deletion in world.deletions] == ["g0", "g1"]


def test_an_internal_error_is_reported_to_admitted_policies_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace without a grant must not learn that the connection exists."""
    operator = Operator()
    api = operator.world.api
    named = {"connectionRef": {"name": "main", "namespace": "kafka"}}
    api.put("grouppolicies", "stranger", _policy(["g9"]) | named, "elsewhere")

    def fail(*_: object) -> None:
        raise KeyError("a secret of others")

    monkeypatch.setattr(operator.loop._policies, "run", fail)
    operator.loop._run_safely()
    conditions = api.get("grouppolicies", "kafka", "p1")["status"]["conditions"]
    assert [each["reason"] for each in conditions if each["type"] == "Ready"] == [reasons.INTERNAL_ERROR]
    assert api.get("grouppolicies", "elsewhere", "stranger")["status"] == {}
    assert set(operator.skipped) == {"stranger"}


@pytest.mark.parametrize(
    ("name", "steps", "hours"),
    [
        pytest.param("g0", [("commit", "g0", 7)], 5, id="commit"),
        pytest.param("g0", [("commit_again", "g0")], 5, id="commit-the-same"),
        pytest.param("g0", [("commit", "g0", 7), 1, ("commit", "g0", 1)], 5, id="commit-and-reset"),
        pytest.param("g0", [("join", "g0"), 1, ("leave", "g0")], 5, id="join-and-leave"),
        pytest.param("g0", [("visit", "g0")], 5, id="join-and-die"),
        pytest.param("g0", [("vanish", "g0"), 1, ("appear", "g0")], 5, id="vanish-and-appear"),
        pytest.param("g0", [("catch_up", "g0"), 7, ("produce",)], 0, id="no-unread-records"),
        pytest.param("g0", [("keep", "g0", 4.0)], 5, id="keep"),
        pytest.param("g0", [("deny", "g0"), 4, ("allow", "g0")], 4, id="offsets-without-an-answer"),
        pytest.param("g0", [("pause", 3 * _HOUR)], 4, id="missed-scans"),
        pytest.param("g0", [("restart",), ("pause", 3 * _HOUR)], 4, id="missed-scans-and-a-restart"),
        pytest.param(
            "g0", [("edit", "p1", {"mode": "DryRun"}), 1, ("edit", "p1", {"mode": "Enforce"})], 2, id="dry-run"
        ),
        pytest.param("g0", [("edit", "p1", {"delete": {"gracePeriod": "4h"}})], 5, id="longer-grace-period"),
        pytest.param("g0", [("edit", "p1", {"delete": {"gracePeriod": "1h"}})], 2, id="shorter-grace-period"),
        pytest.param("g5", [("edit", "p3", {"delete": {"gracePeriod": "1h"}})], 1, id="shorter-grace-period-of-idle"),
        pytest.param(
            "g0", [("edit", "p1", {"suspend": True}), 6, ("edit", "p1", {"suspend": False})], 4, id="suspended"
        ),
        pytest.param(
            "g0",
            [("edit", "p1", {"delete": {"maxPercent": 1}}), 4, ("edit", "p1", {"delete": {"maxPercent": 15}})],
            0,
            id="max-percent",
        ),
        pytest.param(
            "g0",
            [("edit", "main", {"limits": {"maxPercent": 4}}), 4, ("edit", "main", {"limits": {"maxPercent": 20}})],
            0,
            id="max-percent-of-the-connection",
        ),
        pytest.param("g0", [("hide_topics", True), 6, ("hide_topics", False)], 0, id="hidden-topics"),
        pytest.param("g0", [("step_clock", 30 * _HOUR), 6, ("step_clock", 0.0)], 0, id="wrong-clock"),
        pytest.param("g5", [("commit", "g5", 7)], 4, id="commit-in-tables"),
        pytest.param("g5", [("commit_again", "g5")], 4, id="commit-the-same-in-tables"),
        pytest.param("g5", [("visit", "g5")], 4, id="join-and-die-in-tables"),
        pytest.param("g5", [("visit", "g5"), ("pause", 6 * _HOUR)], 1, id="used-since-it-was-marked"),
        pytest.param("g5", [("put_back", 1), ("run",), ("pause", 5 * _HOUR), ("run",)], 0, id="old-tables"),
        pytest.param("g5", [("pause", 1 * _HOUR), ("put_back", 1), ("run",)], 0, id="tables-went-back"),
        pytest.param("g5", [("restart",), ("pause", 5 * _HOUR), ("run",)], 0, id="old-tables-after-a-restart"),
        pytest.param("g5", [("pause", 1 * _HOUR), ("catch_up", "g5"), 8, ("produce",)], 0, id="commit-while-empty"),
    ],
)
def test_the_wait_begins_again(name: str, steps: list[Any], hours: int) -> None:
    """A group was marked, and one hour later something happens: it is deleted, but not for so many hours.

    steps: hours in which the operator runs, and events in between.
    """
    operator = Operator()
    world = operator.world
    world.commit(name, 1)
    operator.patiently(4)
    assert world.value("mark", _IDLE if name == "g5" else "p1", name) is not None
    for step in steps:
        operator.patiently(step) if isinstance(step, int) else operator.happens(*step)
    operator.patiently(hours)
    assert world.deletions == []
    operator.patiently(9)
    assert [deletion.group for deletion in world.deletions] == [name]


def test_a_group_that_reappears_is_not_deleted() -> None:
    """Until backupRetention is over: its client needs it."""
    operator = Operator()
    operator.world.commit("g0", 1)
    operator.patiently(7)
    assert len(operator.world.deletions) == 1
    operator.world.appear("g0")
    operator.patiently(11)
    assert len(operator.world.deletions) == 1
    operator.patiently(9)
    assert len(operator.world.deletions) == 2


@pytest.fixture(scope="module")
def due() -> Operator:
    """Two groups are due by two policies, and any process that runs now deletes them."""
    operator = Operator()
    operator.world.commit("g0", 1)
    operator.world.commit("g5", 1)
    operator.until_due()
    assert operator.world.deletions == []
    operator.world.real += operator.wait
    return operator


def _moments(due: Operator) -> range:
    """The exchanges of the run that deletes."""
    operator = Operator(copy.deepcopy(due.world), due.books)
    operator.run()
    assert len(operator.world.deletions) == 2
    return range(1, operator.world.counts[""] + 1)


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        pytest.param("keep", ("g0", 48.0), id="a-user-asks-to-keep-it"),
        pytest.param("commit", ("g0", 7), id="it-commits"),
        pytest.param("commit", ("g5", 7), id="it-commits-after-the-tables"),
        pytest.param("commit_again", ("g5",), id="it-commits-the-same-after-the-tables"),
        pytest.param("join", ("g0",), id="a-consumer-joins-it"),
        pytest.param("visit", ("g0",), id="a-consumer-joins-it-and-dies"),
        pytest.param("visit", ("g5",), id="a-consumer-joins-it-and-dies-after-the-tables"),
        pytest.param("begin_transaction", ("g0",), id="a-transaction-begins"),
        pytest.param("edit", ("p1", {"mode": "DryRun"}), id="its-policy-becomes-a-dry-run"),
        pytest.param("step_clock", (3 * _HOUR,), id="the-clock-is-set"),
        pytest.param("pause", (3.0,), id="it-takes-long"),
        pytest.param("lose_lead", (), id="the-lead-is-lost"),
        pytest.param("move_leaders", (), id="leaders-move"),
    ],
)
def test_at_any_moment_something_happens(due: Operator, what: str, arguments: tuple[Any, ...]) -> None:
    """At each exchange of a run that deletes: what is deleted then may be (`_check`)."""
    for nth in _moments(due):
        Operator(copy.deepcopy(due.world), due.books).run(Trouble("", nth, what, arguments))


@pytest.mark.parametrize("what", ["crash-before", "crash-after", "lost", "refused"])
def test_at_any_moment_an_exchange_fails(due: Operator, what: str) -> None:
    """The same, and in the end each deletion is recorded, once."""
    for nth in _moments(due):
        operator = Operator(copy.deepcopy(due.world), due.books)
        operator.run(Trouble("", nth, what))
        _settle(operator, 1)


_NAME = st.sampled_from(_NAMES)
_POLICY = st.sampled_from(tuple(_POLICIES))
_CHANGES = st.sampled_from(
    [
        {"mode": "DryRun"},
        {"mode": "Enforce"},
        {"suspend": True},
        {"suspend": False},
        {"delete": {"gracePeriod": "1h"}},
        {"delete": {"gracePeriod": "4h"}},
        {"delete": {"maxPerRun": 1}},
        {"delete": {"maxPercent": 5}},
        {"delete": {"maxPercent": 15, "maxPerRun": 2}},
    ]
)
_LIMITS = st.sampled_from([{"limits": {"maxPerRun": 3, "maxPercent": percent}} for percent in (4, 10, 20, 20)])
_OFFSETS = st.sampled_from([0.0, 0.0, 200.0, -200.0, 3 * _HOUR, -3 * _HOUR, 30 * _HOUR])
_EVENTS = st.one_of(
    st.tuples(st.just("commit"), st.tuples(_NAME, st.integers(2, 9))),
    st.tuples(
        st.sampled_from(
            ["join", "leave", "visit", "visit", "vanish", "appear", "commit_again", "catch_up", "deny", "allow"]
        ),
        st.tuples(_NAME),
    ),
    st.tuples(st.sampled_from(["begin_transaction", "end_transaction"]), st.tuples(_NAME)),
    st.tuples(st.sampled_from(["come_back", "move_leaders", "produce", "run_pipeline"]), st.just(())),
    st.tuples(st.just("put_back"), st.tuples(st.sampled_from([1, 2, 5]))),
    st.tuples(st.just("hide_topics"), st.tuples(st.sampled_from([True, False, False]))),
    st.tuples(st.just("keep"), st.tuples(_NAME, st.sampled_from([1.0, 6.0, 48.0]))),
    st.tuples(st.just("step_clock"), st.tuples(_OFFSETS)),
    st.tuples(st.just("edit"), st.tuples(_POLICY, _CHANGES)),
    st.tuples(st.just("edit"), st.tuples(st.just("main"), _LIMITS)),
    st.tuples(st.just("pause"), st.tuples(st.sampled_from([1.0, 3.0, 30.0]))),
    st.tuples(st.just("lose_lead"), st.just(())),
)
# How many exchanges of a kind a run has, more or less.
_MOMENTS = {
    "DeleteGroups": 3,
    "EndTxn": 6,
    "Fetch": 10,
    "OffsetFetch": 24,
    "DescribeGroups": 6,
    "ListOffsets": 6,
    "Metadata": 12,
    "ListGroups": 2,
    "FindCoordinator": 8,
    "DescribeLogDirs": 1,
    "OffsetForLeaderEpoch": 1,
    "Tables": 2,
    "InitProducerId": 1,
    "list": 3,
    "get": 6,
    "patch": 3,
}
_MOMENT = st.sampled_from([*_MOMENTS, *("DeleteGroups", "EndTxn", "EndTxn", "Fetch", "OffsetFetch")]).flatmap(
    lambda kind: st.tuples(st.just(kind), st.integers(1, _MOMENTS[kind]))
)
_BREAKS = st.tuples(st.sampled_from(["crash-before", "crash-after", "lost", "refused"]), st.just(()))
_TROUBLE = st.one_of(
    st.builds(lambda moment, fault: Trouble(*moment, *fault), _MOMENT, st.one_of(_BREAKS, _EVENTS)),
    st.builds(lambda nth: Trouble("DeleteGroups", nth, "late"), st.integers(1, 2)),
)
_TROUBLES = st.lists(_TROUBLE, min_size=1, max_size=3)
_STEPS = st.one_of(
    st.tuples(st.just("run"), _TROUBLES),
    st.tuples(st.just("run-when-due"), _TROUBLES),
    st.tuples(st.just("run-when-due"), _TROUBLES),
    st.tuples(st.just("patiently"), st.integers(1, 3)),
    st.tuples(st.just("event"), _EVENTS),
    st.tuples(st.just("event"), st.just(("restart", ()))),
    st.tuples(st.just("event"), st.tuples(st.just("pause"), st.tuples(st.sampled_from([60.0, _HOUR, 3 * _HOUR])))),
)


@settings(max_examples=examples(200, few=50), deadline=None)
@given(st.frozensets(_NAME, min_size=2), st.integers(0, 3), st.lists(_STEPS, min_size=3, max_size=12))
def test_no_run_deletes_what_it_must_not(present: frozenset[str], hours: int, steps: list[tuple[str, Any]]) -> None:
    """Never without a mark older than its grace, a whole backup and an intent, by a policy as it is; never over a
    limit, nor a group that a user asked to keep, or that was read too long ago. In the end each deletion is recorded
    once."""
    operator = Operator()
    world = operator.world
    for name in sorted(present):
        world.commit(name, 1)
    operator.patiently(hours)
    for what, value in steps:
        match what:
            case "run":
                operator.run(*value)
            case "run-when-due":
                operator.until_due()
                operator.run(*value)
            case "patiently":
                operator.patiently(value)
            case _:
                happening, arguments = value
                operator.happens(happening, *arguments)
    _settle(operator)
    event(f"deleted: {min(len(world.deletions), 4)}")
