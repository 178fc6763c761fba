"""Where a node cannot run, one line says what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SCRIPT = """
import os
from testing.sandbox.errors import MissingPrerequisite
from testing.sandbox.node.requirements import check
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    check()
except MissingPrerequisite as missing:
    print(missing)
"""


def test_everything_that_is_missing_is_named_in_one_line() -> None:
    """For a user who is not root, on a machine where programs of Debian's packages are not found."""
    unprivileged = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env={**os.environ, "PATH": "/nonexistent"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(unprivileged.stdout.splitlines()) == 1
    assert "root: it makes namespaces and mounts" in unprivileged.stdout
    assert "podman" in unprivileged.stdout.partition("apt install ")[2].split()
