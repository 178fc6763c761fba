"""The world of a scenario: an API server with our CRDs, brokers behind a proxy, replicas, and one connection."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from testing.faults.enforcement import GRACE_SECONDS, INTERVAL_SECONDS, Enforcement, Specs
from testing.faults.errors import FaultsError
from testing.faults.kafka_proxy import KafkaProxy, Then, When
from testing.faults.kube import Object
from testing.faults.operators import LEASE_SECONDS, ROOT, Launch, OperatorProcess, Replicas
from testing.faults.owners import Owners
from testing.faults.requests import Exchange
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install
from testing.sandbox.process import Keeper


@dataclass(frozen=True)
class Setup:
    """Options of a world. name: prefix of its groups, and its namespace. door: index of the cluster's door.

    without: the guards to remove (see `faults.reckless`). connection, policy: added to their specs. grace, interval:
    the policy's, in seconds. lease: of the replicas, in seconds. memory: limit of each replica in bytes; None = none.
    prepare: called once brokers and CRDs exist, before the connection is made. server: an API server with our CRDs and
    roles that several worlds use one after another; default: the world's own.
    """

    name: str
    kafka: KafkaCluster
    door: int = 0
    without: str = ""
    connection: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    grace: float = GRACE_SECONDS
    interval: int = INTERVAL_SECONDS
    lease: int = LEASE_SECONDS
    memory: int | None = None
    prepare: Callable[[World], None] | None = None
    server: ApiServer | None = None


class World(Enforcement):
    """One API server, one connection to a cluster that may be shared, one policy `p`, and replicas.

    Use it as a context manager.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(
            setup.name, setup.kafka, Specs(setup.connection, setup.policy, setup.grace, interval=setup.interval)
        )
        self.setup, self.owners = setup, Owners()
        self._server = setup.server or ApiServer()

    def __enter__(self) -> Self:
        self._keeper = Keeper()
        try:
            if self.setup.server is None:
                self._server.start()
                install(self._server)
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for part in ("replicas", "proxy"):
            if hasattr(self, part):
                getattr(self, part).end() if part == "replicas" else getattr(self, part).close()
        if self.setup.server is None:
            self._server.stop()
        self._keeper.close()

    @property
    def server(self) -> ApiServer:
        return self._server

    @property
    def tables(self) -> Path:
        """A folder from which operators may read a pipeline's tables."""
        return self._keeper.scratch / "tables"

    def _prepare(self) -> None:
        server = self._server
        self.prepare(server, KafkaProxy(self.kafka.door(self.setup.door), self.owners))
        launch = Launch(self.setup.without, self.setup.lease, self.setup.memory)
        self.replicas = Replicas(server, self.owners, self._keeper, launch)
        self.kube.namespace(self.name)
        if self.setup.prepare is not None:
            self.setup.prepare(self)
        self.apply()

    def kill_at_delete(self, leader: OperatorProcess, names: list[str]) -> None:
        """Let it run until it is killed while it deletes these groups: after the broker did, before the response."""

        def kill(_: Exchange) -> Then:
            leader.kill()
            return Then.DROP

        rule = self.at("delete", When.BETWEEN, kill)
        self.until_deleted(names, rule.done.is_set)
        rule.wait("the leader is killed")

    def succeed(self, leader: OperatorProcess) -> OperatorProcess:
        """Kill the leader, and wait until a new process leads."""
        leader.kill()
        self.start(1)
        return self.replicas.another_leader(leader)

    def step_clock(self, seconds: float) -> None:
        """Set the clock of operators that were started with `without="clock"`, this much ahead of the true time."""
        self.replicas.clock.write_text(str(seconds))

    def command(self, *arguments: str) -> None:
        """Run the command line over the direct listener, as a user does. Raises FaultsError."""
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
