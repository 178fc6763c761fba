"""Groups that policies select are counted against the memory that is left, before they are judged."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from group_hygiene.engine import scan
from group_hygiene.engine.context import Memory
from group_hygiene.engine.plan import Verdicts
from group_hygiene.engine.scan import _GROUP_BYTES, _group_bytes
from group_hygiene.errors import MemoryExhausted
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.contents import Contents
from group_hygiene.model import reasons
from group_hygiene.model.evidence import LastClient, Need
from group_hygiene.model.groups import ID_MAX, Group
from group_hygiene.process import memory
from group_hygiene.process.clock import SystemClock
from group_hygiene.spec.connection import NO_OWNERS
from group_hygiene.spec.patterns import NO_PATTERNS
from group_hygiene.spec.policy import Policy
from tests.unit.make import NOW, OFFSETS, activity, cluster, delete, group, idle, match


@pytest.fixture
def intake() -> Any:
    """A run's, whose reservations end with the test."""
    intake = memory.Intake()
    yield intake
    intake.end()


def _limit(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A process that has taken nothing yet, and may take 19 of 20 parts of that."""
    monkeypatch.setattr(memory, "LIMIT", size)
    monkeypatch.setattr(memory, "_used", lambda: 0)
    monkeypatch.setattr(memory, "_reserved", memory._Reserved())


def _reserved(
    intake: memory.Intake, policies: list[Policy], groups: dict[str, Group], judged: int = 0, whole: bool = False
) -> tuple[list[str], scan._Scan]:
    """The policies that fit into the memory, each with so many earlier matches."""
    journal = SimpleNamespace(contents=Contents())
    connection = SimpleNamespace(namespace="kafka", uid="uid")
    client = SimpleNamespace(intake=intake)
    context: Any = SimpleNamespace(client=client, journal=journal, memory=Memory(), connection=connection)
    facts = scan._Scan(context=context, cluster=cluster(), deadline=Deadline(0.1))
    verdicts = {each.key: Verdicts(whole=whole) for each in policies}
    for each in verdicts.values():
        for number in range(judged):
            each.add(match(str(number)))
    selected = {each.key: list(groups.values()) for each in policies}
    fit = facts.reserve(policies, selected, verdicts)
    return [each.key for each in fit], facts


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param("orders", _GROUP_BYTES, id="short"),
        # Six bytes of JSON each, four times.
        pytest.param("\x01" * ID_MAX, _GROUP_BYTES + 24 * ID_MAX, id="control-characters"),
    ],
)
def test_more_groups_than_there_is_memory_for_are_not_judged(
    name: str, size: int, intake: memory.Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition of the connection, instead of an error in whatever needs memory next."""
    _limit(monkeypatch, 11 * size)
    groups = {f"{name[:-2]}{index:02}": group(f"{name[:-2]}{index:02}") for index in range(11)}
    with pytest.raises(MemoryExhausted, match="11 groups to be judged"):
        _reserved(intake, [delete()], groups)


def _of(namespace: str, name: str) -> Policy:
    return structs.replace(delete(), namespace=namespace, name=name)


@pytest.mark.parametrize(
    ("policies", "room", "fit"),
    [
        pytest.param(["kafka/a", "kafka/b"], 9, ["kafka/a", "kafka/b"], id="all-fit"),
        pytest.param(["kafka/a", "team/a", "team/b"], 2, ["kafka/a", "team/b"], id="first-those-of-others"),
        pytest.param(["team/a", "one/a", "one/b", "one/c"], 2, ["team/a", "one/c"], id="first-who-takes-most"),
        pytest.param(["kafka/a", "kafka/b"], 1, ["kafka/b"], id="last-the-connections-own"),
    ],
)
def test_policies_that_do_not_fit_are_left_out(
    policies: list[str], room: int, fit: list[str], intake: memory.Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on; each that is left out has a reason of its own, and its counts begin again."""
    every = [_of(*each.split("/")) for each in policies]
    groups = {name: group(name) for name in ("a", "b", "c")}
    matches = Verdicts.of(match(str(number)) for number in range(100))
    here, each = 3 * _group_bytes("a"), scan._held(matches)
    _limit(monkeypatch, (here + room * each + each // 2) * 20 // 19 * 16 // 15)
    found, facts = _reserved(intake, every, groups, judged=100)
    assert sorted(found) == sorted(fit)
    assert set(facts.left_out) == set(policies) - set(fit)
    assert {why.reason for why in facts.left_out.values()} <= {reasons.TOO_MANY_GROUPS}


@pytest.mark.parametrize(
    ("listed", "counted", "with_verdict"), [(0, 0, 0), (50_000, 0, 0), (0, 30_000, 0), (0, 0, 5_000)]
)
def test_what_stays_of_all_groups_is_reserved(
    listed: int, counted: int, with_verdict: int, intake: memory.Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that were listed, whose scans are counted, and that had a verdict in an earlier slice."""
    _limit(monkeypatch, 6_000_000)
    contents = Contents()
    contents.seen["uid"] = dict.fromkeys(map(str, range(counted)), cast("Any", None))
    connection = SimpleNamespace(namespace="kafka", uid="uid")
    journal, client = SimpleNamespace(contents=contents), SimpleNamespace(intake=intake)
    context: Any = SimpleNamespace(client=client, journal=journal, memory=Memory(), connection=connection)
    facts = scan._Scan(context=context, cluster=cluster(), deadline=Deadline(0.1), listed=listed)
    facts.with_verdict = with_verdict
    policy = delete()
    verdicts = Verdicts()
    for number in range(with_verdict):
        verdicts.add(match(f"m{number}"))
    fits = not (listed or counted or with_verdict)
    with nullcontext() if fits else pytest.raises(MemoryExhausted):
        assert facts.reserve([policy], {policy.key: [group("a")]}, {policy.key: verdicts}) == [policy]


def test_evidence_of_a_policy_that_is_left_out_is_reserved_no_more(
    intake: memory.Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one of another namespace that matches all groups would leave nothing to the owner's."""
    _limit(monkeypatch, 3_000_000)
    connection = SimpleNamespace(namespace="kafka", uid="uid")
    journal, client = SimpleNamespace(contents=Contents()), SimpleNamespace(intake=intake)
    context: Any = SimpleNamespace(client=client, journal=journal, memory=Memory(), connection=connection)
    facts = scan._Scan(context=context, cluster=cluster(), deadline=Deadline(0.1))
    own, other = _of("kafka", "own"), _of("team", "other")
    facts.with_verdict = 2_000
    verdicts = {own.key: Verdicts(), other.key: Verdicts()}
    for number in range(2_000):
        verdicts[other.key].add(match(f"m{number}"))
    slice_ = {own.key: [group("a")], other.key: [group("a")]}
    assert facts.reserve([own, other], slice_, verdicts) == [own]
    assert [*facts.left_out] == [other.key]


def test_policies_that_judge_the_same_groups_hold_their_ids_once() -> None:
    """In whatever order evidence let them judge these."""
    every = [Verdicts(), Verdicts(), Verdicts()]
    for verdicts, names in zip(every, ("abc", "cab", "ab"), strict=True):
        for name in names:
            verdicts.add(match(name))
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    for verdicts in every:
        verdicts.end_slice(shared)
        verdicts.add(match("z"))
    first, second, third = (verdicts._slices[0] for verdicts in every)
    assert first is second
    assert [*every[0].names] == ["a", "b", "c", "z"]
    assert (third, [verdicts.judged for verdicts in every]) == (("a", "b"), [4, 4, 3])
    assert [*every[0].changed(lambda each: each, {"a", "z"}).names] == ["a", "z"]


def test_a_command_leaves_nothing_out(intake: memory.Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user asks for is answered whole, or not at all."""
    _limit(monkeypatch, 10_000)
    with pytest.raises(MemoryExhausted):
        _reserved(intake, [_of("kafka", "a"), _of("team", "b")], {"a": group("a")}, judged=100, whole=True)


def test_an_id_that_is_too_long_is_repeated_nowhere() -> None:
    """Its group is kept unread."""
    assert _group_bytes("\x01" * (ID_MAX + 1)) == _GROUP_BYTES


def test_activity_that_another_policy_needs_shows_each_the_program_that_used_a_group() -> None:
    """Also a policy whose checks had passed before it was read."""
    of_activity, of_offsets = structs.replace(idle(), name="idle"), structs.replace(delete(), name="unchanged")
    connection = SimpleNamespace(namespace="kafka", uid="uid", protect=NO_PATTERNS, role=None, owners=NO_OWNERS)
    journal: Any = SimpleNamespace(contents=Contents())
    context: Any = SimpleNamespace(
        journal=journal, memory=Memory(), connection=connection, assume_unchanged=False, clock=SystemClock()
    )
    judging = scan._Scan(context=context, cluster=cluster(), deadline=Deadline(1))
    journal.contents.seen["uid"] = {}
    client = LastClient("connector-consumer-orders-0", None, None, None, 0, NOW)

    def read(need: Need, policies: list[Policy], groups: dict[str, list[Group]]) -> None:
        if need is Need.ACTIVITY:
            judging.activity["a"] = activity(last_client=client)
        else:
            judging.offsets["a"] = OFFSETS

    policies, reading = [of_activity, of_offsets], cast("Any", SimpleNamespace(read=read))
    verdicts = {each.key: Verdicts() for each in policies}
    judging.judge_slice(policies, {key: [group("a")] for key in verdicts}, verdicts, lambda *_: True, reading)
    assert {key: dict(each.by_reason) for key, each in verdicts.items()} == {
        key: {reasons.CONNECT: 1} for key in verdicts
    }
