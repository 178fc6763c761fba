"""How much of what brokers answer one connection may have in memory.

A broker may be any tenant's. What all connections have together is the subject of `memory`.
"""

from __future__ import annotations

from group_hygiene import memory
from group_hygiene.memory import TooMuch

__all__ = [
    "ANSWER_BYTES",
    "BROKERS",
    "DECODED_BYTES",
    "DECODED_WEIGHT",
    "FRAME_BYTES",
    "MEMORY",
    "ROWS",
    "Room",
    "Rows",
    "TooMuch",
]

# Clusters with very many groups need larger answers, and a pod with more memory; more than this serves nobody.
_MOST = 2 << 30
MEMORY = min(memory.LIMIT, _MOST)
# One answer that the library decodes: its objects take up to 40 times as much, and seconds for each MiB. So many times
# its bytes count.
DECODED_BYTES, DECODED_WEIGHT = 1 << 20, 20
# One answer that is read from its bytes: with 512 Mi 16 MiB ...
FRAME_BYTES = MEMORY // 32
# ... 64 MiB of answers to requests that are sent together, ...
ANSWER_BYTES = MEMORY // 8
# ... and a million groups, or committed offsets, in what they say.
ROWS = MEMORY // 512
# A connection is made to each of them.
BROKERS = 1_000

# Records: unpacked bytes of a batch and of a fetch, and how many records there are.
_BATCH_BYTES, _FETCHED_BYTES, _RECORDS = 16 << 20, 32 << 20, 250_000
# What a row takes as objects, with its entries in dictionaries, until a run has chosen among them; so many may come
# before memory is looked at.
_ROW_BYTES, _ROWS_UNLOOKED = 600, 20_000


class Room:
    """What the records of one or more fetches may take: bytes after decompression, and how many there are."""

    def __init__(self) -> None:
        self._bytes, self._records = _FETCHED_BYTES, _RECORDS

    @property
    def largest(self) -> int:
        """How many bytes the next batch may have."""
        return min(self._bytes, _BATCH_BYTES)

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
        self._unlooked = 0

    def take(self, count: int) -> None:
        """Raises TooMuch where there are more in all than may be, or than there is memory for."""
        self._left -= count
        if self._left < 0:
            raise TooMuch(f"more than {self._most} rows in the answers: give the operator more memory")
        self._unlooked += count
        if self._unlooked > _ROWS_UNLOOKED:
            memory.require(self._unlooked * _ROW_BYTES, f"{self._unlooked} rows of an answer")
            self._unlooked = 0
