"""Runs the due GroupRestores of one connection and writes their statuses. Commits nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from group_hygiene import reconcile
from group_hygiene.controller.binding import Admitted, admitted
from group_hygiene.controller.isolation import tried
from group_hygiene.controller.objects import RESTORES, Object, is_over, key_of
from group_hygiene.controller.schedule import Turns
from group_hygiene.controller.services import Services
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.errors import HygieneError
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.process import runs
from group_hygiene.restore.restorable import (
    GroupResult,
    RestoreRequest,
    build_restore_status,
    parse_restore,
    redact_results,
)
from group_hygiene.restore.restoration import RestoreTurn, SavedEntries, read_saved, restore
from group_hygiene.spec.access import Right
from group_hygiene.spec.connection import Connection
from group_hygiene.status.conditions import connection_not_ready, redact_problem

# Pauses before a waiting restore is tried again: each try reads the whole ledger.
_AGAIN_START_S, _AGAIN_CAP_S = 15.0, 120.0
# In one round: how many restores of a namespace are tried, and the seconds for all; policies run after them.
_OF_NAMESPACE, _ROUND_S = 20, 10.0

Asked = Admitted[RestoreRequest]


class Restores:
    """The GroupRestores that name one connection."""

    def __init__(self, services: Services, writer: StatusWriter, namespace: str, name: str) -> None:
        """namespace, name: of the connection."""
        self._services, self._writer, self._clock = services, writer, services.clock
        self._namespace, self._name = namespace, name
        self._turns = Turns(services.clock)
        # uid of a restore that took longer than its turn -> the results of the groups that were tried.
        self._results: dict[str, dict[str, GroupResult]] = {}
        # uids of restores that got a result in this round.
        self._finished: set[str] = set()

    def open(self, connection: Connection) -> list[Object]:
        """The restores of this connection that are not complete, of namespaces to which it grants something.

        A complete one is never run again.
        """
        objects = [obj for obj in self._services.granted(RESTORES, connection) if not is_over(obj)]
        uids = {obj["metadata"]["uid"] for obj in objects}
        self._turns.begin_round(uids, {obj["metadata"]["namespace"] for obj in objects})
        self._results = {uid: results for uid, results in self._results.items() if uid in uids}
        return objects

    def due(self, connection: Connection, objects: Sequence[Object]) -> list[Asked]:
        """Those of them that the connection admits and that are due now."""
        due: list[Asked] = []
        self._finished.clear()
        for obj in objects:
            if not self._turns.is_due(obj["metadata"]["uid"], connection.generation):
                continue
            granted = self._services.grants.of(connection, obj["metadata"]["namespace"])
            found = admitted(granted, obj, Right.RESTORE, lambda obj: parse_restore(obj)[1])
            if isinstance(found, Refusal):
                self._services.unserved.skip(RESTORES, key_of(obj))
            else:
                due.append(found)
        return due

    def run(
        self, context: reconcile.Context, restores: Sequence[Asked], guarding: Callable[[Asked], reconcile.Guard]
    ) -> None:
        """Try some of each namespace once, for some seconds. The rest waits for the next round, after the policies.

        Reads the ledger once for all, if there is memory for that. guarding: returns the guard of one of them.
        """
        if not restores:
            return
        budget, generation = Deadline(min(_ROUND_S, context.deadline().left)), context.connection.generation
        turns, first = Counter[str](), list[Asked]()
        for asked in self._turns.in_order(restores):
            turns[asked.namespace] += 1
            if turns[asked.namespace] <= _OF_NAMESPACE:
                first.append(asked)
        restores = first
        saved = self._read(context, restores)
        # Those of one may fit, though not those of all.
        one_by_one = isinstance(saved, Refusal) and saved.reason == reasons.MEMORY_EXHAUSTED and len(restores) > 1
        for number, asked in enumerate(restores):
            if number and budget.left <= 0:
                return
            guard = guarding(asked)
            if one_by_one:
                saved = self._read(context, [asked])
            with runs.about(restore=asked.key):
                pause, earlier = self._turns.pause(asked.uid, generation), self._results.pop(asked.uid, {})
                turn = RestoreTurn(budget, {} if pause is None else earlier)
                results: Sequence[GroupResult] | Refusal
                if isinstance(saved, Refusal):
                    results = saved
                else:
                    what, executor = f"a restore of connection {self._key}", reconcile.Executor(context, guard)
                    results = tried(what, restore, executor, asked.spec, saved=saved, turn=turn)
                if guard.seconds_left() <= 0:
                    # The process that leads now reports the result.
                    return
                self._turns.note_tried(asked)
                if not turn.is_complete or isinstance(results, Refusal):
                    # They count unless the connection is edited.
                    self._results[asked.uid] = turn.results
                pause = _AGAIN_START_S if pause is None else min(pause * 2, _AGAIN_CAP_S)
                # A turn that ended early continues in the next round.
                self._turns.plan(asked.uid, generation, pause, pause if turn.is_complete else 0.0)
                if isinstance(results, Refusal):
                    self._report(asked.obj, redact_problem(results, asked.namespace, self._key))
                else:
                    self._report(asked.obj, redact_results(results, asked.namespace, self._key))
                self._finished.add(asked.uid)

    def _read(self, context: reconcile.Context, restores: Sequence[Asked]) -> SavedEntries | Refusal:
        """The backups for all of them, in one pass over the ledger. A Refusal = nothing can be restored now."""
        journal = context.journal
        if journal.problem is not None:
            return journal.problem
        if not journal.writable:
            message = "there is no ledger, and so no backup: it is created for the first GroupPolicy with mode Enforce"
            return Refusal(reasons.LEDGER_UNAVAILABLE, message)
        what, requests = f"the restores of connection {self._key}", [each.spec for each in restores]
        return tried(what, read_saved, journal, requests, context.deadline())

    def seconds_to_wait(self) -> float | None:
        """Seconds until the next restore is due; None = none waits."""
        return self._turns.seconds_to_wait()

    def report_not_ready(self, restores: Sequence[Asked], error: HygieneError) -> None:
        """Report that this error prevents use of the connection. Keeps results of this round, which may be final."""
        for asked in restores:
            if asked.uid not in self._finished:
                self._report(asked.obj, connection_not_ready(error, asked.namespace, self._key))

    @property
    def _key(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _report(self, obj: Object, results: Sequence[GroupResult] | Refusal) -> None:
        new = build_restore_status(obj, results, self._clock.now())
        if self._writer.write(RESTORES, obj, new) and "completionTime" in new:
            self._turns.forget(obj["metadata"]["uid"])
            # It may have to be deleted now.
            self._services.unserved.check(RESTORES, key_of(obj))
