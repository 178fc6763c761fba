"""Who may use a connection from another namespace: selectors, patterns in patterns, policies narrowed to a grant."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from group_hygiene.errors import SpecError
from group_hygiene.model import reasons
from group_hygiene.spec.connection import Connection, Grant, Right, admit, grant, missing_entry, parse_connection
from group_hygiene.spec.fields import parse_duration
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Action, Policy, Unprotect, parse_policy
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
    """A policy that is granted nothing, or not for its action, is refused with the entry that is missing."""
    with pytest.raises(SpecError) as refused:
        _admit(_connection(_entry(actions=["Delete"])), policy)
    assert refused.value.reason == reason
    _, _, text = str(refused.value).partition("its owner must add ")
    entry = yaml.safe_load(text.partition(" to spec.access")[0])
    wanted = _entry([*policy.match.groups.sources], [str(policy.action)], names=[policy.namespace])
    assert entry == wanted
    assert _admit(_connection(_entry(actions=["Delete"]), entry), policy)


def test_an_entry_that_is_too_long_for_a_message() -> None:
    """And one of a namespace that YAML would read as a number."""
    entry = missing_entry("123", [Right.ALERT], [f"group-{number}" for number in range(64)])
    assert entry == '{namespaces: {names: ["123"]}, groups: [...], actions: [Alert]}'


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
    selected = {name for name in names if policy.match.selects(group(name))}
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


_RAISED = (
    "when.unchangedFor is 24h, not 1s",
    "delete.gracePeriod is 24h, not 1s",
    "delete.backupRetention is 168h, not 1h",
)


def _hasty(namespace: str, action: str = "Delete", unprotect: tuple[str, ...] = (), **fields: Any) -> Policy:
    """A policy with the shortest times that the CRD accepts."""
    when = {"unchangedFor": "1s"} if action == "Delete" else {"idleFor": "1s"}
    delete = {} if action == "Alert" else {Action(action).member: {"gracePeriod": "1s", "backupRetention": "1h"}}
    obj = policy_object(action, match={"groups": ["*"], "unprotect": list(unprotect)})
    obj["spec"] |= {"connectionRef": {"name": "main", "namespace": "kafka"}, "when": when} | delete | fields
    obj["metadata"]["namespace"] = namespace
    return parse_policy(obj)


def _limited(limits: Mapping[str, str], *access: Mapping[str, Any]) -> Connection:
    spec = {"bootstrapServers": ["a:9092"], "access": list(access), "limits": limits}
    return parse_connection({"metadata": {"namespace": "kafka", "name": "main"}, "spec": spec})


@pytest.mark.parametrize(
    ("limits", "policy", "stricter"),
    [
        pytest.param({}, _hasty("team-a"), _RAISED, id="another-namespace"),
        pytest.param({}, _hasty("kafka"), (), id="its-own"),
        pytest.param({}, _hasty("team-a", "Alert"), (), id="alerts-change-nothing"),
        pytest.param(
            {},
            _hasty("team-a", "DeleteOffsets"),
            ("when.idleFor is 24h, not 1s", *(note.replace("delete.", "deleteOffsets.") for note in _RAISED[1:])),
            id="offsets",
        ),
        pytest.param(
            {},
            _hasty("team-a", when={"unchangedFor": "72h"}, delete={"gracePeriod": "48h", "backupRetention": "200h"}),
            (),
            id="long-enough",
        ),
        pytest.param(
            {"minGracePeriod": "1h"},
            _hasty("kafka"),
            ("delete.gracePeriod is 1h, not 1s",),
            id="a-floor-for-its-own-namespace",
        ),
        pytest.param(
            {"minGracePeriod": "1h", "minUnchangedFor": "2h", "minBackupRetention": "3h"},
            _hasty("team-a"),
            (
                "when.unchangedFor is 2h, not 1s",
                "delete.gracePeriod is 1h, not 1s",
                "delete.backupRetention is 3h, not 1h",
            ),
            id="floors-in-place-of-the-defaults",
        ),
        pytest.param(
            {"minGracePeriod": "1s", "minUnchangedFor": "1s", "minIdleFor": "72h", "minBackupRetention": "1h"},
            _hasty("team-a", when={"unchangedFor": "1s", "idleFor": "1s"}),
            ("when.idleFor is 72h, not 1s",),
            id="the-lowest-floors",
        ),
    ],
)
def test_floors(limits: Mapping[str, str], policy: Policy, stricter: tuple[str, ...]) -> None:
    """The stricter of the policy's time and the connection's applies, and the policy knows which one that is."""
    found = _admit(_limited(limits, _entry(["*"], [str(right) for right in Right])), policy)
    assert found.stricter == stricter
    member = policy.action.member
    shown = {
        "when.unchangedFor": found.when.unchanged_for,
        "when.idleFor": found.when.idle_for,
        f"{member}.gracePeriod": found.grace_period,
        f"{member}.backupRetention": found.backup_retention,
    }
    for note in stricter:
        field, _, rest = note.partition(" is ")
        assert shown[field] == parse_duration(rest.partition(",")[0], field)
    decisive = any("backupRetention" not in note for note in stricter)
    assert (found.digest != policy.digest) is decisive
    assert (found.stricter_note == "") is (stricter == ())


@pytest.mark.parametrize(
    ("namespace", "granted", "lifts"),
    [
        pytest.param("kafka", [], {"a-1", "b-1"}, id="its-own"),
        pytest.param("team-a", [_entry(["*"])], set(), id="none-by-default"),
        pytest.param("team-a", [_entry(["*"]) | {"unprotect": ["Connect"]}], set(), id="another-one"),
        pytest.param("team-a", [_entry(["*"]) | {"unprotect": ["Streams"]}], {"a-1", "b-1"}, id="granted"),
        pytest.param(
            "team-a", [_entry(["a-*"]) | {"unprotect": ["Streams"]}, _entry(["*"])], {"a-1"}, id="of-some-groups"
        ),
    ],
)
def test_protections_that_a_policy_may_lift(namespace: str, granted: list[dict[str, Any]], lifts: set[str]) -> None:
    """From the groups of the entries that grant it for the policy's action; a note names what no entry grants."""
    found = _admit(_connection(*granted), _hasty(namespace, unprotect=("Streams",)))
    assert {name for name in ("a-1", "b-1") if found.match.lifts(Unprotect.STREAMS, name)} == lifts
    assert not found.match.lifts(Unprotect.CONNECT, "a-1")
    assert ("match.unprotect is without Streams" in found.stricter) is (lifts == set())


def test_no_other_namespace_trusts_what_cannot_be_read() -> None:
    """Whether a group is in use is no matter of its owner alone."""
    wanted = ("UnreadableTopics", "UnreadableOffsetsLog", "Connect")
    everything = [str(each) for each in Unprotect if not each.startswith("Unreadable")]
    found = _admit(_connection(_entry(["*"]) | {"unprotect": everything}), _hasty("team-a", unprotect=wanted))
    assert found.match.unprotect == {Unprotect.CONNECT}
    assert _admit(_connection(), _hasty("kafka", unprotect=wanted)).match.unprotect == frozenset(wanted)


@pytest.mark.parametrize("name", ["minGracePeriod", "minUnchangedFor", "minIdleFor", "minBackupRetention"])
@pytest.mark.parametrize("value", ["0s", "", "1w", "999999h", 5])
def test_invalid_floors(name: str, value: Any) -> None:
    """What the CRD refuses is refused here, too: a floor that is not read would be none."""
    if (name, value) in {("minUnchangedFor", "999999h"), ("minIdleFor", "999999h")}:
        value = "-1s"
    with pytest.raises(SpecError, match=f"limits.*{name}"):
        _limited({name: value})
