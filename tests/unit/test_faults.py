"""What `make faults` takes out of the operator by name is still there, and still what decides."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from testing.faults import reckless
from testing.faults.guards import GUARDS
from testing.faults.steps import STATUS, STEPS


def _taken_out(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> list[tuple[Any, str]]:
    """What a change puts in the place of what is there: owner and name. Nothing is changed."""
    found: list[tuple[Any, str]] = []
    with monkeypatch.context() as patch:
        patch.setenv("FAULTS_CLOCK", "clock")
        patch.setattr(reckless, "_replace", lambda owner, name, _: found.append((owner, name)))
        change()
    return found


def _used_in(module: ModuleType, name: str) -> bool:
    """Whether a module's functions look a name of it up, so that another value in its place changes what they do."""
    functions = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.FunctionDef)]
    names = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.Name)]
    return any(node.id == name and isinstance(node.ctx, ast.Load) for node in names)


@pytest.mark.parametrize("guard", reckless.CHANGES)
def test_what_a_guard_is_taken_out_by_is_there(monkeypatch: pytest.MonkeyPatch, guard: str) -> None:
    """A name that moved must not make a guard seem to be taken out: its scenario would prove nothing."""
    taken_out = _taken_out(monkeypatch, reckless.CHANGES[guard])
    assert taken_out
    for owner, name in taken_out:
        if isinstance(owner, ModuleType):
            assert hasattr(owner, name), f"{owner.__name__} has no {name}"
            assert _used_in(owner, name), f"nothing in {owner.__name__} uses {name}"
        else:
            assert name in vars(owner), f"{owner.__qualname__} has no {name} of its own"


def test_each_guard_can_be_taken_out() -> None:
    """The names of guards are those of changes."""
    assert {name for guard in GUARDS for name in guard.name.split("+")} <= reckless.CHANGES.keys()


def _strings(function: str) -> set[str]:
    """The first arguments of all calls of a method in faults/, where they are given as they are."""
    found: set[str] = set()
    for file in (Path(reckless.__file__).parent).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=value), *_]) if name == function:
                    found.add(str(value))
    return found


def test_scenarios_stop_at_steps_that_there_are() -> None:
    """A step under another name would never come."""
    steps = _strings("at")
    assert steps
    assert steps <= {*STEPS, STATUS}
