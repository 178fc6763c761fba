"""The results of worlds, stored for each state of the code, so that a second call goes on where the first one ended."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / ".worlds"
# What a result depends on.
_TESTING = ("testing/faults", "testing/sandbox", "testing/worlds")
_CODE = ("operator", "crds", "deploy/kustomize", "deploy/requirements.lock", *_TESTING)


@dataclass(frozen=True)
class Result:
    """One world. seconds: how long its life took. wrong, no_backup, silent: counts; problems: their texts, and others.

    not_run: what it needs and this machine lacks.
    """

    world: str
    seconds: float = 0.0
    deletions: int = 0
    wrong: int = 0
    no_backup: int = 0
    silent: int = 0
    problems: tuple[str, ...] = ()
    not_run: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was run, and all was as expected."""
        return not self.problems and not self.not_run


class Results:
    """A file of results, for the state of the code when the program started."""

    def __init__(self) -> None:
        self._file = _FOLDER / f"{_state()}.jsonl"

    def earlier(self) -> Mapping[str, Result]:
        """The worlds that passed before with the same code."""
        found: dict[str, Result] = {}
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            row = json.loads(line)
            result = Result(**row | {"problems": tuple(row["problems"])})
            found[result.world] = result
        return {name: result for name, result in found.items() if result.passed}

    def add(self, result: Result) -> None:
        """Store one more. One thread at a time."""
        _FOLDER.mkdir(exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def _state() -> str:
    """A hash of the code: of a commit, and of what differs from it."""
    parts = [["ls-tree", "HEAD", *_CODE], ["diff", "HEAD", "--", *_CODE]]
    done = [subprocess.run(["git", *part], cwd=_ROOT, capture_output=True, check=True).stdout for part in parts]
    return hashlib.sha256(b"\0".join(done)).hexdigest()[:16]
