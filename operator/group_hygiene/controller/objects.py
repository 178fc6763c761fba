"""The current objects of the operator's CRDs, as the watch reports them: one store for all loops. Sends no requests.

Other teams write the objects: only the fields that are input are stored, and these are bounded in bytes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from group_hygiene.errors import SpecError
from group_hygiene.model import reasons
from group_hygiene.model.naming import truncated_list
from group_hygiene.process import memory
from group_hygiene.spec.crds import dropped_fields, is_deep

Object = dict[str, Any]
# Namespace and name.
Key = tuple[str, str]

CONNECTIONS, POLICIES, RESTORES, KEEPS = "kafkaconnections", "grouppolicies", "grouprestores", "groupkeeps"
# Those that name a connection.
USERS = (POLICIES, RESTORES, KEEPS)
# The spec of one object as JSON; the objects of one namespace, and all of them, have a share of the memory.
OBJECT_BYTES, _NAMESPACE_SHARE, _SHARE = 128 << 10, 32, 8
# Connections have their own room, which is smaller by this factor: policies and restores can't fill it.
_CONNECTIONS_PART = 4
# Each namespace has this room for its connections, and for its policies and restores, even if others fill the rest.
_GUARANTEED_BYTES = 256 << 10
# Memory of an entry in addition to its JSON. Its metrics and runs take some three times as much, beside this room.
_ENTRY_BYTES = 10_000
# The status of an object for which there is no room: its smallest fields.
_SMALL_STATUS_BYTES = 4_000
# A response to a request that was sent before a deletion may arrive after it.
_REMOVED_S = 60.0

# Of fields that the CRD does not have.
_FIELDS_SHOWN, _FIELDS_CHARACTERS = 5, 300

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
    "servedBy": str,
    "lastRunTime": datetime,
    "lastScanTime": datetime,
    "startTime": str,
    "completionTime": str,
}
# Large fields of statuses that are only written.
_NOT_READ = ("results",)


class ListedObject(NamedTuple):
    """An object in a list of metadata."""

    key: Key
    uid: str
    version: str


class _Fitted(NamedTuple):
    """An object as JSON. counted: bytes that count as used; 0 = it is stored without its spec.

    lacking: bytes for which there was no room; 0 = it is usable, or too large at any time.
    """

    data: bytes
    counted: int
    lacking: int = 0


class _Entry(NamedTuple):
    """sequence: the number of the change that stored it. edition: generation, and whether it is being deleted."""

    sequence: int
    uid: str
    version: str
    edition: tuple[int, bool]
    connection: Key
    fitted: _Fitted

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for two versions of an object if at most the status differs."""
        return self.uid, self.edition, self.connection, bool(self.fitted.counted)


class Objects:
    """Thread-safe. limit: bytes for all policies and restores; a namespace has a part of it. monotonic: seconds.

    changed: called by the thread that stores or removes an object, if more than its status is new, with its plural, its
    key, and the connections that it names and named before (for a connection: itself).

    An object that is too large, or for which its namespace has no room left, is stored without its spec: then
    `refuse_unusable` refuses it. `compare` reports it once there is room.
    """

    def __init__(
        self,
        limit: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        changed: Callable[[str, Key, Collection[Key]], None] = lambda *_: None,
    ) -> None:
        self._limit = memory.LIMIT // _SHARE if limit is None else limit
        self._monotonic, self._changed = monotonic, changed
        self._lock = threading.Lock()
        self._entries: dict[str, dict[Key, _Entry]] = defaultdict(dict)
        # Plural and connection -> the keys of the objects that name it.
        self._naming: dict[tuple[str, Key], dict[Key, None]] = defaultdict(dict)
        self._rooms: dict[bool, _Room] = {
            is_connection: _Room(self._limit // (_CONNECTIONS_PART if is_connection else 1))
            for is_connection in (True, False)
        }
        # uid of a removed object -> when, oldest first.
        self._removed: dict[str, float] = {}
        self._sequence = 0
        # Plural -> which fields the API server drops.
        self._outdated: dict[str, str] = {}
        # Whether the store has the objects of all namespaces: one that is not there may exist in another.
        self.is_complete = True

    def outdate(self, plural: str, problem: str | None) -> None:
        """The API server drops fields of all these objects (see Api.crd_problem), so none is usable; None = of none."""
        with self._lock:
            if problem == self._outdated.get(plural):
                return
            self._outdated |= {plural: problem or ""}
            changed = [(key, entry.connection) for key, entry in self._entries[plural].items()]
        for key, connection in changed:
            self._changed(plural, key, {connection})

    def put(self, plural: str, obj: Mapping[str, Any]) -> None:
        """Store an object, unless a later version of it is stored or it was removed."""
        metadata = obj["metadata"]
        key, uid, version = key_of(obj), metadata["uid"], str(metadata["resourceVersion"])
        edition = int(metadata.get("generation") or 0), bool(metadata.get("deletionTimestamp"))
        with self._lock:
            before = self._entries[plural].get(key)
            if before is not None and before.uid == uid and _is_later(before.version, version):
                return
            self._forget_removed()
            if uid in self._removed:
                return
            self._drop(plural, key)
            # A new status must not end the use of an object.
            same = before if before is not None and (before.uid, before.edition[0]) == (uid, edition[0]) else None
            is_used = same is not None and same.fitted.counted > 0
            room = self._room(plural)
            fitted = _fitted(room, key[0], obj, is_used)
            self._sequence += 1
            connection = connection_of(obj) if plural != CONNECTIONS else key
            entry = _Entry(self._sequence, uid, version, edition, connection, fitted)
            self._entries[plural][key] = entry
            self._naming[plural, connection][key] = None
            room.add(key[0], fitted.counted)
        # The same version differs if a watch reported it without the fields of a new CRD.
        is_other = before is not None and before.version == version and before.fitted.data != fitted.data
        if before is None or is_other or before.identity != entry.identity:
            self._changed(plural, key, {connection, before.connection if before else connection})

    def remove(self, plural: str, key: Key, uid: str) -> None:
        """Remove an object, unless another one has its name now."""
        with self._lock:
            self._forget_removed()
            self._removed[uid] = self._monotonic()
            entry = self._entries[plural].get(key)
            if entry is None or entry.uid != uid:
                return
            self._drop(plural, key)
        self._changed(plural, key, {entry.connection})

    def get(self, plural: str, namespace: str, name: str) -> Object | None:
        with self._lock:
            entry = self._entries[plural].get((namespace, name))
        if entry is None:
            return None
        outdated = self._outdated.get(plural)
        return dict(msgspec.json.decode(entry.fitted.data)) | ({"outdated": outdated} if outdated else {})

    def listed(self, plural: str, key: Key) -> ListedObject | None:
        """What identifies an object, and its version; None = it is not there."""
        with self._lock:
            entry = self._entries[plural].get(key)
        return None if entry is None else ListedObject(key, entry.uid, entry.version)

    def naming(self, plural: str, namespace: str, name: str) -> list[Key]:
        """The objects that name this connection, which need not exist, by namespace and name."""
        with self._lock:
            return sorted(self._naming.get((plural, (namespace, name)), ()))

    def connections_of(self, plural: str, uids: Collection[str]) -> dict[str, Key]:
        """uid -> the connection that the object names, of those that exist."""
        with self._lock:
            return {each.uid: each.connection for each in self._entries[plural].values() if each.uid in uids}

    def keys(self, plural: str) -> list[Key]:
        with self._lock:
            return sorted(self._entries[plural])

    def active_uids(self, plural: str) -> set[str]:
        """Of the objects that are not being deleted."""
        with self._lock:
            return {entry.uid for entry in self._entries[plural].values() if not entry.edition[1]}

    def uids(self, plural: str) -> set[str]:
        with self._lock:
            return {entry.uid for entry in self._entries[plural].values()}

    @property
    def sequence(self) -> int:
        """For `compare`: take it before the list."""
        return self._sequence

    def compare(
        self, plural: str, rows: Iterable[ListedObject], sequence: int
    ) -> tuple[list[tuple[Key, str]], list[ListedObject]]:
        """Compare with a list that was read after `sequence`: the objects that are gone, with their uids, and the rows
        that are missing here, older here, or unusable although there is room now.

        A watch that lists again after an interruption reports no deletion of the meantime.
        """
        listed = {row.key: row for row in rows}
        with self._lock:
            entries = dict(self._entries[plural])
            fitting = self._fitting(plural)
        gone = [
            (key, entry.uid)
            for key, entry in entries.items()
            if entry.sequence <= sequence and (key not in listed or listed[key].uid != entry.uid)
        ]
        late = [row for key, row in listed.items() if key in fitting or _is_newer(row, entries.get(key))]
        return gone, late

    def lacks(self, plural: str, row: ListedObject) -> bool:
        """Whether a row that was late still is, or the object has no room yet."""
        with self._lock:
            entry = self._entries[plural].get(row.key)
        return _is_newer(row, entry) or (entry is not None and entry.fitted.lacking > 0)

    def _drop(self, plural: str, key: Key) -> None:
        entry = self._entries[plural].pop(key, None)
        if entry is None:
            return
        named = self._naming[plural, entry.connection]
        named.pop(key, None)
        if not named:
            del self._naming[plural, entry.connection]
        self._room(plural).add(key[0], -entry.fitted.counted)

    def _room(self, plural: str) -> _Room:
        return self._rooms[plural == CONNECTIONS]

    def _fitting(self, plural: str) -> set[Key]:
        """The objects that lacked room and fit now, all those of a namespace together."""
        taken: Counter[str] = Counter()
        found = set()
        for key, entry in self._entries[plural].items():
            lacking = entry.fitted.lacking
            if lacking and self._room(plural).has(key[0], taken[key[0]] + lacking):
                taken[key[0]] += lacking
                found.add(key)
        return found

    def _forget_removed(self) -> None:
        for uid, at in list(self._removed.items()):
            if self._monotonic() - at < _REMOVED_S:
                return
            del self._removed[uid]


class _Room:
    """Counts the bytes of namespaces: each has a guaranteed part, and beyond it they share `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes: Counter[str] = Counter()
        # Bytes beyond the guaranteed parts.
        self._shared = 0

    def has(self, namespace: str, size: int) -> bool:
        """Whether a namespace may use so many more bytes."""
        used = self._bytes[namespace] + size
        if used <= _GUARANTEED_BYTES:
            return True
        more = used - max(self._bytes[namespace], _GUARANTEED_BYTES)
        return used <= self._limit * _SHARE // _NAMESPACE_SHARE and self._shared + more <= self._limit

    def add(self, namespace: str, size: int) -> None:
        before, after = self._bytes[namespace], self._bytes[namespace] + size
        self._shared += max(after, _GUARANTEED_BYTES) - max(before, _GUARANTEED_BYTES)
        self._bytes[namespace] = after
        if not after:
            del self._bytes[namespace]


def _fitted(room: _Room, namespace: str, obj: Mapping[str, Any], is_used: bool) -> _Fitted:
    """is_used: the spec is stored already, so it stays, whatever the room."""
    stored = trimmed(obj)
    small = stored | {"status": _small(stored["status"])}
    lacking = 0
    if is_deep(stored["spec"]) or len(msgspec.json.encode(stored["spec"])) > OBJECT_BYTES:
        why = f"the spec takes more than {OBJECT_BYTES >> 10} KiB, or has too many levels: use several objects"
    else:
        for each, certain in ((stored, False), (small, is_used)):
            data = msgspec.json.encode(each)
            lacking = len(data) + _ENTRY_BYTES
            if certain or room.has(namespace, lacking):
                return _Fitted(data, lacking)
        why = f"the operator has no room for more objects of namespace {namespace}: delete some, or give it memory"
    return _Fitted(msgspec.json.encode(small | {"spec": None, "unusable": why}), 0, lacking)


def _small(status: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest fields of a status, like dates and ids."""
    sizes = {key: len(msgspec.json.encode(value)) for key, value in status.items()}
    left, found = _SMALL_STATUS_BYTES, {}
    for key in sorted(status, key=lambda key: sizes[key]):
        left -= sizes[key] + len(key)
        if left < 0:
            break
        found[key] = status[key]
    return found


def refuse_unusable(obj: Mapping[str, Any]) -> None:
    """Raises SpecError for an object that does nothing: it is being deleted (a finalizer may keep it), its CRD is too
    old, or lost a field of it, or there is no room for it. A lack of room is not final, unlike another SpecError."""
    if obj["metadata"].get("deletionTimestamp"):
        raise SpecError(f"this {obj.get('kind') or 'object'} is being deleted: it does nothing", reasons.TERMINATING)
    if obj.get("outdated"):
        raise SpecError(str(obj["outdated"]), reasons.CRD_OUTDATED)
    if obj.get("dropped"):
        raise SpecError(
            f"it was written with {obj['dropped']}, which the CRD does not have, so that the API server drops it, and "
            "the rest may select more: apply it again without it"
        )
    if obj.get("unusable"):
        raise SpecError(str(obj["unusable"]), reasons.MEMORY_EXHAUSTED)


def is_over(obj: Mapping[str, Any]) -> bool:
    """Whether it is a restore that has its results: it is never run again."""
    return "completionTime" in (obj.get("status") or {})


def connection_of(obj: Mapping[str, Any]) -> Key:
    """Namespace and name of the KafkaConnection that an object refers to; empty name = none.

    An object that was stored under a laxer CRD may have any shape.
    """
    spec = obj.get("spec")
    reference = spec.get("connectionRef") if isinstance(spec, Mapping) else None
    named = reference if isinstance(reference, Mapping) else {}
    namespace, name = named.get("namespace") or obj["metadata"]["namespace"], named.get("name")
    return (namespace, name) if isinstance(namespace, str) and isinstance(name, str) else ("", "")


def key_of(obj: Mapping[str, Any]) -> Key:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _is_newer(row: ListedObject, entry: _Entry | None) -> bool:
    """Whether a list shows a later version of an object than the store, or one that it lacks."""
    return entry is None or entry.uid != row.uid or _is_later(row.version, entry.version)


def _is_later(version: str, than: str) -> bool:
    """Whether a resourceVersion is the later one of the same object. They are numbers that grow (KEP-5504)."""
    return int(version) > int(than) if version.isdecimal() and than.isdecimal() else False


def trimmed(obj: Mapping[str, Any]) -> Object:
    """Without annotations and managed fields, without large fields of the status that are not read, and without those
    that lack the form of the CRD.

    An object that was stored under a laxer CRD may have any shape; who reads a spec parses it.
    """
    status = obj.get("status")
    fields = {
        key: value
        for key, value in (status.items() if isinstance(status, Mapping) else ())
        if key not in _NOT_READ and (key not in _STATUS or _fits(value, _STATUS[key]))
    }
    if "sample" in fields:
        fields["sample"] = [{key: row[key] for key in _Row.__struct_fields__} for row in fields["sample"]]
    dropped = truncated_list(dropped_fields(obj), _FIELDS_SHOWN)[:_FIELDS_CHARACTERS]
    return {
        "kind": obj.get("kind"),
        "metadata": {key: obj["metadata"][key] for key in _METADATA if key in obj["metadata"]},
        "spec": obj.get("spec"),
        "status": fields,
    } | ({"dropped": dropped} if dropped else {})


def forget_content(obj: Object) -> None:
    """Leave of an object of a watch only what identifies it, and its version."""
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    for key in obj.keys() - {"apiVersion", "kind"}:
        del obj[key]
    obj["metadata"] = metadata


def _fits(value: Any, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True
