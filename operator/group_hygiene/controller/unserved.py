"""Writes the statuses of policies, restores and keeps that don't run: suspended, not valid, not admitted.

Deletes restores that ended `ttlSecondsAfterFinished` ago, and notes edits of that field.

One thread for all; namespaces take turns, so that the objects of one delay no status of another for longer than one
request. The rounds of connections wait for none of these writes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from group_hygiene.controller.api import Api
from group_hygiene.controller.guard import Grants, parsed
from group_hygiene.controller.isolation import isolated
from group_hygiene.controller.objects import (
    CONNECTIONS,
    KEEPS,
    POLICIES,
    RESTORES,
    USERS,
    Key,
    Object,
    Objects,
    connection_of,
    is_over,
    refuse_unusable,
)
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.errors import Conflict, HygieneError, NotFound, SpecError
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.restore.restorable import (
    build_restore_status,
    deletion_time,
    has_ttl,
    observed_again,
    parse_restore,
)
from group_hygiene.spec.access import Right
from group_hygiene.spec.connection import admit, admit_right
from group_hygiene.spec.keep import parse_keep
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import parse_policy
from group_hygiene.status.conditions import build_suspended_status
from group_hygiene.status.of_connections import build_keep_status

log = logging.getLogger(__name__)

# Labels of a namespace may grant something later, and a status may have been refused.
_AGAIN_S = 60.0


class Unserved:
    """`check` and `skip` are thread-safe. `run` is the thread's function, and ends when the process stops.

    may_write: whether this process may write statuses now.
    """

    def __init__(
        self,
        api: Api,
        objects: Objects,
        grants: Grants,
        writer: StatusWriter,
        may_write: Callable[[], bool],
        stopping: threading.Event,
    ) -> None:
        self._api, self._objects, self._grants, self._writer = api, objects, grants, writer
        self._may_write, self._stopping = may_write, stopping
        self._changed = threading.Condition()
        # Namespace -> plural and key of the objects to check; the namespace whose turn is next comes first.
        self._queue: dict[str, dict[tuple[str, Key], None]] = {}
        # Those that don't run -> the resourceVersion that was checked.
        self._checked: dict[tuple[str, Key], str] = {}

    def check(self, plural: str, key: Key) -> None:
        """Find out whether a connection runs this object, which may be gone, and write its status if none does."""
        with self._changed:
            self._queue.setdefault(key[0], {})[plural, key] = None
            self._changed.notify()

    def check_naming(self, connection: Key) -> None:
        """Of all objects that name this connection."""
        for plural in USERS:
            for key in self._objects.naming(plural, *connection):
                self.check(plural, key)

    def skip(self, plural: str, key: Key) -> None:
        """The loop of its connection skips this object. An earlier round may have written its status since."""
        listed = self._objects.listed(plural, key)
        if (listed.version if listed else None) != self._checked.get((plural, key)):
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
                    # Refused ones are among these, as long as they exist.
                    self._writer.take_refused()
                    for plural, key in self._checked:
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
                self._write(plural, key)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _write(self, plural: str, key: Key) -> None:
        what = f"{plural} {key[0]}/{key[1]}"
        try:
            obj, now = self._objects.get(plural, *key), datetime.now(UTC)
            problem = None if obj is None or is_over(obj) else isolated(what, self._problem, plural, obj)
            edited = observed_again(obj) if obj is not None and is_over(obj) else None
            if obj is None or (problem is None and edited is None and not has_ttl(obj)):
                self._checked.pop((plural, key), None)
                return
            # One with a time to live is checked until it is gone: it ends without a change that is followed.
            self._checked[plural, key] = obj["metadata"]["resourceVersion"]
            if problem is None:
                due = deletion_time(obj)
                if due is not None and due <= now:
                    # One that was edited meanwhile is checked again.
                    with suppress(NotFound, Conflict):
                        self._api.delete(plural, obj)
                        log.info("GroupRestore %s/%s: deleted, as its ttlSecondsAfterFinished are over", *key)
                elif edited is not None:
                    self._writer.write(plural, obj, edited)
                return
            if plural == RESTORES:
                self._writer.write(RESTORES, obj, build_restore_status(obj, problem, now))
            elif plural == KEEPS:
                self._writer.write(KEEPS, obj, build_keep_status(obj, problem, now))
            elif problem.reason == reasons.SUSPENDED:
                generation = int(obj["metadata"].get("generation") or 0)
                self._writer.write(POLICIES, obj, build_suspended_status(generation, obj["status"], now))
            else:
                self._writer.write_problem(POLICIES, obj, problem, is_active=False)
        except HygieneError as error:
            log.warning("%s: %s; trying again", what, error)
        except Exception:
            log.exception("%s: no status could be written", what)

    def _problem(self, plural: str, obj: Object) -> Refusal | None:
        """Why no connection runs the object; None = one does. Raises ApiError."""
        namespace, (of, name) = obj["metadata"]["namespace"], connection_of(obj)
        try:
            refuse_unusable(obj)
            policy = parse_policy(obj) if plural == POLICIES else None
            groups: Sequence[str] = ()
            if policy is not None:
                right, groups = Right(policy.action.value), policy.match.groups.sources
            elif plural == RESTORES:
                right, groups = Right.RESTORE, Patterns.of_names(parse_restore(obj)[1].groups).sources
            else:
                right, groups = Right.KEEP, Patterns.of_names(parse_keep(obj).groups).sources
            found = self._objects.get(CONNECTIONS, of, name)
            if found is None and namespace == of:
                return Refusal(reasons.CONNECTION_NOT_FOUND, f"there is no KafkaConnection {of}/{name} (yet)")
            connection = None if found is None else parsed(found)[0]
            given = None if connection is None else self._grants.of(connection, namespace).grant
            # Other namespaces see the same whether it exists or grants them nothing.
            admit_right(f"{of}/{name}", namespace, given, right, groups)
            if policy is not None and connection is not None and admit(connection, policy, given).suspend:
                return Refusal(reasons.SUSPENDED, "suspended")
        except SpecError as error:
            # Not stalled if the connection refuses: an edit of the connection can help, too.
            return Refusal.of(error)
        return None
