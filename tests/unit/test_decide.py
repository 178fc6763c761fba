"""The decisions of one round: what all policies would delete together, before any of them deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from group_hygiene.controller import policies
from group_hygiene.controller.admission import AdmittedPolicy, Granted
from group_hygiene.controller.policies import Decision, Due, decide, shares
from group_hygiene.engine.context import Observation
from group_hygiene.engine.plan import Plan, RunConditions, Verdicts, make_plan
from group_hygiene.model import reasons
from group_hygiene.model.entries import Mark
from group_hygiene.model.evidence import Protections
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.policy import Limits, Policy, parse_policy
from tests.unit.make import NOW, mark, match, policy_object, snapshot

_OLD = NOW - timedelta(days=300)
_CONNECTION = parse_connection(
    {
        "metadata": {"namespace": "kafka", "name": "main", "uid": "uid-c", "generation": 1},
        "spec": {"bootstrapServers": ["kafka-0:9092"]},
    }
)


def _entry(name: str, namespace: str = "kafka", **spec: Any) -> AdmittedPolicy:
    obj = policy_object(**({"mode": "Enforce"} | spec))
    obj["metadata"] |= {"name": name, "uid": f"uid-{name}", "namespace": namespace}
    obj["spec"]["connectionRef"] = {"name": "main", "namespace": "kafka"}
    obj["status"] = {"lastMarkedTime": NOW.isoformat(), "lastMarkedConnection": "kafka/main"}
    return AdmittedPolicy(obj, parse_policy(obj), Granted(_CONNECTION, "kafka", None))


def _marks(policy: Policy, *groups: str) -> Mapping[str, Mark]:
    return {group: mark(policy, group) for group in groups}


def _decide(
    active: list[AdmittedPolicy],
    due: list[AdmittedPolicy],
    groups: Mapping[str, list[str]],
    announced: Mapping[str, datetime] | None = None,
    refusals: Sequence[Refusal] = (),
) -> list[Decision]:
    """groups: name of a policy -> the groups that it matches, each marked long enough ago. announced: by Events."""
    verdicts = {each.spec.key: Verdicts.of(map(match, groups[each.spec.name])) for each in due}
    conditions = RunConditions(limits=Limits(50, 20), total=10, refusals=refusals)
    observation = Observation(snapshot(), verdicts, conditions, Protections(), None)
    marks = {each.spec.uid: _marks(each.spec, *groups[each.spec.name]) for each in active}
    return decide(Due({}, active, due, full=False), observation, marks, announced or {}, NOW)


def _refusal(decision: Decision) -> str | None:
    assert isinstance(decision.plan, Plan)
    return decision.plan.refusal.reason if decision.plan.refusal else None


def test_policies_that_delete_too_much_together_delete_nothing() -> None:
    """Each is below maxPercent of the connection by itself; one that does not run now counts by its marks."""
    one, two = _entry("one"), _entry("two")
    groups = {"one": ["a", "b"], "two": ["c"]}
    assert [_refusal(each) for each in _decide([one, two], [one, two], groups)] == [reasons.LIMIT_EXCEEDED] * 2
    assert [_refusal(each) for each in _decide([one, two], [one], groups)] == [reasons.LIMIT_EXCEEDED]
    assert [_refusal(each) for each in _decide([one], [one], groups)] == [None]


@pytest.mark.parametrize("runs", [True, False], ids=["runs-now", "runs-later"])
@pytest.mark.parametrize(("hours", "refused"), [("11:00-13:00", True), ("22:00-23:00", False)], ids=["open", "closed"])
def test_a_policy_outside_of_its_windows_does_not_block_others(runs: bool, hours: str, refused: bool) -> None:
    """It deletes nothing now; when its window opens, its own groups are counted."""
    start, _, end = hours.partition("-")
    one = _entry("one")
    two = _entry("two", delete={"windows": [{"from": start, "to": end}]})
    first, *_ = _decide([one, two], [one, two] if runs else [one], {"one": ["a", "b"], "two": ["c"]})
    assert _refusal(first) == (reasons.LIMIT_EXCEEDED if refused else None)


@pytest.mark.parametrize(
    ("groups", "refused"),
    [
        pytest.param({"own": "a", "aa-team": "bcdefg", "team-v": "h"}, {"aa-team"}, id="one-team-has-too-many"),
        pytest.param({"own": "a", "aa-team": "b", "team-v": "c"}, {"team-v"}, id="the-last-in-turn-exceeds-it"),
        pytest.param({"own": "abc", "aa-team": "d", "team-v": "e"}, {"own"}, id="the-owner-has-too-many"),
        pytest.param({"own": "ab", "aa-team": "ab", "team-v": "b"}, set(), id="the-same-groups"),
        pytest.param({"own": "", "aa-team": "ab", "team-v": "cd"}, {"team-v"}, id="each-fits-alone"),
    ],
)
def test_what_one_team_has_too_many_refuses_no_other(groups: dict[str, str], refused: set[str]) -> None:
    """The connection's maxPercent (2 of 10 groups here) holds for all together; the excess is that of a namespace."""
    entries = [_entry(name, "kafka" if name == "own" else name) for name in groups]
    decisions = _decide(entries, entries, {name: list(ids) for name, ids in groups.items()})
    found = {each.entry.spec.name for each in decisions if _refusal(each) == reasons.LIMIT_EXCEEDED}
    assert found == refused
    assert len(frozenset[str]().union(*(each.due for each in decisions if each.entry.spec.name not in found))) <= 2


@pytest.mark.parametrize(
    ("budget", "wanted", "expected"),
    [
        pytest.param(26, {"aa": 26, "v": 3, "own": 2}, {"aa": 21, "v": 3, "own": 2}, id="rest-for-the-largest"),
        pytest.param(6, {"aa": 26, "v": 26, "own": 26}, {"aa": 2, "v": 2, "own": 2}, id="equal"),
        pytest.param(4, {"aa": 26, "v": 26, "own": 26}, {"aa": 1, "v": 1, "own": 2}, id="the-owner-first"),
        pytest.param(2, {"aa": 5, "aa2": 1, "v": 5}, {"aa": 0, "aa2": 1, "v": 1}, id="small-policies-first"),
        pytest.param(100, {"aa": 5, "v": 0}, {"aa": 5, "v": 0}, id="enough"),
        pytest.param(0, {"aa": 5}, {"aa": 0}, id="nothing-left"),
    ],
)
def test_namespaces_share_the_deletions_of_a_run(budget: int, wanted: dict[str, int], expected: dict[str, int]) -> None:
    """The connection's maxPerRun goes by turns, not by names."""
    namespaces = {uid: "kafka" if uid == "own" else uid.rstrip("2") for uid in wanted}
    assert shares(budget, wanted, namespaces, "kafka") == expected


def test_the_same_groups_count_once() -> None:
    """Two policies may name the same group."""
    one, two = _entry("one"), _entry("two")
    decisions = _decide([one, two], [one, two], {"one": ["a", "b"], "two": ["b"]})
    assert [_refusal(each) for each in decisions] == [None, None]
    assert [each.due for each in decisions] == [{"a", "b"}, {"b"}]


@pytest.mark.parametrize("namespace", ["kafka", "team"])
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"mode": "Enforce"}, id="enforce"),
        pytest.param({"mode": "DryRun"}, id="dry-run"),
        pytest.param({"action": "Alert", "when": {}, "mode": "DryRun"}, id="alert"),
    ],
)
def test_another_cluster_is_not_judged(spec: dict[str, Any], namespace: str) -> None:
    """Whatever a policy does there: without a plan nothing of the scan is shown or reported, and no alert ends."""
    why = Refusal(reasons.CLUSTER_CHANGED, "leads to cluster b, and not to a")
    entry = _entry("one", namespace, **spec)
    (decision,) = _decide([entry], [entry], {"one": ["a"]}, refusals=(Refusal(reasons.TOPICS_HIDDEN, "first"), why))
    assert isinstance(decision.plan, Refusal)
    assert decision.plan.reason == reasons.CLUSTER_CHANGED
    assert ("cluster b" in decision.plan.message) == (namespace == "kafka")
    assert not decision.due


def test_an_error_in_one_decision_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its policy gets InternalError, without the error's text; the others get their plans."""

    def failing(policy: Policy, *known: Any) -> Plan:
        if policy.name == "broken":
            raise ZeroDivisionError("s3cret")
        return make_plan(policy, *known)

    monkeypatch.setattr(policies, "make_plan", failing)
    broken, fine = _entry("broken"), _entry("fine")
    first, second = _decide([broken, fine], [broken, fine], {"broken": ["a"], "fine": ["b"]})
    assert isinstance(first.plan, Refusal)
    assert first.plan.reason == reasons.INTERNAL_ERROR
    assert "s3cret" not in first.plan.message
    assert isinstance(second.plan, Plan)
    assert second.plan.actions == ("b",)


def test_a_mark_that_is_not_due_yet_counts_for_nothing() -> None:
    """What another policy may only delete later is no part of this run."""
    one, two = _entry("one"), _entry("two", delete={"gracePeriod": "48h"})
    observation = Observation(
        snapshot(),
        {one.spec.key: Verdicts.of([match("a")])},
        RunConditions(limits=Limits(50, 10), total=10),
        Protections(),
        None,
    )
    marks = {one.spec.uid: _marks(one.spec, "a"), two.spec.uid: {"b": mark(two.spec, "b", NOW - timedelta(1))}}
    (decision,) = decide(Due({}, [one, two], [one], full=False), observation, marks, {}, NOW)
    assert _refusal(decision) is None


@pytest.mark.parametrize(
    ("status", "event", "is_deleted"),
    [
        pytest.param({"lastMarkedTime": NOW, "lastMarkedConnection": "kafka/main"}, None, True, id="status"),
        pytest.param({}, NOW, True, id="event-of-a-refused-status"),
        pytest.param({"lastMarkedTime": _OLD, "lastMarkedConnection": "kafka/main"}, NOW, True, id="later-event"),
        pytest.param({"lastMarkedTime": NOW, "lastMarkedConnection": "kafka/main"}, _OLD, True, id="later-status"),
        pytest.param({}, None, False, id="neither"),
        pytest.param({"lastMarkedTime": _OLD, "lastMarkedConnection": "kafka/main"}, _OLD, False, id="both-older"),
        pytest.param({"lastMarkedTime": NOW}, None, False, id="status-of-no-connection"),
        pytest.param({"lastMarkedTime": NOW, "lastMarkedConnection": "kafka/b"}, None, False, id="another-connection"),
    ],
)
def test_only_a_mark_that_users_could_see_deletes(
    status: Mapping[str, Any], event: datetime | None, is_deleted: bool
) -> None:
    """A due mark deletes only if a status of this connection, or an Event, shows it; otherwise it is made again."""
    entry = _entry("one")
    entry.obj["status"] = {key: str(value) for key, value in status.items()}
    announced = {} if event is None else {entry.spec.uid: event}
    (decision,) = _decide([entry], [entry], {"one": ["a"]}, announced)
    assert isinstance(decision.plan, Plan)
    assert (decision.plan.actions, decision.plan.marking) == ((("a",), frozenset()) if is_deleted else ((), {"a"}))


def test_a_policy_that_is_left_out_deletes_nothing() -> None:
    """It has no plan, only why; its marked groups count for the connection's limit as if it did not run."""
    one, two = _entry("one"), _entry("two")
    why = Refusal(reasons.TOO_MANY_GROUPS, "too little memory")
    conditions = RunConditions(limits=Limits(50, 10), total=10)
    found = Observation(
        snapshot(),
        {one.spec.key: Verdicts.of([match("a")])},
        conditions,
        Protections(),
        None,
        left_out={two.spec.key: why},
    )
    marks = {each.spec.uid: _marks(each.spec, each.spec.name, "a") for each in (one, two)}
    first, second = decide(Due({}, [one, two], [one, two], full=False), found, marks, {}, NOW)
    assert (first.entry, first.plan, first.due) == (two, why, frozenset())
    assert isinstance(second.plan, Plan)
    assert second.plan.refusal is not None
    assert second.plan.refusal.reason == reasons.LIMIT_EXCEEDED
