"""The memory of this process: how much it may have and has, and who may take in much of it now.

Bounds of one connection do not bound all of them together. So what goes beyond a small amount in one run takes turns,
and is refused where too little memory is left, before it is read.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Of the container, cgroup v2 and v1; "max" = none.
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")
# What is never given to answers: a run needs some memory beside them.
_RESERVE_SHARE = 20
# What a run may take in without a turn; answers of a small cluster stay far below that.
FREE_BYTES = 4 << 20
# Bytes between two looks at how much memory is left, and how much there must be then.
_STEP, _STEP_NEEDS = 1 << 20, 16 << 20
_LOOK_SECONDS = 0.5
# What is lent to other processes of the same container now, in bytes.
_lent: list[int] = []
_lending = threading.Lock()
# How long who needs much waits until others end, and what is left for those who need little.
_ROOM_SECONDS, _SMALL_SHARE = 10.0, 16
# Of what a run reserves, so much stays when it has ended: what is remembered of groups.
_REMEMBERED_SHARE = 5
# mallopt(3): M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX.
_MALLOC = {-1: 1 << 20, -3: 256 << 10, -8: 2}


class TooMuch(Exception):
    """More bytes, records or rows than answers from outside may take, or than there is memory for now."""


def _limits() -> Iterator[int]:
    """The machine's, and the container's."""
    yield _PAGE * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUPS:
        with suppress(OSError, ValueError):
            yield int(path.read_text())


def _own_limit(kind: int) -> int:
    soft = resource.getrlimit(kind)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


_RESIDENT, _DATA, _ADDRESSES = min(_limits()), _own_limit(resource.RLIMIT_DATA), _own_limit(resource.RLIMIT_AS)
# Bytes that this process may take.
LIMIT = min(_RESIDENT, _DATA, _ADDRESSES)


def _used() -> int:
    """Bytes of LIMIT that are taken; 0 where the system does not say."""
    try:
        size, resident, _, _, _, data, _ = (int(field) * _PAGE for field in _STATM.read_text().split())
    except (OSError, ValueError):
        return 0
    return LIMIT - min(_RESIDENT - resident, _DATA - data, _ADDRESSES - size)


class _Reserved:
    """Bytes that runs said they will take until they end, and what stays of them.

    What a run freed is often still the process's, and taken again by the next one: so what is reserved is added to what
    the process had before any run, and not to what it has now.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base: int | None = None
        self.total = 0

    @property
    def expected(self) -> int:
        """What the process will have taken once all took what they reserved; 0 = nothing is reserved."""
        return (self._base or 0) + self.total if self.total else 0

    def add(self, size: int, instead_of: int, leaving: int, what: str) -> None:
        """Raises TooMuch where that is not left, with so many more."""
        with self._lock:
            used = _used()
            if self._base is None:
                self._base = used
            together = max(used, self._base + self.total - instead_of + size)
            if together + sum(_lent) + leaving + _kept_back() > LIMIT:
                raise _too_much(what)
            self.total += size - instead_of

    def remove(self, size: int) -> None:
        with self._lock:
            self.total -= size

    def has_more(self, own: int) -> bool:
        """Whether others than who has reserved so many have some, which they will give back."""
        return self.total > own


_reserved = _Reserved()


def _kept_back() -> int:
    return LIMIT // _RESERVE_SHARE


def left() -> int:
    """How many more bytes may be taken: what is reserved counts as taken, and some are kept back."""
    return LIMIT - max(_used(), _reserved.expected) - sum(_lent) - _kept_back()


def _too_much(what: str) -> TooMuch:
    return TooMuch(f"{what} would take more memory than the operator has left: give it more, or fewer groups")


def require(size: int, what: str) -> None:
    """Raises TooMuch where so many bytes, for `what`, are not left."""
    if size > left():
        raise _too_much(what)


@contextmanager
def lent(size: int, what: str) -> Iterator[None]:
    """Count as taken what another process of the same container may take meanwhile, in bytes.

    Raises TooMuch where that is not left.
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
    """Let the C library give freed memory back to the system at once, where it is glibc."""
    _call_libc(lambda libc: [libc.mallopt(option, value) for option, value in _MALLOC.items()])


def _trim() -> None:
    _call_libc(lambda libc: libc.malloc_trim(0))


def _call_libc(call: Callable[[ctypes.CDLL], object]) -> None:
    # Other C libraries lack these functions.
    with suppress(OSError, AttributeError):
        call(ctypes.CDLL(None))


class Turn:
    """is_over: another owner waited for too long, and what follows is to be refused."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.began = 0.0
        self.is_over = False


class Turns:
    """Lets `slots` of many run at a time; of those who wait, the owner that was served longest ago is next.

    With several slots, an owner has all but one of them at most: others never wait for one owner alone.
    """

    def __init__(self, slots: int = 1, seconds: float = math.inf) -> None:
        """seconds: after so long a turn ends when somebody waits."""
        self._slots, self._seconds = slots, seconds
        self._changed = threading.Condition()
        self._running: list[Turn] = []
        self._waiting: list[Turn] = []
        self._served: dict[str, float] = {}

    def take(self, owner: str, seconds: float) -> Turn:
        """Waits no longer than that. Raises TimeoutError."""
        turn, end = Turn(owner), time.monotonic() + seconds
        with self._changed:
            self._waiting.append(turn)
            try:
                while not self._is_next(turn):
                    rest = end - time.monotonic()
                    if rest <= 0:
                        raise TimeoutError
                    self._changed.wait(min(rest, _LOOK_SECONDS))
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
            turn.began = self._served[owner] = time.monotonic()
            self._running.append(turn)
        return turn

    def give_back(self, turn: Turn) -> None:
        """A turn that has ended, or was ended."""
        with self._changed:
            if turn in self._running:
                self._running.remove(turn)
            self._served[turn.owner] = time.monotonic()
            self._changed.notify_all()

    @contextmanager
    def held(self, owner: str, seconds: float) -> Iterator[None]:
        """`take`, and `give_back` at the end."""
        turn = self.take(owner, seconds)
        try:
            yield
        finally:
            self.give_back(turn)

    def _is_next(self, turn: Turn) -> bool:
        if len(self._running) == self._slots:
            oldest = min(self._running, key=lambda each: each.began)
            if time.monotonic() - oldest.began <= self._seconds:
                return False
            oldest.is_over = True
            self._running.remove(oldest)
        able = [each for each in self._waiting if self._may_have_another(each.owner)]
        return bool(able) and turn is min(able, key=lambda each: self._served.get(each.owner, 0.0))

    def _may_have_another(self, owner: str) -> bool:
        held = sum(each.owner == owner for each in self._running)
        return self._slots == 1 or held < self._slots - 1


# Who waits for room waits alone, and for as long as others may need to end.
_room = Turns()


class Intake:
    """What one connection takes in during one run, of all answers together, and what it makes of them.

    turns: None = the process has no other connections to share its memory with.
    """

    def __init__(self, owner: str = "", turns: Turns | None = None) -> None:
        self._owner, self._turns = owner, turns
        self._lock = threading.Lock()
        self._turn: Turn | None = None
        self._bytes, self._next_look = 0, FREE_BYTES
        # What this run said it will take, and what stays of earlier ones.
        self._reserved = self._remembered = 0

    def reserve(self, size: int, what: str, seconds: float) -> None:
        """Bytes that the run will take beside the answers, until it ends, for `what`.

        Beyond FREE_BYTES others that reserved some are waited for, no longer than that and 10 s, and some room is left
        for those who need little. Raises TooMuch where no room came.
        """
        leaving = LIMIT // _SMALL_SHARE
        if self._reserved + size <= FREE_BYTES:
            self._add(size, 0, what)
            return
        try:
            with _room.held(self._owner, seconds):
                end = time.monotonic() + min(seconds, _ROOM_SECONDS)
                while True:
                    try:
                        self._add(size, leaving, what)
                        return
                    except TooMuch:
                        if time.monotonic() >= end or not _reserved.has_more(self._reserved + self._remembered):
                            raise
                    time.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise TooMuch(f"other connections take much memory, and no room came in time for {what}") from None

    def _add(self, size: int, leaving: int, what: str) -> None:
        """What stayed of the last run is part of what this one takes."""
        _reserved.add(size, self._remembered, leaving, what)
        self._reserved += size
        self._remembered = 0

    def __del__(self) -> None:
        _reserved.remove(self._reserved + self._remembered)

    def take(self, size: int, seconds: float) -> None:
        """Count bytes that are about to be read; beyond FREE_BYTES wait for a turn, no longer than that.

        Raises TooMuch where no turn came, it is over, or too little memory is left.
        """
        with self._lock:
            self._bytes += size
            if self._bytes < self._next_look:
                return
            self._next_look = self._bytes + _STEP
            if self._turn is None and self._turns is not None:
                try:
                    self._turn = self._turns.take(self._owner, seconds)
                except TimeoutError:
                    self._next_look = self._bytes
                    raise TooMuch("other connections read large answers, and no turn came in time") from None
            if self._turn is not None and self._turn.is_over:
                self._next_look = self._bytes
                raise TooMuch("reading large answers took too long while other connections waited")
            require(size + _STEP_NEEDS, "a large answer")

    def end(self) -> None:
        """At the end of a run, when what it took in is needed no more."""
        with self._lock:
            self._bytes, self._next_look = 0, FREE_BYTES
            turn, self._turn = self._turn, None
            reserved, self._reserved = self._reserved, 0
        if turn is not None or reserved > FREE_BYTES:
            _trim()
        if reserved:
            self._remembered = reserved // _REMEMBERED_SHARE
            _reserved.remove(reserved - self._remembered)
        if turn is not None and self._turns is not None:
            self._turns.give_back(turn)
