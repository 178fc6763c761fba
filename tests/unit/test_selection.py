"""What the patterns of other namespaces' policies may cost in one scan."""

from __future__ import annotations

import math
import uuid
from typing import Any

import pytest

from group_hygiene.engine.selection import Budget, Selection
from group_hygiene.model.groups import Group, GroupState, GroupType
from group_hygiene.process import clock
from group_hygiene.spec.policy import Policy, parse_policy

_COSTLY = ["*{hex}-*{hex}-*{hex}-*00Z*"] * 64
_PLAIN = ["anonymous.*"]


def _policy(namespace: str, name: str, patterns: list[str]) -> Policy:
    spec: dict[str, Any] = {"connectionRef": {"name": "main", "namespace": "kafka"}, "action": "Alert"}
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "generation": 1}
    return parse_policy({"metadata": metadata, "spec": {**spec, "match": {"groups": patterns}}})


def _groups(count: int) -> dict[str, Group]:
    names = (f"anonymous.{uuid.UUID(int=number)}" for number in range(count))
    return {name: Group(name, GroupType.CLASSIC, "consumer", GroupState.EMPTY, 1) for name in names}


def _run(
    policies: list[Policy], groups: dict[str, Group], budget: float, size: int = 100, own: float = math.inf
) -> tuple[Any, dict[str, str]]:
    left_out: dict[str, str] = {}
    selection = Selection(policies, groups, size, own, budget, lambda policy, why: left_out.update({policy.key: why}))
    found: dict[str, set[str]] = {}
    for selected in selection:
        for policy in selection.policies:
            found.setdefault(policy.key, set()).update(group.id for group in selected[policy.key])
    return {policy.key: found.get(policy.key, set()) for policy in selection.policies}, left_out


def test_one_namespace_does_not_take_all_time() -> None:
    """Its costly policies are left out, and say so; others select all of their groups, also after them."""
    groups = _groups(500)
    costly = [_policy("greedy", f"p{number}", _COSTLY) for number in range(30)]
    fair = [_policy("fair", "a", _PLAIN), *costly, _policy("other", "b", _PLAIN), _policy("kafka", "own", _COSTLY[:1])]
    # All of them together take several times as long.
    found, left_out = _run(fair, groups, 0.2)
    assert found["fair/a"] == found["other/b"] == set(groups)
    assert left_out
    assert all(key.startswith("greedy/") and "fewer policies" in why for key, why in left_out.items())


@pytest.mark.parametrize("budget", [pytest.param(0.0, id="none"), pytest.param(1e9, id="any")])
def test_policies_of_the_connection_have_a_budget_of_their_own(budget: float) -> None:
    groups = _groups(200)
    found, left_out = _run([_policy("kafka", "a", _PLAIN), _policy("kafka", "b", _COSTLY[:1])], groups, budget)
    assert found == {"kafka/a": set(groups), "kafka/b": set()}
    assert left_out == {}


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_slices_have_all_groups_once(size: int) -> None:
    groups = _groups(230)
    policies = [
        _policy("kafka", "all", _PLAIN),
        _policy("team", "some", ["*-0000000000a*"]),
        _policy("team", "no", ["x"]),
    ]
    seen: dict[str, list[str]] = {policy.key: [] for policy in policies}
    for selected in Selection(policies, groups, size, 1e9, 1e9, lambda *_: None):
        assert len({group.id for some in selected.values() for group in some}) <= size
        for key, some in selected.items():
            seen[key] += [group.id for group in some]
    assert {key: sorted(names) for key, names in seen.items()} == {
        policy.key: sorted(name for name, group in groups.items() if policy.match.selects(group)) for policy in policies
    }


def test_a_policy_that_was_left_out_for_another_reason_is_not_looked_for() -> None:
    """Memory may have left out some before time does."""
    groups = _groups(300)
    policies = [_policy("greedy", f"p{number}", _COSTLY) for number in range(10)]
    left_out: dict[str, str] = {}
    selection = Selection(
        [*policies, _policy("kafka", "own", _PLAIN)],
        groups,
        20,
        math.inf,
        0.1,
        lambda policy, why: left_out.update({policy.key: why}),
    )
    for number, _ in enumerate(selection):
        if number == 0:
            # A slow machine may have left it out already.
            left_out.clear()
        selection.policies = [policy for policy in selection.policies if policy.key != "greedy/p3"]
    assert left_out
    assert "greedy/p3" not in left_out
    assert "kafka/own" in {policy.key for policy in selection.policies}


class _Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 1
        return self._now

    thread_time = monotonic


@pytest.mark.parametrize(
    ("namespace", "budgets"),
    [
        pytest.param("greedy", {"budget": 20}, id="of-another-namespace"),
        pytest.param("kafka", {"budget": 20, "own": 20}, id="of-the-connection"),
    ],
)
def test_a_policy_is_left_out_before_it_met_all_names(
    namespace: str, budgets: dict[str, float], monkeypatch: pytest.MonkeyPatch, compared: list[str]
) -> None:
    """Its patterns may take long for each name, and a slice has thousands of them."""
    monkeypatch.setattr(clock, "time", _Clock())
    found, left_out = _run([_policy(namespace, "slow", _COSTLY)], _groups(1_000), size=1_000, **budgets)
    assert (found, list(left_out)) == ({}, [f"{namespace}/slow"])
    assert 0 < len(compared) < 100


_TWO = {"kafka/a": 10.0, "kafka/b": 12.0}


@pytest.mark.parametrize(
    ("costs", "stay", "seconds"),
    [
        # Of 80 s that are left 72 may be taken, so 24 for each quarter.
        pytest.param(_TWO, ["kafka/a", "kafka/b"], {"left": 80}, id="in-time"),
        pytest.param(_TWO, ["kafka/a"], {"left": 73}, id="the-most-costly"),
        pytest.param(
            {"kafka/a": 10.0, "kafka/b": 9.0, "kafka/c": 9.0},
            ["kafka/b", "kafka/c"],
            {"left": 80, "judging": 28},
            id="no-more-than-needed",
        ),
        pytest.param(_TWO, ["kafka/a"], {"left": 60}, id="others-took-time"),
        pytest.param(_TWO, ["kafka/a", "kafka/b"], {"left": 80, "reading": 1}, id="in-time-with-reads"),
        pytest.param(_TWO, ["kafka/a"], {"left": 80, "reading": 3}, id="reads-will-take-time"),
        pytest.param(_TWO, ["kafka/a", "kafka/b"], {"left": 80, "reading": 25}, id="reads-alone-take-too-long"),
        pytest.param(_TWO, ["kafka/a"], {"left": 80, "judging": 25}, id="a-slow-machine"),
        pytest.param({"kafka/a": 36.0}, ["kafka/a"], {"left": 80, "judging": 36}, id="the-last-one-stays"),
        pytest.param(
            {"kafka/a": 36.0, "kafka/b": 36.0},
            ["kafka/b"],
            {"left": 80, "judging": 72},
            id="also-of-two-that-cost-the-same",
        ),
        pytest.param({"kafka/a": 11.0, "t/b": 9.0}, ["kafka/a", "t/b"], {"left": 80, "judging": 20}, id="with-others"),
        pytest.param({"kafka/a": 20.0, "t/b": 5.0}, ["kafka/a"], {"left": 80, "judging": 25}, id="first-of-others"),
        pytest.param(
            {"kafka/a": 15.0, "kafka/b": 14.0, "t/c": 1.0, "t/d": 9.0},
            ["kafka/b", "t/c"],
            {"left": 80, "judging": 39},
            id="others-may-take-a-tenth",
        ),
        pytest.param(_TWO, ["kafka/a", "kafka/b"], {"left": 80, "one_read": 20}, id="one-slow-read"),
        pytest.param(_TWO, ["kafka/a", "kafka/b"], {"left": 90, "halved": 8, "slices": 6}, id="reads-get-faster"),
        pytest.param(_TWO, ["kafka/a", "kafka/b"], {"left": 73, "slices": 2}, id="few-slices"),
        pytest.param(_TWO, ["kafka/a", "kafka/b"], {"left": 600}, id="not-known-yet"),
        pytest.param(_TWO, ["kafka/a"], {"left": 400, "own": 90}, id="more-than-all-may-take"),
        pytest.param(_TWO, ["kafka/a", "kafka/b"], {"left": 1, "done": 1.0}, id="done"),
    ],
)
def test_what_a_scan_has_no_time_for_is_left_out(
    costs: dict[str, float], stay: list[str], seconds: dict[str, float]
) -> None:
    """Else all policies would end with an incomplete scan, and none would ever run."""
    left_out = dict[str, str]()
    policies = [_policy(key.partition("/")[0], key.partition("/")[2], _PLAIN) for key in costs]
    own = seconds.get("own", math.inf)
    found = Selection(policies, {}, 10, own, 1e9, lambda policy, why: left_out.update({policy.key: why}))
    for policy in policies:
        found.charge(policy, costs[policy.key])
    found.done = seconds.get("done", 0.25)
    slices = int(seconds.get("slices", 4))
    reads = [seconds.get("one_read", 0.0), *[0.0] * (slices - 1)]
    if "reading" in seconds:
        reads = [seconds["reading"] / slices] * slices
    if "halved" in seconds:
        reads = [seconds["halved"] / 2**number for number in range(slices)]
    found.fit(seconds["left"], seconds.get("judging", 22), reads, 0.0)
    assert [policy.key for policy in found.policies] == stay
    assert left_out.keys() == costs.keys() - set(stay)
    assert all("would not end within scan.timeout" in why for why in left_out.values())


def test_who_is_left_out_leaves_room_for_what_is_different_later() -> None:
    """One at each slice would cost the time of all of them."""
    policies = [_policy("kafka", f"p{number}", _PLAIN) for number in range(10)]
    found = Selection(policies, {}, 10, math.inf, 1e9, lambda *_: None)
    for policy in policies:
        found.charge(policy, 10)
    found.done = 0.5
    found.fit(110, 100, [0, 0, 0, 0], 0)
    assert len(found.policies) == 7


@pytest.mark.parametrize("limit", [pytest.param(math.inf, id="without-a-limit"), pytest.param(100.0, id="within-it")])
def test_a_late_read_leaves_out_half_of_what_was_spent(limit: float) -> None:
    """Whatever the limit: the rest of the time has shown to be too little."""
    policies = [_policy("kafka", f"p{number}", _PLAIN) for number in range(4)]
    left_out = list[str]()
    budget = Budget(policies, lambda: limit, lambda policy, _: left_out.append(policy.key))
    for number, policy in enumerate(policies):
        budget.charge(policy, 10 + number)
    assert budget.leave_out_costly(policies) == policies
    assert [policy.key for policy in budget.leave_out_costly(policies, late=True)] == ["kafka/p0", "kafka/p1"]
    assert left_out == ["kafka/p3", "kafka/p2"]
