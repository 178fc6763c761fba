"""The mounts that a node makes before its programs start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from testing.sandbox.node import configuration
from testing.sandbox.node.configuration import Files

_SHARED = Path("/var/lib")
_OWN = {"cni", "kubelet"}


@pytest.mark.skipif(os.geteuid() != 0, reason="makes mounts, as root in a namespace of its own")
def test_a_node_has_its_own_directories_and_leaves_those_of_the_machine(tmp_path: Path) -> None:
    """In /var/lib a node sees all of the machine's entries; what it writes to its own ones stays in its namespace."""
    before = {name: os.stat(_SHARED / name, follow_symlinks=False).st_mtime_ns for name in os.listdir(_SHARED)}
    files = Files(tmp_path)
    write = "".join(f'test -z "$(ls -A {_SHARED}/{name})"; touch {_SHARED}/{name}/written\n' for name in sorted(_OWN))
    script = f"{configuration.setup(files)}\n{write}ls -A {_SHARED}; echo; ls -A {_SHARED}/dpkg"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    entries, _, packages = done.stdout.partition("\n\n")
    assert set(entries.split("\n")) == before.keys() | _OWN
    assert set(packages.split()) == set(os.listdir(_SHARED / "dpkg"))
    after = {name: os.stat(_SHARED / name, follow_symlinks=False).st_mtime_ns for name in os.listdir(_SHARED)}
    assert after == before
    assert list((files.mounts / "lib").iterdir()) == []
