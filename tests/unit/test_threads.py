"""Threads that read specs at once, as the operator's connections do when it starts."""

from __future__ import annotations

import subprocess
import sys

# Each class is new, so that its annotations are read now; the interpreter changes threads as often as it can.
_SCRIPT = """
import sys, threading
from group_hygiene.spec.fields import SpecPart, convert

sys.setswitchinterval(1e-6)
for number in range(300):
    inner = type(f"Inner{number}", (SpecPart,), {"__annotations__": {"a": str}}, frozen=True)
    outer = type(f"Outer{number}", (SpecPart,), {"__annotations__": {"x": inner, "y": dict[str, inner]}}, frozen=True)
    begin = threading.Barrier(3)

    def work():
        begin.wait()
        assert convert({"x": {"a": "1"}, "y": {"k": {"a": "2"}}}, outer, "spec").y["k"].a == "2"

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("all")
"""


def test_threads_convert_new_types_at_once() -> None:
    """In a process of its own: without a lock msgspec 0.22 ends it by a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr
