"""Prometheus metrics. Labels name policies and connections, never groups: their number has no bound.

docs/runbook.md lists them. Counters of a policy start at 0 when it is first seen, since `increase` needs a first value.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from group_hygiene import __version__
from group_hygiene.decide.pattern_notes import unused_by_field
from group_hygiene.decide.plan import FAILURES, Plan
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import NEVER, Outcome
from group_hygiene.model.groups import Snapshot
from group_hygiene.spec.policy import Policy
from group_hygiene.status.of_connections import ConnectionFacts

_POLICY = ("namespace", "policy")
_PLURALS = ("grouppolicies", "kafkaconnections", "grouprestores", "groupkeeps")
_OWNERS_MAX = 64
_CONNECTION = ("namespace", "connection")

M = TypeVar("M", Gauge, Counter, Histogram)


class Metrics:
    """All metrics of one operator process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._followed: dict[tuple[str, str], tuple[tuple[str, str], str, int]] = {}
        self._follows = Lock()
        self._series: defaultdict[tuple[str, ...], list[Gauge | Counter | Histogram]] = defaultdict(list)

        def metric(made: type[M], name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> M:
            created = made(name, text, labels, namespace="group_hygiene", registry=registry, **options)
            self._series[labels[:2]].append(created)
            return created

        gauge, counter = partial(metric, Gauge), partial(metric, Counter)
        gauge("build_info", "1, with the version that runs", ("version",)).labels(__version__).set(1)
        self._policy_info = gauge(
            "policy_info",
            "1 for each policy that is not suspended, with its connection, action and mode",
            (*_POLICY, "connection_namespace", "connection", "action", "mode"),
        )
        self._interval = gauge("policy_interval_seconds", "Interval of a policy that is not suspended", _POLICY)
        self._run_failures = counter("run_failures", "Runs of a policy that failed, by reason", (*_POLICY, "reason"))
        self._matched = gauge("groups_matched", "Groups that match a policy", _POLICY)
        self._matched_by_owner = gauge(
            "groups_matched_by_owner",
            "Groups that match a policy of the connection's own namespace, by their owner in the connection; the empty "
            "name for groups without one",
            (*_POLICY, "owner"),
        )
        self._marked = gauge(
            "groups_marked",
            "Groups that a policy has marked: they, or some of their offsets, are to be deleted",
            _POLICY,
        )
        self._due = gauge("groups_due", "Groups that may be deleted, or lose offsets, now, apart from limits", _POLICY)
        self._would_delete = gauge(
            "groups_would_delete", "Groups that mode Enforce would delete, or whose offsets it would delete", _POLICY
        )
        self._skipped = gauge(
            "groups_skipped", "Groups that a policy selects and does not delete", (*_POLICY, "reason")
        )
        self._blocked = gauge("deletion_blocked", "1 while due groups may not be deleted", _POLICY)
        self._last_run = gauge("policy_last_run_timestamp_seconds", "When a policy last ran", _POLICY)
        self._evidenced = gauge(
            "policy_evidence_ready",
            "1 while the pipeline's tables answer for any group of a policy with idleFor or expiresWithin, 0 while for "
            "none; absent for other policies",
            _POLICY,
        )
        self._expiry = gauge(
            "offsets_first_expiry_timestamp_seconds",
            "When brokers drop the first offset of all groups that match a policy with expiresWithin; absent while "
            "unknown for all of them",
            _POLICY,
        )
        self._outcomes = counter("outcomes", "Groups by the outcome of a run for them", (*_POLICY, "outcome", "reason"))
        self._marks = counter(
            "marks",
            "Groups that were marked for deletion, of them or of some of their offsets, or unmarked, and why",
            (*_POLICY, "change", "reason"),
        )
        self._up = gauge("connection_up", "1 while the last scan was complete", _CONNECTION)
        self._last_scan = gauge("scan_last_success_timestamp_seconds", "When a scan was last complete", _CONNECTION)
        self._scan_failures = counter(
            "scan_failures", "Scans that were incomplete or failed, by reason", (*_CONNECTION, "reason")
        )
        self._scan_interval = gauge(
            "scan_interval_seconds",
            "The shortest interval of the policies of a connection that are not suspended; absent without any",
            _CONNECTION,
        )
        self._groups = gauge(
            "groups",
            "Groups of the cluster by their state and type, at the last complete list of all, about every 10 minutes",
            (*_CONNECTION, "state", "type"),
        )
        self._retention = gauge(
            "offsets_retention_seconds",
            "The brokers' offsets.retention.minutes; absent while unknown, and if offsets never expire (-1)",
            _CONNECTION,
        )
        self._unused_patterns = gauge(
            "unused_patterns",
            "Patterns that select no group, by their field, at the last complete list of all groups",
            (*_CONNECTION, "field"),
        )
        self._ledger_ready = gauge(
            "ledger_ready",
            "1 while the ledger can be used, 0 while it can't; absent where no policy needs one",
            _CONNECTION,
        )
        self._ledger_unreadable = gauge(
            "ledger_unreadable_records", "Records of the ledger that can't be read", _CONNECTION
        )
        self._evidence_ready = gauge(
            "evidence_ready",
            "1 while the pipeline's tables may be used for all groups; absent if the connection names none",
            _CONNECTION,
        )
        self._evidence = gauge(
            "evidence_as_of_timestamp_seconds",
            "Up to when the pipeline's tables cover all partitions for which they may be used; absent without any",
            _CONNECTION,
        )
        self._scan = metric(
            Histogram,
            "scan_duration_seconds",
            "Time of one scan of a cluster for all due policies",
            _CONNECTION,
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )
        self._alerting = gauge("alerting", "1 while a policy with action Alert alerts", _POLICY)
        self._alerts = counter(
            "alerts_sent",
            "Messages sent to receivers, by their type and whether they arrived (result delivered or failed)",
            (*_CONNECTION, "type", "result"),
        )
        self._watching = gauge(
            "watching",
            "1 while changes of this custom resource are seen, 0 once they were not for a minute",
            ("resource",),
        )
        self._leader = gauge("leader", "1 while this process leads, 0 while it is on standby")
        self._status_writes = counter("status_writes", "Status patches sent to the API server", ("kind",))
        self._status_refusals = counter("status_refusals", "Status patches that the API server refused", ("kind",))
        for plural in _PLURALS:
            # Without a first value there is no increase.
            self._status_refusals.labels(plural)

    def show_watches(self, plurals: Iterable[str], is_open: Callable[[str], bool]) -> None:
        """Ask `is_open` at each scrape, for each of the operator's custom resources."""
        for plural in plurals:
            self._watching.labels(plural).set_function(partial(is_open, plural))

    def show_leadership(self, leads: Callable[[], bool]) -> None:
        """Ask `leads` at each scrape."""
        self._leader.set_function(lambda: float(leads()))

    def follow(self, namespace: str, connection: str, policies: Sequence[Policy]) -> None:
        """Show the specs of all policies of a connection, and drop the series of policies that it no longer has.

        A policy that has moved to another connection is left to that one.
        """
        ours = (namespace, connection)
        now = {(policy.namespace, policy.name): (ours, policy.uid, policy.generation) for policy in policies}
        with self._follows:
            before = self._followed
            gone = {key for key, (owner, *_) in before.items() if owner == ours and key not in now}
            self._followed = {key: known for key, known in before.items() if key not in gone} | now
        self.forget_policies(gone)
        for policy in policies:
            key = (policy.namespace, policy.name)
            if before.get(key) != now[key]:
                self._show_policy(policy, ours)
        intervals = [policy.interval.total_seconds() for policy in policies if not policy.suspend]
        _show(self._scan_interval, ours, min(intervals, default=None))

    def _show_policy(self, policy: Policy, connection: tuple[str, str]) -> None:
        labels = (policy.namespace, policy.name)
        series = {"namespace": policy.namespace, "policy": policy.name}
        self._policy_info.remove_by_labels(series)
        _show(self._interval, labels, None if policy.suspend else policy.interval.total_seconds())
        if policy.suspend:
            # Results of its last run.
            for metric in self._series[_POLICY]:
                if isinstance(metric, Gauge) and metric is not self._last_run:
                    metric.remove_by_labels(series)
            return
        self._policy_info.labels(*labels, *connection, str(policy.action), str(policy.mode)).set(1)
        if policy.action.changes:
            self._outcomes.labels(*labels, str(OutcomeType.DELETED), "")
            for reason in FAILURES:
                self._outcomes.labels(*labels, str(OutcomeType.FAILED), reason)

    def policy_ran(
        self, plan: Plan, outcomes: Sequence[Outcome], timestamp: float, evidenced: bool | None = None
    ) -> None:
        """evidenced: as `has_evidence` of `status/of_policies.py`."""
        labels, counts = (plan.policy.namespace, plan.policy.name), plan.counts(outcomes)
        self._matched.labels(*labels).set(counts["matched"])
        self._matched_by_owner.remove_by_labels({"namespace": labels[0], "policy": labels[1]})
        # The owners of another namespace's connection are not known here.
        owners = () if plan.policy.crosses_namespace else (plan.verdicts[name].evidence.owner for name in plan.matched)
        of_owners = Tally(owners).most_common()
        # An owner's name may be a part of a group's id: there may be any number of them.
        if (rest := sum(count for _, count in of_owners[_OWNERS_MAX:])) > 0:
            of_owners[_OWNERS_MAX:] = [("(others)", rest)]
        for owner, count in of_owners:
            self._matched_by_owner.labels(*labels, owner).set(count)
        self._marked.labels(*labels).set(counts["marked"])
        _show(self._due, labels, counts.get("due"))
        _show(self._would_delete, labels, counts.get("wouldDelete"))
        self._blocked.labels(*labels).set(plan.blocked is not None)
        self._last_run.labels(*labels).set(timestamp)
        _show(self._evidenced, labels, evidenced)
        expiry = plan.next_expiry
        _show(self._expiry, labels, None if expiry is None else expiry.timestamp())
        self._skipped.remove_by_labels({"namespace": labels[0], "policy": labels[1]})
        for reason, count in plan.verdicts.by_reason.items():
            self._skipped.labels(*labels, reason).set(count)
        for outcome in outcomes:
            reason = "" if outcome.kind is OutcomeType.DELETED else outcome.reason
            self._outcomes.labels(*labels, str(outcome.kind), reason).inc()
        if plan.marking:
            self._marks.labels(*labels, "marked", "").inc(len(plan.marking))
        for refusal in plan.unmarking.values():
            self._marks.labels(*labels, "unmarked", refusal.reason).inc()

    def scanned(self, namespace: str, connection: str, seconds: float, snapshot: Snapshot) -> None:
        """A scan took so long, with this result."""
        self._scan.labels(namespace, connection).observe(seconds)
        if snapshot.complete:
            self._up.labels(namespace, connection).set(1)
            self._last_scan.labels(namespace, connection).set(snapshot.taken_at.timestamp())
        else:
            self.failed(namespace, connection, reasons.SNAPSHOT_INCOMPLETE)

    def failed(self, namespace: str, connection: str, reason: str, policies: Sequence[Policy] = ()) -> None:
        """A scan was incomplete or failed, and so did the runs of these policies."""
        self._up.labels(namespace, connection).set(0)
        self._scan_failures.labels(namespace, connection, reason).inc()
        for policy in policies:
            self._run_failures.labels(policy.namespace, policy.name, reason).inc()

    def observed(self, namespace: str, connection: str, facts: ConnectionFacts) -> None:
        """The facts of a connection after a scan. Gauges of facts that this scan did not read stay."""
        labels = (namespace, connection)
        known = None if facts.retention in (None, NEVER) else facts.retention
        _show(self._retention, labels, None if known is None else known.total_seconds())
        ledger = facts.ledger
        _show(self._ledger_ready, labels, None if ledger is None else ledger.problem is None)
        _show(self._ledger_unreadable, labels, None if ledger is None else ledger.unreadable)
        coverage = facts.snapshot.coverage
        if not facts.has_activity:
            _show(self._evidence_ready, labels, None)
            _show(self._evidence, labels, None)
        elif coverage is not None:
            _show(self._evidence_ready, labels, coverage.problem is None)
            _show(self._evidence, labels, None if coverage.as_of is None else coverage.as_of.timestamp())
        if facts.all_groups is not None and facts.snapshot.complete:
            self._groups.remove_by_labels({"namespace": namespace, "connection": connection})
            counts = Tally((str(group.state), str(group.type)) for group in facts.all_groups.values())
            for (state, type_), count in counts.items():
                self._groups.labels(*labels, state, type_).set(count)

        for field, count in unused_by_field(facts.patterns).items() if facts.patterns is not None else ():
            self._unused_patterns.labels(*labels, field).set(count)

    def forget_connection(self, namespace: str, connection: str) -> None:
        for metric in self._series[_CONNECTION]:
            metric.remove_by_labels({"namespace": namespace, "connection": connection})

    def alerting(self, namespace: str, policy: str, fires: bool | None) -> None:
        """fires: None = the policy does not run, or its action is not Alert."""
        _show(self._alerting, (namespace, policy), fires)

    def alert_sent(self, namespace: str, connection: str, kind: str, arrived: bool) -> None:
        """kind: of the receiver."""
        self._alerts.labels(namespace, connection, kind, "delivered" if arrived else "failed").inc()

    def status_written(self, kind: str) -> None:
        self._status_writes.labels(kind).inc()

    def status_refused(self, kind: str, policy: tuple[str, str] | None) -> None:
        """policy: namespace and name of a policy whose status the API server refuses, so that it is blocked."""
        self._status_refusals.labels(kind).inc()
        if policy is not None:
            self._blocked.labels(*policy).set(1)

    def forget_policies(self, gone: Collection[tuple[str, str]]) -> None:
        """Drop the series of policies that no longer exist, given as (namespace, name)."""
        for namespace, policy in gone:
            for metric in self._series[_POLICY]:
                metric.remove_by_labels({"namespace": namespace, "policy": policy})


def _show(gauge: Gauge, labels: tuple[str, ...], value: float | None) -> None:
    """Set the gauge; None = remove its series, so that no old value is shown."""
    if value is None:
        gauge.remove(*labels)
    else:
        gauge.labels(*labels).set(value)
