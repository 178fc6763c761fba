"""The Chromium of this machine, for tests of the report; as root on Debian, it is installed if missing."""

import os
import shutil
import subprocess
from pathlib import Path

from testing.sandbox.errors import MissingPrerequisite

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_HINT = "no Chromium is installed, in which tests open the report: apt install chromium (macOS: brew install chromium)"
# Turns off background activity; and as root it only runs without its own sandbox.
_QUIET = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


def find() -> Path:
    """Its path. Raises MissingPrerequisite with instructions to install it."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        raise MissingPrerequisite(_HINT)
    return Path(program)


def arguments() -> list[str]:
    """Arguments for a headless start without requests to the network."""
    return [*_QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else [])]


def prepare() -> None:
    """Install one if it is missing: root on Debian gets the distribution's; other users get instructions."""
    try:
        find()
    except MissingPrerequisite:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
        print("installing Chromium by apt-get (once)", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
            done = subprocess.run(["apt-get", *command], env=environment, stdout=subprocess.DEVNULL, check=False)
            if done.returncode:
                raise MissingPrerequisite(f"apt-get {command[0]} failed: {_HINT}") from None
        find()
