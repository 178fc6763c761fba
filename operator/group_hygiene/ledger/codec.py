"""Reads and writes the JSON of the ledger's entries. Pure: no I/O, no Kafka.

A key is a list that begins with the entry's kind, a value is an object with `v`, its version. Unreadable records are
counted, and the groups in their keys are not deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
from msgspec import inspect

from group_hygiene.model.backups import Backup
from group_hygiene.model.entries import (
    Entry,
    HistoryEntry,
    Intent,
    KeepRequest,
    Key,
    LargestCoverage,
    Mark,
    Owner,
    PolicyAlerts,
    ScanClock,
    Seen,
    UsedBy,
    Watch,
)

# Times of entries are between these, so that adding any duration of a spec (up to 45 years) does not overflow.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC)


# Backups have parts of 400 kB, and other entries are smaller. Decoded, a value takes up to 16 times its bytes.
_VALUE_BYTES = 4 << 20


class Unreadable(msgspec.ValidationError):
    """A record that is no entry, or of a version that this program does not know."""


_AnyEntry = (
    Owner
    | Watch
    | ScanClock
    | Seen
    | LargestCoverage
    | Mark
    | KeepRequest
    | Intent
    | Backup
    | HistoryEntry
    | PolicyAlerts
    | UsedBy
)
_DECODER = msgspec.json.Decoder(_AnyEntry)
# The fields of each kind that contain times, at any depth.
_TIMES_IN: dict[type[msgspec.Struct], tuple[str, ...]] = {
    info.cls: tuple(field.name for field in info.fields if "DateTimeType" in repr(field))
    for info in map(inspect.type_info, get_args(_AnyEntry))
    if isinstance(info, inspect.StructType)
}
_KEY = msgspec.json.Decoder(tuple[str, ...])
# Types of entries whose key names a group, and its index in the key.
_GROUP_AT = {"seen": 2, "mark": 2, "keep": 1, "intent": 1, "backup": 1, "outcome": 1, "used-by": 1}


def encode_key(key: Key) -> bytes:
    return msgspec.json.encode(key)


def encode_value(entry: Entry) -> bytes:
    return msgspec.json.encode(entry)


def decode_key(key: bytes | None) -> Key:
    """Raises Unreadable."""
    try:
        return _KEY.decode(key or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreadable(f"its key is not an entry's: {error}") from error


def decode(key: Key, value: bytes) -> Entry:
    """The entry of a record that is no tombstone. Raises Unreadable, also if it is under another entry's key."""
    if len(value) > _VALUE_BYTES:
        raise Unreadable(f"its value has {len(value)} bytes, more than any entry")
    try:
        entry: Entry = _DECODER.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(_newer(value) or f"its value can't be read: {error}") from error
    if entry.key != key:
        raise Unreadable("its value belongs under another key")
    for name in _TIMES_IN[type(entry)]:
        if not all(_FIRST <= time < _LAST for time in _times(getattr(entry, name))):
            raise Unreadable(f"its {name} is not between the years {_FIRST.year} and {_LAST.year}")
    return entry


def _times(value: object) -> Iterator[datetime]:
    """Every time in the value of a field."""
    if isinstance(value, datetime):
        yield value
    elif isinstance(value, dict | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _times(each)


def _newer(value: bytes) -> str:
    """Why a value can't be read, if a later version wrote it; else empty."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        version = msgspec.json.decode(value, type=dict[str, Any]).get("v")
        if isinstance(version, int) and version > 1:
            return f"it is of version {version}, and this program knows version 1: upgrade it"
    return ""


def group_of(key: Key) -> str | None:
    """The group that a key names; None if it names none."""
    place = _GROUP_AT.get(key[0]) if key else None
    return key[place] if place is not None and len(key) > place else None


def expires(entry: Any) -> datetime | None:
    """Until when an entry is retained; None = until another entry ends it."""
    if isinstance(entry, KeepRequest):
        return entry.until
    return entry.expires if isinstance(entry, Backup | HistoryEntry | LargestCoverage | PolicyAlerts) else None
