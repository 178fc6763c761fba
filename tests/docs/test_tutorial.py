"""docs/tutorial.md does what it shows: its lines, one after the other, in a shell against the sandbox."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docsite.transcript import Shell, comparable, steps
from testing.sandbox.waiting import wait_for

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
# On a machine that is busy with other tests; `kubectl wait` in the page says by itself when it has had enough.
PATIENCE = 300.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """What `make sandbox` leaves to the second terminal: a checkout with .venv, and .sandbox/env while both are up."""
    # A copy, so that a sandbox which somebody has up in this folder is left alone.
    for name in ("testing", "crds", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    up = subprocess.Popen([sys.executable, "-m", "testing.sandbox", "up"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: (tmp_path / ".sandbox" / "env").exists() or up.poll() is not None, seconds=PATIENCE)
        assert up.poll() is None
        yield tmp_path
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(PATIENCE)


@pytest.mark.slow
def test_the_tutorial_does_what_it_shows(folder: Path) -> None:
    """Each command prints what the page shows, but for times, ages, ids and addresses."""
    first, *others = steps(PAGE)
    assert first.command == "make sandbox"
    assert "sandbox:" in (ROOT / "Makefile").read_text()
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("GROUP_HYGIENE_", "KUBECONFIG"))}
    shell = Shell(folder, {**ours, "PYTHONPATH": f"{ROOT / 'operator'}"})
    try:
        for step in others:
            said = shell.run(step.command, PATIENCE)
            assert comparable(said) == comparable(step.output), f"docs/tutorial.md:{step.line}: {step.command}"
    finally:
        shell.close()


def test_what_changes_counts_as_equal_and_nothing_else_does() -> None:
    """Times, ages, ids and addresses of another run; not another name, number or verdict."""
    shown = ("main  srO9dazUQsq7IZEOz-304w  127.0.0.1:1  9s   2026-11-22T09:05:08Z", "consumer-11873  4")
    again = ("main  ZxwkhvQEQWiTK3bl8Wr3aw  127.0.0.1:2  1m3s 2030-01-31T12:00:00Z", "consumer-11873  4")
    assert comparable(shown) == comparable(again)
    assert comparable(shown) != comparable((shown[0], "consumer-40216  4"))
    assert comparable(shown) != comparable((shown[0], "consumer-11873  5"))
