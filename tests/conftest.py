"""Which tests `make test` leaves out, and how it spreads the others.

Files that share servers run in one worker, and the longest start first.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

from testing.sandbox.cache import ONLY_BASIC
from tests.needs import is_extra

_HERE = Path(__file__).parent
# The folders with the longest tests, these first.
_FIRST = ("e2e", "kafka", "kube")
# Files that use the servers of their folder, which are fixtures of the scope `package`. Those of a row run in one
# worker: another one would start the same servers. Those of e2e are two rows, since they wait more than they work.
_SHARING = (
    ("e2e", "gitops_health group_restore lag metrics neighbours operator rights tenancy"),
    ("e2e", "alerts connection_wide evidence marks restart"),
    (
        "kafka",
        "connecting evidence foreign_answers groups ledger ledger_writer messages mirror new_groups offsets "
        "offsets_log reconcile releases restoration restore_rounds settling slow stale_offsets streams_groups tail "
        "topic_answers uncertain_answers",
    ),
    ("kafka", "lag transactions"),
    (
        "kube",
        "chart chart_values crd_groupkeep crd_grouprestore crd_receivers crd_rules crds deploy deploy_pipeline "
        "deploy_prometheus doctor_role documented_objects gitops guard strimzi",
    ),
    ("cli", "doctor gitops_check keep_restore_history list_and_describe plan_and_explain program several_connections"),
)
_ROWS = {f"tests/{folder}/test_{name}.py": f"{folder}/{names}" for folder, names in _SHARING for name in names.split()}
_LEFT_OUT = pytest.StashKey[int]()


class _Scheduling(LoadFileScheduling):
    """As `--dist loadfile`, but a row of `_SHARING` counts as one file.

    `--dist loadgroup` of pytest-xdist 3.8 ignores its marks with pytest 9.2, whose node ids it can't change.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return _ROWS.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling | None:
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))
    for item in items:
        if is_extra(item):
            item.add_marker("extra")


def pytest_deselected(items: list[pytest.Item]) -> None:
    left_out = sum(_marked(item, "extra") and not _marked(item, "slow") for item in items)
    for item in items[:1]:
        item.config.stash[_LEFT_OUT] = item.config.stash.get(_LEFT_OUT, 0) + left_out


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each worker collected the same tests, and the process that prints collected none."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if os.environ.get(ONLY_BASIC):
        terminalreporter.write_line(
            f"left out: {config.stash.get(_LEFT_OUT, 0)} tests that need further programs or take long; "
            "`make test-extra`, `make test-all` and CI run them"
        )


def pytest_collection_finish() -> None:
    """Let the garbage collector skip what was collected here: some 10,000 objects that live to the end."""
    gc.collect()
    gc.freeze()


def _rank(path: Path) -> int:
    folder = path.relative_to(_HERE).parts[0]
    return _FIRST.index(folder) if folder in _FIRST else len(_FIRST)


def _marked(item: pytest.Item, name: str) -> bool:
    return item.get_closest_marker(name) is not None
