"""Runs the due GroupRestores of one connection and writes their statuses. Commits nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

from group_hygiene import reconcile
from group_hygiene.controller.guard import Granted
from group_hygiene.controller.isolation import isolated
from group_hygiene.controller.objects import RESTORES, Object, is_over, key_of, refuse_unusable
from group_hygiene.controller.services import Services
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.errors import HygieneError, LedgerProblem, SpecError
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.process import runs
from group_hygiene.restore.grouprestore import build_restore_status, parse_restore, redact_results
from group_hygiene.restore.restorable import GroupResult, RestoreRequest
from group_hygiene.restore.restoration import RestoreTurn, SavedEntries, read_saved, restore
from group_hygiene.spec.access import Right
from group_hygiene.spec.connection import Connection, admit_object
from group_hygiene.status import connection_not_ready, redact_problem

# Pauses before a waiting restore is tried again: each try reads the whole ledger.
_AGAIN_START_S, _AGAIN_CAP_S = 15.0, 120.0
# In one round: how many restores of a namespace are tried, and the seconds for all; policies run after them. The pause
# before those that are left.
_OF_NAMESPACE, _ROUND_S, _REST_S = 20, 10.0, 1.0


@dataclass(frozen=True)
class Asked:
    """A GroupRestore that may be run, and the grant of its namespace."""

    obj: Object
    request: RestoreRequest
    granted: Granted


class _HasObject(Protocol):
    @property
    def obj(self) -> Object: ...


_T = TypeVar("_T", bound=_HasObject)


class _Waiting(NamedTuple):
    """The next try of a restore. at: in monotonic seconds. pause: before it. generation: the connection's before."""

    at: float
    pause: float
    generation: int


class Restores:
    """The GroupRestores that name one connection."""

    def __init__(self, services: Services, writer: StatusWriter, namespace: str, name: str) -> None:
        """namespace, name: of the connection."""
        self._services, self._writer, self._clock = services, writer, services.clock
        self._namespace, self._name = namespace, name
        self._waiting: dict[str, _Waiting] = {}
        # The last try of each uid, and of each namespace, in monotonic seconds.
        self._tried: dict[str, float] = {}
        self._served: dict[str, float] = {}
        # uid of a restore that took longer than its turn -> the results of the groups that were tried.
        self._results: dict[str, dict[str, GroupResult]] = {}
        # Seconds until those that had no turn in this round; None = all had one.
        self._rest: float | None = None
        # uids of restores that got a result in this round.
        self._finished: set[str] = set()

    def open(self, connection: Connection) -> list[Object]:
        """The restores of this connection that are not complete, of namespaces to which it grants something.

        A complete one is never run again.
        """
        objects = [obj for obj in self._services.granted(RESTORES, connection) if not is_over(obj)]
        uids = {obj["metadata"]["uid"] for obj in objects}
        self._waiting = {uid: waiting for uid, waiting in self._waiting.items() if uid in uids}
        self._tried = {uid: at for uid, at in self._tried.items() if uid in uids}
        self._results = {uid: results for uid, results in self._results.items() if uid in uids}
        self._served = {name: at for name, at in self._served.items() if name in {_namespace(obj) for obj in objects}}
        return objects

    def due(self, connection: Connection, objects: Sequence[Object]) -> list[Asked]:
        """Those of them that the connection admits and that are due now."""
        admitted: list[Asked] = []
        self._finished.clear()
        for obj in objects:
            before = self._of(obj)
            if (
                before is not None
                and before.generation == connection.generation
                and before.at > self._clock.monotonic()
            ):
                continue
            granted = self._services.grants.of(connection, _namespace(obj))
            try:
                refuse_unusable(obj)
                admit_object(connection, _namespace(obj), granted.grant, Right.RESTORE)
                parsed = isolated(f"a restore of connection {self._key}", parse_restore, obj)
            except SpecError as error:
                parsed = Refusal.of(error)
            if granted.grant is None or isinstance(parsed, Refusal):
                self._services.unserved.skip(RESTORES, key_of(obj))
                continue
            patterns = granted.grant.groups(Right.RESTORE)
            request = parsed[1] if patterns is None else replace(parsed[1], granted=patterns.matches)
            admitted.append(Asked(obj, request, granted))
        return admitted

    def run(
        self, context: reconcile.Context, restores: Sequence[Asked], guarding: Callable[[Asked], reconcile.Guard]
    ) -> None:
        """Try some of each namespace once, for some seconds. The rest waits for the next round, after the policies.

        Reads the ledger once for all, if there is memory for that. guarding: returns the guard of one of them.
        """
        self._rest = None
        if not restores:
            return
        budget, generation = Deadline(min(_ROUND_S, context.deadline().left)), context.connection.generation
        turns, first = Counter[str](), list[Asked]()
        for asked in in_turn(restores, self._tried, self._served):
            turns[_namespace(asked.obj)] += 1
            if turns[_namespace(asked.obj)] <= _OF_NAMESPACE:
                first.append(asked)
        self._rest, restores = _REST_S if len(first) < len(restores) else None, first
        saved = self._read(context, restores)
        # Those of one may fit, though not those of all.
        one_by_one = isinstance(saved, Refusal) and saved.reason == reasons.MEMORY_EXHAUSTED and len(restores) > 1
        for number, asked in enumerate(restores):
            if number and budget.left <= 0:
                self._rest = 0.0
                return
            guard, metadata = guarding(asked), asked.obj["metadata"]
            if one_by_one:
                saved = self._read(context, [asked])
            with runs.about(restore=f"{metadata['namespace']}/{metadata['name']}"):
                turn = RestoreTurn(budget, self._results_of(asked.obj, generation))
                results = saved if isinstance(saved, Refusal) else self._try(context, asked, guard, saved, turn)
                shown: Sequence[GroupResult] | Refusal
                if isinstance(results, Refusal):
                    shown = redact_problem(results, metadata["namespace"], self._key)
                else:
                    shown = redact_results(results, metadata["namespace"], self._key)
                if guard.seconds_left() <= 0:
                    # The process that leads now reports the result.
                    return
                self._tried[metadata["uid"]] = self._served[metadata["namespace"]] = self._clock.monotonic()
                if not turn.is_complete or isinstance(results, Refusal):
                    self._results[metadata["uid"]] = turn.results
                self._wait(asked.obj, generation, unfinished=not turn.is_complete)
                self._report(asked.obj, shown)
                self._finished.add(metadata["uid"])

    def _read(self, context: reconcile.Context, restores: Sequence[Asked]) -> SavedEntries | Refusal:
        """The backups for all of them, in one pass over the ledger. A Refusal = nothing can be restored now."""
        journal = context.journal
        if journal.problem is not None:
            return journal.problem
        if not journal.writable:
            message = "there is no ledger, and so no backup: it is created for the first GroupPolicy with mode Enforce"
            return Refusal(reasons.LEDGER_UNAVAILABLE, message)
        what, requests = f"the restores of connection {self._key}", [each.request for each in restores]
        try:
            return isolated(what, read_saved, journal, requests, context.deadline())
        except LedgerProblem as error:
            return Refusal.of(error)

    def seconds_to_wait(self) -> float | None:
        """Seconds until the next of those that were tried is due; None = none waits."""
        if self._rest is not None:
            return self._rest
        now = self._clock.monotonic()
        return min((max(0.0, waiting.at - now) for waiting in self._waiting.values()), default=None)

    def report_not_ready(self, restores: Sequence[Asked], error: HygieneError) -> None:
        """Report that this error prevents use of the connection. Keeps results of this round, which may be final."""
        for asked in restores:
            if asked.obj["metadata"]["uid"] not in self._finished:
                self._report(asked.obj, connection_not_ready(error, _namespace(asked.obj), self._key))

    @property
    def _key(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _of(self, obj: Object) -> _Waiting | None:
        return self._waiting.get(obj["metadata"]["uid"])

    def _results_of(self, obj: Object, generation: int) -> dict[str, GroupResult]:
        """The results of earlier turns that did not suffice for all groups. generation: the connection's."""
        results, before = self._results.pop(obj["metadata"]["uid"], {}), self._of(obj)
        return results if before is not None and before.generation == generation else {}

    def _wait(self, obj: Object, generation: int, unfinished: bool) -> None:
        """Schedule the next try. unfinished: its turn ended early, so it continues in the next round."""
        before = self._of(obj)
        again = before is not None and before.generation == generation
        pause = min(before.pause * 2, _AGAIN_CAP_S) if before is not None and again else _AGAIN_START_S
        at = self._clock.monotonic() + (0.0 if unfinished else pause)
        self._waiting[obj["metadata"]["uid"]] = _Waiting(at, pause, generation)

    def _try(
        self, context: reconcile.Context, asked: Asked, guard: reconcile.Guard, saved: SavedEntries, turn: RestoreTurn
    ) -> Sequence[GroupResult] | Refusal:
        what, executor = f"a restore of connection {self._key}", reconcile.Executor(context, guard)
        try:
            return isolated(what, restore, executor, asked.request, saved=saved, turn=turn)
        except LedgerProblem as error:
            return Refusal.of(error)

    def _report(self, obj: Object, results: Sequence[GroupResult] | Refusal) -> None:
        new = build_restore_status(obj, results, self._clock.now())
        if self._writer.write(RESTORES, obj, new) and "completionTime" in new:
            self._waiting.pop(obj["metadata"]["uid"], None)
            # It may have to be deleted now.
            self._services.unserved.check(RESTORES, key_of(obj))


def in_turn(objects: Sequence[_T], tried: Mapping[str, float], served: Mapping[str, float]) -> list[_T]:
    """The objects in their order: namespaces take turns, and in each, the one tried longest ago comes first.

    tried, served: the last try of each uid, and of each namespace, in monotonic seconds.
    """
    never = float("-inf")
    of_namespace: Counter[str] = Counter()
    turns: dict[str, tuple[int, float]] = {}
    oldest = sorted(objects, key=lambda each: tried.get(each.obj["metadata"]["uid"], never))
    for each in oldest:
        namespace = each.obj["metadata"]["namespace"]
        turns[each.obj["metadata"]["uid"]] = of_namespace[namespace], served.get(namespace, never)
        of_namespace[namespace] += 1
    return sorted(oldest, key=lambda each: turns[each.obj["metadata"]["uid"]])


def _namespace(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["namespace"])
