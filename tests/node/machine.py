"""What programs of Kubernetes use of a machine, whatever their configuration says: to compare before and after."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from testing.sandbox.node.requirements import program

# Path, number, time of the last change.
File = tuple[str, int, int]
_TREES = ("/var/lib/kubelet", "/var/lib/cni", "/usr/libexec/kubernetes", "/etc/cni", "/etc/kubernetes")
# Only which entries they have.
_DIRECTORIES = ("/var/lib", "/usr/libexec", "/opt")


def files() -> list[File]:
    """Files and directories, sorted; of those that other programs use too, the path alone."""
    found = [(f"{directory}/{name}", 0, 0) for directory in _DIRECTORIES for name in os.listdir(directory)]
    for root in _TREES:
        for folder, _, names in os.walk(root):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                stat = os.stat(path, follow_symlinks=False)
                found.append((path, stat.st_ino, stat.st_mtime_ns))
    return sorted(found)


def shared() -> set[str]:
    """Control groups at the top of each hierarchy, network interfaces, and rules of the packet filter."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    groups = [Path(mount[1]) for mount in mounts if mount[2] in ("cgroup", "cgroup2")]
    links = [line.split(": ")[1] for line in _output("ip", "-o", "link").splitlines()]
    rules = _output("nft", "-s", "list", "ruleset").splitlines()
    return {*(str(path) for group in groups for path in group.iterdir() if path.is_dir()), *links, *rules}


def _output(name: str, *arguments: str) -> str:
    return subprocess.run([program(name), *arguments], capture_output=True, text=True, check=True).stdout
