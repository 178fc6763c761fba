"""Serves the GroupKeeps of one connection: their requests in the ledger, and their statuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from group_hygiene import reconcile
from group_hygiene.controller.guard import Granted
from group_hygiene.controller.isolation import isolated
from group_hygiene.controller.objects import CONNECTIONS, KEEPS, Key, Object, key_of, refuse_unusable
from group_hygiene.controller.restores import in_turn
from group_hygiene.controller.services import Services
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.errors import HygieneError, LedgerProblem, SpecError
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.contents import Contents
from group_hygiene.model import reasons
from group_hygiene.model.group_keep import Deletions, GroupKeep, KeptGroup
from group_hygiene.model.refusal import Refusal
from group_hygiene.process import runs
from group_hygiene.spec.access import Grant, Right
from group_hygiene.spec.connection import Connection, admit_object
from group_hygiene.spec.keep import parse_keep
from group_hygiene.status import build_keep_status, connection_not_ready, redact_problem

# How long the keeps of one round may take together: policies run after them.
_ROUND_S = 3.0
# How often requests are renewed and groups are read again; the first pause after a refusal, which doubles.
_REFRESH_S, _AGAIN_S = 60.0, 2.0


@dataclass(frozen=True)
class Keeping:
    """A GroupKeep that is due, and the grant of its namespace."""

    obj: Object
    keep: GroupKeep
    granted: Granted


class _Next(NamedTuple):
    """The next turn of a keep. at: in monotonic seconds. edition: the generations and grant that it had before."""

    at: float
    pause: float
    edition: tuple[Any, ...]


class Keeps:
    """The GroupKeeps that name one connection."""

    def __init__(self, services: Services, writer: StatusWriter, namespace: str, name: str) -> None:
        """namespace, name: of the connection."""
        self._services, self._writer, self._clock = services, writer, services.clock
        self._namespace, self._name = namespace, name
        self._next: dict[str, _Next] = {}
        # The last turn of each uid, and of each namespace, in monotonic seconds.
        self._tried: dict[str, float] = {}
        self._served: dict[str, float] = {}
        # uid -> group -> its deletions before its request was written.
        self._earlier: dict[str, dict[str, Deletions]] = {}
        # uid -> the groups that it asks for; None = not known.
        self._wanted: dict[str, frozenset[str] | None] = {}
        # uid -> a hash of the status that was written, without the conditions' times.
        self._shown: dict[str, int] = {}

    def have_ended(self, contents: Contents) -> bool:
        """Whether requests in the ledger have to be withdrawn."""
        wanted = self._wanted | self._of_others(contents)
        return not reconcile.keepers(contents) <= {uid for uid, of in wanted.items() if of is None or of}

    def due(self, connection: Connection) -> list[Keeping]:
        """The keeps that the connection admits and that are due now."""
        self._wanted, found = {}, list[Keeping]()
        for key in self._services.objects.naming(KEEPS, self._namespace, self._name):
            granted = self._services.grants.of(connection, key[0])
            if granted.grant is None:
                # Not even decoded: it costs the loop of a connection no more than its names.
                self._refuse(key, self._services.objects.uid(KEEPS, key), connection)
            elif (obj := self._services.objects.get(KEEPS, *key)) is not None:
                keeping = self._admitted(connection, obj, granted, granted.grant)
                found += [keeping] if keeping is not None else []
        self._forget(({*self._next, *self._tried, *self._earlier, *self._shown}) - self._wanted.keys())
        namespaces = {each.keep.namespace for each in found}
        self._served = {name: at for name, at in self._served.items() if name in namespaces}
        now = self._clock.monotonic()
        return [each for each in found if (known := self._before(each)) is None or known.at <= now]

    def _admitted(self, connection: Connection, obj: Object, granted: Granted, grant: Grant) -> Keeping | None:
        key, uid = key_of(obj), obj["metadata"]["uid"]
        try:
            refuse_unusable(obj)
            admit_object(connection, key[0], grant, Right.KEEP)
            keep = isolated(f"a keep of connection {self._key}", parse_keep, obj)
        except SpecError as error:
            keep = Refusal.of(error)
        if isinstance(keep, Refusal):
            self._refuse(key, uid, connection, keep.reason)
            return None
        patterns = grant.groups(Right.KEEP)
        if patterns is not None:
            keep = replace(keep, granted=patterns.matches)
        self._wanted[uid] = frozenset(filter(keep.granted, keep.groups))
        return Keeping(obj, keep, granted)

    def _refuse(self, key: Key, uid: str | None, connection: Connection, reason: str = reasons.CROSS_NAMESPACE) -> None:
        """Another thread writes its status from now on.

        A grant that was revoked ends its requests at once. What can't be read keeps its groups until they run out.
        """
        if uid is None:
            return
        revoked = reason in (reasons.CROSS_NAMESPACE, reasons.ACTION_NOT_GRANTED)
        revoked = revoked and not self._services.grants.is_unknown(connection, key[0])
        self._wanted[uid] = frozenset() if revoked or reason == reasons.TERMINATING else None
        self._forget({uid})
        self._services.unserved.skip(KEEPS, key)

    def withdraw(self, context: reconcile.Context) -> None:
        """End the requests of keeps that are gone, or no longer ask for a group or may not."""
        wanted = self._wanted | self._of_others(context.journal.contents)
        api, is_complete = self._services.api, self._services.objects.is_complete
        reconcile.withdraw(context, wanted, lambda namespace: is_complete and api.serves(namespace))

    def _of_others(self, contents: Contents) -> dict[str, None]:
        """Keeps that have requests in this ledger and name another connection, unless that one has another ledger.

        Connections to one cluster share its ledger if they name the same topic.
        """
        uids = reconcile.keepers(contents) - self._wanted.keys()
        named = self._services.objects.connections_of(KEEPS, uids) if uids else {}
        own = self._ledger_id((self._namespace, self._name))
        others = {key for key in set(named.values()) if self._ledger_id(key) not in (None, own)} if own else set()
        return {uid: None for uid, key in named.items() if key not in others}

    def _ledger_id(self, connection: Key) -> str | None:
        """As its status shows it; None = unknown."""
        obj = self._services.objects.get(CONNECTIONS, *connection) or {}
        id_: str | None = ((obj.get("status") or {}).get("ledger") or {}).get("id")
        return id_

    def run(
        self, context: reconcile.Context, due: Sequence[Keeping], guarding: Callable[[Keeping], reconcile.Guard]
    ) -> None:
        """Serve each of them once; those for which no time is left are due in the next round."""
        left = Deadline(_ROUND_S)
        for number, each in enumerate(in_turn(due, self._tried, self._served)):
            if number and left.left <= 0:
                return
            uid, guard = each.obj["metadata"]["uid"], guarding(each)
            with runs.about(keep=f"{each.keep.namespace}/{each.keep.name}"):
                found = self._try(context, each, guard)
                if guard.seconds_left() <= 0:
                    # The process that leads now reports the result.
                    return
                self._tried[uid] = self._served[each.keep.namespace] = self._clock.monotonic()
                self._plan(each, found)
                if isinstance(found, Refusal):
                    found = redact_problem(found, each.keep.namespace, self._key)
                self._report(each.obj, found)

    def seconds_to_wait(self) -> float | None:
        """Seconds until the next keep is due; None = there is none."""
        now = self._clock.monotonic()
        return min((max(0.0, each.at - now) for each in self._next.values()), default=None)

    def report_not_ready(self, due: Sequence[Keeping], error: HygieneError) -> None:
        """Report that this error prevents use of the connection."""
        for each in due:
            self._report(each.obj, connection_not_ready(error, each.keep.namespace, self._key))

    @property
    def _key(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _before(self, each: Keeping) -> _Next | None:
        before = self._next.get(each.obj["metadata"]["uid"])
        return before if before is not None and before.edition == _edition(each) else None

    def _forget(self, uids: Iterable[str]) -> None:
        for uid in uids:
            for known in (self._next, self._tried, self._earlier, self._shown):
                cast("dict[str, Any]", known).pop(uid, None)

    def _try(self, context: reconcile.Context, each: Keeping, guard: reconcile.Guard) -> Sequence[KeptGroup] | Refusal:
        earlier = self._earlier.setdefault(each.obj["metadata"]["uid"], {})
        executor = reconcile.Executor(context, guard)
        ahead = not (self._services.objects.is_complete and self._services.api.serves_all)
        try:
            what = f"a keep of connection {self._key}"
            return isolated(what, reconcile.keep_groups, executor, each.keep, earlier, ahead)
        except LedgerProblem as error:
            return Refusal.of(error)

    def _plan(self, each: Keeping, found: Sequence[KeptGroup] | Refusal) -> None:
        before, now = self._before(each), self._clock.monotonic()
        if isinstance(found, Refusal) or any(group.reason == reasons.BEING_DELETED for group in found):
            pause = min(before.pause * 2, _REFRESH_S) if before is not None else _AGAIN_S
            at = now + pause
        else:
            pause, at = _AGAIN_S / 2, now + _REFRESH_S
        self._next[each.obj["metadata"]["uid"]] = _Next(at, pause, _edition(each))

    def _report(self, obj: Object, found: Sequence[KeptGroup] | Refusal) -> None:
        uid, new = obj["metadata"]["uid"], build_keep_status(obj, found, self._clock.now())
        # The store lacks the results, so that each status would look new.
        conditions = [
            {key: value for key, value in each.items() if key != "lastTransitionTime"} for each in new["conditions"]
        ]
        shown = hash(repr(new | {"conditions": conditions}))
        if self._shown.get(uid) != shown and self._writer.write(KEEPS, obj, new):
            self._shown[uid] = shown


def _edition(each: Keeping) -> tuple[Any, ...]:
    connection = each.granted.connection
    return each.obj["metadata"]["generation"], connection.uid, connection.generation, each.granted.grant
