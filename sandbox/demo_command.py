"""The command line as the demo uses it: the installed program in a process of its own, as from a shell."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sandbox.demo_clients import TIMEOUT

PROGRAM = "group-hygiene"
ADDRESS = "GROUP_HYGIENE_BOOTSTRAP_SERVER"


def program() -> Path:
    """The installed one, beside the Python that runs this."""
    return Path(sys.executable).with_name(PROGRAM)


class Answer(NamedTuple):
    """What a command said; out and errors by lines."""

    command: str
    code: int
    out: Sequence[str]
    errors: Sequence[str]


class CommandLine:
    """Runs `group-hygiene` against one Kafka cluster, which its environment names."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def address(self) -> str:
        """What one types once, so that the commands need not say it."""
        return f"export {ADDRESS}={self._bootstrap}"

    def run(self, *arguments: str) -> tuple[str, list[str]]:
        """The command and its lines; those of stderr last, which are empty when all went well."""
        done = subprocess.run(
            [program(), *arguments],
            env={**os.environ, ADDRESS: self._bootstrap},
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT,
            check=False,
        )
        return shlex.join([PROGRAM, *arguments]), [*done.stdout.splitlines(), *done.stderr.splitlines()]
