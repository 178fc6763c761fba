"""Prometheus metrics. Labels name policies and connections, never groups: their number has no bound."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from group_hygiene.model import Outcome, OutcomeKind
from group_hygiene.plan import Plan

_POLICY = ("namespace", "policy")
_CONNECTION = ("namespace", "connection")


class Metrics:
    """All metrics of one operator process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._matched = Gauge("group_hygiene_groups_matched", "Groups that match a policy", _POLICY, registry=registry)
        self._due = Gauge(
            "group_hygiene_groups_due", "Groups that Enforce would delete now", _POLICY, registry=registry
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
        self._up = Gauge(
            "group_hygiene_connection_up", "1 while the last scan was complete", _CONNECTION, registry=registry
        )
        self._scan = Histogram(
            "group_hygiene_scan_duration_seconds",
            "Time to observe a cluster once for all due policies",
            _CONNECTION,
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )
        self._status_writes = Counter(
            "group_hygiene_status_writes", "Status patches sent to the API server", ("kind",), registry=registry
        )

    def policy_ran(self, plan: Plan, outcomes: Sequence[Outcome], timestamp: float) -> None:
        labels = (plan.policy.namespace, plan.policy.name)
        self._matched.labels(*labels).set(len(plan.matched))
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

    def scanned(self, namespace: str, connection: str, seconds: float, complete: bool) -> None:
        self._scan.labels(namespace, connection).observe(seconds)
        self._up.labels(namespace, connection).set(complete)

    def connection_down(self, namespace: str, connection: str) -> None:
        self._up.labels(namespace, connection).set(0)

    def forget_connection(self, namespace: str, connection: str) -> None:
        for metric in (self._up, self._scan):
            metric.remove_by_labels({"namespace": namespace, "connection": connection})

    def status_written(self, kind: str) -> None:
        self._status_writes.labels(kind).inc()

    def forget_policies(self, gone: Collection[tuple[str, str]]) -> None:
        """Drop the series of policies that no longer exist, given as (namespace, name)."""
        for namespace, name in gone:
            for metric in (self._matched, self._due, self._kept, self._blocked, self._last_run, self._outcomes):
                metric.remove_by_labels({"namespace": namespace, "policy": name})
