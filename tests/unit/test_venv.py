"""The Makefile's set-up of .venv, with a pip in place of the real one, which takes minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = """#!/bin/sh
case $* in *deploy/requirements.lock*) ;; *) exit 0;; esac
echo "Collecting a==1 (from -r deploy/requirements.lock (line 1))"
echo "  Downloading a-1.whl (1 kB)"
echo "Collecting b==2 (from -r deploy/requirements.lock (line 2))"
[ $1 = fail ] && echo "ERROR: no matching distribution" >&2 && exit 1
echo "Installing collected packages: a, b"
"""


@pytest.mark.parametrize(("fails", "printed"), [(False, "..\ninstalling them\n"), (True, "..")])
def test_progress(tmp_path: Path, fails: bool, printed: str) -> None:
    """How many packages there are, a dot for each, and pip's error, which ends it."""
    programs, stamp = tmp_path / "bin", tmp_path / "stamp"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    (programs / "pip").write_text(PIP.replace("$1 = fail", "1 = 1" if fails else "1 = 0"))
    (programs / "pip").chmod(0o755)
    given = [f"VENV={tmp_path}", f"STAMP={stamp}", f"PYTHON={sys.executable}"]
    done = subprocess.run(
        ["make", "--no-print-directory", *given, str(stamp)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    first, _, rest = done.stdout.partition("\n")
    assert first.startswith(f"setting up {tmp_path} (once")
    assert int(first.split()[-2]) > 100
    assert rest == printed
    assert (done.returncode != 0, "no matching distribution" in done.stderr, stamp.exists()) == (
        fails,
        fails,
        not fails,
    )
