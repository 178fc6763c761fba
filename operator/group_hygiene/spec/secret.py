"""Secret texts that must not be shown, and references to Secrets. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Self
from urllib.parse import quote

import msgspec

# Of an error message of an object store.
_LENGTH = 300


class Hidden(str):
    """A secret text that no log, repr or message shows. `reveal` returns it for sending."""

    __slots__ = ()

    @classmethod
    def trimmed(cls, text: str) -> Self:
        """Without the line break that `kubectl create secret --from-file` and echo add."""
        return cls(text.rstrip("\r\n"))

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"

    def reveal(self) -> str:
        return "".join(self)


class SecretRef(msgspec.Struct, frozen=True):
    """One key of one Secret in the namespace of the object that names it."""

    name: str
    key: str


def one_line(text: str, hidden: Iterable[Hidden] = ()) -> str:
    """An error message of an object store on one line, without colours and secrets: it may quote signed requests."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    for value in hidden:
        for form in {value.reveal(), quote(value.reveal(), safe=""), quote(value.reveal())} - {""}:
            text = text.replace(form, "***")
    text = re.sub(r"\?[^\s\"')>]*", "?***", " ".join(text.split()))
    return text if len(text) <= _LENGTH else text[: _LENGTH - 3] + "..."
