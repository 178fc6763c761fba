"""One judge: of each object of the tables the commands say at least what the API server says, with the same paths."""

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes.client import ApiException, CustomObjectsApi

from group_hygiene.errors import SpecError
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.crds import judged, violations
from group_hygiene.spec.policy import parse_policy
from tests.kube import test_crd_groupkeep as keeps
from tests.kube import test_crd_grouprestore as restores
from tests.kube import test_crd_patterns as patterns
from tests.kube import test_crd_receivers as receivers
from tests.kube import test_crd_rules as rules
from tests.kube import test_crds as server
from tests.kube.test_crds import Object, Patch, merged

_UNKNOWN = re.compile(r'unknown field "([^"]+)"')
# Each table of specs, and what makes an object of one.
TABLES: list[tuple[str, Callable[[Any], Object], Any]] = [
    ("policy", server.a_policy, server.test_policy_is_refused),
    ("policy", server.a_policy, server.test_policy_is_accepted),
    ("connection", server.a_connection, server.test_connection_is_refused),
    ("connection", server.a_connection, server.test_connection_is_accepted),
    ("keep", keeps.a_keep, keeps.test_keep_is_refused),
    ("keep", keeps.a_keep, keeps.test_keep_is_accepted),
    ("restore", restores.a_restore, restores.test_restore_is_refused),
    ("restore", restores.a_restore, restores.test_restore_is_accepted),
    ("receivers", receivers.on_connection, receivers.test_receivers_are_refused),
    ("receivers", receivers.on_connection, receivers.test_receivers_are_accepted),
    ("notify", receivers.on_policy, receivers.test_names_of_receivers_are_refused),
    ("notify", receivers.on_policy, receivers.test_policies_name_receivers),
]


def cases(test: Any) -> list[Any]:
    (mark,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    return list(mark.args[1])


def objects() -> Iterator[tuple[str, Object]]:
    for name, make, test in TABLES:
        for case in cases(test):
            yield f"{name}-{case.id}", make(case.values[0])
    for param in rules.RULES:
        kind_and_rule: Any = param.values
        good, bad = rules.cases(*kind_and_rule)
        yield from ((f"{param.id}-good", good), (f"{param.id}-bad", bad))
    for field, pattern, _ in patterns.CASES:
        yield f"{field}-{pattern}", patterns.FIELDS[field][0](pattern)
    for number in (5.0, 1.5, 2**63, 1e30, True):
        yield f"lag-{number}", server.a_policy({"when": {"lag": {"atLeast": number}}})


def pairs(kind: str, make: Callable[[Any], Object], test: Any, count: int) -> Iterator[tuple[str, Object]]:
    """Objects with two mistakes."""
    chosen = random.Random(0)
    for _ in range(count):
        one, other = chosen.sample([case for case in cases(test) if isinstance(case.values[0], dict)], 2)
        spec: Patch = merged(one.values[0], other.values[0])
        yield f"{kind}-{one.id}-and-{other.id}", make(spec)


ALL = [
    *objects(),
    *pairs("policy", server.a_policy, server.test_policy_is_refused, 150),
    *pairs("connection", server.a_connection, server.test_connection_is_refused, 150),
]


def said(api: CustomObjectsApi, obj: Object) -> list[tuple[str, str]]:
    """The API server's complaints: field and message. What it accepts has the judge's defaults."""
    try:
        assert server.accepted(api, obj)["spec"] == judged(obj["kind"], obj)
    except ApiException as refusal:
        status = json.loads(refusal.body)
        causes = (status.get("details") or {}).get("causes") or []
        found = [(cause["field"], cause["message"]) for cause in causes if cause["field"] != "<nil>"]
        return found + [(field, "unknown field") for field in _UNKNOWN.findall(status["message"]) if not causes]
    except SpecError as error:
        pytest.fail(f"the API server accepts it: {error}")
    return []


def test_the_table_is_large() -> None:
    """The objects with one mistake or none, without those with two."""
    assert len(ALL) - 300 >= 307


@pytest.mark.parametrize("obj", [pytest.param(obj, id=name) for name, obj in ALL])
def test_the_judge_says_what_the_api_server_says(api: CustomObjectsApi, obj: Object) -> None:
    """Each complaint, in the same field, with the sentence of the rule; and nothing against what it accepts."""
    complaints, offline = said(api, obj), violations(obj)
    assert bool(complaints) == bool(offline), (complaints, offline)
    fields = tuple(violation.field for violation in offline)
    for field, message in complaints:
        # A mapping in place of a list has unknown fields for the API server.
        assert field in fields or (message == "unknown field" and field.startswith(fields)), (complaints, offline)
    sentences = {rule.message for kind, rule in rules.every_rule() if kind == obj["kind"]}
    for field, message in complaints:
        text = " ".join(message.split())
        # A rule that can't be evaluated says nothing of the value.
        if "invalid data" not in text and any(text.endswith(sentence) for sentence in sentences):
            here = [" ".join(violation.message.split()) for violation in offline if violation.field == field]
            assert any(text.endswith(each) for each in here), (complaints, offline)


@pytest.mark.parametrize("obj", [pytest.param(param.values[0], id=param.id) for param in server.NULLS])
def test_nulls_are_not_judged_as_less_restricted(api: CustomObjectsApi, obj: Object) -> None:
    """`kubectl create` prunes them. The operator refuses them, or reads what the API server would store."""
    try:
        stored = server.accepted(api, obj)
    except ApiException:
        assert violations(obj)
        return
    parse = parse_policy if obj["kind"] == "GroupPolicy" else parse_connection
    parse(stored)
    try:
        found = judged(obj["kind"], obj)
    except SpecError:
        return
    assert found == stored["spec"]
