"""One policy in mode Enforce for groups of one cluster: its objects, its runs, and their audit.

The API server, the brokers and the operator's processes belong to `faults.world`, or to a node.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from testing.faults.auditor import Audit, Auditor, Truth
from testing.faults.errors import Broken
from testing.faults.groups import Groups, Offsets
from testing.faults.kafka_proxy import KafkaProxy, Rule, Then, When
from testing.faults.kube import Kube, Object
from testing.faults.operators import LEASE_SECONDS
from testing.faults.requests import Exchange
from testing.sandbox.errors import NotReached
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.ledger_log import LedgerLog
from testing.sandbox.waiting import wait_for

GRACE_SECONDS = 1.0
INTERVAL_SECONDS = 60
# Time between two runs of a policy, so that it sees a group unchanged, or a grace period elapse.
LOOK_SECONDS = 1.15
_API = "grouphygiene.io/v1alpha1"


@dataclass(frozen=True)
class Specs:
    """connection, policy: added to their specs. grace, interval: the policy's, in seconds.

    late: seconds after its date in which a mark may be written: as long as its writer may have led.
    """

    connection: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    grace: float = GRACE_SECONDS
    late: float = LEASE_SECONDS
    interval: int = INTERVAL_SECONDS


class Enforcement:
    """The connection `main` and the policy `p` in a separate namespace, and groups whose names begin with its name."""

    def __init__(self, name: str, kafka: KafkaCluster, specs: Specs) -> None:
        self.name, self.kafka, self._specs = name, kafka, specs
        self.truth = Truth()
        self._numbers = itertools.count(1)

    def prepare(self, server: ApiServer, proxy: KafkaProxy) -> None:
        """Make a topic. The API server has the CRDs and the namespace; operators use the proxy."""
        self.kube, self.proxy = Kube(server), proxy
        self.groups = Groups(self.kafka.plaintext_bootstrap)
        self.topic = self.groups.topic(f"{self.name}-topic")

    def apply(self) -> None:
        """Apply the connection and the policy."""
        self.kube.apply(self.connection_object())
        made = self.kube.apply(self.policy_object())
        self.ledger = LedgerLog(self.kafka.plaintext_bootstrap, self.ledger_topic)
        self.auditor = Auditor(
            groups=self.groups,
            proxy=self.proxy,
            ledger=self.ledger,
            truth=self.truth,
            policy_uid=made["metadata"]["uid"],
            grace=self._specs.grace,
            max_per_run=made["spec"]["delete"]["maxPerRun"],
            late=self._specs.late,
        )

    @property
    def ledger_topic(self) -> str:
        return f"hygiene-{self.name}"

    def connection_object(self) -> Object:
        spec: Object = {
            "bootstrapServers": self.proxy.bootstrap_servers.split(","),
            "scan": {"timeout": "10s"},
            "protect": [f"{self.name}-protected-*"],
            "ledger": {"topic": self.ledger_topic},
        }
        metadata = {"name": "main", "namespace": self.name}
        spec |= self._specs.connection
        return {"apiVersion": _API, "kind": "KafkaConnection", "metadata": metadata, "spec": spec}

    def policy_object(self) -> Object:
        spec: Object = {
            "connectionRef": {"name": "main"},
            "interval": f"{self._specs.interval}s",
            "mode": "Enforce",
            "match": {"groups": [f"{self.name}-*"]},
            "when": {"unchangedFor": "1s"},
            "action": "Delete",
            "delete": {"gracePeriod": f"{self._specs.grace:.0f}s", "maxPerRun": 100, "maxPercent": 100},
        }
        spec |= self._specs.policy
        metadata = {"name": "p", "namespace": self.name}
        return {"apiVersion": _API, "kind": "GroupPolicy", "metadata": metadata, "spec": spec}

    # Groups

    def abandon(self, count: int, kind: str = "old") -> list[str]:
        """Make groups that a policy may delete, each with different offsets."""
        names = [f"{self.name}-{kind}-{next(self._numbers)}" for _ in range(count)]
        made: dict[str, Offsets] = {
            name: {(self.topic, 0): index % 5, (self.topic, 1): (index * 3) % 7} for index, name in enumerate(names)
        }
        self.groups.abandon(made)
        self.truth.made(made)
        return names

    def commit(self, name: str, offset: int) -> None:
        """Use a group again, without joining it."""
        offsets = {(self.topic, 0): offset}
        self.groups.commit(name, offsets)
        self.truth.made({name: self.groups.offsets(name)})

    # Runs

    def status(self) -> Object:
        return dict(self.kube.get("GroupPolicy", self.name, "p").get("status") or {})

    def run(self, unless: Callable[[], bool] = lambda: False, seconds: float = 60.0) -> None:
        """Make the policy run now, by an edit without effect, and wait until its status shows it or `unless` holds."""
        generation = self.ask_run()
        wait_for(
            lambda: unless() or (self.status().get("observedGeneration") or 0) >= generation,
            "the policy runs",
            seconds,
        )

    def ask_run(self) -> int:
        """The same without waiting; returns the generation that the status will have."""
        edited = self.kube.patch(
            "GroupPolicy", self.name, "p", {"interval": f"{self._specs.interval + next(self._numbers) % 60}s"}
        )
        return int(edited["metadata"]["generation"])

    def until_deleted(
        self, names: list[str], unless: Callable[[], bool] = lambda: False, seconds: float = 90.0
    ) -> None:
        """Let it run repeatedly until the groups are gone and that is recorded, or `unless` holds."""
        end = time.monotonic() + seconds
        while not unless() and not self.settled(names):
            if time.monotonic() > end:
                raise NotReached(
                    f"these groups are not gone, or not recorded: {', '.join(names[:5])}: {self.summary()}"
                )
            self.run(unless, seconds)
            time.sleep(LOOK_SECONDS)

    def summary(self) -> str:
        """A summary of the policy's status, for an error message."""
        status = self.status()
        conditions = {c["type"]: f"{c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", [])}
        return f"{conditions}, {status.get('groupsByReason')}"[:600]

    def settled(self, gone: list[str]) -> bool:
        """Whether these groups are gone, the ledger records it, and it has no open intent."""
        if set(gone) & self.groups.listed():
            return False
        return self.auditor.recorded(gone) and not self.auditor.open_intents()

    def at(self, step: str, when: When, do: Callable[[Exchange], Then | None]) -> Rule:
        """Act once, at a step of the leader's run (see `requests.Steps`)."""
        return self.proxy.rule(Rule(lambda exchange: exchange.step == step, when, do))

    def marked(self, names: list[str]) -> bool:
        """Whether the ledger has a mark of each group."""
        self.ledger.read()
        marks = {key[2] for key in self.ledger.latest() if key[0] == "mark"}
        return set(names) <= marks

    def mark(self, name: str) -> tuple[str, str]:
        """A mark's `since` and `due` in the ledger."""
        self.ledger.read()
        found = self.ledger.latest()["mark", self.auditor.policy_uid, name].value
        return found["since"], found["due"]

    def until_marked(self, names: list[str], seconds: float = 60.0) -> None:
        """Let it run until all of these groups are marked; the next run would delete them."""
        end = time.monotonic() + seconds
        while not self.marked(names):
            if time.monotonic() > end:
                raise NotReached(f"these groups are not marked: {', '.join(names[:5])}: {self.summary()}")
            self.run(seconds=seconds)
            time.sleep(LOOK_SECONDS)

    def runs_and_keeps(self, names: list[str], runs: int = 3) -> None:
        """Let it run a few times; all of these groups must exist after each run."""
        for _ in range(runs):
            self.run()
            gone = set(names) - self.groups.listed()
            if gone:
                raise Broken(f"deleted: {', '.join(sorted(gone)[:5])}")
            time.sleep(LOOK_SECONDS)

    def reasons(self) -> set[str]:
        """All reasons in the policy's status, of groups and conditions."""
        status = self.status()
        shown = {condition["reason"] for condition in status.get("conditions", [])}
        shown |= {counted["reason"] for counted in status.get("groupsByReason") or []}
        return shown | {row.get("reason") or "" for row in status.get("sample") or []}

    def audit(self) -> Audit:
        return self.auditor.audit()
