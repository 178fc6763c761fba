"""Many records of a log at once, by numpy: a column for each of their fields. Pure, imported by Spark's workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]


class Slices(NamedTuple):
    """The keys, or the values, of some records: where each begins and ends in the data, in the order of the records.

    valid: False = null.
    """

    data: npt.NDArray[np.uint8]
    starts: Numbers
    ends: Numbers
    valid: Truths

    @classmethod
    def of(cls, cells: Sequence[bytes | None]) -> Slices:
        ends = np.cumsum(np.fromiter((len(cell or b"") for cell in cells), np.int64, len(cells)))
        # `take` needs at least one byte.
        data = np.frombuffer(b"".join([*(cell or b"" for cell in cells), b"\0"]), np.uint8)
        valid = np.fromiter((cell is not None for cell in cells), np.bool_, len(cells))
        return cls(data, np.concatenate([np.zeros(1, np.int64), ends])[:-1], ends, valid)

    def take(self, taken: Numbers | Truths | slice) -> Slices:
        """Of these records only."""
        return self._replace(starts=self.starts[taken], ends=self.ends[taken], valid=self.valid[taken])

    def cells(self) -> Iterator[bytes | None]:
        data, places = self.data.data, (self.starts.tolist(), self.ends.tolist(), self.valid.tolist())
        for start, end, valid in zip(*places, strict=True):
            yield data[start:end].tobytes() if valid else None

    def number(self, at: Numbers, size: int) -> Numbers:
        """The signed big-endian numbers of `size` bytes at these positions; any value outside of the data."""
        if len(self.data) < size:
            return np.zeros(len(at), np.int64)
        kind = np.uint8 if size == 1 else np.dtype(f">i{size}")
        anywhere = np.ndarray((len(self.data) - size + 1,), kind, self.data, 0, (1,))
        found: Numbers = anywhere[np.clip(at, 0, len(anywhere) - 1)].astype(np.int64)
        return found


class Cursor:
    """Reads the cells field by field, all at once: numbers, and texts after their length in two bytes.

    fits: False = the cell is null, or one of its lengths is impossible.
    """

    def __init__(self, cells: Slices) -> None:
        self._cells, self._at, self.fits = cells, cells.starts, cells.valid

    def number(self, size: int) -> Numbers:
        self._at = self._at + size
        return self._cells.number(self._at - size, size)

    def text(self, *, nullable: bool = False, width: int = 2) -> Slices:
        """width: bytes of the length."""
        size = self.number(width)
        self.fits = self.fits & (size >= (-1 if nullable else 0))
        start, self._at = self._at, self._at + np.maximum(size, 0)
        return Slices(self._cells.data, start, self._at, size >= 0)

    def whole(self) -> Truths:
        """Whether each cell ends here."""
        found: Truths = self.fits & (self._at == self._cells.ends)
        return found

    def part(self, taken: Truths) -> Cursor:
        """At the same place, of these cells only."""
        found = Cursor(self._cells.take(taken))
        found._at, found.fits = self._at[taken], self.fits[taken]
        return found


class Records(NamedTuple):
    """The records of some successive batches in the order of the log, without transaction markers.

    times: in milliseconds since 1970, -1 = none. aborted: of an aborted transaction. next: the offset to continue from.
    """

    offsets: Numbers
    times: Numbers
    aborted: Truths
    keys: Slices
    values: Slices
    next: int

    def between(self, start: int, end: int) -> Records:
        """Of the offsets from `start` to before `end` only."""
        taken = (self.offsets >= start) & (self.offsets < end)
        return self if taken.all() else self.take(taken)

    def take(self, taken: Truths) -> Records:
        """Of these records only."""
        numbers = self.offsets[taken], self.times[taken], self.aborted[taken]
        return Records(*numbers, self.keys.take(taken), self.values.take(taken), self.next)
