"""Converts a judged spec into records, and refuses fields that this version does not know. No I/O."""

from __future__ import annotations

import re
import threading
from typing import Any, TypeVar

import msgspec

from group_hygiene.errors import SpecError
from group_hygiene.spec.durations import Duration, parse_duration

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
