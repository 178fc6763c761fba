"""Run kubectl."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from testing.sandbox.errors import SandboxError
from testing.sandbox.prerequisites import KUBECTL, find

_SECONDS = 600


def kubectl(
    *arguments: str,
    kubeconfig: Path | None = None,
    environment: Mapping[str, str] | None = None,
    input: str | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run it with a kubeconfig file, by default that of the user; environment: beside this process's own.

    Raises SandboxError with its error text when `check` and it fails.
    """
    done = subprocess.run(
        [find(KUBECTL), *([f"--kubeconfig={kubeconfig}"] if kubeconfig else []), *arguments],
        env={**os.environ, **(environment or {})},
        input=input or "",
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if check and done.returncode != 0:
        raise SandboxError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done
