"""Prometheus metrics. Labels name policies and connections, never groups: their number has no bound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from group_hygiene.model import Coverage, Outcome, OutcomeKind
from group_hygiene.plan import Plan

_POLICY = ("namespace", "policy")
_CONNECTION = ("namespace", "connection")


class Metrics:
    """All metrics of one operator process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._matched = Gauge("group_hygiene_groups_matched", "Groups that match a policy", _POLICY, registry=registry)
        self._marked = Gauge(
            "group_hygiene_groups_marked", "Groups that a policy has marked to be deleted", _POLICY, registry=registry
        )
        self._due = Gauge(
            "group_hygiene_groups_due", "Groups that may be deleted now, but for limits", _POLICY, registry=registry
        )
        self._kept = Gauge(
            "group_hygiene_groups_kept",
            "Groups that a policy selects and keeps",
            (*_POLICY, "reason"),
            registry=registry,
        )
        self._blocked = Gauge(
            "group_hygiene_deletion_blocked", "1 while due groups may not be deleted", _POLICY, registry=registry
        )
        self._last_run = Gauge(
            "group_hygiene_policy_last_run_timestamp_seconds", "When a policy last ran", _POLICY, registry=registry
        )
        self._outcomes = Counter(
            "group_hygiene_outcomes",
            "Groups by what a run did to them",
            (*_POLICY, "outcome", "reason"),
            registry=registry,
        )
        self._marks = Counter(
            "group_hygiene_marks",
            "Groups that were marked to be deleted, or let go again, and why",
            (*_POLICY, "change", "reason"),
            registry=registry,
        )
        self._up = Gauge(
            "group_hygiene_connection_up", "1 while the last scan was complete", _CONNECTION, registry=registry
        )
        self._evidence = Gauge(
            "group_hygiene_evidence_as_of_timestamp_seconds",
            "Up to when the pipeline's tables tell of all that they may decide about; absent while of nothing",
            _CONNECTION,
            registry=registry,
        )
        self._scan = Histogram(
            "group_hygiene_scan_duration_seconds",
            "Time to observe a cluster once for all due policies",
            _CONNECTION,
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )
        self._alerting = Gauge(
            "group_hygiene_alerting", "1 while a policy with action Alert alerts", _POLICY, registry=registry
        )
        self._alerts = Counter(
            "group_hygiene_alerts_sent",
            "Messages sent to receivers, by their type and whether they arrived (result delivered or failed)",
            (*_CONNECTION, "type", "result"),
            registry=registry,
        )
        self._leader = Gauge(
            "group_hygiene_leader", "1 while this process leads, 0 while it stands by", registry=registry
        )
        self._status_writes = Counter(
            "group_hygiene_status_writes", "Status patches sent to the API server", ("kind",), registry=registry
        )

    def show_leadership(self, leads: Callable[[], bool]) -> None:
        """Ask `leads` at each scrape."""
        self._leader.set_function(lambda: float(leads()))

    def policy_ran(self, plan: Plan, outcomes: Sequence[Outcome], timestamp: float) -> None:
        labels = (plan.policy.namespace, plan.policy.name)
        self._matched.labels(*labels).set(len(plan.matched))
        deleted = sum(outcome.kind is OutcomeKind.DELETED for outcome in outcomes)
        self._marked.labels(*labels).set(len(plan.marked) - deleted)
        self._due.labels(*labels).set(len(plan.due))
        self._blocked.labels(*labels).set(plan.refusal is not None)
        self._last_run.labels(*labels).set(timestamp)
        counts: dict[str, int] = {}
        for verdict in plan.verdicts.values():
            if verdict.keep is not None:
                counts[verdict.keep.reason] = counts.get(verdict.keep.reason, 0) + 1
        self._kept.remove_by_labels({"namespace": labels[0], "policy": labels[1]})
        for reason, count in counts.items():
            self._kept.labels(*labels, reason).set(count)
        for outcome in outcomes:
            reason = "" if outcome.kind is OutcomeKind.DELETED else outcome.reason
            self._outcomes.labels(*labels, str(outcome.kind), reason).inc()
        if plan.marking:
            self._marks.labels(*labels, "marked", "").inc(len(plan.marking))
        for keep in plan.unmarking.values():
            self._marks.labels(*labels, "unmarked", keep.reason).inc()

    def scanned(self, namespace: str, connection: str, seconds: float, complete: bool) -> None:
        self._scan.labels(namespace, connection).observe(seconds)
        self._up.labels(namespace, connection).set(complete)

    def covered(self, namespace: str, connection: str, coverage: Coverage | None) -> None:
        """coverage: None = nobody looked this time."""
        if coverage is not None and coverage.as_of is not None:
            self._evidence.labels(namespace, connection).set(coverage.as_of.timestamp())
        elif coverage is not None:
            self._evidence.remove_by_labels({"namespace": namespace, "connection": connection})

    def connection_down(self, namespace: str, connection: str) -> None:
        self._up.labels(namespace, connection).set(0)

    def forget_connection(self, namespace: str, connection: str) -> None:
        for metric in (self._up, self._scan, self._evidence, self._alerts):
            metric.remove_by_labels({"namespace": namespace, "connection": connection})

    def alerting(self, namespace: str, policy: str, fires: bool) -> None:
        self._alerting.labels(namespace, policy).set(fires)

    def alert_sent(self, namespace: str, connection: str, kind: str, arrived: bool) -> None:
        """kind: of the receiver."""
        self._alerts.labels(namespace, connection, kind, "delivered" if arrived else "failed").inc()

    def status_written(self, kind: str) -> None:
        self._status_writes.labels(kind).inc()

    def forget_policies(self, gone: Collection[tuple[str, str]]) -> None:
        """Drop the series of policies that no longer exist, given as (namespace, name)."""
        for namespace, name in gone:
            for metric in (
                self._matched,
                self._marked,
                self._due,
                self._kept,
                self._blocked,
                self._last_run,
                self._outcomes,
                self._marks,
                self._alerting,
            ):
                metric.remove_by_labels({"namespace": namespace, "policy": name})
