"""The command line as the demo uses it: the installed program in a separate process, as from a shell."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from testing.sandbox.demo_clients import TIMEOUT

PROGRAM = "group-hygiene"
ADDRESS = "GROUP_HYGIENE_BOOTSTRAP_SERVER"


def program() -> Path:
    """The installed program, beside the current Python."""
    return Path(sys.executable).with_name(PROGRAM)


class Answer(NamedTuple):
    """The output of a command; out and errors by lines."""

    command: str
    code: int
    out: Sequence[str]
    errors: Sequence[str]


class CommandLine:
    """Runs `group-hygiene` against one Kafka cluster, which its environment names."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def address(self) -> str:
        """The `export` command that the other commands rely on."""
        return f"export {ADDRESS}={self._bootstrap}"

    def run(self, *arguments: str) -> tuple[str, list[str]]:
        """The command and its output; lines of stderr come last, and are empty on success."""
        done = subprocess.run(
            [program(), *arguments],
            env={**os.environ, ADDRESS: self._bootstrap},
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT,
            check=False,
        )
        return shlex.join([PROGRAM, *arguments]), [*done.stdout.splitlines(), *done.stderr.splitlines()]
