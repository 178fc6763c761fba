"""Who may use a connection from another namespace: selectors, patterns in patterns, policies narrowed to a grant."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_hygiene.errors import SpecError
from group_hygiene.model import reasons
from group_hygiene.spec.access import Grant, Right
from group_hygiene.spec.connection import Connection, admit, grant, parse_connection
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Policy, parse_policy
from tests.unit.make import group, policy_object

_LABELS = {"team": "a", "env": "prod", "kubernetes.io/metadata.name": "team-a"}


def _entry(groups: list[str] | None = None, actions: list[str] | None = None, **namespaces: Any) -> dict[str, Any]:
    return {
        "namespaces": namespaces or {"names": ["team-a"]},
        "groups": groups or ["team-a-*"],
        "actions": actions or ["Alert", "Delete"],
    }


def _connection(*access: Mapping[str, Any]) -> Connection:
    spec = {"bootstrapServers": ["a:9092"], "access": list(access)}
    return parse_connection({"metadata": {"namespace": "kafka", "name": "main"}, "spec": spec})


def _policy(action: str = "Delete", namespace: str = "team-a", groups: list[str] | None = None) -> Policy:
    match = {"groups": groups or ["team-a-*"]}
    obj = policy_object(action, match=match, connectionRef={"name": "main", "namespace": "kafka"})
    obj["metadata"]["namespace"] = namespace
    return parse_policy(obj)


def _expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


@pytest.mark.parametrize(
    ("selector", "picked"),
    [
        pytest.param({}, True, id="empty-picks-all"),
        pytest.param({"matchLabels": {"team": "a"}}, True, id="label"),
        pytest.param({"matchLabels": {"team": "b"}}, False, id="another-value"),
        pytest.param({"matchLabels": {"team": "a", "env": "test"}}, False, id="all-labels-must-fit"),
        pytest.param({"matchLabels": {"tier": ""}}, False, id="no-such-label"),
        pytest.param(_expression("team", "In", "b", "a"), True, id="in"),
        pytest.param(_expression("team", "In", "b"), False, id="not-among-them"),
        pytest.param(_expression("tier", "In", "a"), False, id="in-without-the-label"),
        pytest.param(_expression("team", "NotIn", "b"), True, id="not-in"),
        pytest.param(_expression("team", "NotIn", "a", "b"), False, id="not-in-but-is"),
        pytest.param(_expression("tier", "NotIn", "a"), True, id="not-in-without-the-label"),
        pytest.param(_expression("team", "Exists"), True, id="exists"),
        pytest.param(_expression("tier", "Exists"), False, id="exists-not"),
        pytest.param(_expression("tier", "DoesNotExist"), True, id="does-not-exist"),
        pytest.param(_expression("team", "DoesNotExist"), False, id="does-not-exist-but-does"),
        pytest.param({"matchLabels": {"team": "a"}, **_expression("env", "In", "test")}, False, id="both-must-hold"),
    ],
)
def test_selector(selector: dict[str, Any], picked: bool) -> None:
    """Label selectors mean what they mean in Kubernetes; of a namespace whose labels are unknown they pick nothing."""
    connection = _connection(_entry(selector=selector))
    assert (grant(connection, "team-a", _LABELS) is not None) is picked
    assert grant(connection, "team-a", None) is None


def test_names() -> None:
    """A name picks exactly that namespace, whatever its labels are, and also if they could not be read."""
    connection = _connection(_entry(names=["team-a", "team-b"]))
    assert grant(connection, "team-b", None) is not None
    assert grant(connection, "team-c", _LABELS) is None
    assert grant(_connection(), "team-a", _LABELS) is None


def _admit(connection: Connection, policy: Policy) -> Policy:
    return admit(connection, policy, grant(connection, policy.namespace, _LABELS))


def test_own_namespace() -> None:
    """A connection's own namespace may do everything, whatever access says."""
    given_ = grant(_connection(_entry()), "kafka", None)
    assert given_ is not None
    assert given_.rights == set(Right)
    assert given_.groups(Right.RESTORE) is None
    policy = _policy(namespace="kafka", groups=["*"])
    assert admit(_connection(), policy, Grant(None)) == policy


def test_each_right_has_groups_of_its_own() -> None:
    """What one entry grants for one action is not mixed with what another grants for another."""
    connection = _connection(_entry(["team-a-*"], ["Alert", "Delete"]), _entry(["*"], ["Alert"], selector={}))
    given_ = grant(connection, "team-a", _LABELS)
    assert given_ is not None
    assert given_.rights == {Right.ALERT, Right.DELETE}
    alerting, deleting, restoring = (given_.groups(right) for right in (Right.ALERT, Right.DELETE, Right.RESTORE))
    assert alerting is not None
    assert alerting.sources == ("team-a-*", "*")
    assert deleting is not None
    assert deleting.sources == ("team-a-*",)
    assert restoring is not None
    assert not restoring.matches("team-a-1")


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        pytest.param(_policy(namespace="team-b"), reasons.CROSS_NAMESPACE, id="namespace-not-granted"),
        pytest.param(_policy("Alert"), reasons.ACTION_NOT_GRANTED, id="action-not-granted"),
    ],
)
def test_refused(policy: Policy, reason: str) -> None:
    """A policy that is granted nothing, or not for its action, is refused with what must be."""
    with pytest.raises(SpecError, match="must") as refused:
        _admit(_connection(_entry(actions=["Delete"])), policy)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("groups", "beyond"),
    [
        pytest.param(["team-a-*"], (), id="the-grant-itself"),
        pytest.param(["team-a-x*", "team-a-1"], (), id="less"),
        pytest.param(["team-*"], ("team-*",), id="more"),
        pytest.param(["*", "team-a-*"], ("*",), id="everything"),
        pytest.param(["team-b-1"], ("team-b-1",), id="elsewhere"),
    ],
)
def test_narrowed(groups: list[str], beyond: tuple[str, ...]) -> None:
    """A policy never selects a group outside its grant, and knows which of its patterns reach further."""
    policy = _admit(_connection(_entry()), _policy(groups=groups))
    assert policy.match.ungranted == beyond
    names = ["team-a-1", "team-a-x1", "team-b-1", "other"]
    selected = {found.id for found in policy.match.select({name: group(name) for name in names})}
    assert selected == {name for name in names if Patterns(groups).matches(name) and name.startswith("team-a-")}


@pytest.mark.parametrize(
    ("granted", "pattern", "covered"),
    [
        pytest.param(["a*"], "a*", True, id="same"),
        pytest.param(["a*"], "ab*", True, id="longer"),
        pytest.param(["ab*"], "a*", False, id="shorter"),
        pytest.param(["*"], "*", True, id="everything"),
        pytest.param(["**"], "*", True, id="stars-in-a-row"),
        pytest.param(["a"], "*", False, id="one-of-all"),
        pytest.param(["a*c"], "a*b*c", True, id="something-in-between"),
        pytest.param(["a*b*c"], "a*c", False, id="nothing-in-between"),
        pytest.param(["*b*"], "a*", False, id="not-always-a-b"),
        pytest.param(["a*b"], "a*b*", False, id="may-end-otherwise"),
        pytest.param([r"a\*"], "a*", False, id="literal-star-granted"),
        pytest.param(["a*"], r"a\*", True, id="literal-star-asked"),
        pytest.param([r"a\*"], r"a\*", True, id="literal-star-both"),
        pytest.param(["a", "b*"], "b1*", True, id="by-one-of-several"),
        pytest.param([], "a", False, id="nothing-granted"),
        pytest.param(["\ue000*"], "\ue000*", True, id="the-character-itself-is-used"),
        pytest.param(["*\ue000"], "*", False, id="the-character-itself-is-granted"),
    ],
)
def test_covers(granted: list[str], pattern: str, covered: bool) -> None:
    """A pattern is covered if everything that it can match is matched by one that is granted."""
    assert Patterns(granted).covers(pattern) is covered


_SHORT = st.text("ab*", min_size=1, max_size=5)


@given(_SHORT, _SHORT, st.lists(st.text("abc", max_size=4), max_size=40))
def test_covers_agrees_with_matches(granted: str, pattern: str, names: list[str]) -> None:
    """Whatever a covered pattern matches, the granted one matches too; an uncovered one matches a name beyond it."""
    asked, given_ = Patterns([pattern]), Patterns([granted])
    if given_.covers(pattern):
        assert all(given_.matches(name) for name in names if asked.matches(name))
    else:
        witness = pattern.replace("*", "z")
        assert asked.matches(witness)
        assert not given_.matches(witness)


@pytest.mark.parametrize(
    ("access", "message"),
    [
        pytest.param({"names": ["a"]}, "spec.access: Expected `array`", id="no-list"),
        pytest.param([_entry()] * 65, "spec.access: .* of length <= 64", id="too-many"),
        pytest.param(["a"], r"access\[0\]: Expected `object`", id="no-mapping"),
        pytest.param([{**_entry(), "namespaces": {}}], "either names or selector", id="no-namespaces"),
        pytest.param([_entry(names=["a"], selector={})], "either names or selector", id="names-and-selector"),
        pytest.param([_entry(names="team-a")], "namespaces.names: Expected `array", id="name-as-text"),
        pytest.param([{**_entry(), "groups": []}], "at least one pattern", id="no-groups"),
        pytest.param([{**_entry(), "groups": "a*"}], "must be a list of texts", id="groups-as-text"),
        pytest.param([{**_entry(), "actions": []}], "actions: .* of length >= 1", id="no-actions"),
        pytest.param(
            [{**_entry(), "actions": ["Keep"]}], r"actions\[0\] must be one of the values", id="unknown-action"
        ),
        pytest.param([_entry(selector={"labels": {}})], "does not know field `labels`", id="unknown-field"),
        pytest.param(
            [_entry(selector=_expression("a", "Is", "b"))], "operator must be one of the values", id="operator"
        ),
        pytest.param([_entry(selector=_expression("a", "In"))], "values must be given with In", id="in-without-values"),
        pytest.param([_entry(selector=_expression("a", "Exists", "b"))], "and only with them", id="exists-with-values"),
        pytest.param([_entry(selector=_expression("", "Exists"))], "key: .* of length >= 1", id="no-key"),
    ],
)
def test_invalid_access(access: Any, message: str) -> None:
    """What the CRD refuses is refused here too, and never read as more than it says."""
    with pytest.raises(SpecError, match=message):
        parse_connection({"spec": {"bootstrapServers": ["a:9092"], "access": access}})
