"""A page whose blocks of code are one session in a shell, and the shell to run them.

A block `sh` is run as a whole and prints nothing. A block `console` has commands after `$ `, each with its output.

Values that change from run to run (times, ages, ids, ports) count as equal.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue

_BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "--- that was it ---"
# Each is replaced by its name, in this order.
_CHANGING = {
    "TIME": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "CLUSTER": r"(?<![\w-])(?=\S*[A-Z])[A-Za-z0-9_-]{22}(?![\w-])",
    "UUID": r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    "NUMBER": r"(?<=perf-consumer-)\d+",
    "ADDRESS": r"127\.0\.0\.1:\d+",
    "AGE": r"\b(\d+d)?(\d+h)?(\d+m)?\d+s\b|\b\d+m\b",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and the lines that it prints. line: its line in the page."""

    line: int
    command: str
    output: tuple[str, ...]


class Shell:
    """One bash for all steps, so that variables and background jobs persist. `close` ends it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("bash without pipes")
        self._stdin, self._stdout = stdin, stdout
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(self, command: str, seconds: float) -> tuple[str, ...]:
        """Run a command; returns its stdout and stderr. Raises TimeoutError."""
        self._stdin.write(f"{command}\necho; echo '{_END}'\n")
        self._stdin.flush()
        lines: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=seconds)
            except Empty:
                raise TimeoutError(f"{command}\n{''.join(lines)}") from None
            if line == f"{_END}\n":
                # The empty line before the marker is ours.
                return tuple("".join(lines).removesuffix("\n").splitlines())
            lines.append(line)

    def close(self) -> None:
        """End the shell and its background jobs."""
        self._stdin.write("kill $(jobs -p) 2> /dev/null; wait\n")
        self._stdin.close()
        self._process.wait(60)
        self._reader.join(60)

    def _read(self) -> None:
        with self._stdout as stdout:
            for line in stdout:
                self._lines.put(line)


def steps(page: str) -> Iterator[Step]:
    """The blocks of a page in order, those of `console` command by command."""
    for block in _BLOCK.finditer(page):
        line = page[: block.start()].count("\n") + 2
        if block[1] == "sh":
            yield Step(line, block[2].rstrip("\n"), ())
            continue
        before, *parts = re.split(r"^\$ ", block[2], flags=re.MULTILINE)
        if before:
            raise ValueError(f"line {line}: output without a command")
        for part in parts:
            command, *output = part.splitlines()
            yield Step(line, command, tuple(output))
            line += 1 + len(output)


def comparable(lines: tuple[str, ...]) -> list[str]:
    """The lines with names in place of changing values, and single spaces between columns."""
    text = "\n".join(lines)
    for name, pattern in _CHANGING.items():
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return [re.sub(" +", " ", line).rstrip() for line in text.splitlines()]
