"""The control group of one node: below it are those of its pods, in each hierarchy that this machine has."""

import contextlib
import os
from pathlib import Path

_MOUNTED = ("cgroup", "cgroup2")


def create(name: str) -> list[str]:
    """Make the group in all hierarchies, and return its directories."""
    directories = _directories(name)
    for directory in directories:
        directory.mkdir(exist_ok=True)
    return [str(directory) for directory in directories]


def remove(name: str) -> None:
    """Remove the group and those below it, as far as no process is in them."""
    for directory in _directories(name):
        for path, _, _ in os.walk(directory, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def _directories(name: str) -> list[Path]:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(mount[1], name) for mount in mounts if mount[2] in _MOUNTED]
