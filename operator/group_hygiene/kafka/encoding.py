"""Reads Kafka's encoding of messages (KIP-482), which `__consumer_offsets` and the protocol use. Pure.

Checks that every byte belongs to the expected layout. Imports nothing.
"""

from __future__ import annotations

from typing import Any

# A layout: a number of bytes; "text", "text?" (may be null), "bytes"; [layout of an array's elements]; (layouts of a
# struct's fields); a set with the one layout of a struct that may be null.
Layout = Any


_SHIFTS = (0, 7, 14, 21, 28)


class LayoutError(ValueError):
    """The bytes do not fit the expected layout."""


class Reader:
    """Reads a message of Kafka from its bytes, with KIP-482's encoding if `flexible`. Raises LayoutError."""

    __slots__ = ("at", "data", "flexible")

    def __init__(self, data: bytes, at: int, *, flexible: bool) -> None:
        self.data, self.at, self.flexible = data, at, flexible

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        if size < 0 or len(taken) != size:
            raise LayoutError(f"{size} bytes should follow at {self.at} of {len(self.data)}")
        self.at += size
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def text(self) -> str:
        size = self._length(2)
        if size is None:
            raise LayoutError(f"a required text is null at {self.at}")
        return self.take(size).decode()

    def text_or_null(self) -> str | None:
        size = self._length(2)
        return None if size is None else self.take(size).decode()

    def count(self) -> int:
        """The length of an array whose elements are all in `data`."""
        size = self.announced()
        # Every element has at least one byte.
        if size > len(self.data) - self.at:
            raise LayoutError(f"an array of {size} at {self.at} of {len(self.data)}")
        return size

    def announced(self) -> int:
        """The length of an array."""
        size = self._length(4)
        if size is None:
            raise LayoutError(f"a required array is null at {self.at}")
        return size

    def skip(self, layout: Layout) -> None:
        """Skip a struct."""
        for each in layout:
            self.skip_field(each)
        self.tagged()

    def skip_field(self, layout: Layout) -> None:
        if isinstance(layout, int):
            self.take(layout)
        elif isinstance(layout, tuple):
            self.skip(layout)
        elif isinstance(layout, list):
            for _ in range(self.count()):
                self.skip_field(layout[0])
        elif isinstance(layout, frozenset):
            present = self.number(1)
            if present not in (-1, 1):
                raise LayoutError(f"a struct is neither present nor null at {self.at}")
            if present == 1:
                self.skip(next(iter(layout)))
        elif layout == "text":
            self.text()
        elif layout == "text?":
            self.text_or_null()
        elif (size := self._length(4)) is not None:
            self.take(size)
        else:
            raise LayoutError(f"a required value is null at {self.at}")

    def tagged(self) -> None:
        """Skip tagged fields: newer versions may add some, which older ones don't need."""
        if self.flexible:
            for _ in range(self._unsigned()):
                self._unsigned()
                self.take(self._unsigned())

    def end(self) -> None:
        if self.at != len(self.data):
            raise LayoutError(f"{len(self.data) - self.at} bytes are left over")

    def _length(self, width: int) -> int | None:
        size = self._unsigned() - 1 if self.flexible else self.number(width)
        if size < -1:
            raise LayoutError(f"a length of {size} at {self.at}")
        return None if size == -1 else size

    def _unsigned(self) -> int:
        """org.apache.kafka.common.utils.ByteUtils.readUnsignedVarint: seven bits a byte, the lowest first."""
        value = 0
        try:
            for shift in _SHIFTS:
                byte = self.data[self.at]
                self.at += 1
                if byte < 0x80:
                    return value | byte << shift
                value |= (byte & 0x7F) << shift
        except IndexError:
            raise LayoutError(f"a byte should follow at {self.at} of {len(self.data)}") from None
        raise LayoutError(f"a number of more than five bytes at {self.at}")
