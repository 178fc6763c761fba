"""Whether a run may still change something, asked right before each change (see reconcile.Guard). Reads only."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from group_hygiene.controller.api import KINDS, Api, Object
from group_hygiene.errors import ApiError, NotFound
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.spec.access import Grant
from group_hygiene.spec.connection import Connection, grant


class Leadership(Protocol):
    """For how long this process surely leads."""

    def seconds_left(self) -> float: ...


@dataclass(frozen=True)
class Granted:
    """What a connection granted a namespace when a run began, by the labels that the namespace had then."""

    connection: Connection
    namespace: str
    grant: Grant | None


def read_grant(api: Api, connection: Connection, namespace: str) -> Granted:
    """What the connection grants the namespace now; its labels are read only where they decide. Raises ApiError."""
    labels = None
    if namespace != connection.namespace and connection.selects_by_label:
        labels = api.namespace_labels(namespace)
    return Granted(connection, namespace, grant(connection, namespace, labels))


@dataclass(frozen=True)
class Guard:
    """Of one run of a policy, or one restore. stopping: the process must end.

    objects: plural and object, as they were when it began: the connection's, and whose wish it is. granted: what the
    connection granted the namespace of the latter when it began.
    """

    api: Api
    leadership: Leadership
    stopping: threading.Event
    objects: tuple[tuple[str, Object], ...]
    granted: Granted

    def refusal(self) -> Refusal | None:
        """Read the objects again: an edit, a deletion, other labels or a stop of the operator end the run."""
        if self.stopping.is_set():
            return Refusal(reasons.STOPPING, "the operator is stopping")
        for plural, before in self.objects:
            name = before["metadata"]["name"]
            try:
                obj: Object | None = self.api.get(plural, before["metadata"]["namespace"], name)
            except NotFound:
                obj = None
            except ApiError as error:
                return Refusal(error.reason, f"{KINDS[plural]} {name} could not be read again: {error}")
            if obj is None or _version(obj) != _version(before) or obj["metadata"].get("deletionTimestamp"):
                return Refusal(reasons.POLICY_CHANGED, f"{KINDS[plural]} {name} was edited or deleted during the run")
        return self._other_labels()

    def _other_labels(self) -> Refusal | None:
        namespace = self.granted.namespace
        try:
            now = read_grant(self.api, self.granted.connection, namespace)
        except ApiError as error:
            return Refusal(error.reason, f"the labels of namespace {namespace} could not be read again: {error}")
        if now != self.granted:
            message = f"namespace {namespace} got other labels during the run, by which it is granted something else"
            return Refusal(reasons.POLICY_CHANGED, message)
        return None

    def seconds_left(self) -> float:
        return self.leadership.seconds_left()


def _version(obj: Object) -> tuple[str, int]:
    return obj["metadata"]["uid"], int(obj["metadata"].get("generation") or 0)
