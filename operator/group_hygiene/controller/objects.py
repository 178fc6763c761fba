"""The current objects of the operator's CRDs, as the watch reports them: one store for all loops. Sends no requests.

Other teams write the objects: only the fields that are input are stored, and these are bounded in bytes.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from group_hygiene.errors import SpecError
from group_hygiene.model import reasons
from group_hygiene.process import memory

Object = dict[str, Any]
# Namespace and name.
Key = tuple[str, str]

CONNECTIONS, POLICIES, RESTORES = "kafkaconnections", "grouppolicies", "grouprestores"
# Spec and status of one object as JSON; of the objects of one namespace, and of all, a share of the memory.
OBJECT_BYTES, _NAMESPACE_SHARE, _SHARE = 128 << 10, 32, 8
# Memory of an entry in addition to its JSON.
_ENTRY_BYTES = 1_000

_METADATA = ("name", "namespace", "uid", "generation", "resourceVersion", "deletionTimestamp")


class _Condition(msgspec.Struct):
    """A metav1.Condition."""

    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: str


class _Row(msgspec.Struct):
    group: str
    verdict: str


class _Ledger(msgspec.Struct):
    id: str | None = None
    topic: str | None = None


# The fields of statuses that are read again, and what they must be.
_STATUS: Mapping[str, Any] = {
    "conditions": list[_Condition],
    "sample": list[_Row],
    "groups": dict[str, Any],
    "totals": dict[str, int],
    "ledger": _Ledger,
    "clusterID": str,
    "lastRunTime": datetime,
    "lastScanTime": datetime,
    "startTime": str,
    "completionTime": str,
}


class Row(NamedTuple):
    """An object in a list of metadata."""

    key: Key
    uid: str
    version: str


class _Entry(NamedTuple):
    """sequence: the number of the change that stored it. data: the trimmed object as JSON."""

    sequence: int
    uid: str
    version: str
    edition: tuple[int, bool]
    connection: Key
    data: bytes


class Objects:
    """Thread-safe. limit: bytes for all objects; a namespace has a part of it.

    An object that is too large, or for which its namespace has no room left, is stored without spec and status: then
    `refuse_unusable` refuses it.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = memory.LIMIT // _SHARE if limit is None else limit
        self._lock = threading.Lock()
        self._entries: dict[str, dict[Key, _Entry]] = defaultdict(dict)
        # Plural and connection -> the keys of the objects that name it.
        self._naming: dict[tuple[str, Key], dict[Key, None]] = defaultdict(dict)
        self._bytes: Counter[str] = Counter()
        self._sequence = 0

    def put(self, plural: str, obj: Mapping[str, Any]) -> bool:
        """Store an object, unless a later version of it is stored. Whether more than its status is new."""
        metadata = obj["metadata"]
        key, uid, version = key_of(obj), metadata["uid"], str(metadata["resourceVersion"])
        edition = int(metadata.get("generation") or 0), bool(metadata.get("deletionTimestamp"))
        with self._lock:
            before = self._entries[plural].get(key)
            if before is not None and before.uid == uid and _is_later(before.version, version):
                return False
            self._drop(plural, key)
            data = self._fitted(key[0], obj)
            self._sequence += 1
            connection = connection_of(obj) if plural != CONNECTIONS else key
            self._entries[plural][key] = _Entry(self._sequence, uid, version, edition, connection, data)
            self._naming[plural, connection][key] = None
            self._bytes[key[0]] += len(data) + _ENTRY_BYTES
        return before is None or (before.uid, before.edition, before.connection) != (uid, edition, connection)

    def remove(self, plural: str, key: Key, uid: str) -> bool:
        """Remove an object, unless another one has its name now. Whether it was there."""
        with self._lock:
            entry = self._entries[plural].get(key)
            if entry is None or entry.uid != uid:
                return False
            self._drop(plural, key)
            return True

    def get(self, plural: str, namespace: str, name: str) -> Object | None:
        with self._lock:
            entry = self._entries[plural].get((namespace, name))
        return None if entry is None else dict(msgspec.json.decode(entry.data))

    def naming(self, plural: str, namespace: str, name: str) -> list[Object]:
        """The policies or restores that name this connection, which need not exist, by namespace and name."""
        with self._lock:
            keys = sorted(self._naming.get((plural, (namespace, name)), ()))
            found = [self._entries[plural][key].data for key in keys]
        return [dict(msgspec.json.decode(data)) for data in found]

    def keys(self, plural: str) -> list[Key]:
        with self._lock:
            return sorted(self._entries[plural])

    def active_uids(self, plural: str) -> set[str]:
        """Of the objects that are not being deleted."""
        with self._lock:
            return {entry.uid for entry in self._entries[plural].values() if not entry.edition[1]}

    @property
    def sequence(self) -> int:
        """For `compare`: take it before the list."""
        return self._sequence

    def compare(self, plural: str, rows: Iterable[Row], sequence: int) -> tuple[list[tuple[Key, str]], list[Row]]:
        """Compare with a list that was read after `sequence`: the objects that are gone, with their uids, and the rows
        that are missing here or older here.

        A watch that lists again after an interruption reports no deletion of the meantime.
        """
        listed = {row.key: row for row in rows}
        with self._lock:
            entries = dict(self._entries[plural])
        gone = [
            (key, entry.uid)
            for key, entry in entries.items()
            if entry.sequence <= sequence and (key not in listed or listed[key].uid != entry.uid)
        ]
        late = [
            row
            for key, row in listed.items()
            if key not in entries or (entries[key].uid != row.uid or _is_later(row.version, entries[key].version))
        ]
        return gone, late

    def _drop(self, plural: str, key: Key) -> None:
        entry = self._entries[plural].pop(key, None)
        if entry is None:
            return
        named = self._naming[plural, entry.connection]
        named.pop(key, None)
        if not named:
            del self._naming[plural, entry.connection]
        self._bytes[key[0]] -= len(entry.data) + _ENTRY_BYTES
        if self._bytes[key[0]] <= 0:
            del self._bytes[key[0]]

    def _fitted(self, namespace: str, obj: Mapping[str, Any]) -> bytes:
        stored = trimmed(obj)
        data = msgspec.json.encode(stored)
        room = min(self._limit - self._bytes.total(), self._limit * _SHARE // _NAMESPACE_SHARE - self._bytes[namespace])
        if len(data) <= OBJECT_BYTES and len(data) + _ENTRY_BYTES <= room:
            return data
        why = f"spec and status take more than {OBJECT_BYTES >> 10} KiB"
        if len(data) <= OBJECT_BYTES:
            why = f"the operator has no room for more objects of namespace {namespace}: delete some, or give it memory"
        # Its conditions, for a status that changes only once.
        small = stored | {"spec": None, "status": {}, "unusable": why}
        own = {key: value for key, value in stored["status"].items() if key in ("conditions", "observedGeneration")}
        with_status = msgspec.json.encode(small | {"status": own})
        return with_status if len(with_status) <= _ENTRY_BYTES * 4 else msgspec.json.encode(small)


def refuse_unusable(obj: Mapping[str, Any]) -> None:
    """Raises SpecError for an object that does nothing: it is being deleted (a finalizer may keep it), or too large."""
    if obj["metadata"].get("deletionTimestamp"):
        raise SpecError(f"this {obj.get('kind') or 'object'} is being deleted: it does nothing", reasons.TERMINATING)
    if obj.get("unusable"):
        raise SpecError(str(obj["unusable"]))


def is_over(obj: Mapping[str, Any]) -> bool:
    """Whether it is a restore that has its results: it is never run again."""
    return "completionTime" in (obj.get("status") or {})


def connection_of(obj: Mapping[str, Any]) -> Key:
    """Namespace and name of the KafkaConnection that a GroupPolicy or GroupRestore refers to; empty name = none.

    An object that was stored under a laxer CRD may have any shape.
    """
    spec = obj.get("spec")
    reference = spec.get("connectionRef") if isinstance(spec, Mapping) else None
    named = reference if isinstance(reference, Mapping) else {}
    namespace, name = named.get("namespace") or obj["metadata"]["namespace"], named.get("name")
    return (namespace, name) if isinstance(namespace, str) and isinstance(name, str) else ("", "")


def key_of(obj: Mapping[str, Any]) -> Key:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _is_later(version: str, than: str) -> bool:
    """Whether a resourceVersion is the later one of the same object. They are numbers that grow (KEP-5504)."""
    return int(version) > int(than) if version.isdecimal() and than.isdecimal() else False


def trimmed(obj: Mapping[str, Any]) -> Object:
    """Without annotations and managed fields, and without fields of the status that lack the form of the CRD.

    An object that was stored under a laxer CRD may have any shape; who reads a spec parses it.
    """
    status = obj.get("status")
    fields = status.items() if isinstance(status, Mapping) else ()
    return {
        "kind": obj.get("kind"),
        "metadata": {key: obj["metadata"][key] for key in _METADATA if key in obj["metadata"]},
        "spec": obj.get("spec"),
        "status": {key: value for key, value in fields if key not in _STATUS or _fits(value, _STATUS[key])},
    }


def _fits(value: Any, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True
