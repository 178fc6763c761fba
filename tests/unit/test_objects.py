"""The store of objects: bounded, current, and of any shape."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from group_hygiene.controller.app import Operator, OperatorOptions
from group_hygiene.controller.objects import (
    CONNECTIONS,
    OBJECT_BYTES,
    POLICIES,
    RESTORES,
    ListedObject,
    Objects,
    is_over,
    refuse_unusable,
    trimmed,
)
from group_hygiene.errors import SpecError
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.of_objects import build_restore_status


def an_object(name: str = "p", version: int = 1, namespace: str = "kafka", **more: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "generation": 1,
        "resourceVersion": str(version),
        "annotations": {"a": "x" * 1000},
        "managedFields": [{"f": "x" * 1000}],
    }
    return {"kind": "GroupPolicy", "metadata": metadata, "spec": {"connectionRef": {"name": "main"}}} | more


def a_condition() -> dict[str, str]:
    return {"status": "False", "reason": "GroupActive", "message": "no", "lastTransitionTime": "2030-01-31T12:00:00Z"}


def with_bytes(size: int) -> dict[str, Any]:
    """A spec of at least that size."""
    return {"connectionRef": {"name": "main"}, "groups": ["x" * size]}


def is_usable(objects: Objects, plural: str, namespace: str, name: str) -> bool:
    found = objects.get(plural, namespace, name)
    return found is not None and "unusable" not in found


def filled(limit: int) -> Objects:
    """A store in which other namespaces have filled the room for policies and restores."""
    objects = Objects(limit)
    for number in range(40):
        for name in ("a", "b", "c", "d", "e"):
            objects.put(POLICIES, an_object(name, namespace=f"team-{number}", spec=with_bytes(100_000)))
    return objects


def test_only_what_is_input_is_stored() -> None:
    """Neither annotations nor managed fields, which may be as large as an object may be."""
    objects = Objects()
    objects.put(POLICIES, an_object(status={"lastRunTime": "2030-01-31T12:00:00Z"}))
    found = objects.get(POLICIES, "kafka", "p")
    assert found is not None
    assert set(found["metadata"]) == {"name", "namespace", "uid", "generation", "resourceVersion"}
    assert found["status"] == {"lastRunTime": "2030-01-31T12:00:00Z"}
    assert objects.naming(POLICIES, "kafka", "main") == [("kafka", "p")]


def test_an_event_is_forgotten_once_its_object_is_stored() -> None:
    """What is input is in the store; the rest, for as long as kopf holds the event, only identifies the object."""
    operator = Operator(OperatorOptions())
    obj = an_object(version=7, status={"totals": {"deleted": 1}, "results": ["x" * 1000]})
    applied = {"operation": "Apply", "fieldsV1": {"f:spec": {"f:future": {}}}}
    obj["metadata"] |= {"managedFields": [applied], "labels": {"l": "x"}, "finalizers": ["f"], "deletionTimestamp": "t"}
    resource = SimpleNamespace(plural=POLICIES)
    asyncio.run(operator._on_event({"type": "MODIFIED", "object": obj}, resource))
    assert obj == {
        "kind": "GroupPolicy",
        "metadata": {"name": "p", "namespace": "kafka", "uid": "uid-p", "resourceVersion": "7"},
    }
    found = operator._objects.get(POLICIES, "kafka", "p")
    assert found is not None
    assert found["spec"] == {"connectionRef": {"name": "main"}}
    assert (found["metadata"]["deletionTimestamp"], found["status"]) == ("t", {"totals": {"deleted": 1}})
    assert found["dropped"] == "spec.future"


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        pytest.param("Ready", {}, id="text"),
        pytest.param([1], {}, id="list"),
        pytest.param({"conditions": "Ready", "clusterID": "c"}, {"clusterID": "c"}, id="conditions-are-text"),
        pytest.param({"conditions": [{"type": "Ready"}]}, {}, id="condition-without-status"),
        pytest.param({"sample": 7, "totals": [], "groups": "many", "lastRunTime": 7}, {}, id="all-wrong"),
        pytest.param({"totals": {"deleted": "7"}}, {}, id="number-is-text"),
        pytest.param({"ledger": {"id": 7}}, {}, id="id-is-number"),
    ],
)
def test_fields_of_another_form_are_left_out(status: Any, kept: dict[str, Any]) -> None:
    """Each reader of a status may rely on the form that the CRD gives it."""
    assert trimmed(an_object(status=status))["status"] == kept


def test_a_late_event_does_not_undo_a_write() -> None:
    """A status that this process wrote stays, although the watch reports an earlier version after it."""
    objects = Objects()
    objects.put(POLICIES, an_object(version=9))
    objects.put(POLICIES, an_object(version=11, status={"totals": {"deleted": 1}}))
    objects.put(POLICIES, an_object(version=10))
    found = objects.get(POLICIES, "kafka", "p")
    assert found is not None
    assert found["status"] == {"totals": {"deleted": 1}}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"generation": 2}, id="edited"),
        pytest.param({"uid": "another"}, id="recreated"),
        pytest.param({"deletionTimestamp": "2030-01-31T12:00:00Z"}, id="being-deleted"),
    ],
)
def test_what_wakes_a_loop(change: dict[str, Any]) -> None:
    """Each change of more than the status, by a watch or a write; the connection that an object named before, too."""
    changes: list[tuple[Any, ...]] = []
    objects = Objects(changed=lambda *change: changes.append(change))
    objects.put(POLICIES, an_object(version=1))
    again = an_object(version=3, spec={"connectionRef": {"name": "other"}} if "generation" in change else {})
    again["metadata"] |= change
    objects.put(POLICIES, an_object(version=2, status={"totals": {"deleted": 1}}))
    objects.put(POLICIES, again)
    objects.put(POLICIES, again)
    now = ("kafka", "other") if "generation" in change else ("", "")
    key, before = ("kafka", "p"), ("kafka", "main")
    assert changes == [(POLICIES, key, {before}), (POLICIES, key, {before, now})]


def test_the_same_version_with_more_fields() -> None:
    """A watch of an older CRD has reported it without its new field: the whole object replaces that, and wakes."""
    changes: list[tuple[Any, ...]] = []
    objects = Objects(changed=lambda *change: changes.append(change))
    objects.put(POLICIES, an_object())
    objects.put(POLICIES, an_object(spec={"connectionRef": {"name": "main"}, "keep": True}))
    objects.put(POLICIES, an_object(spec={"connectionRef": {"name": "main"}, "keep": True}))
    found = objects.get(POLICIES, "kafka", "p")
    assert found is not None
    assert found["spec"]["keep"]
    assert changes == [(POLICIES, ("kafka", "p"), {("kafka", "main")})] * 2


def test_a_deletion_of_an_earlier_object_removes_no_later_one() -> None:
    changes: list[tuple[Any, ...]] = []
    objects = Objects(changed=lambda *change: changes.append(change))
    objects.put(POLICIES, an_object())
    changes.clear()
    objects.remove(POLICIES, ("kafka", "p"), "uid-of-another")
    assert objects.get(POLICIES, "kafka", "p") is not None
    objects.remove(POLICIES, ("kafka", "p"), "uid-p")
    assert changes == [(POLICIES, ("kafka", "p"), {("kafka", "main")})]
    assert (objects.get(POLICIES, "kafka", "p"), objects.naming(POLICIES, "kafka", "main")) == (None, [])


def test_a_comparison_finds_what_the_watch_missed() -> None:
    """Deletions and edits during an interruption; what changed while the list was read is left to the watch."""
    objects = Objects()
    for name in ("same", "edited", "deleted", "recreated"):
        objects.put(POLICIES, an_object(name))
    sequence = objects.sequence
    objects.put(POLICIES, an_object("created-since"))
    rows = [ListedObject(("kafka", name), f"uid-{name}", "1") for name in ("same", "missing")]
    rows += [
        ListedObject(("kafka", "edited"), "uid-edited", "2"),
        ListedObject(("kafka", "recreated"), "uid-another", "1"),
    ]
    gone, late = objects.compare(POLICIES, rows, sequence)
    assert {key[1] for key, _ in gone} == {"deleted", "recreated"}
    assert {row.key[1] for row in late} == {"missing", "edited", "recreated"}


def test_an_object_that_is_too_large_is_refused() -> None:
    """It is known, so that its status can say so, and it does nothing."""
    objects = Objects()
    large = {"connectionRef": {"name": "main"}, "match": {"groups": ["x" * OBJECT_BYTES]}}
    objects.put(POLICIES, an_object(spec=large))
    found = objects.get(POLICIES, "kafka", "p")
    assert found is not None
    assert len(json.dumps(found)) < 1_000
    with pytest.raises(SpecError, match="128 KiB"):
        refuse_unusable(found)


def test_a_namespace_has_a_share_of_the_room() -> None:
    """What does not fit into it is refused; other namespaces are stored as before."""
    objects = Objects(limit=1 << 20)
    spec = {"connectionRef": {"name": "main"}, "match": {"groups": ["x" * 20_000]}}
    for number in range(40):
        objects.put(POLICIES, an_object(f"p{number}", spec=spec))
    usable = 0
    for key in objects.naming(POLICIES, "kafka", "main"):
        usable += "unusable" not in (objects.get(POLICIES, *key) or {})
    assert 5 < usable < 20
    objects.put(CONNECTIONS, an_object("main", namespace="other", spec=spec))
    assert "unusable" not in (objects.get(CONNECTIONS, "other", "main") or {"unusable": True})
    for number in range(40):
        objects.remove(POLICIES, ("kafka", f"p{number}"), f"uid-p{number}")
    objects.put(POLICIES, an_object("again", spec=spec))
    assert "unusable" not in (objects.get(POLICIES, "kafka", "again") or {"unusable": True})


def test_the_results_of_a_restore_do_not_end_it() -> None:
    """A spec of the largest size that is accepted, and a status with as many results as there may be."""
    objects = Objects(limit=1 << 30)
    spec, conditions = with_bytes(OBJECT_BYTES - 100), [{"type": "Ready"} | a_condition()]
    results = [{"group": f"g{number}", "message": "x" * 1_000} for number in range(100)]
    status = {"conditions": conditions, "counts": {"groups": 100}, "results": results}
    objects.put(RESTORES, an_object(spec=spec, status=status))
    found = objects.get(RESTORES, "kafka", "p")
    assert found is not None
    refuse_unusable(found)
    assert (found["spec"], found["status"]) == (spec, {"conditions": conditions, "counts": {"groups": 100}})


def test_a_row_of_a_sample_is_stored_without_its_message() -> None:
    row = {"group": "g", "verdict": "Match", "message": "x" * 1_000}
    assert trimmed(an_object(status={"sample": [row]}))["status"] == {"sample": [{"group": "g", "verdict": "Match"}]}


def test_a_growing_status_does_not_end_the_use_of_an_object() -> None:
    """If the room is full, fields of the status are left out, and not the spec."""
    objects = Objects(limit=1 << 20)
    for number in range(12):
        objects.put(POLICIES, an_object(f"p{number}", spec=with_bytes(9_000)))
    sample = [{"group": "x" * 100, "verdict": "Match"}] * 100
    status = {"sample": sample, "totals": {"deleted": 1}}
    for number in range(12):
        objects.put(POLICIES, an_object(f"p{number}", version=2, spec=with_bytes(9_000), status=status))
    found = [obj for key in objects.naming(POLICIES, "kafka", "main") if (obj := objects.get(POLICIES, *key))]
    assert [obj["metadata"]["name"] for obj in found if "unusable" in obj] == []
    assert {"sample" in obj["status"] for obj in found} == {True, False}
    assert all(obj["status"]["totals"] == {"deleted": 1} for obj in found)


@pytest.mark.parametrize("size", [pytest.param(OBJECT_BYTES, id="too-large"), pytest.param(100_000, id="no-room")])
def test_a_restore_without_room_is_not_over(size: int) -> None:
    """It waits, and its reason is not one that only an edit ends."""
    objects = Objects(limit=0)
    for name in ("first", "second", "third"):
        objects.put(RESTORES, an_object(name, spec=with_bytes(size)))
    found = objects.get(RESTORES, "kafka", "third")
    assert found is not None
    with pytest.raises(SpecError) as caught:
        refuse_unusable(found)
    status = build_restore_status(found, Refusal.of(caught.value), datetime(2030, 1, 31, tzinfo=UTC))
    assert caught.value.reason == reasons.MEMORY_EXHAUSTED
    assert "completionTime" not in status
    assert {condition["type"] for condition in status["conditions"]} == {"Ready", "Reconciling"}


def test_an_object_without_room_keeps_what_must_not_be_lost() -> None:
    """A complete restore is not run again, and a connection is of the same cluster."""
    objects = Objects()
    ids = {"clusterID": "c", "ledger": {"id": "l", "topic": "t"}, "completionTime": "2030-01-31T12:00:00Z"}
    large = [{"type": f"C{number}"} | a_condition() | {"message": "x" * 1_000} for number in range(10)]
    objects.put(RESTORES, an_object(spec=with_bytes(OBJECT_BYTES), status=ids | {"conditions": large}))
    found = objects.get(RESTORES, "kafka", "p")
    assert found is not None
    assert found["unusable"]
    assert found["status"] == ids
    assert is_over(found)


def test_objects_of_others_take_no_room_of_a_small_namespace() -> None:
    """Nor of connections: these have their own."""
    objects = filled(limit=8 << 20)
    assert not all(is_usable(objects, POLICIES, f"team-{number}", "e") for number in range(40))
    for plural in (CONNECTIONS, POLICIES, RESTORES):
        objects.put(plural, an_object("small", namespace="new", spec=with_bytes(50_000)))
        assert is_usable(objects, plural, "new", "small")
    objects.put(CONNECTIONS, an_object("main", namespace="team-1", spec=with_bytes(50_000)))
    assert is_usable(objects, CONNECTIONS, "team-1", "main")


def test_a_comparison_finds_objects_that_have_room_again() -> None:
    """Not more than fit, and only once there is room."""
    objects = filled(limit=8 << 20)
    mine = {f"p{number}": an_object(f"p{number}", namespace="mine", spec=with_bytes(100_000)) for number in range(9)}
    for obj in mine.values():
        objects.put(POLICIES, obj)
    rows = [ListedObject((key[0], key[1]), f"uid-{key[1]}", "1") for key in objects.keys(POLICIES)]
    assert objects.compare(POLICIES, rows, objects.sequence) == ([], [])
    for number in range(40):
        for name in ("a", "b", "c", "d", "e"):
            objects.remove(POLICIES, (f"team-{number}", name), f"uid-{name}")
    late = objects.compare(POLICIES, [row for row in rows if row.key[0] == "mine"], objects.sequence)[1]
    assert late
    for row in late:
        assert objects.lacks(POLICIES, row)
        objects.put(POLICIES, mine[row.key[1]])
        assert not objects.lacks(POLICIES, row)
        assert is_usable(objects, POLICIES, *row.key)
    rows = [row for row in rows if row.key[0] == "mine"]
    assert objects.compare(POLICIES, rows, objects.sequence) == ([], [])


def test_objects_of_an_older_crd_are_refused() -> None:
    """All of that kind, at once: fields that its CRD lacks were dropped. They are used again when it has them."""
    changes: list[tuple[Any, ...]] = []
    objects = Objects(changed=lambda *change: changes.append(change))
    objects.put(POLICIES, an_object())
    objects.put(CONNECTIONS, an_object("main"))
    changes.clear()
    for problem in ("it lacks spec.match.exclude", "it lacks spec.match.exclude", None):
        objects.outdate(POLICIES, problem)
        policy, connection = objects.get(POLICIES, "kafka", "p"), objects.get(CONNECTIONS, "kafka", "main")
        assert policy is not None
        assert connection is not None
        refuse_unusable(connection)
        if problem:
            with pytest.raises(SpecError, match="it lacks spec") as refused:
                refuse_unusable(policy)
            assert refused.value.reason == reasons.CRD_OUTDATED
        else:
            refuse_unusable(policy)
    assert changes == [(POLICIES, ("kafka", "p"), {("kafka", "main")})] * 2


_DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("applied", "managed", "spec", "dropped"),
    [
        pytest.param('{"spec": {"but": []}}', {}, {}, "spec.but", id="annotation"),
        pytest.param('{"spec": {"but": []}}', {}, {"but": []}, None, id="the-object-has-it"),
        pytest.param('{"spec": {"match": {"but": []}}}', {}, {"match": {}}, "spec.match.but", id="below"),
        pytest.param("{}", {"f:match": {".": {}, "f:but": {}}}, {}, "spec.match.but", id="managed"),
        pytest.param(
            "{}", {"f:delete": {"f:windows": {"k:1": {"f:but": {}}}}}, {}, "spec.delete.windows[].but", id="in-a-list"
        ),
        pytest.param('{"spec": {"connectionRef": {"name": "main"}}}', {}, {}, None, id="known"),
        pytest.param(_DEEP, {}, {}, None, id="deep"),
        pytest.param('{"spec": {"match": ' + _DEEP[:900] + "]" * 900 + "}}", {}, {}, None, id="deep-lists"),
        pytest.param('{"spec": {"x": ' + '{"x": ' * 400 + "1" + "}" * 401 + "}", {}, {}, "spec.x", id="deep-objects"),
        pytest.param("no JSON", {}, {}, None, id="no-json"),
        pytest.param("[]", {}, {}, None, id="a-list"),
        pytest.param('{"spec": "all"}', {}, {}, None, id="a-text"),
    ],
)
def test_fields_that_were_applied_and_are_gone(applied: str, managed: Any, spec: Any, dropped: str | None) -> None:
    """Whatever a user wrote into the annotation: the operator reads on."""
    obj = an_object(spec=spec)
    obj["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": applied}
    obj["metadata"]["managedFields"] = [{"operation": "Apply", "fieldsV1": {"f:spec": managed}}]
    assert trimmed(obj).get("dropped") == dropped


def test_a_response_that_arrives_after_a_deletion_stores_nothing() -> None:
    """A patch was answered before the deletion. Another object may have the name at once."""
    now = 0.0
    objects = Objects(monotonic=lambda: now)
    objects.put(POLICIES, an_object())
    objects.remove(POLICIES, ("kafka", "p"), "uid-p")
    objects.put(POLICIES, an_object(version=2))
    assert objects.get(POLICIES, "kafka", "p") is None
    again = an_object(version=3)
    again["metadata"]["uid"] = "another"
    objects.put(POLICIES, again)
    now = 61.0
    objects.put(POLICIES, an_object("other"))
    objects.remove(POLICIES, ("kafka", "p"), "another")
    assert objects.get(POLICIES, "kafka", "p") is None
    objects.put(POLICIES, an_object(version=4))
    assert objects.get(POLICIES, "kafka", "p") is not None
