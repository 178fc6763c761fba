"""The statuses of objects that no connection serves."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from group_hygiene.controller import unserved as module
from group_hygiene.controller.objects import POLICIES, Objects
from group_hygiene.controller.unserved import Unserved
from group_hygiene.errors import ApiError
from sandbox.waiting import wait_for


class _Writer:
    """The API server refuses the first status of the policy `late`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def write_problem(self, plural: str, obj: dict[str, Any], *_: Any, **__: Any) -> None:
        name = obj["metadata"]["name"]
        self.asked.append(name)
        if name == "late" and self.asked.count(name) == 1:
            raise ApiError("the API server answers 429")


def test_a_busy_neighbour_delays_no_further_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status that could not be written is tried again, also if other objects change all the time."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.5)
    objects, writer, stopping = Objects(), _Writer(), threading.Event()
    for namespace, name in (("a", "late"), ("b", "churn")):
        metadata = {"namespace": namespace, "name": name, "uid": name, "generation": 1, "resourceVersion": "1"}
        objects.put(
            POLICIES, {"kind": "GroupPolicy", "metadata": metadata, "spec": {"connectionRef": {"name": "none"}}}
        )
    unserved = Unserved(objects, cast("Any", None), cast("Any", writer), lambda: True, stopping)
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
