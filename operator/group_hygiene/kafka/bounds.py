"""Memory limits for the responses of brokers to one connection.

A tenant may run the broker. `process.memory` limits all connections together.
"""

from __future__ import annotations

from collections.abc import Iterator

from group_hygiene.process import memory
from group_hygiene.process.memory import TooMuch

# Clusters with very many groups need larger answers, and a pod with more memory; no cluster needs more than this.
_MOST = 2 << 30
MEMORY = min(memory.LIMIT, _MOST)
# One answer that the library decodes: its objects take up to 40 times as much, and seconds for each MiB. Its bytes
# count this many times.
DECODED_BYTES, DECODED_WEIGHT = 1 << 20, 20
# One answer that the operator decodes itself: with 512 Mi 16 MiB ...
FRAME_BYTES = MEMORY // 32
# ... for a list of groups twice that, some 700,000 groups of one broker, ...
LIST_BYTES = MEMORY // 16
# ... 64 MiB of answers to requests that are sent together, ...
ANSWER_BYTES = MEMORY // 8
# ... and a million groups, or committed offsets, in them.
ROWS = MEMORY // 512
# The code of a Fault for all answers together.
TOO_MUCH = "ANSWERS_TOO_LARGE"
# The code of a Fault for a connection to a broker that there is no memory for.
NO_ROOM = "MEMORY_EXHAUSTED"
# The client opens a connection to each of them.
BROKERS = 1_000

# Records: unpacked bytes of a batch and of a fetch, and the number of records.
_BATCH_BYTES, _FETCHED_BYTES, RECORDS = 16 << 20, 32 << 20, 250_000
# Of one batch for a worker of the pipeline: one that can't be read stops the ingest for good.
ALONE_BYTES = 128 << 20
# The memory of a row as objects, while the dictionary that it is in grows; that of one in this dictionary alone; and
# after how many rows memory is checked.
_ROW_BYTES, _GROWTH_BYTES, _ROWS_UNCHECKED = 200, 60, 20_000


class FetchBudget:
    """Limits for the records of one or more fetches: bytes after decompression, and the number of records."""

    def __init__(self) -> None:
        self._bytes, self._records = _FETCHED_BYTES, RECORDS

    @property
    def largest(self) -> int:
        """How many bytes the next batch may have."""
        return min(self._bytes, _BATCH_BYTES)

    def take(self, size: int, records: int) -> None:
        """Raises TooMuch if a batch of this size does not fit; then nothing is taken."""
        if size > self.largest or records > self._records:
            raise TooMuch(f"a batch of {records} records, unpacked at least {size} bytes, is too large to be read")
        self._bytes -= size
        self._records -= max(0, records)


class Rows:
    """Counts the rows of several answers together."""

    def __init__(self, most: int = ROWS) -> None:
        self._most = self._left = most
        self._unchecked = 0

    def take(self, count: int) -> None:
        """Raises TooMuch if there are more in total than allowed, or than there is memory for."""
        self._count(count)
        self._check(count, 0)

    def each(self, count: int) -> Iterator[int]:
        """As `take`, for rows that are decoded one after another. Most may share objects with others, so the memory is
        checked meanwhile. Yields their numbers.
        """
        self._count(count)
        for first in range(0, count, _ROWS_UNCHECKED):
            some = range(first, min(count, first + _ROWS_UNCHECKED))
            self._check(len(some), first)
            yield from some

    def _check(self, count: int, before: int) -> None:
        """before: how many rows the dictionary has, which may grow. Those of several answers count together."""
        self._unchecked += count
        if self._unchecked >= _ROWS_UNCHECKED:
            memory.require(
                self._unchecked * _ROW_BYTES + before * _GROWTH_BYTES, f"{self._unchecked} rows of an answer"
            )
            self._unchecked = 0

    def _count(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise TooMuch(f"more than {self._most} rows in the answers: give the operator more memory")

    def give_back(self, count: int) -> None:
        """Rows that were counted and are not held."""
        self._left += count
        self._unchecked = max(0, self._unchecked - count)
