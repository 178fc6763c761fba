"""Runs commands, and what may abort, in processes forked from one that has imported the command line.

Imports take most of a command's time.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from group_hygiene.cli import main
from testing.faults.errors import FaultsError

_IMPORTED = (
    *(f"group_hygiene.cli.{name}" for name in ("deletions", "doctor", "doctor_kafka", "history", "keep_requests")),
    "group_hygiene.controller.api",
)
for _module in _IMPORTED:
    importlib.import_module(_module)
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def run(arguments: Sequence[str], seconds: float) -> tuple[int, str]:
    """The exit code of a command, and its output. Raises FaultsError if it is not over in time."""
    with tempfile.NamedTemporaryFile() as output:
        code = apart(_run, (list(arguments), output.name), seconds, " ".join(arguments))
        return code, Path(output.name).read_text(errors="replace").strip()


def apart(function: Callable[..., None], arguments: tuple[Any, ...], seconds: float, what: str) -> int:
    """The exit code of a process that calls a function; below 0 = ended by a signal.

    Raises FaultsError if it is not over in time.
    """
    process = _CONTEXT.Process(target=function, args=arguments)
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise FaultsError(f"{what}: not over after {seconds:.0f} s")
    return process.exitcode


def _run(arguments: list[str], output: str) -> None:
    file = os.open(output, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(file, standard)
    main(arguments)
