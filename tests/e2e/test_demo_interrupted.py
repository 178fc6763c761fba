"""Ctrl-C in the middle of the demo leaves nothing behind."""

import signal
from pathlib import Path

import pytest

from tests.e2e.demo import Demo, eventually_nothing


@pytest.mark.parametrize(
    "progress",
    [
        pytest.param("making litter", id="servers-and-clients-start"),
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
