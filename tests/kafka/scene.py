"""One connection as its loop sees it, scan after scan: everything is real but the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from group_hygiene import reconcile
from group_hygiene.connection import parse_connection
from group_hygiene.kafka.client import Client
from group_hygiene.model import Keep, Outcome
from group_hygiene.plan import Plan, make_plan
from group_hygiene.policy import Policy, parse_policy
from group_hygiene.reconcile import Context, Memory, Observation


class Clock:
    """A clock that stands still until it is told not to."""

    def __init__(self) -> None:
        self._passed = timedelta()

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC) + self._passed

    def monotonic(self) -> float:
        return 1_000_000 + self._passed.total_seconds()

    def pass_minutes(self, minutes: float) -> None:
        self._passed += timedelta(minutes=minutes)


class Scene:
    """Scans, plans and deletes with one memory."""

    def __init__(
        self,
        client: Client,
        protect: Sequence[str] = (),
        claimed: Mapping[str, str] | None = None,
        backups: bool = True,
        timeout: str = "20s",
    ) -> None:
        servers = list(client.settings.bootstrap_servers)
        spec = {"bootstrapServers": servers, "protect": list(protect), "scan": {"timeout": timeout}}
        connection = parse_connection({"metadata": {"name": "main", "namespace": "kafka"}, "spec": spec})
        self.clock = Clock()
        self.memory = Memory()
        self.context = Context(client, connection, self.memory, self.clock, backups, claimed or {})

    def observe(self, *policies: Policy, after: float = 0, full: bool = False) -> Observation:
        """One scan, so many minutes after the last one."""
        self.clock.pass_minutes(after)
        return reconcile.observe(self.context, policies, full)

    def plan(self, policy: Policy, after: float = 60) -> tuple[Observation, Plan]:
        """Scan now and once more, so many minutes later, and plan."""
        self.observe(policy)
        observation = self.observe(policy, after=after)
        return observation, planned(observation, policy)

    def apply(
        self, plan: Plan, observation: Observation, still_wanted: Callable[[], Keep | None] = lambda: None
    ) -> list[Outcome]:
        return reconcile.apply(self.context, plan, observation, still_wanted)


def planned(observation: Observation, policy: Policy) -> Plan:
    scanned = len(observation.snapshot.groups)
    return make_plan(policy, scanned, observation.verdicts[policy.key], observation.conditions)


def verdicts(observation: Observation, policy: Policy, tag: str = "") -> dict[str, str]:
    """Each group that the policy selects -> why it is kept, or "Match"."""
    return {
        name: verdict.keep.reason if verdict.keep else "Match"
        for name, verdict in observation.verdicts[policy.key].items()
        if tag in name
    }


def policy(*groups: str, name: str = "tidy", mode: str = "Enforce", **when: Any) -> Policy:
    """Delete what is unchanged for an hour of scans every half an hour; limits don't matter."""
    spec = {
        "connectionRef": {"name": "main"},
        "interval": "30m",
        "mode": mode,
        "match": {"groups": list(groups)},
        "when": {"unchangedFor": "1h", **when},
        "action": "Delete",
        "delete": {"maxPercent": 100, "maxPerRun": 10_000},
    }
    return _parsed(name, spec)


def alert(*groups: str, name: str = "look", **when: Any) -> Policy:
    """Alert on what is so, in any state."""
    spec = {"connectionRef": {"name": "main"}, "match": {"groups": list(groups)}, "when": when, "action": "Alert"}
    return _parsed(name, spec)


def _parsed(name: str, spec: Mapping[str, Any]) -> Policy:
    metadata = {"name": name, "namespace": "kafka", "uid": f"uid-of-{name}", "generation": 1}
    return parse_policy({"metadata": metadata, "spec": spec})
