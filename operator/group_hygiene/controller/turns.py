"""The GroupRestores and GroupKeeps of one connection, whose namespaces take turns; and their statuses.

A restore commits nothing here: `engine.restoration` does. A keep's requests are in the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from group_hygiene.controller.admission import Admitted, AdmittedPolicy, Granted, R, S, admitted, tried
from group_hygiene.controller.objects import CONNECTIONS, KEEPS, RESTORES, Key, Object, is_over, key_of
from group_hygiene.controller.services import Services
from group_hygiene.controller.statuses import StatusWriter
from group_hygiene.engine import marks
from group_hygiene.engine.context import Context
from group_hygiene.engine.executor import Executor, Guard
from group_hygiene.engine.restorable import GroupResult, RestoreRequest, parse_restore
from group_hygiene.engine.restoration import RestoreTurn, SavedEntries, read_saved, restore
from group_hygiene.errors import HygieneError
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.contents import Contents
from group_hygiene.model import reasons
from group_hygiene.model.group_keep import GroupKeep, KeptGroup
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.conditions import connection_not_ready, redact_problem
from group_hygiene.observe.of_objects import build_keep_status, build_restore_status, redact_results
from group_hygiene.process import runs
from group_hygiene.process.clock import Clock
from group_hygiene.spec.connection import Connection, Right, ledger_of
from group_hygiene.spec.policy import parse_keep

_NEVER = float("-inf")
# The pause before objects that had no turn in a round.
_REST_S = 1.0

# Pauses before a waiting restore is tried again: each try reads the whole ledger.
_AGAIN_START_S, _AGAIN_CAP_S = 15.0, 120.0
# In one round: how many restores of a namespace are tried, and the seconds for all; policies run after them.
_OF_NAMESPACE, _RESTORES_S = 20, 10.0

# How long the keeps of one round may take together: policies run after them.
_KEEPS_S = 3.0
# How often requests are renewed and groups are read again; the first pause after a refusal, which doubles.
_REFRESH_S, _AGAIN_S = 60.0, 2.0
# Groups with these are read again as after a refusal.
_UNCERTAIN = frozenset({reasons.BEING_DELETED, reasons.GROUP_UNREADABLE})

Asked = Admitted[RestoreRequest]
Keeping = Admitted[GroupKeep]


class _Next(NamedTuple):
    """at: in monotonic seconds. pause: before it. edition: of the object and its connection, when it was planned."""

    at: float
    pause: float
    edition: object


class Turns:
    """The turns of the GroupRestores or GroupKeeps of one connection.

    Namespaces take turns, and in each of them the object that was tried longest ago comes first.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next: dict[str, _Next] = {}
        # The last try of each uid, and of each namespace, in monotonic seconds.
        self._tried: dict[str, float] = {}
        self._served: dict[str, float] = {}
        # The uids that were due in this round and were not tried yet.
        self._left: set[str] = set()

    def in_order(self, objects: Iterable[Admitted[S]]) -> list[Admitted[S]]:
        """Those that are due now, in the order of their turns."""
        of_namespace: Counter[str] = Counter()
        turns: dict[str, tuple[int, float]] = {}
        oldest = sorted(objects, key=lambda each: self._tried.get(each.uid, _NEVER))
        for each in oldest:
            turns[each.uid] = of_namespace[each.namespace], self._served.get(each.namespace, _NEVER)
            of_namespace[each.namespace] += 1
        self._left = set(turns)
        return sorted(oldest, key=lambda each: turns[each.uid])

    def note_tried(self, each: Admitted[Any]) -> None:
        self._tried[each.uid] = self._served[each.namespace] = self._clock.monotonic()
        self._left.discard(each.uid)

    def plan(self, uid: str, edition: object, pause: float, wait: float) -> None:
        """The next turn comes after `wait` seconds. pause: to be doubled if it fails again."""
        self._next[uid] = _Next(self._clock.monotonic() + wait, pause, edition)

    def pause(self, uid: str, edition: object) -> float | None:
        """The pause that was planned last for this edition; None = none was."""
        known = self._next.get(uid)
        return known.pause if known is not None and known.edition == edition else None

    def is_due(self, uid: str, edition: object) -> bool:
        return self.pause(uid, edition) is None or self._next[uid].at <= self._clock.monotonic()

    def seconds_to_wait(self) -> float | None:
        """Seconds until the next turn; None = there is none."""
        if self._left:
            return _REST_S
        now = self._clock.monotonic()
        return min((max(0.0, planned.at - now) for planned in self._next.values()), default=None)

    def forget(self, uid: str) -> None:
        self._next.pop(uid, None)
        self._tried.pop(uid, None)

    def begin_round(self, uids: Collection[str], namespaces: Collection[str]) -> None:
        """Forget all but these. Those that are due have their turns in this round, or are left."""
        self._left.clear()
        for uid in [uid for uid in {*self._next, *self._tried} if uid not in uids]:
            self.forget(uid)
        self._served = {name: at for name, at in self._served.items() if name in namespaces}


class _InTurns:
    """The objects of one CRD that name one connection."""

    def __init__(self, services: Services, writer: StatusWriter, namespace: str, name: str) -> None:
        """namespace, name: of the connection."""
        self._services, self._writer, self._clock = services, writer, services.clock
        self._namespace, self._name, self._key = namespace, name, f"{namespace}/{name}"
        self._turns = Turns(services.clock)
        # uids of the objects whose results of this round may be final.
        self._finished: set[str] = set()

    def seconds_to_wait(self) -> float | None:
        """Seconds until the next of them is due; None = none waits."""
        return self._turns.seconds_to_wait()

    def report_not_ready(self, due: Sequence[Admitted[R]], error: HygieneError) -> None:
        """Report that this error prevents use of the connection. Results of this round stay, if they may be final."""
        for each in due:
            if each.uid not in self._finished:
                self._report(each.obj, connection_not_ready(error, each.namespace, self._key))

    def _report(self, obj: Object, found: Any) -> None:
        raise NotImplementedError


class Restores(_InTurns):
    """The GroupRestores that name one connection."""

    def __init__(self, services: Services, writer: StatusWriter, namespace: str, name: str) -> None:
        super().__init__(services, writer, namespace, name)
        # uid of a restore that took longer than its turn -> the results of the groups that were tried.
        self._results: dict[str, dict[str, GroupResult]] = {}

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

    def run(self, context: Context, restores: Sequence[Asked], guarding: Callable[[Asked], Guard]) -> None:
        """Try some of each namespace once, for some seconds. The rest waits for the next round, after the policies.

        Reads the ledger once for all, if there is memory for that. guarding: returns the guard of one of them.
        """
        if not restores:
            return
        budget, generation = Deadline(min(_RESTORES_S, context.deadline().left)), context.connection.generation
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
                    what, executor = f"a restore of connection {self._key}", Executor(context, guard)
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

    def _read(self, context: Context, restores: Sequence[Asked]) -> SavedEntries | Refusal:
        """The backups for all of them, in one pass over the ledger. A Refusal = nothing can be restored now."""
        journal = context.journal
        if journal.problem is not None:
            return journal.problem
        if not journal.writable:
            message = "there is no ledger, and so no backup: it is created for the first GroupPolicy with mode Enforce"
            return Refusal(reasons.LEDGER_UNAVAILABLE, message)
        what, requests = f"the restores of connection {self._key}", [each.spec for each in restores]
        return tried(what, read_saved, journal, requests, context.deadline())

    def _report(self, obj: Object, results: Sequence[GroupResult] | Refusal) -> None:
        new = build_restore_status(obj, results, self._clock.now())
        if self._writer.write(RESTORES, obj, new) and "completionTime" in new:
            self._turns.forget(obj["metadata"]["uid"])
            # It may have to be deleted now.
            self._services.unserved.check(RESTORES, key_of(obj))


class Keeps(_InTurns):
    """The GroupKeeps that name one connection."""

    def __init__(self, services: Services, writer: StatusWriter, namespace: str, name: str) -> None:
        super().__init__(services, writer, namespace, name)
        # uid -> the groups that it asks for and may keep; None = not known.
        self._wanted: dict[str, frozenset[str] | None] = {}
        # uid -> a hash of the status that was written, without the conditions' times.
        self._shown: dict[str, int] = {}

    def have_ended(self, contents: Contents) -> bool:
        """Whether requests in the ledger have to be withdrawn."""
        wanted = self._wanted | self._of_others(contents)
        return not marks.keepers(contents) <= {uid for uid, of in wanted.items() if of is None or of}

    def due(self, connection: Connection) -> list[Keeping]:
        """The keeps that the connection admits and that are due now."""
        self._wanted, found = {}, list[Keeping]()
        for key in self._services.objects.naming(KEEPS, self._namespace, self._name):
            granted = self._services.grants.of(connection, key[0])
            if granted.grant is None:
                # Not even decoded: it costs the loop of a connection no more than its names.
                if (listed := self._services.objects.listed(KEEPS, key)) is not None:
                    self._refuse(key, listed.uid, granted)
            elif (obj := self._services.objects.get(KEEPS, *key)) is not None:
                keeping = admitted(granted, obj, Right.KEEP, parse_keep)
                if isinstance(keeping, Refusal):
                    self._refuse(key, obj["metadata"]["uid"], granted, keeping.reason)
                else:
                    wanted = frozenset(filter(keeping.spec.granted, keeping.spec.groups))
                    self._wanted[keeping.uid] = wanted if granted.is_certain else None
                    if (restorable := granted.grant.groups(Right.RESTORE)) is not None:
                        keeping = replace(keeping, spec=replace(keeping.spec, restorable=restorable.matches))
                    found.append(keeping)
        self._turns.begin_round(self._wanted, {each.namespace for each in found})
        for uid in self._shown.keys() - self._wanted.keys():
            self._forget(uid)
        return [each for each in found if self._turns.is_due(each.uid, _edition(each))]

    def _refuse(self, key: Key, uid: str, granted: Granted, reason: str = reasons.CROSS_NAMESPACE) -> None:
        """Another thread writes its status from now on.

        A grant that was revoked ends its requests at once. What can't be read keeps its groups until they run out.
        """
        revoked = granted.is_certain and reason in (reasons.CROSS_NAMESPACE, reasons.ACTION_NOT_GRANTED)
        self._wanted[uid] = frozenset() if revoked or reason == reasons.TERMINATING else None
        self._forget(uid)
        self._services.unserved.skip(KEEPS, key)

    def withdraw(self, context: Context) -> None:
        """End the requests of keeps that are gone, or no longer ask for a group or may not."""
        wanted = self._wanted | self._of_others(context.journal.contents)
        api, is_complete = self._services.api, self._services.objects.is_complete
        marks.withdraw(context, wanted, lambda namespace: is_complete and api.serves(namespace))

    def _of_others(self, contents: Contents) -> dict[str, None]:
        """Keeps that have requests in this ledger and name another connection, unless that one uses another ledger.

        Connections to one cluster share its ledger if they name the same topic.
        """
        uids, objects = marks.keepers(contents) - self._wanted.keys(), self._services.objects
        named = objects.connections_of(KEEPS, uids) if uids else {}
        others = {key: ledger_of(objects.get(CONNECTIONS, *key) or {}) for key in set(named.values())}
        # Not as in the status of the own connection, which may still show the ledger before it was recreated.
        own = contents.owner.ledger if contents.owner else None
        return {uid: None for uid, key in named.items() if own is None or others[key] in (None, own)}

    def run(
        self,
        context: Context,
        due: Sequence[Keeping],
        guarding: Callable[[Keeping], Guard],
        active: Sequence[AdmittedPolicy],
    ) -> None:
        """Serve each of them once; those for which no time is left are due in the next round.

        active: the policies of the connection that run.
        """
        left, policies = Deadline(_KEEPS_S), {entry.uid: entry.spec for entry in active}
        for number, each in enumerate(self._turns.in_order(due)):
            if number and left.left <= 0:
                return
            guard = guarding(each)
            with runs.about(keep=each.key):
                executor = Executor(context, guard)
                ahead = not (self._services.objects.is_complete and self._services.api.serves_all)
                what = f"a keep of connection {self._key}"
                found = tried(what, marks.keep_groups, executor, each.spec, ahead, policies)
                if guard.seconds_left() <= 0:
                    # The process that leads now reports the result.
                    return
                self._turns.note_tried(each)
                self._plan(each, found)
                if isinstance(found, Refusal):
                    found = redact_problem(found, each.namespace, self._key)
                self._report(each.obj, found)

    def _forget(self, uid: str) -> None:
        self._turns.forget(uid)
        self._shown.pop(uid, None)

    def _plan(self, each: Keeping, found: Sequence[KeptGroup] | Refusal) -> None:
        edition, pause, wait = _edition(each), _AGAIN_S / 2, _REFRESH_S
        if isinstance(found, Refusal) or any(group.reason in _UNCERTAIN for group in found):
            before = self._turns.pause(each.uid, edition)
            pause = wait = _AGAIN_S if before is None else min(before * 2, _REFRESH_S)
        self._turns.plan(each.uid, edition, pause, wait)

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
    """Of the object, and of what the connection grants its namespace. Equal after the connection is parsed again."""
    connection, grant = each.granted.connection, each.granted.grant
    entries = () if grant is None else grant.entries or ()
    given = tuple((entry.rights, entry.groups.sources) for entry in entries)
    return each.obj["metadata"]["generation"], connection.uid, connection.generation, given
