"""The store of objects: bounded, current, and of any shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from group_hygiene.controller.objects import (
    CONNECTIONS,
    OBJECT_BYTES,
    POLICIES,
    Objects,
    Row,
    refuse_unusable,
    trimmed,
)
from group_hygiene.errors import SpecError


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


def test_only_what_is_input_is_stored() -> None:
    """Neither annotations nor managed fields, which may be as large as an object may be."""
    objects = Objects()
    objects.put(POLICIES, an_object(status={"lastRunTime": "2030-01-31T12:00:00Z"}))
    found = objects.get(POLICIES, "kafka", "p")
    assert found is not None
    assert set(found["metadata"]) == {"name", "namespace", "uid", "generation", "resourceVersion"}
    assert found["status"] == {"lastRunTime": "2030-01-31T12:00:00Z"}
    assert objects.naming(POLICIES, "kafka", "main") == [found]


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
    assert objects.put(POLICIES, an_object(version=9))
    assert not objects.put(POLICIES, an_object(version=11, status={"totals": {"deleted": 1}}))
    assert not objects.put(POLICIES, an_object(version=10))
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
    """More than a change of the status."""
    objects = Objects()
    objects.put(POLICIES, an_object(version=1))
    again = an_object(version=2)
    again["metadata"] |= change
    assert objects.put(POLICIES, again)
    assert not objects.put(POLICIES, again)


def test_a_deletion_of_an_earlier_object_removes_no_later_one() -> None:
    objects = Objects()
    objects.put(POLICIES, an_object())
    assert not objects.remove(POLICIES, ("kafka", "p"), "uid-of-another")
    assert objects.remove(POLICIES, ("kafka", "p"), "uid-p")
    assert (objects.get(POLICIES, "kafka", "p"), objects.naming(POLICIES, "kafka", "main")) == (None, [])


def test_a_comparison_finds_what_the_watch_missed() -> None:
    """Deletions and edits during an interruption; what changed while the list was read is left to the watch."""
    objects = Objects()
    for name in ("same", "edited", "deleted", "recreated"):
        objects.put(POLICIES, an_object(name))
    sequence = objects.sequence
    objects.put(POLICIES, an_object("created-since"))
    rows = [Row(("kafka", name), f"uid-{name}", "1") for name in ("same", "missing")]
    rows += [Row(("kafka", "edited"), "uid-edited", "2"), Row(("kafka", "recreated"), "uid-another", "1")]
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
    for obj in objects.naming(POLICIES, "kafka", "main"):
        usable += "unusable" not in obj
    assert 5 < usable < 20
    objects.put(CONNECTIONS, an_object("main", namespace="other", spec=spec))
    assert "unusable" not in (objects.get(CONNECTIONS, "other", "main") or {"unusable": True})
    for number in range(40):
        objects.remove(POLICIES, ("kafka", f"p{number}"), f"uid-p{number}")
    objects.put(POLICIES, an_object("again", spec=spec))
    assert "unusable" not in (objects.get(POLICIES, "kafka", "again") or {"unusable": True})
