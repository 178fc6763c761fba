"""Each condition of `when`: declared once, with what must be read for it, a check, and a reason while it is not met.

And of each check: a row of a table that it decides, and the sort of its reasons.
"""

import ast
import inspect
import itertools
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from group_hygiene.engine import plan
from group_hygiene.engine.checks import CHAINS, Check, chain, judge, lag, needed, offsets, used
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Evidence, Need, Protections
from group_hygiene.model.groups import Group, GroupState
from group_hygiene.pipeline.backtest.replay import untriable
from group_hygiene.spec.crds import schema_of, violations
from group_hygiene.spec.policy import NEEDS, When, parse_policy
from tests.unit import test_checks, test_checks_of_evidence, test_checks_of_lag, test_checks_of_topics
from tests.unit.make import NOW, P0, P1, activity, evidence, group, lagging, policy_object


class Case(NamedTuple):
    """A condition, and a group that does not meet it. needs: what is read before that is known."""

    when: dict[str, Any]
    reason: str
    needs: tuple[Need, ...]
    known: Evidence
    of: Group = group()


_RETENTION = timedelta(days=7)
_IN_RANGE = evidence(bounds=lagging({P0: 0, P1: 1}))
# By the name of the field in `When`; a condition with several values has several.
CASES = {
    "committed_offsets": [
        Case({"committedOffsets": "Absent"}, reasons.HAS_OFFSETS, (Need.OFFSETS,), evidence()),
        Case({"committedOffsets": "OutOfRange"}, reasons.IN_RANGE, (Need.OFFSETS, Need.BOUNDS), _IN_RANGE),
    ],
    "deleted_topics": [
        Case(
            {"deletedTopics": some},
            reasons.TOPICS_EXIST,
            (Need.OFFSETS, Need.MISSING_TOPICS),
            evidence(missing_topics=frozenset()),
        )
        for some in ("Some", "All")
    ],
    "unchanged_for": [Case({"unchangedFor": "72h"}, reasons.TOO_RECENT, (Need.OFFSETS,), evidence(unchanged=None))],
    "idle_for": [Case({"idleFor": "72h"}, reasons.TOO_RECENT, (Need.ACTIVITY,), evidence(activity=activity(1)))],
    "expires_within": [
        Case(
            {"expiresWithin": "1h"},
            reasons.EXPIRES_LATER,
            (Need.ACTIVITY,),
            evidence(activity=activity(), retention=_RETENTION),
        )
    ],
    "lag": [Case({"lag": {"atLeast": 9}}, reasons.LAG_BELOW, (Need.OFFSETS, Need.BOUNDS), evidence())],
}
_FIELDS = dict(zip(When.__struct_fields__, When.__struct_encode_fields__, strict=True))
_EACH = [
    pytest.param(case, id="-".join(map(str, (*case.when, *case.when.values())))) for e in CASES.values() for case in e
]


@pytest.mark.parametrize("field", When.__struct_fields__)
def test_a_condition_is_declared(field: str) -> None:
    """A field of `When` alone selects more groups than it says: no check asks it, or nothing is read for it."""
    assert field in NEEDS, f"add what must be read for {field} to NEEDS in spec/policy.py"
    spec = schema_of("GroupPolicy")["properties"]["spec"]["properties"]["when"]["properties"]
    assert _FIELDS[field] in spec, f"add {_FIELDS[field]} to spec.when in crds/grouppolicies.yaml"
    assert field in CASES, f"add a group that does not meet {field} to CASES in {__name__}: see docs/adding-things.md"
    assert all(case.when.keys() == {_FIELDS[field]} for case in CASES[field])


def test_nothing_else_is_declared() -> None:
    """What a field that is gone needed, or a field of the CRD that no record has."""
    spec = schema_of("GroupPolicy")["properties"]["spec"]["properties"]["when"]["properties"]
    assert set(NEEDS) == set(CASES) == set(_FIELDS)
    assert set(spec) == set(_FIELDS.values())


@pytest.mark.parametrize("case", _EACH)
def test_a_condition_is_asked(case: Case) -> None:
    """Alone in a policy, it reads what it declares and nothing else, and a group that does not meet it stays."""
    policy = parse_policy(policy_object("Alert", case.when))
    known = structs.replace(Evidence(Protections()), retention=case.known.retention, unchanged=case.known.unchanged)
    read: list[Need] = []
    while (verdict := judge(policy, case.of, known, NOW)).need is not None:
        assert verdict.need not in read, "a check asks again for what was read"
        read.append(verdict.need)
        answer = verdict.need.name.lower()
        known = structs.replace(known, **{answer: getattr(case.known, answer)})
    assert verdict.refusal is not None, "no check in engine/checks asks it: the group matches"
    assert verdict.refusal.reason == case.reason
    assert case.reason in reasons.UNMET, f"add {case.reason} to UNMET in model/reasons.py"
    assert tuple(read) == case.needs
    assert policy.when.needs == frozenset(read), "see NEEDS in spec/policy.py"


@pytest.mark.parametrize("case", _EACH)
def test_a_condition_is_tried_on_the_past_or_not(case: Case) -> None:
    """A need of which the tables know nothing refuses the policy, with a sentence."""
    refusal = untriable(parse_policy(policy_object("Alert", case.when)), _RETENTION)
    assert refusal is None or "what it needs" not in refusal, "add the need to backtest/replay.py: _NOT_IN_TABLES"


@pytest.mark.parametrize("case", _EACH)
def test_a_condition_in_the_rules_of_the_crd(case: Case) -> None:
    """Alert takes each alone; DeleteOffsets, which is about topics, takes idleFor alone."""
    assert violations(_object(policy_object("Alert", case.when))) == []
    found = violations(_object(policy_object("DeleteOffsets", {"idleFor": "1h"} | case.when)))
    assert [each.field for each in found] == ([] if "idleFor" in case.when else ["spec.when"])


def _decided_rows() -> set[Check]:
    """The checks that decide a row of the tables: policy, group (else a Stable one), evidence and what is expected."""
    names, stable = ("policy", "group", "evidence", "expected"), group(state=GroupState.STABLE)
    rows = [
        {"group": stable, **dict(zip(mark.args[0], row.values, strict=True))}
        for module in (test_checks, test_checks_of_evidence, test_checks_of_lag, test_checks_of_topics)
        for each in vars(module).values()
        for mark in getattr(each, "pytestmark", ())
        if mark.name == "parametrize" and tuple(mark.args[0]) in (names, ("policy", "evidence", "expected"))
        for row in mark.args[1]
    ]
    decided = set[Check]()
    for policy, of, known in ((row["policy"], row["group"], row["evidence"]) for row in rows):
        decided |= set(islice((check for check in chain(policy) if check(policy, of, known, NOW) is not None), 1))
    return decided


def test_each_check_decides_a_row() -> None:
    """A check that no table asks could be wrong, or be left out of a chain."""
    decided = _decided_rows()
    missing = [check.__name__ for check in dict.fromkeys(itertools.chain(*CHAINS.values())) if check not in decided]
    assert missing == [], "add rows to a table of tests/unit/test_checks*.py"


def _object(policy: dict[str, Any]) -> dict[str, Any]:
    return policy | {"apiVersion": "grouphygiene.io/v1alpha1", "kind": "GroupPolicy"}


def _reasons_in(module: Any) -> set[str]:
    """The reasons that a module names."""
    names = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "reasons"
    }
    return {getattr(reasons, name) for name in names}


def test_each_reason_of_a_check_is_of_one_sort() -> None:
    """Not met, not known, in use, or protected: statuses and the ends of marks depend on it."""
    in_use = {reasons.DEAD, reasons.NOT_EMPTY, reasons.SIMPLE}
    not_known = plan.FAILURES | plan.EVIDENCE | {reasons.NO_START_OFFSET, reasons.SUBSCRIPTION_UNKNOWN}
    # Of `unread_topics` and `unreadable`, which a recheck asks, too.
    others = {reasons.REAPPEARED, reasons.PENDING_TRANSACTION}
    given = _reasons_in(lag) | _reasons_in(offsets) | _reasons_in(used)
    sorts = (reasons.UNMET, not_known, in_use, others)
    where = "add the reason to UNMET in model/reasons.py, or to FAILURES or _NOT_KNOWN in engine/plan.py"
    assert {reason: sum(reason in sort for sort in sorts) for reason in given} == dict.fromkeys(given, 1), where
    assert _reasons_in(needed) & reasons.UNMET == set()
    assert given >= reasons.UNMET
