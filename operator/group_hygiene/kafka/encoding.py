"""Kafka's encoding of messages (KIP-482): what `__consumer_offsets` and the protocol are written in. Pure.

Reads what there is to tell and goes over the rest, and takes nothing that is not there. Imports nothing.
"""

from __future__ import annotations

from typing import Any

# A layout: so many bytes; "text", "text?" (may be null), "bytes"; [of an array's elements]; (of a structure's fields);
# a set with the one layout of a structure that may be null.
Layout = Any


class Misfit(ValueError):
    """The bytes are not what their layout says."""


class Reader:
    """Reads a message of Kafka's from its bytes (KIP-482 where `flexible`), and takes nothing that is not there."""

    __slots__ = ("at", "data", "flexible")

    def __init__(self, data: bytes, at: int, *, flexible: bool) -> None:
        self.data, self.at, self.flexible = data, at, flexible

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        if size < 0 or len(taken) != size:
            raise Misfit(f"{size} bytes are to follow at {self.at} of {len(self.data)}")
        self.at += size
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def text(self) -> str:
        size = self._length(2)
        if size is None:
            raise Misfit(f"a text that must be there is null at {self.at}")
        return self.take(size).decode()

    def text_or_null(self) -> str | None:
        size = self._length(2)
        return None if size is None else self.take(size).decode()

    def count(self) -> int:
        """The length of an array."""
        size = self._length(4)
        # Every element has a byte at least.
        if size is None or size > len(self.data) - self.at:
            raise Misfit(f"an array of {size} at {self.at} of {len(self.data)}")
        return size

    def skip(self, layout: Layout) -> None:
        """Go over a structure."""
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
                raise Misfit(f"a structure is neither there nor null at {self.at}")
            if present == 1:
                self.skip(next(iter(layout)))
        else:
            self._skip_sized(layout)

    def tagged(self) -> None:
        """Go over tagged fields: newer versions may add some, and older ones need none of them."""
        if self.flexible:
            for _ in range(self._unsigned()):
                self._unsigned()
                self.take(self._unsigned())

    def end(self) -> None:
        if self.at != len(self.data):
            raise Misfit(f"{len(self.data) - self.at} bytes are left over")

    def _skip_sized(self, layout: str) -> None:
        size = self._length(4 if layout == "bytes" else 2)
        if size is None:
            if layout != "text?":
                raise Misfit(f"what must be there is null at {self.at}")
        elif layout == "bytes":
            self.take(size)
        else:
            self.take(size).decode()

    def _length(self, width: int) -> int | None:
        size = self._unsigned() - 1 if self.flexible else self.number(width)
        if size < -1:
            raise Misfit(f"a length of {size} at {self.at}")
        return None if size == -1 else size

    def _unsigned(self) -> int:
        """org.apache.kafka.common.utils.ByteUtils.readUnsignedVarint: seven bits a byte, the lowest first."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Misfit(f"a number of more than five bytes at {self.at}")
