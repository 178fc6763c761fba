"""Writes the statuses of policies and restores that no connection serves: theirs is absent, or does not admit them.

One thread for all; namespaces take turns, so that the objects of one delay no status of another for longer than one
request. The loops of connections spend nothing on them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from group_hygiene.controller.guard import Grants
from group_hygiene.controller.isolation import isolated
from group_hygiene.controller.objects import (
    CONNECTIONS,
    POLICIES,
    RESTORES,
    Key,
    Object,
    Objects,
    connection_of,
    is_over,
    refuse_unusable,
)
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.errors import HygieneError, SpecError
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.restore.grouprestore import build_restore_status, parse_restore
from group_hygiene.spec.connection import nothing_granted, parse_access_only, parse_connection
from group_hygiene.spec.policy import parse_policy

log = logging.getLogger(__name__)

# Labels of a namespace may grant something later, and a status may have been refused.
_AGAIN_S = 60.0


class Unserved:
    """`check` and `skip` are thread-safe. `run` is the thread's function, and ends when the process stops.

    may_write: whether this process may write statuses now.
    """

    def __init__(
        self,
        objects: Objects,
        grants: Grants,
        writer: StatusWriter,
        may_write: Callable[[], bool],
        stopping: threading.Event,
    ) -> None:
        self._objects, self._grants, self._writer = objects, grants, writer
        self._may_write, self._stopping = may_write, stopping
        self._changed = threading.Condition()
        # Namespace -> plural and key of the objects to check; the namespace whose turn is next comes first.
        self._queue: dict[str, dict[tuple[str, Key], None]] = {}
        # Those whose status shows a refusal.
        self._refused: set[tuple[str, Key]] = set()

    def check(self, plural: str, key: Key) -> None:
        """Find out whether a connection serves this object, which may be gone, and write its status if none does."""
        with self._changed:
            self._queue.setdefault(key[0], {})[plural, key] = None
            self._changed.notify()

    def check_naming(self, connection: Key) -> None:
        """Of all objects that name this connection."""
        for plural in (POLICIES, RESTORES):
            for key in self._objects.naming(plural, *connection):
                self.check(plural, key)

    def skip(self, plural: str, key: Key) -> None:
        """The loop of its connection skips this object."""
        if (plural, key) not in self._refused:
            self.check(plural, key)

    def run(self) -> None:
        again = time.monotonic() + _AGAIN_S
        while not self._stopping.is_set():
            with self._changed:
                if not self._queue:
                    self._changed.wait(max(0.0, again - time.monotonic()))
                # However busy others keep it.
                if time.monotonic() >= again:
                    again = time.monotonic() + _AGAIN_S
                    for plural, key in self._refused:
                        self._queue.setdefault(key[0], {})[plural, key] = None
                if not self._queue:
                    continue
                namespace = next(iter(self._queue))
                waiting = self._queue.pop(namespace)
                plural, key = next(iter(waiting))
                del waiting[plural, key]
                if waiting:
                    # Its next turn comes after those of the others.
                    self._queue[namespace] = waiting
            if self._may_write():
                self._write_refusal(plural, key)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _write_refusal(self, plural: str, key: Key) -> None:
        what = f"{plural} {key[0]}/{key[1]}"
        try:
            obj = self._objects.get(plural, *key)
            problem = None if obj is None or is_over(obj) else isolated(what, self._problem, plural, obj)
            if obj is None or problem is None:
                self._refused.discard((plural, key))
                return
            self._refused.add((plural, key))
            if plural == POLICIES:
                self._writer.write_problem(POLICIES, obj, problem, is_active=False)
            else:
                self._writer.write(RESTORES, obj, build_restore_status(obj, problem, datetime.now(UTC)))
        except HygieneError as error:
            log.warning("%s: %s; trying again", what, error)
        except Exception:
            log.exception("%s: no status could be written", what)

    def _problem(self, plural: str, obj: Object) -> Refusal | None:
        """Why no connection serves the object; None = one does. Raises ApiError."""
        try:
            refuse_unusable(obj)
            if plural == POLICIES:
                parse_policy(obj)
            else:
                parse_restore(obj)
        except SpecError as error:
            return Refusal.of(error)
        namespace, (of, name) = obj["metadata"]["namespace"], connection_of(obj)
        found = self._objects.get(CONNECTIONS, of, name)
        if namespace == of:
            missing = Refusal(reasons.CONNECTION_NOT_FOUND, f"there is no KafkaConnection {of}/{name} (yet)")
            return missing if found is None else None
        # Other namespaces see the same whether it exists or grants them nothing.
        refused = Refusal(reasons.CROSS_NAMESPACE, nothing_granted(f"{of}/{name}", namespace))
        if found is None:
            return refused
        try:
            connection = parse_connection(found)
        except SpecError:
            connection = parse_access_only(found)
        return refused if self._grants.of(connection, namespace).grant is None else None
