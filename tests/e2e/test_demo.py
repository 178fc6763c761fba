"""The demo as a user runs it: it passes with this operator, stays up when told to, and leaves nothing behind."""

import os
import re
import signal
import subprocess
from pathlib import Path

from tests.e2e.demo import EMPTY_AND_NEEDED, IN_USE, LAST_LINE, LITTER, Demo, eventually_nothing, rows


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
    assert rows(output, "✓") >= LITTER | EMPTY_AND_NEEDED | IN_USE
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
