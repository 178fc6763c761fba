"""What the operator's process takes to read very many large objects of a team that it does not serve."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testing.faults.kube import Kube
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import operators_account
from testing.sandbox.proc import memory_mb
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import World, policy, running_operator

OBJECTS, EDITED = 2_000, 400
# The API server allows 256 KiB of annotations. Each one is also a field of `managedFields`.
_ANNOTATIONS = {f"example.com/a-{number:02}": "x" * 2_500 for number in range(100)}
# Beyond what the process takes without objects: the store has 10 KB for each, and a page of the list two of them.
_MOST_MB = 60.0


@pytest.mark.slow
def test_many_large_objects_are_read_in_little_memory(
    server: ApiServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Policies of an absent connection with all annotations that the API server allows: at the start, and when many are
    edited at once, no more of them is in memory than what is stored.
    """
    world, kube, account = World(server), Kube(server), operators_account(server)
    namespace = world.namespace("large")
    path = f"/apis/grouphygiene.io/v1alpha1/namespaces/{namespace}/grouppolicies"
    before = _peak(account, tmp_path / "without", lambda: None)

    def create(number: int) -> None:
        obj = policy(namespace, f"p{number}", suspend=True)
        obj["metadata"]["annotations"] = _ANNOTATIONS
        kube.call("POST", f"{path}?fieldManager=test", obj)

    def edit(number: int) -> None:
        kube.call("PATCH", f"{path}/p{number}", {"spec": {"interval": "7s"}}, "application/merge-patch+json")

    def edit_all() -> None:
        for _ in pool.map(edit, range(EDITED)):
            pass

    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(create, range(OBJECTS)):
            pass
        started = _peak(account, tmp_path / "started", lambda: None)
        edited = _peak(account, tmp_path / "edited", edit_all)
    record_property("peak memory without objects, at the start, with edits, MB", (before, started, edited))
    assert started - before < _MOST_MB
    assert edited - before < _MOST_MB


def _peak(account: Path, log: Path, act: Callable[[], None]) -> float:
    """The peak memory in MiB of an operator, once it has read all objects and then `act` has ended."""
    with running_operator(account, log, "--lease-duration", "180") as operator:
        wait_for(lambda: operator.http("/readyz")[0] == 200, operator.log, 500)
        act()
        return memory_mb(operator.process.pid, "VmHWM")
