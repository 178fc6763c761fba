"""Random histories of runs of the operator itself: crashes, lost answers, clocks, keeps, edits, at any exchange.

The tests run the operator's own loop, from the list of policies to the status: `observe`, `note_marks`, `apply`,
`recover_intents`, the journal, the budget. All else is in memory (see `imagined`). Deletions are compared with
the truth at that moment.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from group_hygiene.controller.loop import ConnectionLoop
from group_hygiene.controller.recorder import Recorder
from group_hygiene.controller.services import Services
from group_hygiene.errors import ApiError, LedgerFenced
from group_hygiene.kafka import client as client_module
from group_hygiene.model import reasons
from group_hygiene.model.groups import Partition
from group_hygiene.reconcile import opening, recovery
from group_hygiene.telemetry.metrics import Metrics
from tests.examples import examples
from tests.unit.imagined import Crash, MemoryClient, MemoryLedger, Trouble, World, topic_id
from tests.unit.make import NOW

_HOUR = 3600.0
_NAMES = tuple(f"g{number}" for number in range(6))
_POLICIES = {"p1": list(_NAMES[:4]), "p2": list(_NAMES[2:])}
_PER_RUN, _PERCENT = 3, 20
# What ClockSkew tolerates, at each of two looks at a clock.
_SKEW = 300.0
# For so long state and offsets may be known when a request is sent; and what the exchanges in between take.
_FRESH = 2.1


def _policy(groups: list[str]) -> dict[str, Any]:
    return {
        "connectionRef": {"name": "main"},
        "interval": "1h",
        "mode": "Enforce",
        "match": {"groups": groups},
        "when": {"unchangedFor": "2h"},
        "action": "Delete",
        "delete": {"gracePeriod": "2h", "maxPerRun": 2, "maxPercent": 15, "backupRetention": "24h"},
    }


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
    grace = float(spec["delete"]["gracePeriod"].removesuffix("h")) * _HOUR
    assert world.real - marked >= grace - 2 * _SKEW
    look = world.looks[name]
    assert world.sent - look.at <= _FRESH
    assert group.used > look.at or group.used <= marked, "it was joined since it was marked"
    assert group.changed > look.at or (group.offsets == look.offsets and group.changed <= marked)
    backup = world.value("backup", name, intent["id"], "0")
    assert backup is not None
    assert backup["parts"] == 1
    rows = [(topic, row) for topic, rows in backup["offsets"].items() for row in rows]
    saved = {Partition(topic, row[0]): (row[1], row[2], row[3]) for topic, row in rows}
    assert saved == {place: tuple(offset) for place, offset in look.offsets.items()}
    assert backup["topic_ids"] == {place.topic: str(topic_id(place.topic)) for place in look.offsets}
    position, until = world.asked.get(name, (0, world.now()))
    assert position > world.known_to or until.timestamp() - world.now().timestamp() <= _SKEW
    assert abs(world.offset) <= _SKEW or world.stepped > world.sent
    assert world.leads or world.replaced > world.sent
    before = sum(map(len, world.run_deleted.values()))
    own = len(world.run_deleted.get(uid, ()))
    total = world.others + sum(each.present for each in world.groups.values()) + before
    assert before < _PER_RUN
    assert own < spec["delete"]["maxPerRun"]
    assert (before + 1) * 100 <= _PERCENT * total
    assert (own + 1) * 100 <= spec["delete"]["maxPercent"] * total


class Operator:
    """Processes of the operator, one after the other."""

    def __init__(self, world: World | None = None) -> None:
        """world: one in which others have been at work."""
        self.world = world or World(_NAMES, _check)
        _present[:] = [self.world]
        if world is None:
            self._install()
        self.start()

    def _install(self) -> None:
        limits = {"maxPerRun": _PER_RUN, "maxPercent": _PERCENT}
        spec = {"bootstrapServers": ["kafka:9092"], "limits": limits, "scan": {"timeout": "5s"}}
        self.world.api.put("kafkaconnections", "main", spec)
        for name, groups in _POLICIES.items():
            self.world.api.put("grouppolicies", name, _policy(groups))

    def start(self) -> None:
        world: Any = self.world
        services = Services(world.api, Recorder(world.api), Metrics(), world, world, "installation", world)
        self.loop = ConnectionLoop("kafka", "main", services)
        self.wait = 0.0

    def run(self, *troubles: Trouble) -> None:
        """The next run, whatever becomes of it."""
        world = self.world
        world.real += self.wait or 1.0
        world.troubles, world.counts, world.run_deleted = list(troubles), {}, {}
        try:
            self.wait = self.loop.run_due() or _HOUR
        except ApiError:
            self.wait = 60.0
        except (Crash, LedgerFenced):
            world.leads = True
            self.start()
        if not world.leads:
            # A process that lost the lead ends.
            world.leads = True
            self.start()
        world.troubles = []
        world.deliver()

    def until_due(self) -> None:
        """Up to the run before one that may delete something; or a while, if there is none."""
        end = self.world.real + 8 * _HOUR
        while self.world.real < end:
            # A second, as a run takes a moment before it decides.
            then = NOW + timedelta(seconds=self.world.real + self.wait + 1)
            marks = [value for key, (value, _) in self.world.latest.items() if key[0] == "mark" and value is not None]
            if any(datetime.fromisoformat(mark["due"]) <= then for mark in marks):
                return
            self.run()

    def patiently(self, hours: int) -> None:
        end = self.world.real + hours * _HOUR
        while self.world.real < end:
            self.run()


@pytest.fixture(scope="module", autouse=True)
def in_memory() -> Iterator[None]:
    """Connections and ledgers are made in memory, and the time of deadlines and pauses is the world's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "connect", lambda settings, *_: MemoryClient(_present[0], settings))
        patch.setattr(opening, "open_ledger", _open_ledger)
        time = SimpleNamespace(monotonic=_monotonic, sleep=_sleep)
        patch.setattr(client_module, "time", time)
        patch.setattr(client_module, "elapsed", _monotonic)
        patch.setattr(recovery, "time", time)
        yield


# The world of the example that runs now.
_present: list[World] = []


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
    operator.patiently(8)
    assert [deletion.group for deletion in world.deletions] == ["g2", "g3", "g4", "g5"]
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
    assert [deletion.group for deletion in world.deletions] == ["g1", "g0"], "nobody joins it any more"


def test_marks_of_a_suspended_policy_count_for_no_limit() -> None:
    """What it marked is due and never deleted: the connection's maxPercent is about the others."""
    operator = Operator()
    world = operator.world
    world.api.edit("kafkaconnections", "main", {"limits": {"maxPerRun": _PER_RUN, "maxPercent": 10}})
    for name in ("g0", "g1", "g4", "g5"):
        world.commit(name, 1)
    operator.patiently(3)
    world.edit("p2", {"suspend": True})
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
    ready = {}
    for name, namespace in (("p1", "kafka"), ("stranger", "elsewhere")):
        conditions = api.get("grouppolicies", namespace, name)["status"]["conditions"]
        (ready[name],) = [each["reason"] for each in conditions if each["type"] == "Ready"]
    assert ready == {"p1": reasons.INTERNAL_ERROR, "stranger": reasons.CROSS_NAMESPACE}


@pytest.fixture(scope="module")
def due() -> World:
    """Two groups are due, and any process that runs now deletes them."""
    operator = Operator()
    operator.world.commit("g0", 1)
    operator.world.commit("g1", 1)
    operator.until_due()
    assert operator.world.deletions == []
    operator.world.real += operator.wait
    return operator.world


def _moments(due: World) -> range:
    """The exchanges of the run that deletes."""
    operator = Operator(copy.deepcopy(due))
    operator.run()
    assert len(operator.world.deletions) == 2
    return range(1, operator.world.counts[""] + 1)


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        pytest.param("keep", ("g0", 48.0), id="somebody-asks-to-keep-it"),
        pytest.param("commit", ("g0", 7), id="it-commits"),
        pytest.param("join", ("g0",), id="somebody-joins-it"),
        pytest.param("visit", ("g0",), id="somebody-joins-it-and-dies"),
        pytest.param("begin_transaction", ("g0",), id="a-transaction-begins"),
        pytest.param("edit", ("p1", {"mode": "DryRun"}), id="its-policy-becomes-a-dry-run"),
        pytest.param("step_clock", (3 * _HOUR,), id="the-clock-is-set"),
        pytest.param("pause", (3.0,), id="it-takes-long"),
        pytest.param("lose_lead", (), id="the-lead-is-lost"),
    ],
)
def test_at_any_moment_something_happens(due: World, what: str, arguments: tuple[Any, ...]) -> None:
    """At each exchange of a run that deletes: what is deleted then may be (`_check`)."""
    for nth in _moments(due):
        Operator(copy.deepcopy(due)).run(Trouble("", nth, what, arguments))


@pytest.mark.parametrize("what", ["crash-before", "crash-after", "lost", "refused"])
def test_at_any_moment_an_exchange_fails(due: World, what: str) -> None:
    """The same, and in the end each deletion is recorded, once."""
    for nth in _moments(due):
        operator = Operator(copy.deepcopy(due))
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
    ]
)
_OFFSETS = st.sampled_from([0.0, 0.0, 200.0, -200.0, 3 * _HOUR, -3 * _HOUR, 30 * _HOUR])
_EVENTS = st.one_of(
    st.tuples(st.just("commit"), st.tuples(_NAME, st.integers(2, 9))),
    st.tuples(st.sampled_from(["join", "leave", "visit", "visit", "vanish", "appear"]), st.tuples(_NAME)),
    st.tuples(st.sampled_from(["begin_transaction", "end_transaction"]), st.tuples(_NAME)),
    st.tuples(st.just("keep"), st.tuples(_NAME, st.sampled_from([1.0, 6.0, 48.0]))),
    st.tuples(st.just("step_clock"), st.tuples(_OFFSETS)),
    st.tuples(st.just("edit"), st.tuples(_POLICY, _CHANGES)),
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
)


@settings(max_examples=examples(60), deadline=None)
@given(st.frozensets(_NAME, min_size=2), st.integers(0, 3), st.lists(_STEPS, min_size=3, max_size=10))
def test_no_run_deletes_what_it_must_not(present: frozenset[str], hours: int, steps: list[tuple[str, Any]]) -> None:
    """Never without a mark older than its grace, a whole backup and an intent, by a policy as it is; never over a
    limit, what somebody asked to keep, or what was read too long ago. In the end each deletion is recorded, once."""
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
                world.happens(happening, *arguments)
                world.leads = True
    _settle(operator)
    event(f"deleted: {min(len(world.deletions), 4)}")
