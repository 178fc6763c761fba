"""The policies of one connection: when each is due, its run, and its alerts.

A run observes once for all due policies, decides for all, then executes and publishes each. An internal error in one
policy does not stop the others. Errors of Kafka, the ledger and the API server do. The messages to receivers are
written and sent by `observe`; here are their Secrets and the ledger.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from group_hygiene.controller.admission import AdmittedPolicy, internal_error, isolated
from group_hygiene.controller.api import Api
from group_hygiene.controller.link import Link
from group_hygiene.controller.objects import CONNECTIONS, POLICIES, Object
from group_hygiene.controller.services import Services
from group_hygiene.controller.statuses import StatusWriter
from group_hygiene.engine import deletion, marks, scan, uses
from group_hygiene.engine.context import Context, Observation
from group_hygiene.engine.executor import Executor
from group_hygiene.engine.plan import Plan, RunConditions, due_groups, make_plan, outside_window
from group_hygiene.errors import ApiError, HygieneError, LedgerFenced
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model.entries import Change, Mark, OutcomeType
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.groups import Snapshot
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.alerts import AlertType, Situation, advance, assess, by_owner, of_owner
from group_hygiene.observe.conditions import Status, redact_problem, redact_run
from group_hygiene.observe.messages import Endpoint, read_endpoint
from group_hygiene.observe.metrics import Metrics
from group_hygiene.observe.of_objects import (
    build_connection_status,
    build_status,
    has_evidence,
    is_alerting,
    last_marked,
    with_alerting,
    with_delivery,
)
from group_hygiene.observe.outbox import Sender
from group_hygiene.process import runs
from group_hygiene.process.clock import Clock
from group_hygiene.spec.connection import NO_OWNERS, Connection, Right, granted_to_any, receivers_of
from group_hygiene.spec.fields import SecretRef
from group_hygiene.spec.policy import Action, Mode, Policy, Unprotect, next_open

log = logging.getLogger(__name__)

# A policy may run every five seconds: its Secrets are not read each time.
_SECRET_CACHE_S = 30.0

_FULL_LIST_INTERVAL = timedelta(minutes=10)
# A policy of another namespace that is edited all the time runs no more often, and notifies no more often.
_EDITED_S = 5.0
_SWEEP_EVERY_S, _SWEEP_AGAIN_S = 24 * 3600.0, 600.0


class Schedule:
    """When each policy is due: at once when it is new or edited, then at whole multiples of its interval,
    and when a window opens.

    With multiples, policies that were created at different times still share their scans.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # uid -> the generation that ran, and in monotonic seconds when the next run is due, and when the last one was.
        self._next: dict[str, tuple[int, float, float]] = {}

    def due(self, uid: str, generation: int, pause: float = 0.0) -> bool:
        """pause: the least seconds between two runs, also if it was edited in between."""
        now, known = self._clock.monotonic(), self._next.get(uid)
        if known is None or now >= known[1]:
            return True
        ran_generation, at, ran = known
        if ran_generation != generation:
            at = min(at, ran + pause)
            self._next[uid] = (ran_generation, at, ran)
        return now >= at

    def ran(self, uid: str, generation: int, interval: timedelta, opens: timedelta = timedelta()) -> None:
        """opens: the time until a window of the policy opens, when it also runs; 0 = one is open."""
        seconds = interval.total_seconds()
        wall = self._clock.now().timestamp()
        to_boundary = seconds - wall % seconds
        # It ran just before the boundary: that counts as this boundary's run.
        wait = to_boundary if to_boundary > seconds * 0.1 else to_boundary + seconds
        wait = min(wait, opens.total_seconds() or wait)
        now = self._clock.monotonic()
        self._next[uid] = (generation, now + wait, now)

    def wait(self, uids: Sequence[str]) -> float:
        """Seconds until the first of these is due. One that never ran, or was forgotten, is due now."""
        now = self._clock.monotonic()
        return max(0.0, min(self._next.get(uid, (0, now, now))[1] for uid in uids) - now)

    def forget(self, uid: str) -> None:
        """Make it due in the next round."""
        self._next.pop(uid, None)

    def forget_all_but(self, uids: set[str]) -> None:
        self._next = {uid: value for uid, value in self._next.items() if uid in uids}


class Alerting:
    """The alerts of one connection. Only the thread of its runs may call this."""

    def __init__(self, api: Api, metrics: Metrics, clock: Clock, writer: StatusWriter, sender: Sender) -> None:
        self._api, self._metrics, self._clock, self._writer, self._sender = api, metrics, clock, writer, sender
        self._outbox = sender.outbox
        # Texts of Secrets, with the monotonic time when they were read. Without failures, which are read again.
        self._secrets: dict[tuple[str, SecretRef], tuple[float, str]] = {}
        # The contents of the ledger, with entries that the journal has not written yet.
        self._contents = Contents()
        # By uid: the results of the policies in this round, or in one that was fenced.
        self._found: dict[str, Situation] = {}
        self._owners = NO_OWNERS
        # Uids of policies that notify a receiver, their own or an owner's.
        self._notifying: set[str] = set()
        # Namespace and name of policies that may have a series in the metrics.
        self._shown: set[tuple[str, str]] = set()

    @property
    def unwritten(self) -> list[Change]:
        """Notifications that wait to be written into the ledger."""
        return self._outbox.changes(self._contents.alerts, self._clock.now())

    @property
    def needs_ledger(self) -> bool:
        """Whether a policy notifies a receiver: the ledger must then store what was delivered."""
        return bool(self._notifying)

    def bind(self, connection: Connection, active: Sequence[AdmittedPolicy]) -> None:
        """Read from the current specs and Secrets which receivers each policy notifies, and their addresses."""
        policies = [entry.spec for entry in active]
        self._owners, notified = connection.owners, connection.owners.notified
        self._notifying = {policy.uid for policy in policies if notified or receivers_of(connection, policy)}
        now, endpoints = self._clock.monotonic(), dict[str, Endpoint | Refusal]()
        self._secrets = {ref: known for ref, known in self._secrets.items() if now - known[0] < _SECRET_CACHE_S}
        for receiver in connection.receivers:
            try:
                endpoints[receiver.name] = read_endpoint(receiver, partial(self._secret, connection.namespace))
            except HygieneError as error:
                endpoints[receiver.name] = Refusal.of(error)
        of_owners = [of_owner(policy, owner) for policy in policies for owner in notified]
        keepable = granted_to_any(connection.access, Right.KEEP)
        self._outbox.bind(connection.uid, [*policies, *of_owners], endpoints, connection.keep_link, keepable)
        names = {(policy.namespace, policy.name) for policy in policies}
        for namespace, name in self._shown - names:
            self._metrics.alerting(namespace, name, None)
        self._shown &= names
        self._sender.wake()

    def _secret(self, namespace: str, ref: SecretRef) -> str:
        if (namespace, ref) not in self._secrets:
            self._secrets[namespace, ref] = self._clock.monotonic(), self._api.read_secret(namespace, ref)
        return self._secrets[namespace, ref][1]

    def release(self) -> None:
        """The connection is gone: its policies no longer notify a receiver."""
        self._notifying = set()
        self._outbox.bind("", [], {})
        self._sender.wake()

    def begin(self, context: Context) -> None:
        """Before policies run: use what earlier processes wrote, and write what was delivered since the last run."""
        self._contents = context.journal.contents
        self._outbox.adopt(self._contents.alerts.values())
        if changes := self.unwritten:
            context.journal.note(changes)

    def add_result(self, plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot) -> None:
        """Add the result of a policy's run. It is sent together with the results of the other policies."""
        notifies = plan.policy.action is Action.ALERT or plan.policy.uid in self._notifying
        for each, theirs in [*([(plan, outcomes)] if notifies else []), *by_owner(plan, outcomes, self._owners)]:
            self._found[each.policy.uid] = assess(each, theirs, snapshot)

    def in_status(self, entry: AdmittedPolicy, plan: Plan, snapshot: Snapshot, new: Status) -> Status:
        """The status of a policy that ran, with its conditions about alerts."""
        policy, at, found = entry.spec, snapshot.taken_at, self._found.get(entry.spec.uid)
        # Whether an alert that fired before continues, as some groups can't be judged now. After a restart without a
        # ledger its groups are unknown: any group that can't be judged may be one.
        before, matched = self._outbox.firing(policy.uid), AlertType.GROUPS_MATCHED
        goes_on = found is not None and (matched in advance(before, found) if matched in before else found.is_partial)
        new = with_alerting(new, entry.status, plan, at, goes_on)
        self._metrics.alerting(policy.namespace, policy.name, is_alerting(new))
        self._shown.add((policy.namespace, policy.name))
        return with_delivery(new, entry.status, self._failures(policy), at)

    @contextmanager
    def round(self, journal: Journal) -> Iterator[None]:
        """Send the results of the policies of a round once they have run, also when one of them failed.

        If this process was fenced, send nothing: if another process of this operator leads, it sends them.
        """
        # Results of a round that was fenced. This process still leads, so no other one has sent them.
        self._publish()
        try:
            yield
        except Exception as error:
            if not isinstance(error, LedgerFenced):
                self._send(journal)
            raise
        self._send(journal)

    def _publish(self) -> None:
        found, self._found = self._found, {}
        self._outbox.publish(found.values())

    def _send(self, journal: Journal) -> None:
        self._publish()
        journal.note(self.unwritten)
        self._sender.wake()

    def write_delivery(self, entries: Sequence[AdmittedPolicy], now: datetime) -> None:
        """Update in the statuses of policies that did not run now whether their receivers can be notified."""
        for entry in entries:
            if "lastRunTime" in entry.status:
                failures = self._failures(entry.spec)
                new = with_delivery(dict(entry.status), entry.status, failures, now)
                self._writer.write(POLICIES, entry.obj, new)

    def _failures(self, policy: Policy) -> Mapping[str, Refusal | None]:
        """Receiver -> why it can't be notified; None = it can. Of the owners, too, in the connection's namespace."""
        failures: dict[str, Refusal | None] = {}
        owners = [] if policy.crosses_namespace else self._owners.notified
        for each in [policy, *(of_owner(policy, owner) for owner in owners)]:
            for name, failure in self._outbox.failures(each).items():
                failures[name] = failures.get(name) or failure
        for name, failure in failures.items():
            if failure is not None:
                # Only the connection's own namespace may read about its Secrets and addresses.
                hidden = f"receiver {name} of the KafkaConnection can't be notified"
                message = hidden if policy.crosses_namespace else f"receiver {name}: {failure.message}"
                failures[name] = Refusal(failure.reason, message)
        return failures


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
    observation: Observation,
    marks: Mapping[str, Mapping[str, Mark]],
    announced: Mapping[str, datetime],
    now: datetime,
) -> list[Decision]:
    """The plan of each due policy, before any of them deletes. Pure.

    marks: policy uid -> group -> its mark. announced: policy uid -> the date of its newest mark in an Event. The
    connection's maxPercent limits the deletions of all its policies together. A policy that does not run now counts
    with its marks; a suspended or refused one deletes nothing, nor does one outside of its windows. In another cluster
    no policy is judged: its groups are neither shown nor reported, and end no mark or alert.
    """
    changed = observation.conditions.other_cluster
    if changed is not None:
        why = {each.uid: redact_problem(changed, each.namespace, each.granted.connection.key) for each in due.policies}
        return [Decision(each, why[each.uid], frozenset()) for each in due.policies]
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

    def run(self, context: Context, due: Due) -> None:
        """Run the due policies. Raises HygieneError and MemoryError; after the latter, drop the connection's memory."""
        connection, started = context.connection, self._clock.monotonic()
        observation = scan.observe(context, [entry.spec for entry in due.policies], due.full)
        seconds = self._clock.monotonic() - started
        changed = observation.conditions.other_cluster
        if changed is None:
            self._services.metrics.scanned(connection.namespace, connection.name, seconds, observation.snapshot)
        else:
            failed = [entry.spec for entry in due.policies]
            self._services.metrics.failed(connection.namespace, connection.name, changed.reason, failed)
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
        if not observation.conditions.refusals and self._clock.monotonic() >= self._sweep_at:
            # Expired entries of the ledger.
            swept = context.journal.sweep(self._clock.now())
            self._sweep_at = self._clock.monotonic() + (_SWEEP_EVERY_S if swept else _SWEEP_AGAIN_S)
        if changed is None and any(_needs_programs(entry.spec) for entry in due.active):
            isolated(f"connection {connection.key}", uses.note_programs, context, observation)
        if unwritten is not None:
            raise unwritten

    def _execute(
        self,
        context: Context,
        due: Due,
        observation: Observation,
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
        unwritten = marks.note_marks(context, plan)
        if unwritten is not None:
            plan = plan.halted(unwritten)
        if not plan.actions or self._unreported[policy.uid]:
            return Executed(plan)
        guard = self._services.guard(POLICIES, decision.entry.obj, due.connection, decision.entry.granted)
        return Executed(plan, deletion.apply(Executor(context, guard), plan, observation))

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

    def _publish_connection(self, context: Context, due: Due, observation: Observation) -> None:
        connection, policies = context.connection, [entry.spec for entry in due.active]
        facts = self._link.facts(context, observation, due.full, policies)
        self._services.metrics.observed(connection.namespace, connection.name, facts)
        previous = due.connection.get("status") or {}
        new = build_connection_status(connection.generation, previous, facts)
        self._writer.write(CONNECTIONS, due.connection, new)
        if due.full:
            self._schedule.ran(connection.uid, connection.generation, _FULL_LIST_INTERVAL)
