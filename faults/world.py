"""Where scenarios take place: an API server with our kinds, brokers behind a proxy, replicas, and one connection."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from faults.auditor import Audit, Auditor, Truth
from faults.errors import Broken, FaultsError, NotReached
from faults.groups import Groups, Offsets
from faults.kafka_proxy import KafkaProxy, Rule, Then, When
from faults.kube import Kube, Object
from faults.ledger_log import LedgerLog
from faults.operators import LEASE_SECONDS, ROOT, Launch, OperatorProcess, Replicas
from faults.owners import Owners
from faults.requests import Exchange
from faults.waiting import wait_for
from sandbox.kafka import KafkaCluster
from sandbox.kubernetes import ApiServer
from sandbox.manifests import install
from sandbox.process import Keeper

GRACE_SECONDS = 1.0
# Two runs of a policy are at least this far apart where it shall see a group unchanged, or a mark ripen.
LOOK_SECONDS = 1.15
_API = "grouphygiene.io/v1alpha1"


@dataclass(frozen=True)
class Setup:
    """How a world is made. name: prefix of its groups, and its namespace. door: which of the cluster's it uses.

    without: what is changed in the operator's code (see `faults.reckless`). connection, policy: added to their specs.
    grace: the policy's gracePeriod in seconds. lease: of the replicas, in seconds. memory: of each
    of them, in bytes; None = not limited.
    prepare: called when there are brokers and kinds, before the connection.
    """

    name: str
    kafka: KafkaCluster
    door: int = 0
    without: str = ""
    connection: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    grace: float = GRACE_SECONDS
    lease: int = LEASE_SECONDS
    memory: int | None = None
    prepare: Callable[[World], None] | None = None


class World:
    """One API server, one connection to a cluster that others may use too, one policy `p`, and replicas.

    Use it as a context manager.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.name, self.kafka = setup, setup.name, setup.kafka
        self.truth, self.owners = Truth(), Owners()
        self._numbers = itertools.count(1)
        self._server = ApiServer()

    def __enter__(self) -> Self:
        self._keeper = Keeper()
        try:
            self._server.start()
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for part in ("replicas", "proxy"):
            if hasattr(self, part):
                getattr(self, part).end() if part == "replicas" else getattr(self, part).close()
        self._server.stop()
        self._keeper.close()

    @property
    def server(self) -> ApiServer:
        return self._server

    @property
    def ledger_topic(self) -> str:
        return f"hygiene-{self.name}"

    @property
    def tables(self) -> Path:
        """A folder in which operators may read tables of a pipeline."""
        return self._keeper.scratch / "tables"

    def _prepare(self) -> None:
        server = self._server
        install(server)
        self.kube = Kube(server)
        self.proxy = KafkaProxy(self.kafka.door(self.setup.door), self.owners)
        self.groups = Groups(self.kafka.plaintext_bootstrap)
        self.topic = self.groups.topic(f"{self.name}-topic")
        launch = Launch(self.setup.without, self.setup.lease, self.setup.memory)
        self.replicas = Replicas(server, self.owners, self._keeper, launch)
        self.kube.namespace(self.name)
        if self.setup.prepare is not None:
            self.setup.prepare(self)
        self.kube.apply(self.connection_object())
        made = self.kube.apply(self.policy_object())
        self.ledger = LedgerLog(self.kafka.plaintext_bootstrap, self.ledger_topic)
        uid = made["metadata"]["uid"]
        pace = made["spec"]["delete"]["maxPerRun"]
        self.auditor = Auditor(self.groups, self.proxy, self.ledger, self.truth, uid, self.setup.grace, pace)

    def connection_object(self) -> Object:
        spec: Object = {
            "bootstrapServers": self.proxy.bootstrap_servers.split(","),
            "scan": {"timeout": "10s"},
            "protect": [f"{self.name}-protected-*"],
            "ledger": {"topic": self.ledger_topic},
        }
        metadata = {"name": "main", "namespace": self.name}
        spec |= self.setup.connection
        return {"apiVersion": _API, "kind": "KafkaConnection", "metadata": metadata, "spec": spec}

    def policy_object(self) -> Object:
        spec: Object = {
            "connectionRef": {"name": "main"},
            "interval": "60s",
            "mode": "Enforce",
            "match": {"groups": [f"{self.name}-*"]},
            "when": {"unchangedFor": "1s"},
            "action": "Delete",
            "delete": {"gracePeriod": f"{self.setup.grace:.0f}s", "maxPerRun": 100, "maxPercent": 100},
        }
        spec |= self.setup.policy
        metadata = {"name": "p", "namespace": self.name}
        return {"apiVersion": _API, "kind": "GroupPolicy", "metadata": metadata, "spec": spec}

    # Groups

    def abandon(self, count: int, kind: str = "old") -> list[str]:
        """New groups that a policy may delete, each with offsets of its own."""
        names = [f"{self.name}-{kind}-{next(self._numbers)}" for _ in range(count)]
        made: dict[str, Offsets] = {
            name: {(self.topic, 0): index % 5, (self.topic, 1): (index * 3) % 7} for index, name in enumerate(names)
        }
        self.groups.abandon(made)
        self.truth.made(made)
        return names

    def commit(self, name: str, offset: int) -> None:
        """Somebody uses a group again, without joining it."""
        offsets = {(self.topic, 0): offset}
        self.groups.commit(name, offsets)
        self.truth.made({name: self.groups.offsets(name)})

    # Runs

    def status(self) -> Object:
        return dict(self.kube.get("GroupPolicy", self.name, "p").get("status") or {})

    def run(self, unless: Callable[[], bool] = lambda: False, seconds: float = 60.0) -> None:
        """Let the policy run now, by an edit that changes nothing that decides, until it says so or `unless` holds."""
        generation = self.ask_run()
        wait_for(
            lambda: unless() or (self.status().get("observedGeneration") or 0) >= generation,
            "the policy runs",
            seconds,
        )

    def ask_run(self) -> int:
        """The same without waiting; the generation that it will have observed."""
        edited = self.kube.patch("GroupPolicy", self.name, "p", {"interval": f"{60 + next(self._numbers) % 60}s"})
        return int(edited["metadata"]["generation"])

    def until_deleted(
        self, names: list[str], unless: Callable[[], bool] = lambda: False, seconds: float = 90.0
    ) -> None:
        """Let it run again and again until groups are gone and that is recorded, or `unless` holds."""
        end = time.monotonic() + seconds
        while not unless() and not self.settled(names):
            if time.monotonic() > end:
                raise NotReached(f"these groups are not gone, or not recorded: {', '.join(names[:5])}: {self.told()}")
            self.run(unless, seconds)
            time.sleep(LOOK_SECONDS)

    def told(self) -> str:
        """What the policy's status says, in short, for a failure."""
        status = self.status()
        conditions = {c["type"]: f"{c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", [])}
        return f"{conditions}, {status.get('reasons')}"[:600]

    def settled(self, gone: list[str]) -> bool:
        """Whether these groups are gone, that is in the ledger, and nothing is left open there."""
        if set(gone) & self.groups.listed():
            return False
        return self.auditor.recorded(gone) and not self.auditor.open_intents()

    def at(self, step: str, when: When, do: Callable[[Exchange], Then | None]) -> Rule:
        """Do something once, at a step of a run of whoever leads (see `requests.Steps`)."""
        return self.proxy.rule(Rule(lambda exchange: exchange.step == step, when, do))

    def kill_at_delete(self, leader: OperatorProcess, names: list[str]) -> None:
        """Let it run until it is killed as it deletes these groups: the broker did it, and the answer never comes."""

        def kill(_: Exchange) -> Then:
            leader.kill()
            return Then.DROP

        rule = self.at("delete", When.BETWEEN, kill)
        self.until_deleted(names, rule.done.is_set)
        rule.wait("the leader is killed")

    def marked(self, names: list[str]) -> bool:
        """Whether the ledger has a mark of each."""
        self.ledger.read()
        marks = {key[2] for key in self.ledger.latest() if key[0] == "mark"}
        return set(names) <= marks

    def mark(self, name: str) -> tuple[str, str]:
        """Since when a group is marked, and when it is due, as the ledger has it."""
        self.ledger.read()
        found = self.ledger.latest()["mark", self.auditor.policy_uid, name].value
        return found["since"], found["due"]

    def until_marked(self, names: list[str], seconds: float = 60.0) -> None:
        """Let it run until all of these are marked; the run that would delete them is the next one."""
        end = time.monotonic() + seconds
        while not self.marked(names):
            if time.monotonic() > end:
                raise NotReached(f"these groups are not marked: {', '.join(names[:5])}: {self.told()}")
            self.run()
            time.sleep(LOOK_SECONDS)

    def runs_and_keeps(self, names: list[str], runs: int = 3) -> None:
        """Let it run a few times; every one of these groups must be there after each run."""
        for _ in range(runs):
            self.run()
            gone = set(names) - self.groups.listed()
            if gone:
                raise Broken(f"deleted: {', '.join(sorted(gone)[:5])}")
            time.sleep(LOOK_SECONDS)

    def reasons(self) -> set[str]:
        """Every reason that the policy's status gives now, for groups and as a whole."""
        status = self.status()
        told = {condition["reason"] for condition in status.get("conditions", [])}
        return told | set(status.get("reasons") or {}) | {row.get("reason") or "" for row in status.get("sample") or []}

    def succeed(self, leader: OperatorProcess) -> OperatorProcess:
        """Kill who leads, and wait until a new process does."""
        leader.kill()
        self.start(1)
        return self.replicas.another_leader(leader)

    def step_clock(self, seconds: float) -> None:
        """Set the clock of operators that were started with `without="clock"`, this much ahead of the true time."""
        self.replicas.clock.write_text(str(seconds))

    def command(self, *arguments: str) -> None:
        """The command line, over the direct listener, as somebody at a terminal uses it. Raises FaultsError."""
        command = [sys.executable, "-m", "group_hygiene.cli", *arguments, "--bootstrap-server", self.groups.bootstrap]
        command += ["--ledger-topic", self.ledger_topic]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise FaultsError(f"{' '.join(arguments)}: {done.stderr.strip()}")

    def secret(self, name: str, content: dict[str, str], namespace: str = "") -> None:
        """A Secret that the operator may read, by default in the world's own namespace."""
        namespace = namespace or self.name
        body: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": content}
        self.kube.call("POST", f"/api/v1/namespaces/{namespace}/secrets", body)
        account = {"kind": "ServiceAccount", "name": "group-hygiene", "namespace": "group-hygiene"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "group-hygiene-secrets"}
        binding: Object = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "group-hygiene-secrets"},
            "roleRef": role,
            "subjects": [account],
        }
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
        self.kube.call("POST", path, binding)

    def start(self, count: int = 1) -> list[OperatorProcess]:
        return [self.replicas.start() for _ in range(count)]

    def audit(self) -> Audit:
        return self.auditor.audit()
