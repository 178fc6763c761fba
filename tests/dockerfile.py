"""A Dockerfile, carried out without an engine for containers: its copies and its steps, in an empty folder.

Of the base image and of Debian's packages there is nothing: Python, Java and Maven are those of this machine.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "deploy" / "images"
_STEPS = "/src/deploy/images/steps.sh"
# `packages` has the names of Debian's packages.
_STEP = re.compile(rf"(?:--mount=type=secret,id=\w+ )*{re.escape(_STEPS)} (\w+)(?: [a-z0-9-]+)*")


def instructions(file: Path) -> list[tuple[str, str]]:
    """Its instructions in order, each with what follows it; comments left out."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def steps(file: Path) -> list[str]:
    """What RUN runs: stages of steps.sh, and nothing else."""
    lines = [rest for name, rest in instructions(file) if name == "RUN"]
    found = [_STEP.fullmatch(line) for line in lines]
    assert lines
    assert all(found), lines
    return [match[1] for match in found if match]


def carry_out(file: Path, scratch: Path, environment: Mapping[str, str], leave_out: Collection[str] = ()) -> Path:
    """The root of its last stage: `scratch`/root, like that of each stage while it is made. leave_out: of its steps."""
    root, made, name = scratch / "root", dict[str, Path](), ""
    for instruction, rest in instructions(file):
        words = [] if instruction == "ARG" else shlex.split(rest)
        if instruction == "FROM":
            if root.exists():
                made[name] = root.rename(scratch / name)
            name = words[-1]
            root.mkdir()
        elif instruction == "COPY":
            whose = made[words.pop(0).partition("=")[2]] if words[0].startswith("--from") else ROOT
            for word in words[:-1]:
                _copy(whose / word.lstrip("/"), root / words[-1].lstrip("/"), into=words[-1].endswith("/"))
        elif instruction == "RUN" and (step := _step(rest)) not in {"packages", *leave_out}:
            _run(root, step, environment)
    return root


def _step(line: str) -> str:
    found = _STEP.fullmatch(line)
    assert found is not None, line
    return found[1]


def _copy(source: Path, target: Path, into: bool) -> None:
    if source.is_dir():
        # As an image does it: a link stays one, and what it points to must be copied too.
        ignored = shutil.ignore_patterns("__pycache__") if source.is_relative_to(ROOT) else None
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        return
    target = target / source.name if into else target
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _run(root: Path, step: str, environment: Mapping[str, str]) -> None:
    """With no variable of ours but these: what a step needs besides, it must find by itself."""
    scratch = root / "tmp"
    scratch.mkdir(exist_ok=True)
    python = Path(os.path.realpath(sys.executable)).parent
    path = {"PATH": f"{python}:/usr/local/bin:/usr/bin:/bin", "HOME": str(scratch), "TMPDIR": str(scratch)}
    argv: list[str | Path] = [root / _STEPS.lstrip("/"), step]
    clean = {**path, "ROOT": str(root), **environment}
    done = subprocess.run(argv, env=clean, cwd=scratch, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{step}: {done.stdout}{done.stderr}"
