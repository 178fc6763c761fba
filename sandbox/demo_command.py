"""The command line as the demo uses it: the installed program in a process of its own, as from a shell."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from sandbox.demo_clients import TIMEOUT

_PROGRAM = "group-hygiene"
_ADDRESS = "GROUP_HYGIENE_BOOTSTRAP_SERVER"


class CommandLine:
    """Runs `group-hygiene` against one Kafka cluster, which its environment names."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def address(self) -> str:
        """What one types once, so that the commands need not say it."""
        return f"export {_ADDRESS}={self._bootstrap}"

    def run(self, *arguments: str) -> tuple[str, list[str]]:
        """The command and its lines; those of stderr last, which are empty when all went well."""
        program = Path(sys.executable).with_name(_PROGRAM)
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, _ADDRESS: self._bootstrap},
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT,
            check=False,
        )
        return shlex.join([_PROGRAM, *arguments]), [*done.stdout.splitlines(), *done.stderr.splitlines()]
