"""Secret texts that nothing shows, and where in Kubernetes they are. No I/O."""

from __future__ import annotations

from typing import NamedTuple, Self


class Hidden(str):
    """A secret text that no log, repr or message shows. `reveal` gives it to the one who must send it."""

    __slots__ = ()

    @classmethod
    def trimmed(cls, text: str) -> Self:
        """Without the line end that `kubectl create secret --from-file` and echo leave, and that no password has."""
        return cls(text.rstrip("\r\n"))

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"

    def reveal(self) -> str:
        return "".join(self)


class SecretRef(NamedTuple):
    """One key of one Secret in the namespace of the object that names it."""

    name: str
    key: str
