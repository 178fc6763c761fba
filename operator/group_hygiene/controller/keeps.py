"""Serves the GroupKeeps of one connection: their requests in the ledger, and their statuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from group_hygiene import reconcile
from group_hygiene.controller.guard import Granted
from group_hygiene.controller.isolation import isolated
from group_hygiene.controller.objects import KEEPS, Object, key_of, refuse_unusable
from group_hygiene.controller.restores import in_turn
from group_hygiene.controller.services import Services
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.errors import HygieneError, LedgerProblem, SpecError
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.model.group_keep import Deletions, GroupKeep, KeptGroup
from group_hygiene.model.refusal import Refusal
from group_hygiene.process import runs
from group_hygiene.spec.access import Right
from group_hygiene.spec.connection import Connection, admit_object
from group_hygiene.spec.keep import parse_keep
from group_hygiene.status import build_keep_status, connection_not_ready, redact_problem

# How long the keeps of one round may take together: policies run after them.
_ROUND_S = 10.0
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
        # uid -> the status that was written, without the conditions' times.
        self._shown: dict[str, Any] = {}

    @property
    def uids(self) -> set[str]:
        """Of the keeps that ask for a group, or may do so."""
        return {uid for uid, groups in self._wanted.items() if groups is None or groups}

    def due(self, connection: Connection) -> list[Keeping]:
        """The keeps that the connection admits and that are due now."""
        self._wanted, found = {}, list[Keeping]()
        for key in self._services.objects.naming(KEEPS, self._namespace, self._name):
            obj = self._services.objects.get(KEEPS, *key)
            if obj is not None and (keeping := self._admitted(connection, obj)) is not None:
                found.append(keeping)
        self._forget(({*self._next, *self._tried, *self._earlier, *self._shown}) - self._wanted.keys())
        namespaces = {each.keep.namespace for each in found}
        self._served = {name: at for name, at in self._served.items() if name in namespaces}
        now = self._clock.monotonic()
        return [each for each in found if (known := self._before(each)) is None or known.at <= now]

    def _admitted(self, connection: Connection, obj: Object) -> Keeping | None:
        namespace, uid = key_of(obj)[0], obj["metadata"]["uid"]
        granted = self._services.grants.of(connection, namespace)
        self._wanted[uid] = None
        try:
            refuse_unusable(obj)
            keep = isolated(f"a keep of connection {self._key}", parse_keep, obj)
            if not isinstance(keep, Refusal):
                admit_object(connection, namespace, granted.grant, Right.KEEP)
        except SpecError as error:
            # What can't be read keeps its groups until its requests end; a refusal ends them at once.
            refused = (reasons.CROSS_NAMESPACE, reasons.ACTION_NOT_GRANTED)
            unknown = error.reason in refused and self._services.grants.is_unknown(connection, namespace)
            if error.reason in (*refused, reasons.TERMINATING) and not unknown:
                self._wanted[uid] = frozenset()
            keep = Refusal.of(error)
        if isinstance(keep, Refusal) or granted.grant is None:
            # Another thread writes its status from now on.
            self._forget({uid})
            self._services.unserved.skip(KEEPS, key_of(obj))
            return None
        patterns = granted.grant.groups(Right.KEEP)
        if patterns is not None:
            keep = replace(keep, granted=patterns.matches)
        self._wanted[uid] = frozenset(filter(keep.granted, keep.groups))
        return Keeping(obj, keep, granted)

    def withdraw(self, context: reconcile.Context) -> None:
        """End the requests of keeps that are gone, or no longer ask for a group or may not."""
        reconcile.withdraw(context, self._wanted, self._services.objects.is_complete)

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
        executor, ahead = reconcile.Executor(context, guard), not self._services.objects.is_complete
        try:
            what = f"a keep of connection {self._key}"
            return isolated(what, reconcile.keep_groups, executor, each.keep, earlier, ahead)
        except LedgerProblem as error:
            return Refusal.of(error)

    def _plan(self, each: Keeping, found: Sequence[KeptGroup] | Refusal) -> None:
        before = self._before(each)
        is_open = isinstance(found, Refusal) or any(group.reason == reasons.BEING_DELETED for group in found)
        pause = min(before.pause * 2 if before is not None else _AGAIN_S, _REFRESH_S) if is_open else _REFRESH_S
        if is_open and before is not None and before.pause == _REFRESH_S and not isinstance(found, Refusal):
            pause = _AGAIN_S
        now = self._clock.monotonic()
        self._next[each.obj["metadata"]["uid"]] = _Next(now + pause, pause, _edition(each))

    def _report(self, obj: Object, found: Sequence[KeptGroup] | Refusal) -> None:
        uid, new = obj["metadata"]["uid"], build_keep_status(obj, found, self._clock.now())
        # The store lacks the results, so that each status would look new.
        shown = (
            {key: value for key, value in new.items() if key != "conditions"},
            [
                {key: value for key, value in condition.items() if key != "lastTransitionTime"}
                for condition in new["conditions"]
            ],
        )
        if self._shown.get(uid) != shown and self._writer.write(KEEPS, obj, new):
            self._shown[uid] = shown


def _edition(each: Keeping) -> tuple[Any, ...]:
    connection = each.granted.connection
    return each.obj["metadata"]["generation"], connection.uid, connection.generation, each.granted.grant
