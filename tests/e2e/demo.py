"""The demo in a process of its own, and what its table must say. It takes minutes, so each test has a file."""

import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAST_LINE = re.compile(r"demo: (\d+) passed, (\d+) failed")

EMPTY_AND_NEEDED = {
    "fraud-check",
    "nightly-export",
    "fire-watch",
    "price-sync",
    "invoice-archive",
    "connect-orders-sink",
    "stock-view",
    "payments-audit",
    "old-billing",
    "click-stats",
    "click-retry",
}
LITTER = {"20 console-consumer-*", "batch-report-2023", "search-index-v1", "summer-promo", "click-archive"}
IN_USE = {"checkout", "search-index-v2"}


class Demo:
    """A demo in a process of its own, with a mark in the environment that everything it starts inherits."""

    def __init__(self, scratch: Path, *arguments: str) -> None:
        self._scratch, self._mark = scratch, f"DEMO_OF_TEST={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sandbox.demo", *arguments],
            cwd=ROOT,
            env={**os.environ, name: value, "TMPDIR": str(scratch), "PYTHONIOENCODING": "utf-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def finish(self) -> tuple[int, str]:
        """Exit code and stdout."""
        output, errors = self.process.communicate(timeout=1200)
        # Shown by pytest when the test fails.
        sys.stdout.write(errors + output)
        return self.process.returncode, output

    def left_behind(self) -> list[str]:
        """Processes with the mark, and files."""
        found = [str(file) for file in self._scratch.iterdir()]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


def rows(output: str, mark: str) -> set[str]:
    """The groups in the table with that mark, and the claims of the other checks with it."""
    return {re.split(r" {2,}", line.strip()[2:])[0] for line in output.splitlines() if line.strip().startswith(mark)}


def eventually_nothing(demo: Demo) -> bool:
    """Whether all is gone soon: what was just being started ends when it sees that its caller is gone."""
    deadline = time.monotonic() + 120
    while demo.left_behind():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
