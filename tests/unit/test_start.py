"""What a process sets when it begins."""

from __future__ import annotations

import subprocess
import sys


def test_as_many_files_as_the_runtime_allows() -> None:
    """A container gets few at first, and a connection to each of a thousand brokers would take all of them."""
    script = """
import resource
from group_hygiene.process.start import start
start()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    command = ["bash", "-c", 'ulimit -Sn 100; ulimit -Hn 5000; exec "$@"', "-", sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "(5000, 5000)\n"
