"""The demo as a user runs it: it passes with this operator, fails with a reckless one, and leaves nothing behind."""

import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from testing.sandbox.waiting import wait_for

ROOT = Path(__file__).parents[2]
RECKLESS = f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('reckless_operator.py')))}"
# The main job beside its own checks, several times: minutes.
pytestmark = pytest.mark.slow
LAST_LINE = re.compile(r"demo: (\d+) passed, (\d+) failed")

EMPTY_AND_NEEDED = {
    "fraud-check",
    "nightly-export",
    "fire-watch",
    "price-sync",
    "invoice-archive",
    "connect-orders-sink",
    "streams-wordcount",
    "payments-audit",
    "old-billing",
    "click-stats",
    "click-retry",
}
BY_POLICY = {
    "20 perf-consumer-{digits}",
    "3 anonymous.{uuid}",
    "pr-123-api",
    "test-{uuid}",
    "summer-promo",
    "test-group-{digits}",
}
# Their clients commit all the time: the offsets or the log, read right before a deletion, may show it; then they stay.
COMMITTING = {"fraud-check", "click-stats", "click-retry", "nightly-export", "price-sync", "fire-watch"}
IN_USE = {"checkout", "search-index-v2"}


class Demo:
    """A demo in a process of its own, with a mark in the environment that everything it starts inherits."""

    def __init__(self, scratch: Path, *arguments: str) -> None:
        self._scratch, self._mark = scratch, f"DEMO_OF_TEST={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "testing.sandbox.demo", *arguments],
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


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A directory for all temporary files of a demo."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    return directory


def rows(output: str, mark: str) -> set[str]:
    """The groups in the table with that mark, and the claims of the other checks with it."""
    return {re.split(r" {2,}", line.strip()[2:])[0] for line in output.splitlines() if line.strip().startswith(mark)}


def eventually_nothing(demo: Demo) -> bool:
    """Whether all is gone soon: what was just being started ends when it sees that its caller is gone."""
    return wait_for(lambda: not demo.left_behind(), lambda: f"these are gone: {demo.left_behind()}")


def test_the_demo_passes_and_stays_up_until_ctrl_c(scratch: Path) -> None:
    """Every check holds, the last line says so; --keep lets one look around; then no process and no file is left."""
    demo = Demo(scratch, "--keep")
    assert demo.process.stdout is not None
    output = ""
    for line in demo.process.stdout:
        output += line
        if LAST_LINE.fullmatch(line.strip()):
            break
    result = LAST_LINE.fullmatch(output.splitlines()[-1])
    assert result is not None, output
    assert rows(output, "✗") == set(), output
    assert result[2] == "0"
    assert rows(output, "✓") >= BY_POLICY | EMPTY_AND_NEEDED | IN_USE
    assert len(rows(output, "✓")) == int(result[1])
    assert "\033" not in output
    exported = re.search(r"export (KUBECONFIG)=(\S+)", output)
    assert exported is not None, output
    look = ["kubectl", "get", "kconn,kgp", "-n", "kafka", "-o", "name"]
    looked = subprocess.run(
        look, env={**os.environ, exported[1]: exported[2]}, capture_output=True, text=True, check=True
    )
    assert "grouppolicy.grouphygiene.io/everything-unused" in looked.stdout
    demo.process.send_signal(signal.SIGINT)
    demo.process.communicate(timeout=300)
    assert demo.process.returncode == 0
    assert eventually_nothing(demo)


def test_the_demo_fails_with_a_reckless_operator(scratch: Path) -> None:
    """An operator that deletes whatever is Empty fails at every Empty group that somebody needs, and only there.

    Except at the one that somebody asked to keep: the ledger is asked once more, whatever the judgement was. Nothing
    keeps it from deleting what was brought back.
    """
    needed = EMPTY_AND_NEEDED - {"old-billing"}
    demo = Demo(scratch, "--operator-command", RECKLESS)
    code, output = demo.finish()
    result = LAST_LINE.fullmatch(output.splitlines()[-1])
    assert result is not None
    assert int(result[2]) >= len(needed)
    assert code == 1
    groups = BY_POLICY | EMPTY_AND_NEEDED | IN_USE
    assert rows(output, "✗") & groups == needed
    assert rows(output, "✓") & groups == groups - needed
    assert output.count("the operator deleted it") >= len(needed - COMMITTING)
    # The numbers don't add up when clients make their deleted groups anew; the rest of the operator is as it was.
    assert "the dry run deleted nothing" in rows(output, "✓")
    assert "a consumer of that group goes on where it was" in rows(output, "✓")
    assert demo.left_behind() == []


@pytest.mark.parametrize(
    "progress",
    [
        pytest.param("making unused groups", id="servers-and-clients-start"),
        pytest.param("waiting for the marks", id="spark-runs"),
    ],
)
def test_ctrl_c_stops_everything(scratch: Path, progress: str) -> None:
    """Interrupted while parts of it are starting, or while all are at work, it ends soon and leaves nothing."""
    demo = Demo(scratch)
    assert demo.process.stderr is not None
    for line in demo.process.stderr:
        if progress in line:
            break
    assert ("SparkSubmit" in "".join(demo.left_behind())) == (progress == "waiting for the marks")
    demo.process.send_signal(signal.SIGINT)
    demo.process.communicate(timeout=300)
    assert demo.process.returncode == 130
    assert eventually_nothing(demo)
