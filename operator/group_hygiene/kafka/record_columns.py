"""Many records of a log at once, by numpy: a column for each of their fields. Pure, imported by Spark's workers."""

from __future__ import annotations

from collections.abc import Sequence
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

    def take(self, taken: Truths | slice) -> Slices:
        """Of these records only."""
        return self._replace(starts=self.starts[taken], ends=self.ends[taken], valid=self.valid[taken])

    def cell(self, row: int) -> bytes | None:
        return self.data[self.starts[row] : self.ends[row]].tobytes() if self.valid[row] else None

    def number(self, at: Numbers, size: int) -> Numbers:
        """The signed big-endian numbers of `size` bytes at these positions; any value outside of the data."""
        if len(self.data) < size:
            return np.zeros(len(at), np.int64)
        kind = np.uint8 if size == 1 else np.dtype(f">i{size}")
        anywhere = np.ndarray((len(self.data) - size + 1,), kind, self.data, 0, (1,))
        found: Numbers = anywhere[np.clip(at, 0, len(anywhere) - 1)].astype(np.int64)
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
