"""Prometheus metrics. Labels name policies and connections, never groups: their number has no bound.

docs/runbook.md lists them. Counters of a policy start at 0 when it is first seen, since `increase` needs a first value.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from group_hygiene import __version__
from group_hygiene.engine.pattern_notes import unused_by_field
from group_hygiene.engine.plan import FAILURES, Plan
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import NEVER, Outcome
from group_hygiene.model.groups import Snapshot
from group_hygiene.observe.of_objects import ConnectionFacts
from group_hygiene.spec.policy import Policy

_POLICY, _CONNECTION = ("namespace", "policy"), ("namespace", "connection")
_PLURALS = ("grouppolicies", "kafkaconnections", "grouprestores", "groupkeeps")
_OWNERS_MAX = 64
# Of scan_duration_seconds.
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

Metric = Gauge | Counter | Histogram

# The type of each metric, its name without the prefix `group_hygiene_`, its labels, and its text.
_METRICS: tuple[tuple[type[Metric], str, tuple[str, ...], str], ...] = (
    (Gauge, "build_info", ("version",), "1, with the version that runs"),
    (
        Gauge,
        "policy_info",
        (*_POLICY, "connection_namespace", "connection", "action", "mode"),
        "1 for each policy that is not suspended, with its connection, action and mode",
    ),
    (Gauge, "policy_interval_seconds", _POLICY, "Interval of a policy that is not suspended"),
    (Counter, "run_failures", (*_POLICY, "reason"), "Runs of a policy that failed, by reason"),
    (Gauge, "groups_matched", _POLICY, "Groups that match a policy"),
    (
        Gauge,
        "groups_matched_by_owner",
        (*_POLICY, "owner"),
        "Groups that match a policy of the connection's own namespace, by their owner in the connection; the empty "
        "name for groups without one",
    ),
    (
        Gauge,
        "groups_marked",
        _POLICY,
        "Groups that a policy has marked: they, or some of their offsets, are to be deleted",
    ),
    (Gauge, "groups_due", _POLICY, "Groups that may be deleted, or lose offsets, now, apart from limits"),
    (
        Gauge,
        "groups_would_delete",
        _POLICY,
        "Groups that mode Enforce would delete, or whose offsets it would delete",
    ),
    (Gauge, "groups_skipped", (*_POLICY, "reason"), "Groups that a policy selects and does not delete"),
    (Gauge, "deletion_blocked", _POLICY, "1 while due groups may not be deleted"),
    (Gauge, "policy_last_run_timestamp_seconds", _POLICY, "When a policy last ran"),
    (
        Gauge,
        "policy_evidence_ready",
        _POLICY,
        "1 while the pipeline's tables answer for any group of a policy with idleFor or expiresWithin, 0 while for "
        "none; absent for other policies",
    ),
    (
        Gauge,
        "offsets_first_expiry_timestamp_seconds",
        _POLICY,
        "When brokers drop the first offset of all groups that match a policy with expiresWithin; absent while "
        "unknown for all of them",
    ),
    (Counter, "outcomes", (*_POLICY, "outcome", "reason"), "Groups by the outcome of a run for them"),
    (
        Counter,
        "marks",
        (*_POLICY, "change", "reason"),
        "Groups that were marked for deletion, of them or of some of their offsets, or unmarked, and why",
    ),
    (Gauge, "connection_up", _CONNECTION, "1 while the last scan was complete"),
    (Gauge, "scan_last_success_timestamp_seconds", _CONNECTION, "When a scan was last complete"),
    (Counter, "scan_failures", (*_CONNECTION, "reason"), "Scans that were incomplete or failed, by reason"),
    (
        Gauge,
        "scan_interval_seconds",
        _CONNECTION,
        "The shortest interval of the policies of a connection that are not suspended; absent without any",
    ),
    (
        Gauge,
        "groups",
        (*_CONNECTION, "state", "type"),
        "Groups of the cluster by their state and type, at the last complete list of all, about every 10 minutes",
    ),
    (
        Gauge,
        "offsets_retention_seconds",
        _CONNECTION,
        "The brokers' offsets.retention.minutes; absent while unknown, and if offsets never expire (-1)",
    ),
    (
        Gauge,
        "unused_patterns",
        (*_CONNECTION, "field"),
        "Patterns that select no group, by their field, at the last complete list of all groups",
    ),
    (
        Gauge,
        "ledger_ready",
        _CONNECTION,
        "1 while the ledger can be used, 0 while it can't; absent where no policy needs one",
    ),
    (Gauge, "ledger_unreadable_records", _CONNECTION, "Records of the ledger that can't be read"),
    (
        Gauge,
        "evidence_ready",
        _CONNECTION,
        "1 while the pipeline's tables may be used for all groups; absent if the connection names none",
    ),
    (
        Gauge,
        "evidence_as_of_timestamp_seconds",
        _CONNECTION,
        "Up to when the pipeline's tables cover all partitions for which they may be used; absent without any",
    ),
    (Histogram, "scan_duration_seconds", _CONNECTION, "Time of one scan of a cluster for all due policies"),
    (Gauge, "alerting", _POLICY, "1 while a policy with action Alert alerts"),
    (
        Counter,
        "alerts_sent",
        (*_CONNECTION, "type", "result"),
        "Messages sent to receivers, by their type and whether they arrived (result delivered or failed)",
    ),
    (
        Gauge,
        "watching",
        ("resource",),
        "1 while changes of this custom resource are seen, 0 once they were not for a minute",
    ),
    (Gauge, "leader", (), "1 while this process leads, 0 while it is on standby"),
    (Counter, "status_writes", ("kind",), "Status patches sent to the API server"),
    (Counter, "status_refusals", ("kind",), "Status patches that the API server refused"),
)


class Metrics:
    """All metrics of one operator process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._followed: dict[tuple[str, str], tuple[tuple[str, str], str, int]] = {}
        self._follows = Lock()
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        # The metrics of policies, of connections, and the others.
        self._series: defaultdict[tuple[str, ...], list[Metric]] = defaultdict(list)
        for made, name, labels, text in _METRICS:
            options: dict[str, Any] = {"buckets": _BUCKETS} if made is Histogram else {}
            metric = made(name, text, labels, namespace="group_hygiene", registry=registry, **options)
            self._series[labels[:2]].append(metric)
            if isinstance(metric, Gauge):
                self._gauges[name] = metric
            elif isinstance(metric, Counter):
                self._counters[name] = metric
            else:
                self._scan_duration = metric
        self._set("build_info", (__version__,), 1)
        for plural in _PLURALS:
            # Without a first value there is no increase.
            self._count("status_refusals", plural, by=0)

    def _set(self, name: str, labels: tuple[str, ...], value: float | None) -> None:
        """Set a gauge; None = remove its series, so that no old value is shown."""
        if value is None:
            self._gauges[name].remove(*labels)
        else:
            self._gauges[name].labels(*labels).set(value)

    def _count(self, name: str, *labels: str, by: int = 1) -> None:
        self._counters[name].labels(*labels).inc(by)

    def show_watches(self, plurals: Iterable[str], is_open: Callable[[str], bool]) -> None:
        """Ask `is_open` at each scrape, for each of the operator's custom resources."""
        for plural in plurals:
            self._gauges["watching"].labels(plural).set_function(partial(is_open, plural))

    def show_leadership(self, leads: Callable[[], bool]) -> None:
        """Ask `leads` at each scrape."""
        self._gauges["leader"].set_function(lambda: float(leads()))

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
        self._set("scan_interval_seconds", ours, min(intervals, default=None))

    def _show_policy(self, policy: Policy, connection: tuple[str, str]) -> None:
        labels = (policy.namespace, policy.name)
        series = {"namespace": policy.namespace, "policy": policy.name}
        self._gauges["policy_info"].remove_by_labels(series)
        self._set("policy_interval_seconds", labels, None if policy.suspend else policy.interval.total_seconds())
        if policy.suspend:
            # Results of its last run.
            for metric in self._series[_POLICY]:
                if isinstance(metric, Gauge) and metric is not self._gauges["policy_last_run_timestamp_seconds"]:
                    metric.remove_by_labels(series)
            return
        self._set("policy_info", (*labels, *connection, str(policy.action), str(policy.mode)), 1)
        if policy.action.changes:
            self._count("outcomes", *labels, str(OutcomeType.DELETED), "", by=0)
            for reason in FAILURES:
                self._count("outcomes", *labels, str(OutcomeType.FAILED), reason, by=0)

    def policy_ran(
        self, plan: Plan, outcomes: Sequence[Outcome], timestamp: float, evidenced: bool | None = None
    ) -> None:
        """evidenced: as `has_evidence` of `observe/of_objects.py`."""
        labels, counts = (plan.policy.namespace, plan.policy.name), plan.counts(outcomes)
        self._set("groups_matched", labels, counts["matched"])
        self._gauges["groups_matched_by_owner"].remove_by_labels({"namespace": labels[0], "policy": labels[1]})
        # The owners of another namespace's connection are not known here.
        owners = () if plan.policy.crosses_namespace else (plan.verdicts[name].evidence.owner for name in plan.matched)
        of_owners = Tally(owners).most_common()
        # An owner's name may be a part of a group's id: there may be any number of them.
        if (rest := sum(count for _, count in of_owners[_OWNERS_MAX:])) > 0:
            of_owners[_OWNERS_MAX:] = [("(others)", rest)]
        for owner, count in of_owners:
            self._set("groups_matched_by_owner", (*labels, owner), count)
        self._set("groups_marked", labels, counts["marked"])
        self._set("groups_due", labels, counts.get("due"))
        self._set("groups_would_delete", labels, counts.get("wouldDelete"))
        self._set("deletion_blocked", labels, plan.blocked is not None)
        self._set("policy_last_run_timestamp_seconds", labels, timestamp)
        self._set("policy_evidence_ready", labels, evidenced)
        expiry = plan.next_expiry
        self._set("offsets_first_expiry_timestamp_seconds", labels, None if expiry is None else expiry.timestamp())
        self._gauges["groups_skipped"].remove_by_labels({"namespace": labels[0], "policy": labels[1]})
        for reason, count in plan.verdicts.by_reason.items():
            self._set("groups_skipped", (*labels, reason), count)
        for outcome in outcomes:
            reason = "" if outcome.kind is OutcomeType.DELETED else outcome.reason
            self._count("outcomes", *labels, str(outcome.kind), reason)
        if plan.marking:
            self._count("marks", *labels, "marked", "", by=len(plan.marking))
        for refusal in plan.unmarking.values():
            self._count("marks", *labels, "unmarked", refusal.reason)

    def scanned(self, namespace: str, connection: str, seconds: float, snapshot: Snapshot) -> None:
        """A scan took so long, with this result."""
        self._scan_duration.labels(namespace, connection).observe(seconds)
        if snapshot.complete:
            self._set("connection_up", (namespace, connection), 1)
            self._set("scan_last_success_timestamp_seconds", (namespace, connection), snapshot.taken_at.timestamp())
        else:
            self.failed(namespace, connection, reasons.SNAPSHOT_INCOMPLETE)

    def failed(self, namespace: str, connection: str, reason: str, policies: Sequence[Policy] = ()) -> None:
        """A scan was incomplete or failed, and so did the runs of these policies."""
        self._set("connection_up", (namespace, connection), 0)
        self._count("scan_failures", namespace, connection, reason)
        for policy in policies:
            self._count("run_failures", policy.namespace, policy.name, reason)

    def observed(self, namespace: str, connection: str, facts: ConnectionFacts) -> None:
        """The facts of a connection after a scan. Gauges of facts that this scan did not read stay."""
        labels = (namespace, connection)
        retention = None if facts.retention in (None, NEVER) else facts.retention
        self._set("offsets_retention_seconds", labels, None if retention is None else retention.total_seconds())
        ledger = facts.ledger
        self._set("ledger_ready", labels, None if ledger is None else ledger.problem is None)
        self._set("ledger_unreadable_records", labels, None if ledger is None else ledger.unreadable)
        coverage = facts.snapshot.coverage
        if coverage is not None or not facts.has_activity:
            known = coverage if facts.has_activity else None
            self._set("evidence_ready", labels, None if known is None else known.problem is None)
            as_of = None if known is None else known.as_of
            self._set("evidence_as_of_timestamp_seconds", labels, None if as_of is None else as_of.timestamp())
        if facts.all_groups is not None and facts.snapshot.complete:
            self._gauges["groups"].remove_by_labels({"namespace": namespace, "connection": connection})
            counts = Tally((str(group.state), str(group.type)) for group in facts.all_groups.values())
            for (state, type_), count in counts.items():
                self._set("groups", (*labels, state, type_), count)
        for field, count in unused_by_field(facts.patterns).items() if facts.patterns is not None else ():
            self._set("unused_patterns", (*labels, field), count)

    def forget_connection(self, namespace: str, connection: str) -> None:
        for metric in self._series[_CONNECTION]:
            metric.remove_by_labels({"namespace": namespace, "connection": connection})

    def alerting(self, namespace: str, policy: str, fires: bool | None) -> None:
        """fires: None = the policy does not run, or its action is not Alert."""
        self._set("alerting", (namespace, policy), fires)

    def alert_sent(self, namespace: str, connection: str, kind: str, arrived: bool) -> None:
        """kind: of the receiver."""
        self._count("alerts_sent", namespace, connection, kind, "delivered" if arrived else "failed")

    def status_written(self, kind: str) -> None:
        self._count("status_writes", kind)

    def status_refused(self, kind: str, policy: tuple[str, str] | None) -> None:
        """policy: namespace and name of a policy whose status the API server refuses, so that it is blocked."""
        self._count("status_refusals", kind)
        if policy is not None:
            self._set("deletion_blocked", policy, 1)

    def forget_policies(self, gone: Collection[tuple[str, str]]) -> None:
        """Drop the series of policies that no longer exist, given as (namespace, name)."""
        for namespace, policy in gone:
            for metric in self._series[_POLICY]:
                metric.remove_by_labels({"namespace": namespace, "policy": policy})
