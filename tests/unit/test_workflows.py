"""The workflows, which nothing here can run: GitHub would take them, and what they call is there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.actionlint import lint

ROOT = Path(__file__).parents[2]
FILES = [*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("examples/**/*.yml")]
WORKFLOWS = [pytest.param(file, id=str(file.relative_to(ROOT))) for file in sorted(FILES)]


def _steps(file: Path) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(file.read_text())["jobs"].values():
        yield from job.get("steps", [])


def test_actionlint_takes_them(tmp_path: Path) -> None:
    """All of them, with the inputs of well-known actions, expressions and contexts; and it would see a mistake."""
    assert len(FILES) == 3
    checked = lint(sorted(FILES))
    assert (checked.returncode, checked.stdout) == (0, "")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text((ROOT / ".github" / "workflows" / "check.yml").read_text().replace("github.ref ", "github.rfe "))
    assert 'property "rfe" is not defined' in lint([wrong]).stdout


@pytest.mark.parametrize("file", WORKFLOWS)
def test_they_say_that_they_never_ran(file: Path) -> None:
    """Who reads one is told first."""
    header = "".join(line for line in file.read_text().partition("name:")[0].splitlines())
    assert re.search(r"[Nn]ever run", header)


@pytest.mark.parametrize("file", WORKFLOWS)
def test_actions_are_pinned_by_version(file: Path) -> None:
    """By a full one, not by the branch or the tag that moves."""
    used = [step["uses"] for step in _steps(file) if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", action)] == []


@pytest.mark.parametrize("file", WORKFLOWS)
def test_what_they_run_is_there(file: Path) -> None:
    """Each target of make, each script and each recipe; and bash can read each step."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in _steps(file):
        script = step.get("run", "")
        assert set(re.findall(r"\bmake ([a-z-]+)", script)) <= targets
        for path in re.findall(r"(?:^|\s)(\.ci/\S+|deploy/(?:images|kind)/\S+|\S+-config\.yaml)", script):
            assert (ROOT / path).is_file()
        shell = re.sub(r"\$\{\{.*?\}\}", "x", script)
        assert subprocess.run(["bash", "-n"], input=shell, text=True, check=False).returncode == 0
