"""The memory of this process: its limit, its use, and which run may read large answers now.

The limits of one connection don't limit all of them together. So runs that need more than a small amount take turns,
and an answer for which too little memory is left is refused before it is read.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# The container's limit, cgroup v2 and v1; "max" = none.
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")
# 1/20 of the limit is never used for answers: a run needs other memory, too.
_RESERVE_SHARE = 20
# Bytes that a run may read without a turn; a small cluster needs far less.
FREE_BYTES = 4 << 20
# Bytes between two checks of the memory that is left, and bytes that must be left then.
_STEP, _STEP_NEEDS = 1 << 20, 16 << 20
# An answer of at most so many bytes is decoded without a turn. The objects of a larger one take several times as much.
DECODED_FREELY = 64 << 10
_POLL_SECONDS = 0.5
# Bytes that other processes of the container may take now.
_lent: list[int] = []
_lending = threading.Lock()
# How long a large reservation waits for others to end, and the share of the limit that it leaves to small ones.
_ROOM_SECONDS, _SMALL_SHARE = 10.0, 16
# An owner whose turns are long waits longer: each second of its last turn counts as so many since it was served.
_LONG_TURNS = 10
# 1/5 of a run's reservation stays after its end, for the observations of groups.
_REMEMBERED_SHARE = 5
# mallopt(3): M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX.
_MALLOC = {-1: 1 << 20, -3: 256 << 10, -8: 2}


class TooMuch(Exception):
    """An answer has more bytes, records or rows than allowed, or than memory is left for."""


def _limits() -> Iterator[int]:
    """The limits of the machine and the container, in bytes."""
    yield _PAGE * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUPS:
        with suppress(OSError, ValueError):
            yield int(path.read_text())


def _own_limit(kind: int) -> int:
    soft = resource.getrlimit(kind)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


_RESIDENT, _DATA, _ADDRESSES = min(_limits()), _own_limit(resource.RLIMIT_DATA), _own_limit(resource.RLIMIT_AS)
# Bytes that this process may use.
LIMIT = min(_RESIDENT, _DATA, _ADDRESSES)


def _used() -> int:
    """Bytes of LIMIT that are in use; 0 if the system does not report it."""
    try:
        size, resident, _, _, _, data, _ = (int(field) * _PAGE for field in _STATM.read_text().split())
    except (OSError, ValueError):
        return 0
    return LIMIT - min(_RESIDENT - resident, _DATA - data, _ADDRESSES - size)


class _Reserved:
    """Bytes that runs reserve until they end, and the part that stays afterwards.

    Memory that a run freed often stays with the process, and the next run uses it again. So reservations are added to
    the use before the first run, not to the current use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base = 0
        self.total = 0

    @property
    def expected(self) -> int:
        """Bytes in use once all reservations are used up; 0 = nothing is reserved."""
        return self._base + self.total if self.total else 0

    def begin(self) -> None:
        """A run begins: what is in use before the first one is in use beside all reservations."""
        with self._lock:
            self._base = self._base or _used()

    def add(self, size: int, instead_of: int, leaving: int, what: str) -> None:
        """Reserve `size` bytes in place of `instead_of`. Raises TooMuch unless `leaving` bytes are left then."""
        with self._lock:
            used = _used()
            together = max(used, self._base + self.total - instead_of + size)
            if together + sum(_lent) + leaving + _reserve() > LIMIT:
                raise _too_much(what)
            self.total += size - instead_of

    def remove(self, size: int) -> None:
        with self._lock:
            self.total -= size

    def has_more(self, own: int) -> bool:
        """Whether other runs hold reservations beside these `own` bytes, and will release them."""
        return self.total > own


_reserved = _Reserved()


def _reserve() -> int:
    return LIMIT // _RESERVE_SHARE


def left() -> int:
    """How many more bytes may be used; reservations count as used."""
    return LIMIT - max(_used(), _reserved.expected) - sum(_lent) - _reserve()


def _too_much(what: str) -> TooMuch:
    return TooMuch(f"{what} would take more memory than the operator has left: give it more, or fewer groups")


def require(size: int, what: str) -> None:
    """Raises TooMuch unless so many bytes are left. what: their purpose."""
    if size > left():
        raise _too_much(what)


@contextmanager
def lent(size: int, what: str) -> Iterator[None]:
    """Count as used, meanwhile, the bytes that another process of the container may take.

    Raises TooMuch if they are not left.
    """
    with _lending:
        require(size, what)
        _lent.append(size)
    try:
        yield
    finally:
        with _lending:
            _lent.remove(size)


def return_freed() -> None:
    """Let glibc return freed memory to the system at once; other C libraries are left as they are."""
    _call_libc(lambda libc: [libc.mallopt(option, value) for option, value in _MALLOC.items()])


def _call_libc(call: Callable[[ctypes.CDLL], object]) -> None:
    # Other C libraries lack these functions.
    with suppress(OSError, AttributeError):
        call(ctypes.CDLL(None))


class MemoryTurn:
    """is_over: it was ended because another owner waited for too long; further reads must be refused."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.began = 0.0
        self.is_over = False


class MemoryTurns:
    """A fair semaphore with `slots`: among waiting owners, the one that was served longest ago is next.

    Where turns have a limit, an owner whose last one was long comes after those whose turns are short, until it has
    waited 10 times as long. So these wait for one long turn, hardly ever for several. With several slots, one owner
    holds at most all but one, so others never wait for it alone.
    """

    def __init__(self, slots: int = 1, seconds: float = math.inf) -> None:
        """seconds: after this time, a turn ends if another owner waits."""
        self._slots, self._seconds = slots, seconds
        self._changed = threading.Condition()
        self._running: list[MemoryTurn] = []
        self._waiting: list[MemoryTurn] = []
        # Owner -> when it was served, or later (see `_LONG_TURNS`).
        self._served: dict[str, float] = {}

    def take(self, owner: str, seconds: float) -> MemoryTurn:
        """Wait for a turn, `seconds` at most. Raises TimeoutError."""
        turn, end = MemoryTurn(owner), time.monotonic() + seconds
        with self._changed:
            self._waiting.append(turn)
            try:
                while not self._is_next(turn):
                    rest = end - time.monotonic()
                    if rest <= 0:
                        raise TimeoutError
                    self._changed.wait(min(rest, _POLL_SECONDS))
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
            turn.began = self._served[owner] = time.monotonic()
            self._running.append(turn)
        return turn

    def give_back(self, turn: MemoryTurn) -> None:
        """Release a turn, also one that is over."""
        with self._changed:
            if turn in self._running:
                self._end(turn)
            self._changed.notify_all()

    @contextmanager
    def held(self, owner: str, seconds: float) -> Iterator[None]:
        """`take`, and `give_back` at the end."""
        turn = self.take(owner, seconds)
        try:
            yield
        finally:
            self.give_back(turn)

    def _end(self, turn: MemoryTurn) -> None:
        now = time.monotonic()
        self._running.remove(turn)
        # Without waiting owners a turn may last for an hour, and delays no owner.
        counted = 0.0 if math.isinf(self._seconds) else min(now - turn.began, self._seconds)
        self._served[turn.owner] = now + _LONG_TURNS * counted

    def _is_next(self, turn: MemoryTurn) -> bool:
        if len(self._running) == self._slots:
            oldest = min(self._running, key=lambda each: each.began)
            if time.monotonic() - oldest.began <= self._seconds:
                return False
            oldest.is_over = True
            self._end(oldest)
        held = Counter(each.owner for each in self._running)
        able = [each for each in self._waiting if self._slots == 1 or held[each.owner] < self._slots - 1]
        return bool(able) and turn is min(able, key=lambda each: self._served.get(each.owner, 0.0))


# Large reservations wait one at a time.
_room = MemoryTurns()
# Large answers are decoded two at a time, one of an owner.
_decoding = MemoryTurns(slots=2)


class Intake:
    """The memory that one run of a connection takes: all answers together, and reservations for results.

    turns: None = there are no other connections to share the memory with.
    """

    def __init__(self, owner: str = "", turns: MemoryTurns | None = None) -> None:
        self.owner, self._turns = owner, turns
        _reserved.begin()
        self._lock = threading.Lock()
        self._turn: MemoryTurn | None = None
        self._bytes, self._next_check = 0, FREE_BYTES
        # Reservations of this run, and the part that stays of earlier ones.
        self._reserved = self._remembered = 0

    def reserve(self, size: int, what: str, seconds: float) -> None:
        """Reserve bytes that the run needs beside the answers, until it ends. what: their purpose.

        Beyond FREE_BYTES it waits for other reservations to end, `seconds` or 10 s at most, and leaves some memory to
        small ones. Raises TooMuch if there is not enough memory then.
        """
        leaving = LIMIT // _SMALL_SHARE
        if self._reserved + size <= FREE_BYTES:
            self._add(size, 0, what)
            return
        try:
            with _room.held(self.owner, seconds):
                end = time.monotonic() + min(seconds, _ROOM_SECONDS)
                while True:
                    try:
                        self._add(size, leaving, what)
                        return
                    except TooMuch:
                        if time.monotonic() >= end or not _reserved.has_more(self._reserved + self._remembered):
                            raise
                    time.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise TooMuch(f"other connections use too much memory, so none was left in time for {what}") from None

    def _add(self, size: int, leaving: int, what: str) -> None:
        """The new reservation includes the part that stayed of the last run."""
        _reserved.add(size, self._remembered, leaving, what)
        self._reserved += size
        self._remembered = 0

    def __del__(self) -> None:
        _reserved.remove(self._reserved + self._remembered)

    def take(self, size: int, seconds: float) -> None:
        """Count bytes before they are read; beyond FREE_BYTES wait for a turn, `seconds` at most.

        Raises TooMuch if no turn came, if it is over, or if too little memory is left.
        """
        with self._lock:
            self._bytes += size
            if self._bytes < self._next_check:
                return
            self._next_check = self._bytes + _STEP
            if self._turn is None and self._turns is not None:
                try:
                    self._turn = self._turns.take(self.owner, seconds)
                except TimeoutError:
                    self._next_check = self._bytes
                    raise TooMuch("other connections read large answers, and no turn came in time") from None
            if self._turn is not None and self._turn.is_over:
                self._next_check = self._bytes
                raise TooMuch("reading large answers took too long while other connections waited")
            require(size + _STEP_NEEDS, "a large answer")

    @contextmanager
    def decoding(self, size: int, seconds: float) -> Iterator[None]:
        """Decode an answer of `size` bytes: beyond DECODED_FREELY wait for a turn, `seconds` at most.

        Within it, don't call `take` or `reserve`, which wait for other turns. Raises TooMuch if no turn came.
        """
        if size <= DECODED_FREELY or self._turns is None:
            yield
            return
        with ExitStack() as turn:
            try:
                turn.enter_context(_decoding.held(self.owner, seconds))
            except TimeoutError:
                raise TooMuch("other connections decode large answers, and no turn came in time") from None
            yield

    def end(self) -> None:
        """At the end of a run: release its memory."""
        with self._lock:
            self._bytes, self._next_check = 0, FREE_BYTES
            turn, self._turn = self._turn, None
            reserved, self._reserved = self._reserved, 0
        if turn is not None or reserved > FREE_BYTES:
            if turn is not None or reserved > LIMIT // _SMALL_SHARE:
                # An error and the request that failed with it refer to each other, and to the answer. For small runs it
                # is not worth the time, in which no thread runs.
                gc.collect()
            _call_libc(lambda libc: libc.malloc_trim(0))
        if reserved:
            self._remembered = reserved // _REMEMBERED_SHARE
            _reserved.remove(reserved - self._remembered)
        if turn is not None and self._turns is not None:
            self._turns.give_back(turn)
