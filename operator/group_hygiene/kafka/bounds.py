"""How much of what brokers answer may be in memory, by how much memory the process may take.

A broker may be anybody's. Each bound is a share of the container's limit, so that more memory also means more groups.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

# Of the container, cgroup v2 and v1; "max" = none.
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_MOST = 16_000_000_000


class TooMuch(Exception):
    """More bytes, records or rows than brokers' answers may hold."""


def _memory() -> int:
    """Bytes that this process may take: the least of the machine's, the container's and its own limits (setrlimit)."""
    limits = [_MOST, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUPS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):
            continue
    own = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return min([*limits, *(limit for limit in own if limit != resource.RLIM_INFINITY)])


MEMORY = _memory()
# One answer; the library's objects for it can take 17 times as much. With 512 Mi these are 16 MiB ...
FRAME_BYTES = MEMORY // 32
# ... 64 MiB of answers to requests that are sent together, ...
ANSWER_BYTES = MEMORY // 8
# ... and a million groups, or committed offsets, in what they say.
ROWS = MEMORY // 512


class Room:
    """What the records of one or more fetches may take: bytes after decompression, and how many there are.

    With 512 Mi: 64 MiB, of which one batch may have 16, and half a million records.
    """

    def __init__(self) -> None:
        self._bytes, self._records = MEMORY // 8, MEMORY // 1024

    @property
    def largest(self) -> int:
        """How many bytes the next batch may have."""
        return min(self._bytes, MEMORY // 32)

    def take(self, size: int, records: int) -> None:
        """Raises TooMuch where a batch of this size does not fit; then nothing is taken."""
        if size > self.largest or records > self._records:
            raise TooMuch(f"a batch of {records} records, unpacked at least {size} bytes, is too large to be read")
        self._bytes -= size
        self._records -= max(0, records)


class Rows:
    """Counts the rows of several answers together."""

    def __init__(self, most: int = ROWS) -> None:
        self._most = self._left = most

    def take(self, count: int) -> None:
        """Raises TooMuch where there are more in all than may be."""
        self._left -= count
        if self._left < 0:
            raise TooMuch(f"more than {self._most} groups or offsets in the answers: give the operator more memory")
