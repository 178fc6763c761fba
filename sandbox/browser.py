"""The Chromium of this machine, which opens the report in tests; where it may be, it is installed."""

import os
import shutil
import subprocess
from pathlib import Path

from sandbox.errors import MissingPrerequisite

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_HINT = "no Chromium is installed, in which tests open the report: apt install chromium (macOS: brew install chromium)"
# What it would do besides showing a page; and as root it runs without its own sandbox or not at all.
_QUIET = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


def find() -> Path:
    """Its path. Raises MissingPrerequisite with one line that says how to install it."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        raise MissingPrerequisite(_HINT)
    return Path(program)


def arguments() -> list[str]:
    """For a start without a screen, that asks the network nothing."""
    return [*_QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else [])]


def prepare() -> None:
    """Have one: where there is none, root on a Debian gets the distribution's; others are told how."""
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
