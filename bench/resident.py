"""The memory of a process and all that it started, looked at again and again while they work. Needs /proc (Linux)."""

import os
import threading
from pathlib import Path
from typing import Self

_SECONDS = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Peak:
    """The most that a process, its descendants, and further processes without theirs held together, in MiB, meanwhile.

    What forked processes share counts for each of them: the sum is never too low.
    """

    def __init__(self, pid: int, *others: int) -> None:
        self._pid = pid
        self._others = others
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.mb = 0.0
        self.processes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            held = [_resident(pid) for pid in (*family(self._pid), *self._others)]
            self.mb = max(self.mb, sum(held) / 1024**2)
            self.processes = max(self.processes, len(held))
            if self._stop.wait(_SECONDS):
                return


def family(pid: int) -> list[int]:
    """A process and all that it, and they, have started and that still runs."""
    found = [pid]
    for parent in found:
        for task in _listed(Path(f"/proc/{parent}/task")):
            found += [int(child) for child in _text(task / "children").split()]
    return found


def _resident(pid: int) -> int:
    fields = _text(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * _PAGE if fields else 0


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    # A process may end at any time.
    try:
        return file.read_text()
    except OSError:
        return ""
