"""Converts a judged spec into records: durations, references to Secrets, and no field that this version does not know.

No I/O.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Self, TypeVar
from urllib.parse import quote

import msgspec

from group_hygiene.errors import SpecError

T = TypeVar("T")
# msgspec reads a type's annotations at its first use, and crashes if two threads do that at once.
_ONE_AT_A_TIME = threading.Lock()
# Between the message of msgspec and the path that it adds.
_PATH = re.compile(r" - at (?:`key` in )?`\$(?=[^`]*`$)")


class SpecPart(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a spec, whose fields are spelled as in the CRD. Ignores unknown fields."""


class Decisive(SpecPart, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part that affects which groups are selected, how many, and by whom. Refuses unknown fields.

    The CRD may be of a later version: a field that restricts matches or deletions must not be ignored.
    """


class ObjectRef(SpecPart, frozen=True, rename="camel"):
    """The name of an object of a known kind. namespace: None = that of the object that refers to it."""

    name: str
    namespace: str | None = None


def convert(value: Any, wanted: type[T], field: str) -> T:
    """The value, which the CRD accepts, as a record. field: its path, as in `spec.access`.

    Raises SpecError, which names the field, if a later version of the CRD has a field that this version can't obey.
    """
    try:
        with _ONE_AT_A_TIME:
            return msgspec.convert(value, wanted, dec_hook=_decode)
    except UnicodeEncodeError:
        raise SpecError(f"{field} must be valid Unicode") from None
    except msgspec.ValidationError as error:
        message, *path = _PATH.split(str(error), maxsplit=1)
        message = message.replace("Object contains unknown field", "this version of the program does not know field")
        raise SpecError(f"{field}{''.join(path).removesuffix('`')}: {message}") from None


def is_namespace(text: str) -> bool:
    """Whether it is the name of a namespace: a DNS label (RFC 1123)."""
    return re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text) is not None


def _decode(wanted: type, value: Any) -> Any:
    """The types that msgspec does not know. msgspec adds the path to a ValueError, but not to a SpecError."""
    try:
        return parse_duration(value, "") if wanted is Duration else wanted(value, "")
    except SpecError as error:
        raise ValueError(str(error)) from None


# Durations as Prometheus writes them ("72h", "3d12h"), and times in Kubernetes' format. No I/O.

# docs/patterns.md describes it, and `make docs` writes it into the CRDs. The empty text matches, too.
DURATION = re.compile("([0-9]{1,4}d)?([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?([0-9]{1,5}ms)?")
_UNITS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DAY = 24 * _UNITS["h"]


class Duration(timedelta):
    """A duration of a spec. A type of its own, since msgspec reads a timedelta in ISO 8601."""


def parse_duration(text: str, field: str) -> Duration:
    """A duration ("72h", "3d12h", "1h30m", "500ms"); a day has 24 hours. Raises SpecError, which names `field`."""
    if not isinstance(text, str) or not text or not DURATION.fullmatch(text):
        raise SpecError(f"{field} must be a duration like 72h, 3d or 1h30m, not {text!r}")
    parts = re.findall(r"([0-9]+)(d|h|ms|m|s)", text)
    return Duration(milliseconds=sum(int(number) * _UNITS.get(unit, _DAY) for number, unit in parts))


def format_duration(value: timedelta) -> str:
    """A timedelta as the shortest Go-style duration: 259200 s -> "72h", 90 s -> "1m30s", 0 -> "0s"."""
    rest = value // timedelta(milliseconds=1)
    out = ""
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            out += f"{count}{unit}"
    return out or "0s"


def whole_seconds(value: timedelta) -> timedelta:
    """A duration for messages, without its fraction of a second."""
    return timedelta(seconds=value // timedelta(seconds=1))


# Messages about most groups of a scan name the same few times.
@lru_cache(maxsize=1_000)
def timestamp(moment: datetime, timespec: str = "seconds") -> str:
    """RFC 3339 in UTC, as in Kubernetes. timespec: as in `datetime.isoformat`; smaller units are truncated."""
    return moment.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


# Secret texts that must not be shown, and references to Secrets. No I/O.

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
