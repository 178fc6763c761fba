"""Runs the due policies of one connection: observes once for all, decides for all, then executes and publishes each.

An internal error in one policy does not stop the others. Errors of Kafka, the ledger and the API server do.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from group_hygiene import reconcile
from group_hygiene.controller.alerting import Alerting
from group_hygiene.controller.binding import AdmittedPolicy
from group_hygiene.controller.isolation import internal_error, isolated
from group_hygiene.controller.link import Link
from group_hygiene.controller.objects import CONNECTIONS, POLICIES, Object
from group_hygiene.controller.schedule import Schedule
from group_hygiene.controller.services import Services
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.decide.plan import Plan, RunConditions, due_groups, make_plan, outside_window
from group_hygiene.errors import ApiError, HygieneError
from group_hygiene.model.entries import Mark, OutcomeType
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.groups import Snapshot
from group_hygiene.model.reasons import Refusal
from group_hygiene.process import runs
from group_hygiene.spec.connection import Connection
from group_hygiene.spec.policy import Mode, Policy, Unprotect, next_open
from group_hygiene.status.of_connections import build_connection_status
from group_hygiene.status.of_policies import build_status, has_evidence, last_marked
from group_hygiene.status.redaction import redact_run

log = logging.getLogger(__name__)

_FULL_LIST_INTERVAL = timedelta(minutes=10)
# A policy of another namespace that is edited all the time runs no more often, and notifies no more often.
_EDITED_S = 5.0
_SWEEP_EVERY_S, _SWEEP_AGAIN_S = 24 * 3600.0, 600.0


@dataclass(frozen=True)
class Due:
    """The policies that a round runs. connection: its object, as read in this round. full: whether to list all groups.

    active: all policies that are admitted and not suspended, whether they are due now or not.
    """

    connection: Object
    active: Sequence[AdmittedPolicy]
    policies: Sequence[AdmittedPolicy]
    full: bool

    def __bool__(self) -> bool:
        return bool(self.policies) or self.full


@dataclass(frozen=True)
class Decision:
    """The decision for one policy. plan: a Refusal = it does not run, or an internal error.

    due: groups to delete, without limits.
    """

    entry: AdmittedPolicy
    plan: Plan | Refusal
    due: frozenset[str]


@dataclass(frozen=True)
class Executed:
    """The executed plan of one policy, and its outcomes."""

    plan: Plan
    outcomes: Sequence[Outcome] = ()

    @property
    def deleted(self) -> int:
        return sum(outcome.kind is OutcomeType.DELETED for outcome in self.outcomes)


def decide(
    due: Due,
    observation: reconcile.Observation,
    marks: Mapping[str, Mapping[str, Mark]],
    announced: Mapping[str, datetime],
    now: datetime,
) -> list[Decision]:
    """The plan of each due policy, before any of them deletes. Pure.

    marks: policy uid -> group -> its mark. announced: policy uid -> the date of its newest mark in an Event. The
    connection's maxPercent limits the deletions of all its policies together. A policy that does not run now counts
    with its marks; a suspended or refused one deletes nothing, nor does one outside of its windows.
    """
    groups = {
        entry.spec.uid: frozenset(name for name, mark in marks.get(entry.spec.uid, {}).items() if mark.due <= now)
        for entry in due.active
        if entry.spec.enforced and outside_window(entry.spec, now) is None
    }
    judged = [entry for entry in due.policies if entry.spec.key not in observation.left_out]
    for entry in judged:
        policy = entry.spec
        names = due_groups(policy, observation.verdicts[policy.key], marks.get(policy.uid, {}), now)
        may_delete = policy.mode is Mode.ENFORCE and outside_window(policy, now) is None
        groups[policy.uid] = frozenset(names if may_delete else ())
    left_out, owner = observation.left_out, next((each.spec.connection_namespace for each in due.policies), "")
    namespaces = {entry.spec.uid: entry.spec.namespace for entry in (*due.active, *due.policies)}
    counted = _due_elsewhere(groups, namespaces, owner, observation.conditions)
    decisions = [
        Decision(entry, left_out[entry.spec.key], frozenset()) for entry in due.policies if entry.spec.key in left_out
    ]
    for entry in judged:
        policy = entry.spec
        shown = filter(None, (last_marked(entry.status, policy), announced.get(policy.uid)))
        elsewhere = counted[policy.uid]
        conditions = replace(observation.conditions, due_elsewhere=elsewhere, announced=max(shown, default=None))
        verdicts, marked = observation.verdicts[policy.key], marks.get(policy.uid, {})
        plan = isolated(f"policy {policy.key}", make_plan, policy, verdicts, marked, conditions, now)
        decisions.append(Decision(entry, plan, groups[policy.uid]))
    return decisions


def _due_elsewhere(
    groups: Mapping[str, frozenset[str]], namespaces: Mapping[str, str], owner: str, conditions: RunConditions
) -> Mapping[str, frozenset[str]]:
    """Policy uid -> the due groups that count with its own, its own among them, against the connection's maxPercent.

    The policies of a namespace count together, and with the namespaces before theirs: the owner's comes first, then
    those with fewer due groups. A namespace that exceeds the limit then is refused itself, and counts for no other.
    """
    together: dict[str, frozenset[str]] = {}
    for uid, names in groups.items():
        together[namespaces[uid]] = together.get(namespaces[uid], frozenset()) | names
    before: dict[str, frozenset[str]] = {}
    taken = frozenset[str]()
    for namespace in sorted(together, key=lambda name: (name != owner, len(together[name]), name)):
        before[namespace] = taken
        limits, total = conditions.limits, conditions.total or 0
        if limits is None or len(taken | together[namespace]) * 100 <= limits.max_percent * total:
            taken |= together[namespace]
    # One set for all policies of a namespace.
    counted = {namespace: before[namespace] | names for namespace, names in together.items()}
    return {uid: counted[namespaces[uid]] for uid in groups}


def shares(budget: int, wanted: Mapping[str, int], namespaces: Mapping[str, str], owner: str) -> Mapping[str, int]:
    """Policy uid -> how many of `budget` deletions it may make of those that it wants.

    Namespaces take turns, the owner's first, and in each its policies, those that want less first: one group a turn.
    """
    queues: dict[str, deque[str]] = {}
    for uid in sorted(wanted, key=lambda uid: (namespaces[uid] != owner, wanted[uid])):
        if wanted[uid]:
            queues.setdefault(namespaces[uid], deque()).append(uid)
    given = dict.fromkeys(wanted, 0)
    while budget > 0 and queues:
        for namespace, queue in list(queues.items())[:budget]:
            uid = queue.popleft()
            given[uid] += 1
            if given[uid] < wanted[uid]:
                queue.append(uid)
            elif not queue:
                del queues[namespace]
            budget -= 1
    return given


def _needs_programs(policy: Policy) -> bool:
    """Whether it matters to the policy which groups Kafka Connect and Kafka Streams use."""
    match = policy.match
    lifted = match.liftable is None and {Unprotect.CONNECT, Unprotect.STREAMS} <= match.unprotect
    return policy.action.changes and not lifted


class Policies:
    """Schedules and runs the policies of one connection."""

    def __init__(self, services: Services, link: Link, writer: StatusWriter, alerts: Alerting) -> None:
        self._services, self._link, self._writer, self._alerts = services, link, writer, alerts
        self._clock = services.clock
        self._schedule = Schedule(services.clock)
        # Policy uid -> deletions that its status does not show yet. Until it does, the policy deletes nothing more.
        self._unreported: Counter[str] = Counter()
        # Policy uid -> the date of its newest mark in an Event, where the API server refused the status.
        self._announced: dict[str, datetime] = {}
        self._sweep_at = 0.0

    def due(self, obj: Object, connection: Connection, active: Sequence[AdmittedPolicy], again: Collection[str]) -> Due:
        """The policies to run now. obj: of the connection. again: uids of objects whose status was refused."""
        running = {entry.spec.uid for entry in active}
        self._announced = {uid: date for uid, date in self._announced.items() if uid in running}

        def is_due(uid: str, generation: int, pause: float = 0.0) -> bool:
            return uid in again or self._schedule.due(uid, generation, pause)

        policies = [
            entry
            for entry in active
            if is_due(entry.spec.uid, entry.spec.generation, _EDITED_S if entry.spec.crosses_namespace else 0.0)
        ]
        return Due(obj, active, policies, is_due(connection.uid, connection.generation))

    def seconds_to_wait(self, connection: Connection, active: Sequence[AdmittedPolicy]) -> float:
        return self._schedule.wait([connection.uid, *(entry.spec.uid for entry in active)])

    def forget_all_but(self, uids: set[str]) -> None:
        self._schedule.forget_all_but(uids)

    def add_deleted(self, counts: Mapping[str, int]) -> None:
        """Add deletions by earlier runs that were recovered now. counts: policy uid -> number."""
        self._unreported.update(counts)

    def run(self, context: reconcile.Context, due: Due) -> None:
        """Run the due policies. Raises HygieneError and MemoryError; after the latter, drop the connection's memory."""
        connection, started = context.connection, self._clock.monotonic()
        observation = reconcile.observe(context, [entry.spec for entry in due.policies], due.full)
        seconds = self._clock.monotonic() - started
        self._services.metrics.scanned(connection.namespace, connection.name, seconds, observation.snapshot)
        decisions = decide(due, observation, context.journal.contents.marks, self._announced, self._clock.now())
        deleted, unwritten, limits = 0, None, connection.limits
        wanted = {each.entry.uid: 0 if isinstance(each.plan, Refusal) else len(each.plan.actions) for each in decisions}
        namespaces = {entry.spec.uid: entry.spec.namespace for entry in due.policies}
        most = sum(wanted.values()) if limits is None else limits.max_per_run
        budgets = shares(most, wanted, namespaces, connection.namespace)
        with self._alerts.round(context.journal):
            for decision in decisions:
                entry = decision.entry
                key = entry.spec.key
                with runs.about(policy=key):
                    budget = budgets[entry.spec.uid]
                    done = isolated(f"policy {key}", self._execute, context, due, observation, decision, budget)
                    # After an error the number of deletions is unknown: count all due groups.
                    deleted += len(decision.due) if isinstance(done, Refusal) else done.deleted
                    try:
                        self._publish(connection, entry, done, observation.snapshot)
                    except ApiError as error:
                        unwritten = error
        self._publish_connection(context, due, observation)
        if deleted:
            # The counts in the connection's status include the groups that were deleted now.
            self._schedule.forget(connection.uid)
        self._sweep(context, observation)
        if any(_needs_programs(entry.spec) for entry in due.active):
            isolated(f"connection {connection.key}", reconcile.note_programs, context, observation)
        if unwritten is not None:
            raise unwritten

    def _execute(
        self,
        context: reconcile.Context,
        due: Due,
        observation: reconcile.Observation,
        decision: Decision,
        budget: int,
    ) -> Executed | Refusal:
        """Mark and delete. budget: how many groups the policy may delete in this run of the connection.

        After an internal error, the next run recovers the intents that are open in the ledger.
        """
        policy, now = decision.entry.spec, self._clock.now()
        # First, so that the policy runs no more often than its interval even if a later step fails.
        opens = next_open(policy.windows, now) - now
        self._schedule.ran(policy.uid, policy.generation, policy.interval, opens)
        if isinstance(decision.plan, Refusal):
            return decision.plan
        plan = decision.plan.at_turn(now, budget)
        unwritten = reconcile.note_marks(context, plan)
        if unwritten is not None:
            plan = plan.halted(unwritten)
        if not plan.actions or self._unreported[policy.uid]:
            return Executed(plan)
        guard = self._services.guard(POLICIES, decision.entry.obj, due.connection, decision.entry.granted)
        return Executed(plan, reconcile.apply(reconcile.Executor(context, guard), plan, observation))

    def _publish(
        self, connection: Connection, entry: AdmittedPolicy, done: Executed | Refusal, snapshot: Snapshot
    ) -> None:
        """Log, metrics, alerts, status and Events of one policy's run. Raises ApiError."""
        if isinstance(done, Refusal):
            self._writer.write_problem(POLICIES, entry.obj, done)
            return
        uid, key = entry.spec.uid, entry.spec.key
        plan, outcomes = done.plan, done.outcomes
        for outcome in outcomes:
            log.info("policy %s: group %r: %s: %s", key, outcome.group, outcome.reason, outcome.message)
        if entry.spec.crosses_namespace:
            plan, outcomes, snapshot = redact_run(plan, outcomes, snapshot, connection.key)
        before = self._unreported[uid]
        self._unreported[uid] += done.deleted
        try:
            evidenced = has_evidence(plan, snapshot)
            self._services.metrics.policy_ran(plan, outcomes, self._clock.now().timestamp(), evidenced)
            self._alerts.add_result(plan, outcomes, snapshot)
            new = build_status(entry.spec, entry.status, plan, outcomes, snapshot, before)
            written = self._writer.write(POLICIES, entry.obj, self._alerts.in_status(entry, plan, snapshot, new))
            if self._writer.record_changes(entry.obj, plan, outcomes):
                self._announced[uid] = plan.at
            if written:
                del self._unreported[uid]
                self._writer.record_findings(entry.obj, new, plan)
        except HygieneError:
            raise
        except Exception as error:
            log.exception("policy %s: what it did could not be shown; trying again at its next run", key)
            self._writer.write_problem(POLICIES, entry.obj, internal_error(error))

    def _publish_connection(self, context: reconcile.Context, due: Due, observation: reconcile.Observation) -> None:
        connection, policies = context.connection, [entry.spec for entry in due.active]
        facts = self._link.facts(context, observation, due.full, policies)
        self._services.metrics.observed(connection.namespace, connection.name, facts)
        previous = due.connection.get("status") or {}
        new = build_connection_status(connection.generation, previous, facts)
        self._writer.write(CONNECTIONS, due.connection, new)
        if due.full:
            self._schedule.ran(connection.uid, connection.generation, _FULL_LIST_INTERVAL)

    def _sweep(self, context: reconcile.Context, observation: reconcile.Observation) -> None:
        """Remove expired entries from the ledger once a day, unless something forbids deletions in this run."""
        if observation.conditions.refusals or self._clock.monotonic() < self._sweep_at:
            return
        swept = context.journal.sweep(self._clock.now())
        self._sweep_at = self._clock.monotonic() + (_SWEEP_EVERY_S if swept else _SWEEP_AGAIN_S)
