"""Time: the wall clock for dates, elapsed seconds for durations, and turns of CPU time. Thread-safe.

Python runs one thread at a time. With hundreds that compute, the one that renews the Lease would come too late, and a
namespace with many connections would take nearly all time. So CPU-bound work of all connections is done a little at a
time, in turns by namespace.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol, TypeVar

_AT_ONCE = 2
# About how long a turn of `CpuTurns.each` takes.
_BLOCK_S = 0.05
T = TypeVar("T")


def elapsed() -> float:
    """Seconds since some moment, including time in which the process was stopped or the machine suspended.

    CLOCK_BOOTTIME on Linux, as CLOCK_MONOTONIC stops while the machine is suspended. One function for leadership,
    freshness and deadlines, since their seconds are compared with each other.
    """
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Clock(Protocol):
    """Wall time for dates; monotonic seconds for durations, which setting the clock does not change."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return elapsed()


class CpuTurns:
    """A turn is for the namespace that has used the least CPU time of those that wait."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._lock = threading.Lock()
        self._free = at_once
        self._waiting: dict[str, deque[threading.Event]] = {}
        # Seconds of CPU time by namespace, and of the one that had the last turn: one that begins to wait has no credit
        # from the time when it did not.
        self._used: dict[str, float] = {}
        self._level = 0.0

    @contextmanager
    def turn(self, namespace: str, count: Callable[[float], None] = lambda seconds: None) -> Iterator[None]:
        """Wait for a turn, and have it until the block ends. Blocks must be short, and must not wait for others.

        count: called with the seconds of CPU time that the block took.
        """
        ready = threading.Event()
        with self._lock:
            self._used[namespace] = max(self._used.get(namespace, 0.0), self._level)
            self._waiting.setdefault(namespace, deque()).append(ready)
            self._let_next()
        ready.wait()
        began = time.thread_time()
        try:
            yield
        finally:
            seconds = time.thread_time() - began
            with self._lock:
                self._used[namespace] = self._used.get(namespace, self._level) + seconds
                self._free += 1
                self._let_next()
            count(seconds)

    def each(self, namespace: str, items: Iterable[T], count: Callable[[float], bool]) -> Iterator[T]:
        """Yield the items, to be processed within turns that are short, whatever their number.

        count: called after each turn with its seconds of CPU time; False = yield no more.
        """
        left, seconds, is_over = iter(items), list[float](), False
        while not is_over:
            with self.turn(namespace, seconds.append):
                end = time.monotonic() + _BLOCK_S
                for item in left:
                    yield item
                    if time.monotonic() > end:
                        break
                else:
                    is_over = True
            if not count(seconds.pop()):
                return

    def _let_next(self) -> None:
        while self._free and self._waiting:
            namespace = min(self._waiting, key=lambda name: self._used[name])
            queue, self._level, self._free = self._waiting[namespace], self._used[namespace], self._free - 1
            queue.popleft().set()
            if not queue:
                del self._waiting[namespace]
        if not self._waiting and len(self._used) > 1_000:
            self._used = {name: used for name, used in self._used.items() if used > self._level}


TURNS = CpuTurns()
