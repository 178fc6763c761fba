"""Read the children, the state, the memory and the CPU time of processes from /proc. Linux only.

A process may end at any time: after that it has no children, no state and no memory, and took no time.
"""

import os
import re
import threading
from pathlib import Path
from typing import Self

_SECONDS = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and its running descendants."""
    found = [pid]
    for parent in found:
        for task in _listed(Path(f"/proc/{parent}/task")):
            found += [int(child) for child in _text(task / "children").split()]
    return found


def state(pid: int | str) -> str:
    """The state in proc(5): T stopped, Z zombie, ...; empty = the process does not exist.

    pid: `PID`, or `PID/task/TID` for a thread.
    """
    return "".join(_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1])


def memory_mb(pid: int, field: str) -> float:
    """A size from /proc/PID/status in MiB: VmRSS, what is resident now, or VmHWM, the most that ever was."""
    found = re.search(rf"^{field}:\s+(\d+) kB", _text(Path(f"/proc/{pid}/status")), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants, those included that have ended and were waited for by one of them."""
    # utime, stime, cutime, cstime; what stands before them ends with the name in parentheses.
    fields = (_text(Path(f"/proc/{member}/stat")).rpartition(")")[2].split()[11:15] for member in family(pid))
    return sum(int(ticks) for four in fields for ticks in four) / _TICKS


class Peak:
    """Within the context, measures the peak memory in MiB of a process, its descendants, and other given processes.

    mb: of all. started_mb: of the descendants. started: number of descendants.
    Memory that forked processes share counts for each: the sum is never too low.
    """

    def __init__(self, pid: int, *others: int) -> None:
        self._pid = pid
        self._others = others
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.mb = self.started_mb = 0.0
        self.started = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            started = [size for pid in family(self._pid)[1:] if (size := _resident_mb(pid))]
            held = sum(_resident_mb(pid) for pid in (self._pid, *self._others))
            self.mb = max(self.mb, held + sum(started))
            self.started_mb = max(self.started_mb, sum(started))
            self.started = max(self.started, len(started))
            if self._stop.wait(_SECONDS):
                return


def _resident_mb(pid: int) -> float:
    fields = _text(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * _PAGE / 1024**2 if fields else 0.0


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
