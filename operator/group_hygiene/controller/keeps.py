"""Serves the GroupKeeps of one connection: their requests in the ledger, and their statuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from group_hygiene import reconcile
from group_hygiene.controller.binding import Admitted, AdmittedPolicy, admitted
from group_hygiene.controller.guard import Granted
from group_hygiene.controller.isolation import tried
from group_hygiene.controller.objects import CONNECTIONS, KEEPS, Key, Object
from group_hygiene.controller.schedule import Turns
from group_hygiene.controller.services import Services
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.errors import HygieneError
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.contents import Contents
from group_hygiene.model import reasons
from group_hygiene.model.group_keep import Deletions, GroupKeep, KeptGroup
from group_hygiene.model.refusal import Refusal
from group_hygiene.process import runs
from group_hygiene.spec.access import Right
from group_hygiene.spec.connection import Connection, ledger_of
from group_hygiene.spec.keep import parse_keep
from group_hygiene.status.conditions import connection_not_ready, redact_problem
from group_hygiene.status.of_connections import build_keep_status

# How long the keeps of one round may take together: policies run after them.
_ROUND_S = 3.0
# How often requests are renewed and groups are read again; the first pause after a refusal, which doubles.
_REFRESH_S, _AGAIN_S = 60.0, 2.0
# Groups with these are read again as after a refusal.
_UNCERTAIN = frozenset({reasons.BEING_DELETED, reasons.GROUP_UNREADABLE})


Keeping = Admitted[GroupKeep]


class Keeps:
    """The GroupKeeps that name one connection."""

    def __init__(self, services: Services, writer: StatusWriter, namespace: str, name: str) -> None:
        """namespace, name: of the connection."""
        self._services, self._writer, self._clock = services, writer, services.clock
        self._namespace, self._name = namespace, name
        self._turns = Turns(services.clock)
        # uid -> group -> its deletions before its request was written.
        self._earlier: dict[str, dict[str, Deletions]] = {}
        # uid -> the groups that it asks for and may keep; None = not known.
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
        for uid in (self._earlier.keys() | self._shown.keys()) - self._wanted.keys():
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

    def withdraw(self, context: reconcile.Context) -> None:
        """End the requests of keeps that are gone, or no longer ask for a group or may not."""
        wanted = self._wanted | self._of_others(context.journal.contents)
        api, is_complete = self._services.api, self._services.objects.is_complete
        reconcile.withdraw(context, wanted, lambda namespace: is_complete and api.serves(namespace))

    def _of_others(self, contents: Contents) -> dict[str, None]:
        """Keeps that have requests in this ledger and name another connection, unless that one uses another ledger.

        Connections to one cluster share its ledger if they name the same topic.
        """
        uids, objects = reconcile.keepers(contents) - self._wanted.keys(), self._services.objects
        named = objects.connections_of(KEEPS, uids) if uids else {}
        others = {key: ledger_of(objects.get(CONNECTIONS, *key) or {}) for key in set(named.values())}
        # Not as in the status of the own connection, which may still show the ledger before it was recreated.
        own = contents.owner.ledger if contents.owner else None
        return {uid: None for uid, key in named.items() if own is None or others[key] in (None, own)}

    def run(
        self,
        context: reconcile.Context,
        due: Sequence[Keeping],
        guarding: Callable[[Keeping], reconcile.Guard],
        active: Sequence[AdmittedPolicy],
    ) -> None:
        """Serve each of them once; those for which no time is left are due in the next round.

        active: the policies of the connection that run.
        """
        left, policies = Deadline(_ROUND_S), {entry.uid: entry.spec for entry in active}
        for number, each in enumerate(self._turns.in_order(due)):
            if number and left.left <= 0:
                return
            guard = guarding(each)
            with runs.about(keep=each.key):
                executor, earlier = reconcile.Executor(context, guard), self._earlier.setdefault(each.uid, {})
                ahead = not (self._services.objects.is_complete and self._services.api.serves_all)
                what = f"a keep of connection {self._key}"
                found = tried(what, reconcile.keep_groups, executor, each.spec, earlier, ahead, policies)
                if guard.seconds_left() <= 0:
                    # The process that leads now reports the result.
                    return
                self._turns.note_tried(each)
                self._plan(each, found)
                if isinstance(found, Refusal):
                    found = redact_problem(found, each.namespace, self._key)
                self._report(each.obj, found)

    def seconds_to_wait(self) -> float | None:
        """Seconds until the next keep is due; None = there is none."""
        return self._turns.seconds_to_wait()

    def report_not_ready(self, due: Sequence[Keeping], error: HygieneError) -> None:
        """Report that this error prevents use of the connection."""
        for each in due:
            self._report(each.obj, connection_not_ready(error, each.namespace, self._key))

    @property
    def _key(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _forget(self, uid: str) -> None:
        self._turns.forget(uid)
        self._earlier.pop(uid, None)
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
    connection = each.granted.connection
    return each.obj["metadata"]["generation"], connection.uid, connection.generation, each.granted.grant
