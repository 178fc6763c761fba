"""One connection as its loop sees it, scan after scan: everything is real but the clock."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from group_hygiene.engine import deletion, marks, recovery, scan
from group_hygiene.engine.context import Context, Memory, Observation
from group_hygiene.engine.executor import Executor
from group_hygiene.engine.plan import Plan, make_plan
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.ledger.records import record
from group_hygiene.model.entries import Intent, Mark
from group_hygiene.model.evidence import Claims, Outcome
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.policy import Policy, parse_policy


class Clock:
    """Monotonic time stands still until a test moves it; wall time goes on by itself, and can be moved a little.

    A little, because the operator compares its wall clock with the broker's. step: seconds that pass with each reading.
    """

    def __init__(self, step: float = 0.0) -> None:
        self._step = step
        self._passed = 0.0
        self.moved = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.moved

    def monotonic(self) -> float:
        self._passed += self._step
        return 1_000_000 + self._passed

    def pass_minutes(self, minutes: float) -> None:
        self._passed += minutes * 60


@dataclass
class Guard:
    """Lets everything pass, unless `stop` refuses. left: seconds that it leads.

    at_lease: called when it is asked for these; only the nth time, if that is given.
    """

    stop: Callable[[], Refusal | None] = lambda: None
    left: float = 60.0
    at_lease: Callable[[], object] = lambda: None
    nth: int | None = None
    asked: int = 0

    def refusal(self) -> Refusal | None:
        return self.stop()

    def seconds_left(self) -> float:
        self.asked += 1
        if self.nth in (None, self.asked):
            self.at_lease()
        return self.left


class Scene:
    """Scans, plans, marks and deletes with one memory and a ledger of its own."""

    # Two processes that write the same ledger have two.
    writer = "group-hygiene"

    def __init__(
        self,
        client: Client,
        protect: Sequence[str] = (),
        claimed: Mapping[str, str] | None = None,
        timeout: str = "60s",
        ledger: str = "",
        need: recovery.LedgerNeed = recovery.LedgerNeed.CREATE,
    ) -> None:
        """ledger: the topic; by default one that nobody else uses. need: what its policies need it for."""
        servers = list(client.settings.bootstrap_servers)
        spec = {"bootstrapServers": servers, "protect": list(protect), "scan": {"timeout": timeout}}
        self.client = client
        self.connection = parse_connection({"metadata": {"name": "main", "namespace": "kafka"}, "spec": spec})
        self.clock = Clock()
        self.memory = Memory()
        self.ledger = ledger or f"__group_hygiene-{secrets.token_hex(6)}"
        self.claimed, self._need = claimed or {}, need
        self.tables: Tables | Refusal | None = None
        self.context = self.open()

    def use(self, tables: Tables | Refusal | None) -> None:
        """From the next scan on, these are the pipeline's tables."""
        self.tables = tables
        self.context = replace(self.context, tables=tables)

    def open(self) -> Context:
        """What a run begins with: the ledger, read to its end."""
        settings = LedgerSettings(installation="tests", writer=f"{self.writer}-{self.ledger}", topic=self.ledger)
        journal = recovery.open_journal(self.memory, self.client, settings, self._need, (), Deadline(60))
        who = self.client, self.connection, self.memory, self.clock, journal
        return Context(*who, claims=lambda: Claims(self.claimed), tables=self.tables)

    def observe(self, *policies: Policy, after: float = 0, full: bool = False, whole: bool = True) -> Observation:
        """One scan, so many minutes after the last one. whole: with all verdicts, as commands scan."""
        self.clock.pass_minutes(after)
        if self.context.journal.problem is not None:
            # As each run does: what failed in the last one may go well now.
            self.context = self.open()
        return scan.observe(self.context, policies, full, whole)

    def intent(self, group: str, policy: Policy, *, topics: tuple[str, ...] = (), writer: str | None = None) -> Intent:
        """What this connection, or another one, writes before a deletion: nothing is written yet."""
        now = self.clock.now()
        return Intent(
            group=group,
            id=f"deletion-of-{group}",
            type="Classic",
            policy=policy.key,
            policy_uid=policy.uid,
            generation=1,
            at=now,
            deadline=now + timedelta(seconds=10),
            expires=now + timedelta(days=1),
            writer=self.context.journal.writer if writer is None else writer,
            topics=topics,
        )

    def plan(self, policy: Policy, after: float = 60) -> tuple[Observation, Plan]:
        """Scan now and once more, so many minutes later; mark; and plan again when grace is over."""
        self.observe(policy)
        self.mark(policy, self.observe(policy, after=after))
        self.clock.moved += timedelta(seconds=2)
        observation = self.observe(policy)
        return observation, self.planned(observation, policy)

    def mark(self, policy: Policy, observation: Observation) -> Plan:
        """Plan, and write the marks of that."""
        plan = self.planned(observation, policy)
        marks.note_marks(self.context, plan)
        return plan

    def marked(self, policy: Policy, groups: Iterable[str]) -> None:
        """Mark the groups now, so that they are due a moment later."""
        since = self.clock.now()
        marks = [
            Mark(policy_uid=policy.uid, group=group, policy=policy.key, digest=policy.digest, since=since, due=since)
            for group in groups
        ]
        assert record(self.context.journal, marks) is None
        self.clock.moved += timedelta(seconds=2)

    def planned(self, observation: Observation, policy: Policy) -> Plan:
        marks = self.context.journal.contents.marks.get(policy.uid, {})
        verdicts = observation.verdicts[policy.key]
        conditions = replace(observation.conditions, announced=self.clock.now())
        return make_plan(policy, verdicts, marks, conditions, self.clock.now())

    def due(self, policy: Policy) -> tuple[Observation, Plan]:
        """Marked at one scan and due at the next; looks play no part."""
        self.mark(policy, self.observe(policy))
        self.clock.moved += timedelta(seconds=2)
        observation = self.observe(policy)
        return observation, self.planned(observation, policy)

    def apply(self, plan: Plan, observation: Observation, guard: Guard | None = None) -> list[Outcome]:
        return deletion.apply(Executor(self.context, guard or Guard()), plan, observation)


def verdicts(observation: Observation, policy: Policy, tag: str = "") -> dict[str, str]:
    """Each group that the policy selects -> why it is kept, or "Match"."""
    return {
        name: verdict.refusal.reason if verdict.refusal else "Match"
        for name, verdict in observation.verdicts[policy.key].items()
        if tag in name
    }


def policy(
    *groups: str, name: str = "tidy", mode: str = "Enforce", match: Mapping[str, Any] | None = None, **when: Any
) -> Policy:
    """Delete what is unchanged for an hour of scans every half an hour; limits don't matter. match: beside groups."""
    spec = {
        "connectionRef": {"name": "main"},
        "interval": "30m",
        "mode": mode,
        "match": {"groups": list(groups), **(match or {})},
        "when": {name: value for name, value in {"unchangedFor": "1h", **when}.items() if value is not None},
        "action": "Delete",
        "delete": {"gracePeriod": "1s", "maxPercent": 100, "maxPerRun": 10_000},
    }
    return _parsed(name, spec)


def stale(*groups: str, name: str = "unread", mode: str = "Enforce", **settings: Any) -> Policy:
    """Delete offsets of topics that living groups have not read for three days; limits don't matter."""
    spec = {
        "connectionRef": {"name": "main"},
        "interval": "30m",
        "mode": mode,
        "match": {"groups": list(groups)},
        "when": {"idleFor": "72h"},
        "action": "DeleteOffsets",
        "deleteOffsets": {"gracePeriod": "1s", "maxPercent": 100, "maxPerRun": 10_000, **settings},
    }
    return _parsed(name, spec)


def alert(*groups: str, name: str = "look", **when: Any) -> Policy:
    """Alert on what is so, in any state."""
    spec = {"connectionRef": {"name": "main"}, "match": {"groups": list(groups)}, "action": "Alert"}
    return _parsed(name, spec | ({"when": when} if when else {}))


def _parsed(name: str, spec: Mapping[str, Any]) -> Policy:
    metadata = {"name": name, "namespace": "kafka", "uid": f"uid-of-{name}", "generation": 1}
    return parse_policy({"metadata": metadata, "spec": spec})
