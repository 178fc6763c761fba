"""The judge of specs: what it refuses, what it remembers, and that nothing is used that it could not judge.

The tables of tests/kube, which the API server and the commands judge, are judged here as the operator does.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import tests.kube.test_crds as server
from group_hygiene.controller.admission import parsed
from group_hygiene.controller.objects import Objects, refuse_unusable
from group_hygiene.engine.restorable import parse_restore
from group_hygiene.errors import SpecError
from group_hygiene.model import reasons
from group_hygiene.spec import crds
from group_hygiene.spec.connection import ActivitySpec, LedgerSpec, grant, parse_connection
from group_hygiene.spec.crds import PLURALS, load_crd
from group_hygiene.spec.policy import AlertSpec, parse_keep, parse_policy
from tests.cli.test_manifests import agrees, table

Object = dict[str, Any]

PARSERS: Mapping[str, Callable[[Object], object]] = {
    "GroupPolicy": parse_policy,
    "KafkaConnection": parse_connection,
    "GroupRestore": parse_restore,
    "GroupKeep": parse_keep,
}
REFUSED = [
    pytest.param(make(case.values[0]), case.values[1], id=f"{kind}-{case.id}")
    for kind, make, test in (
        ("policy", server.a_policy, server.test_policy_is_refused),
        ("connection", server.a_connection, server.test_connection_is_refused),
    )
    for case in table(test)
    # The API server drops these fields; test_fields.py has those that the operator refuses.
    if "unknown field" not in case.values[1]
]
ACCEPTED = [
    pytest.param(make(case.values[0]), id=f"{kind}-{case.id}")
    for kind, make, test in (
        ("policy", server.a_policy, server.test_policy_is_accepted),
        ("connection", server.a_connection, server.test_connection_is_accepted),
    )
    for case in table(test)
]
POLICY = server.a_policy({"action": "Delete", "when": {"unchangedFor": "72h"}})
CONNECTION = server.a_connection(server.access(actions=["Delete"]))
KEEP: Object = {
    "kind": "GroupKeep",
    "metadata": {"name": "k", "namespace": "kafka"},
    "spec": {"connectionRef": {"name": "main"}, "groups": ["a"], "reason": "r"},
}
RESTORE: Object = {**KEEP, "kind": "GroupRestore", "spec": {"connectionRef": {"name": "main"}, "groups": ["a"]}}
ALL = [pytest.param(obj, id=obj["kind"]) for obj in (POLICY, CONNECTION, KEEP, RESTORE)]


def stored(obj: Object, uid: str = "", generation: int = 1) -> Object:
    """The object as the API server returns it."""
    made: Object = json.loads(json.dumps(obj))
    made["metadata"] |= {"uid": uid or f"uid-{time.monotonic_ns()}", "generation": generation}
    return made


def parse(obj: Object) -> object:
    return PARSERS[obj["kind"]](obj)


def test_the_table_is_large() -> None:
    """Both judges have it, and the rules of tests/kube/test_crd_rules.py."""
    assert len(REFUSED) + len(ACCEPTED) >= 307


@pytest.mark.parametrize(("obj", "complaint"), REFUSED)
def test_the_operator_refuses_what_the_api_server_refuses(obj: Object, complaint: str) -> None:
    """An object may have been stored under an older CRD: the error has the field, and the rule's sentence."""
    with pytest.raises(SpecError) as caught:
        parse(stored(obj))
    assert agrees(str(caught.value), complaint)
    assert caught.value.reason == reasons.INVALID_SPEC


@pytest.mark.parametrize("obj", ACCEPTED)
def test_the_operator_accepts_what_the_api_server_accepts(obj: Object) -> None:
    """At first, and by the remembered verdict."""
    again = stored(obj)
    parse(again)
    parse(again)


@pytest.mark.parametrize(("obj", "field"), [param for param in server.NULLS if param.values[1]])
def test_a_null_is_never_read_as_left_out(obj: Object, field: str) -> None:
    """`delete:` or `access:` without a value may be a mistake; nothing runs with what is left."""
    with pytest.raises(SpecError, match=f"^{re.escape(field)}: must be .*, or be left out"):
        parse(stored(obj))


@pytest.mark.parametrize("field", ["connectionRef", "match", "action", "when"])
def test_a_policy_that_deletes_lacks_nothing(field: str) -> None:
    """Neither without the field, nor with a null."""
    for spec in (
        {name: value for name, value in POLICY["spec"].items() if name != field},
        {**POLICY["spec"], field: None},
    ):
        with pytest.raises(SpecError):
            parse(stored({**POLICY, "spec": spec}))


_ENTRY = server.access(actions=["Delete"])["access"][0]


@pytest.mark.parametrize(
    "access",
    [
        *(None, {}, "*", [None], [{}], [{"groups": ["*"]}]),
        [{**_ENTRY, "namespaces": {"names": ["team-a"], "selector": {}}}],
        [{**_ENTRY, "groups": ["team-.*"]}],
        [{**_ENTRY, "namespaces": {"names": ["team-a", "B"]}}],
        [_ENTRY] * 65,
    ],
)
def test_access_that_is_wrong_grants_nothing(access: Any) -> None:
    """Also if the rest of the connection is valid."""
    obj = stored({**CONNECTION, "spec": {**CONNECTION["spec"], "access": access}})
    connection, problem = parsed(obj)
    assert problem is not None
    assert connection.access == ()
    assert grant(connection, "team-a", {}) is None


def test_valid_access_of_a_wrong_connection_is_known() -> None:
    """So the policies that it admits show that it can't be used; none runs."""
    connection, problem = parsed(stored({**CONNECTION, "spec": {**CONNECTION["spec"], "scan": {"timeout": "0s"}}}))
    assert problem is not None
    assert grant(connection, "team-a", {}) is not None


def _judging(rule: str, value: Any, schema: Object | None = None) -> tuple[list[str], bool]:
    rules = [{"rule": rule, "message": "must hold"}]
    judging = crds._Judging({})
    judging.judge(value, {**(schema or {}), "x-kubernetes-validations": rules}, ("spec",))
    return [each.message for each in judging.found], judging.has_failed


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        pytest.param("self / 0 > 1", 1, id="division"),
        pytest.param("self * 9223372036854775807 > 0", 3, id="overflow"),
        pytest.param("self.missing == 1", {}, id="no-such-field"),
        pytest.param("self.size() > 0", None, id="null"),
        pytest.param("self.matches('[')", "a", id="no-expression"),
        pytest.param("self.unknown()", "a", id="no-such-function"),
        pytest.param("self == 'a'", "\ud800", id="not-convertible"),
        pytest.param("self.substring(0, 3) == 'ab'", "ab", id="beyond-the-end"),
        pytest.param("self.substring(self.size() - 3) == 'ab'", "ab", id="before-the-beginning"),
    ],
)
def test_a_rule_that_cannot_be_evaluated_is_broken(rule: str, value: Any) -> None:
    """Never valid; and the verdict is not final."""
    assert _judging(rule, value) == (["must hold (the rule could not be evaluated)"], True)


def test_texts_are_counted_in_characters() -> None:
    """As in Kubernetes; and the CRDs use no other form of `size`, which would count bytes."""
    assert _judging("self.size() == 2 && self.substring(0, self.size() - 1) == 'é'", "é*") == ([], False)
    assert [kind for kind in PLURALS if re.search(r"(?<!\.)\bsize\(|\.size\([^)]", json.dumps(load_crd(kind)))] == []


@pytest.mark.parametrize("rule", ["self", "[self]", "self == 1 ? 'true' : 'false'", "self == 2"])
def test_only_true_is_true(rule: str) -> None:
    """Not everything that Python takes for it."""
    assert _judging(rule, 1) == (["must hold"], False)


def test_no_rule_is_checked_below_a_wrong_structure() -> None:
    """One mistake is one violation."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert _judging("self.a > 1", {"a": "x"}, schema) == (["must be a whole number"], False)


def test_a_verdict_that_takes_too_long_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The object does nothing, and is judged again; its access grants nothing."""
    obj = stored(CONNECTION)
    with monkeypatch.context() as patched:
        patched.setattr(crds, "_CPU_S", -1.0)
        connection, problem = parsed(obj)
        assert problem is not None
        assert "could not be judged within" in str(problem)
        assert problem.reason == reasons.INVALID_SPEC
        assert connection.access == ()
    connection, problem = parsed(obj)
    assert problem is None
    assert grant(connection, "team-a", {}) is not None


def test_a_verdict_without_memory_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library hides what a function raised."""

    def trim(_: str) -> str:
        raise MemoryError

    obj = stored(POLICY)
    with monkeypatch.context() as patched:
        patched.setattr(crds, "_FUNCTIONS", {**crds._FUNCTIONS, "trim": trim})
        with pytest.raises(SpecError, match=r"spec\.match\.groups\[0\]: .*could not be evaluated"):
            parse(obj)
    parse(obj)


@pytest.mark.parametrize("generation", [1, 2])
def test_another_form_of_an_object_is_judged_again(generation: int) -> None:
    """Whatever its uid and generation say; also if it becomes valid."""
    wrong = {**POLICY, "spec": {**POLICY["spec"], "interval": "1s"}}
    uid = f"uid-{time.monotonic_ns()}"
    for _ in range(2):
        parse(stored(POLICY, uid))
        with pytest.raises(SpecError, match=r"spec\.interval"):
            parse(stored(wrong, uid, generation))


def test_a_verdict_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round reads each object: the rules are evaluated once."""
    obj = stored(POLICY)
    parse(obj)
    monkeypatch.setattr(crds, "_CPU_S", -1.0)
    parse(obj)
    with pytest.raises(SpecError):
        parse(stored(POLICY, obj["metadata"]["uid"], 2))


def test_few_verdicts_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones."""
    monkeypatch.setattr(crds, "_VERDICTS", 3)
    monkeypatch.setattr(crds, "_verdicts", {})
    objects = [stored(POLICY, f"uid-{number}") for number in range(5)]
    for obj in objects:
        parse(obj)
    assert [uid for _, uid in crds._verdicts] == ["uid-2", "uid-3", "uid-4"]


def _nested(levels: int) -> Any:
    value: Any = "a"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("obj", ALL)
@pytest.mark.parametrize("levels", [65, 900, 10_000])
def test_a_deep_spec_is_refused(obj: Object, levels: int) -> None:
    """Wherever it is deep, and however deep."""
    for spec in (_nested(levels), {**obj["spec"], "x": _nested(levels)}, {**obj["spec"], "groups": _nested(levels)}):
        with pytest.raises(SpecError, match="spec: must have at most 64 levels"):
            parse({**obj, "metadata": {**obj["metadata"], "uid": "deep", "generation": 1}, "spec": spec})


@pytest.mark.parametrize("levels", [65, 10_000])
def test_the_store_has_no_deep_spec(levels: int) -> None:
    """Nor has a watch an error. Whatever the recursion limit of this process is: clients of the API server raise it."""
    objects = Objects()
    metadata = {"name": "k", "namespace": "kafka", "uid": "u", "generation": 1, "resourceVersion": "1"}
    objects.put("groupkeeps", {**KEEP, "metadata": metadata, "spec": {**KEEP["spec"], "x": _nested(levels)}})
    found = objects.get("groupkeeps", "kafka", "k")
    assert found is not None
    with pytest.raises(SpecError, match="too many levels"):
        refuse_unusable(found)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        pytest.param({"match": {"groups": ["("] * 500_000}}, "groups: must have at most 64 entries", id="list"),
        pytest.param({"match": {"groups": ["(" * 1_000_000]}}, "must have at most 255 characters", id="text"),
        pytest.param({f"x{number}": number for number in range(100_000)}, "does not know field", id="fields"),
        pytest.param({"match": {"groups": ["a"], "types": [{}] * 300_000}}, "must be a text", id="items"),
    ],
)
def test_a_spec_of_a_megabyte_is_refused_soon(spec: Object, complaint: str) -> None:
    """The judge goes no further than the schema."""
    obj = stored({**POLICY, "spec": {**POLICY["spec"], **spec}})
    before = time.thread_time()
    with pytest.raises(SpecError, match=complaint) as caught:
        parse(obj)
    assert time.thread_time() - before < 2
    assert len(str(caught.value)) < 2_000


def _keywords(schema: Any) -> Iterator[str]:
    yield from schema
    for child in (schema.get("properties") or {}).values():
        yield from _keywords(child)
    for inside in ("items", "additionalProperties"):
        if inside in schema:
            yield from _keywords(schema[inside])


@pytest.mark.parametrize("kind", PLURALS)
def test_the_judge_knows_each_keyword_of_the_crds(kind: str) -> None:
    """One that it does not know would restrict nothing."""
    known = {"type", "enum", "format", "required", "properties", "additionalProperties", "items", "default"}
    known |= {f"{bound}{what}" for bound in ("min", "max") for what in ("imum", "Length", "Items", "Properties")}
    known |= {f"x-kubernetes-{name}" for name in ("validations", "list-type", "list-map-keys", "map-type")}
    schema = load_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert set(_keywords(schema)) <= known | {"description"}
    assert {format for format in _formats(schema)} <= {"date-time", "int32", "int64"}


def _formats(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("format"), str):
            yield value["format"]
        for child in value.values():
            yield from _formats(child)


def test_defaults_of_records_are_those_of_the_crds() -> None:
    """Some are made without a spec."""
    connection = parse_connection(stored(server.a_connection({"activity": {"uri": "/x"}})))
    assert (connection.ledger, connection.activity) == (LedgerSpec(), ActivitySpec("/x"))
    assert parse_policy(stored(POLICY)).alert == AlertSpec()


_THREADS = """
import sys, threading
from group_hygiene.spec.policy import parse_policy
assert not {"cel", "cel.cel", "yaml"} & sys.modules.keys()
spec = {"connectionRef": {"name": "main"}, "match": {"groups": ["a-*"]}, "action": "Alert"}
done = []
def work(number):
    for generation in range(20):
        metadata = {"uid": f"u{number}", "generation": generation}
        done.append(parse_policy({"metadata": metadata, "spec": {**spec, "interval": f"{generation + 5}s"}}))
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(done) == 160, len(done)
assert not {"typer", "prompt_toolkit", "rich"} & sys.modules.keys()
import cel
assert cel.compile("1 + 1").execute() == 2
"""


def test_threads_judge_at_once() -> None:
    """From the first object on, and without the command line of the library, which takes memory and time."""
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
