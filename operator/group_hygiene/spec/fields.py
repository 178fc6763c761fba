"""Converts a part of a spec into records, and refuses fields that this version does not know. No I/O."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import msgspec

from group_hygiene.errors import SpecError
from group_hygiene.spec.durations import Duration, format_duration, parse_duration

T = TypeVar("T")
# msgspec reads a type's annotations at its first use, and crashes if two threads do that at once.
_ONE_AT_A_TIME = threading.Lock()
# Between the message of msgspec and the path that it adds.
_PATH = re.compile(r" - at (?:`key` in )?`\$(?=[^`]*`$)")
# Messages of msgspec, without its terms.
_PLAIN = (
    (re.compile("Expected `str` matching regex .*", re.DOTALL), "must have the form that its CRD describes"),
    (re.compile("Invalid RFC3339 encoded datetime"), "must be a time like 2030-01-31T12:00:00Z"),
    (re.compile("Expected `datetime` with a timezone component"), "must have a time zone, like 2030-01-31T12:00:00Z"),
)
Text = Annotated[str, msgspec.Meta(min_length=1)]


class SpecPart(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a spec, whose fields are spelled as in the CRD. Ignores unknown fields."""


class Decisive(SpecPart, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part that affects which groups are selected, how many, and by whom. Refuses unknown fields.

    The CRD may be of a later version: a field that restricts matches or deletions must not be ignored.
    """


class ObjectRef(SpecPart, frozen=True, rename="camel"):
    """The name of an object of a known kind. namespace: None = that of the object that refers to it."""

    name: Text
    namespace: str | None = None


def convert(value: Any, wanted: type[T], field: str) -> T:
    """The value as a record. field: its path, as in `spec.access`.

    Raises SpecError, which names the field, and shows no value of an enum: it may be a misplaced secret.
    """
    try:
        with _ONE_AT_A_TIME:
            return msgspec.convert(value, wanted, dec_hook=_decode)
    except UnicodeEncodeError:
        raise SpecError(f"{field} must be valid Unicode") from None
    except msgspec.ValidationError as error:
        message, *path = _PATH.split(str(error), maxsplit=1)
        if message.startswith("Invalid enum value"):
            message = " must be one of the values that its CRD lists"
        for terms, plain in _PLAIN:
            message = terms.sub(plain, message)
        message = message.replace("Object contains unknown field", "this version of the program does not know field")
        own = message.startswith((".", "[", " "))
        raise SpecError(f"{field}{''.join(path).removesuffix('`')}{'' if own else ': '}{message}") from None


def require(condition: object, message: str) -> None:
    """For `__post_init__` of a part. message: about the part ("must ..."), or begins with one of its fields."""
    if not condition:
        raise ValueError(f"{' ' if message.startswith('must ') else '.'}{message}")


def require_between(value: timedelta | None, name: str, at_least: timedelta, at_most: timedelta | None = None) -> None:
    """As `require`, for a duration in the field `name`; None = it is not given."""
    if value is not None:
        require(value >= at_least, f"{name} must be at least {format_duration(at_least)}")
        require(at_most is None or value <= at_most, f"{name} must be at most {format_duration(at_most or value)}")


def is_namespace(text: str) -> bool:
    """Whether it is the name of a namespace: a DNS label (RFC 1123)."""
    return re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text) is not None


def _decode(wanted: type, value: Any) -> Any:
    """The types that msgspec does not know. msgspec adds the path to a ValueError, but not to a SpecError."""
    try:
        return parse_duration(value, "") if wanted is Duration else wanted(value, "")
    except SpecError as error:
        raise ValueError(str(error)) from None
