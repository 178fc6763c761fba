"""The statuses of objects that no connection serves."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from group_hygiene.controller import statuses as module
from group_hygiene.controller.admission import Grants
from group_hygiene.controller.app import Operator, OperatorOptions
from group_hygiene.controller.objects import CONNECTIONS, POLICIES, RESTORES, Objects
from group_hygiene.controller.statuses import Unserved
from group_hygiene.errors import ApiError
from group_hygiene.process.clock import SystemClock
from group_hygiene.spec.fields import timestamp
from testing.sandbox.waiting import wait_for


class _Writer:
    """The API server refuses the first status of the policy `late`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.versions: list[str] = []

    def has_written(self, version: str) -> bool:
        return version in self.versions

    def take_refused(self) -> set[str]:
        return set()

    def write_problem(self, plural: str, obj: dict[str, Any], *_: Any, **__: Any) -> None:
        name = obj["metadata"]["name"]
        self.asked.append(name)
        self.versions.append(obj["metadata"]["resourceVersion"])
        if name == "late" and self.asked.count(name) == 1:
            raise ApiError("the API server answers 429")


def test_a_busy_neighbour_delays_no_further_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status that could not be written is tried again, also if other objects change all the time."""
    monkeypatch.setattr(module, "_CHECK_AGAIN_S", 0.5)
    objects, writer, stopping = Objects(), _Writer(), threading.Event()
    for namespace, name in (("a", "late"), ("b", "churn")):
        metadata = {"namespace": namespace, "name": name, "uid": name, "generation": 1, "resourceVersion": "1"}
        objects.put(
            POLICIES, {"kind": "GroupPolicy", "metadata": metadata, "spec": {"connectionRef": {"name": "none"}}}
        )
    unserved = Unserved(cast("Any", None), objects, cast("Any", None), cast("Any", writer), lambda: True, stopping)
    thread = threading.Thread(target=unserved.run)
    thread.start()
    unserved.check(POLICIES, ("a", "late"))

    def tried_again() -> bool:
        unserved.check(POLICIES, ("b", "churn"))
        time.sleep(0.05)
        return writer.asked.count("late") >= 2

    try:
        wait_for(tried_again, seconds=30)
    finally:
        stopping.set()
        unserved.wake()
        thread.join()


def test_a_restore_that_ended_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time to live is over; its end is no change that is followed. One without a time to live stays."""
    monkeypatch.setattr(module, "_CHECK_AGAIN_S", 0.2)
    objects, stopping, deleted = Objects(), threading.Event(), list[str]()
    reference = {"name": "main", "namespace": "a"}
    grants = Grants(cast("Any", None), SystemClock())
    api: Any = SimpleNamespace(delete=lambda _, obj: deleted.append(obj["metadata"]["name"]))
    metadata = {"namespace": "a", "name": "main", "uid": "c", "generation": 1, "resourceVersion": "1"}
    objects.put(CONNECTIONS, {"metadata": metadata, "spec": {"bootstrapServers": ["kafka:9092"]}})

    def put(name: str, version: str, **of: Any) -> None:
        metadata = {"namespace": "a", "name": name, "uid": name, "generation": 1, "resourceVersion": version}
        spec = {"connectionRef": reference, "groups": ["g"]} | of.pop("spec", {})
        objects.put(RESTORES, {"metadata": metadata, "spec": spec} | of)

    ended = {"completionTime": timestamp(datetime.now(UTC)), "observedGeneration": 1}
    unserved = Unserved(api, objects, grants, cast("Any", _Writer()), lambda: True, stopping)
    thread = threading.Thread(target=unserved.run)
    thread.start()
    try:
        put("stays", "1", status=ended)
        put("later", "1", spec={"ttlSecondsAfterFinished": 3600}, status=ended)
        put("passing", "1", spec={"ttlSecondsAfterFinished": 1})
        for name in ("stays", "later", "passing"):
            unserved.check(RESTORES, ("a", name))
        time.sleep(1)
        assert deleted == []
        put("passing", "2", spec={"ttlSecondsAfterFinished": 1}, status=ended)
        wait_for(lambda: deleted)
    finally:
        stopping.set()
        unserved.wake()
        thread.join()
    assert set(deleted) == {"passing"}


def test_an_edit_of_a_restore_that_ended_is_noted() -> None:
    """Only its time to live can be edited. Its conditions stay as they are, for the new generation."""
    objects, stopping, written = Objects(), threading.Event(), list[tuple[str, dict[str, Any]]]()
    ready = {"type": "Ready", "status": "True", "reason": "Restored", "message": "", "observedGeneration": 1}
    ready["lastTransitionTime"] = ended = timestamp(datetime.now(UTC))
    status = {"observedGeneration": 1, "completionTime": ended, "conditions": [ready], "counts": {"groups": 1}}
    for name, generation in (("edited", 2), ("same", 1)):
        metadata = {"namespace": "a", "name": name, "uid": name, "generation": generation, "resourceVersion": "1"}
        spec = {"connectionRef": {"name": "main"}, "groups": ["g"], "ttlSecondsAfterFinished": 3600}
        objects.put(RESTORES, {"metadata": metadata, "spec": spec, "status": status})
    writer: Any = SimpleNamespace(write=lambda _, obj, new: written.append((obj["metadata"]["name"], new)))
    unserved = Unserved(cast("Any", None), objects, cast("Any", None), writer, lambda: True, stopping)
    for name in ("same", "edited"):
        unserved._write(RESTORES, ("a", name))
    expected = status | {"observedGeneration": 2, "conditions": [ready | {"observedGeneration": 2}]}
    assert written == [("edited", expected)]


@pytest.mark.parametrize(
    ("access", "woken"),
    [
        pytest.param([], False, id="no-grant"),
        pytest.param([{"namespaces": {"names": ["a"]}}], True, id="by-name"),
        pytest.param([{"namespaces": {"names": ["b"]}}], False, id="another-namespace"),
        pytest.param([{"namespaces": {"selector": {"matchLabels": {"x": "y"}}}}], True, id="by-labels-not-known-yet"),
    ],
)
def test_an_edit_wakes_no_connection_that_grants_nothing(access: list[Any], woken: bool) -> None:
    """Nor does one of an object that named it before. The status of the object is checked in any case."""
    operator = Operator(OperatorOptions())
    asked: Any = SimpleNamespace(names=[], check=lambda plural, key: asked.names.append(key))
    grants = Grants(cast("Any", None), SystemClock())
    operator._services = cast("Any", SimpleNamespace(unserved=asked, grants=grants))
    woke: list[tuple[str, str]] = []
    operator._wake = lambda *key: woke.append(key)  # type: ignore[method-assign]
    operator._loop = cast("Any", SimpleNamespace(call_soon_threadsafe=lambda call, *key: call(*key)))
    rights = {"groups": ["*"], "actions": ["Alert"]}
    spec = {"bootstrapServers": ["kafka:9092"], "access": [entry | rights for entry in access]}
    metadata = {"namespace": "k", "name": "main", "uid": "u", "generation": 1, "resourceVersion": "1"}
    operator._objects.put(CONNECTIONS, {"kind": "KafkaConnection", "metadata": metadata, "spec": spec})
    operator._follow(POLICIES, ("a", "p"), {("k", "main"), ("k", "absent")})
    assert set(woke) == {("k", "absent")} | ({("k", "main")} if woken else set())
    assert asked.names == [("a", "p")]


def test_a_status_that_another_round_wrote_is_written_again() -> None:
    """An object is checked once for each of its versions, however often the loop of its connection skips it."""
    objects, writer, stopping = Objects(), _Writer(), threading.Event()

    def put(version: str) -> None:
        metadata = {"namespace": "a", "name": "p", "uid": "p", "generation": 1, "resourceVersion": version}
        objects.put(POLICIES, {"metadata": metadata, "spec": {"connectionRef": {"name": "none"}}})

    unserved = Unserved(cast("Any", None), objects, cast("Any", None), cast("Any", writer), lambda: True, stopping)
    thread = threading.Thread(target=unserved.run)
    thread.start()
    try:
        for version in ("1", "2"):
            put(version)
            unserved.skip(POLICIES, ("a", "p"))
            wait_for(partial(writer.has_written, version))
            unserved.skip(POLICIES, ("a", "p"))
    finally:
        stopping.set()
        unserved.wake()
        thread.join()
    assert writer.versions == ["1", "2"]
