"""The numbers of a report, as JSON beside its page: with them, a later report says what has changed."""

from __future__ import annotations

from datetime import datetime

import msgspec

from group_hygiene.errors import UsageError
from group_hygiene.report.findings import Findings

_VERSION = 1


class _Counts(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """groups: existing ones."""

    groups: int
    idle: int
    offsets: int
    idle_offsets: int
    came: int
    went: int
    cleaned: int


class UnitNumbers(_Counts, frozen=True, rename="camel", kw_only=True):
    """Of a `findings.Unit`."""

    pattern: str
    owner: str
    program: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.pattern, self.owner, self.program


class Numbers(_Counts, frozen=True, rename="camel", kw_only=True):
    """Of `findings.Findings`. version: of this file; units: without the `others`."""

    version: int = 0
    cluster_id: str
    read_at: datetime
    since: datetime
    units: tuple[UnitNumbers, ...]
    others: int

    def of(self, unit: tuple[str, str, str]) -> UnitNumbers | None:
        """None = it was none of the units with the most idle offsets."""
        return next((each for each in self.units if each.key == unit), None)


def encode(findings: Findings) -> str:
    numbers = msgspec.structs.replace(msgspec.convert(findings, Numbers, from_attributes=True), version=_VERSION)
    return msgspec.json.format(msgspec.json.encode(numbers), indent=2).decode() + "\n"


def decode(text: bytes, source: str) -> Numbers:
    """Raises UsageError if these are not the numbers of a report."""
    try:
        numbers = msgspec.json.decode(text, type=Numbers)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{source} is not the JSON that `report` writes beside its page: {error}") from error
    if numbers.version != _VERSION or numbers.read_at.tzinfo is None:
        raise UsageError(f"{source} is of another version of this program")
    return numbers
