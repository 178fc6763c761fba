"""Where a purge takes place: an API server with our kinds, a connection, a policy, and the operator as a process."""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from testing.bench.errors import BenchError
from testing.faults.kube import Kube, Object
from testing.faults.operators import ROOT
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install, operators_account
from testing.sandbox.proc import memory_mb
from testing.sandbox.process import Command, Keeper
from testing.sandbox.waiting import wait_for

NAMESPACE = "purge"
LEDGER = "__group_hygiene"
_ACCOUNT = "group-hygiene"
_API = "grouphygiene.io/v1alpha1"
# In a mount namespace of its own, with a limit where cgroup v2 has it: $0 bytes.
_UNSHARED = ("unshare", "--mount", "--map-root-user", "sh", "-c")
_LIMITED = 'mount -t tmpfs none /sys/fs/cgroup && echo "$0" > /sys/fs/cgroup/memory.max && exec "$@"'
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.25


@dataclass(frozen=True)
class DeletingRun:
    """As in the policy's status. at: wall time. deleted: groups so far. rss_mb: of the operator, right then."""

    at: float
    deleted: int
    rss_mb: float


@dataclass
class Watched:
    """What a purge looked like from outside. began: wall time at which the policy was applied. cpu_s: the operator's.

    statuses: bytes of each status of policy and connection that was seen, as compact JSON.
    """

    began: float
    runs: list[DeletingRun] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    peak_rss_mb: float = 0.0
    cpu_s: float = 0.0

    @property
    def ended(self) -> float:
        return self.runs[-1].at

    @property
    def rss_growth_percent(self) -> float:
        first, last = self.runs[0].rss_mb, self.runs[-1].rss_mb
        return (last - first) * 100 / first


class PurgeStage:
    """Use it as a context manager; then `start`, `apply`, and `watch` to the end."""

    def __init__(self, keeper: Keeper, audit_log: bool = False) -> None:
        self._keeper = keeper
        self._server = ApiServer(audit_log=audit_log)
        self.audit_events = self._server.audit_events

    def __enter__(self) -> Self:
        self._server.start()
        try:
            install(self._server)
            self._kube = Kube(self._server)
            self._kube.namespace(NAMESPACE)
        except BaseException:
            self._server.stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        if hasattr(self, "_operator"):
            self._operator.stop(_STOP_SECONDS)
        self._server.stop()

    def start(self, nice: int, memory_mb: int | None = None, health_port: int = 0) -> None:
        """The operator, with the rights that deploy/ gives it, and nothing between it and its servers.

        nice: of the process. What it computes, it would compute on another machine than the broker's. memory_mb: the
        limit that it sees, as in a container, and that nothing enforces; None = none.
        """
        kubeconfig = operators_account(self._server)
        command = [] if memory_mb is None else [*_UNSHARED, _LIMITED, str(memory_mb << 20)]
        command += ["nice", "-n", str(nice), sys.executable, "-m", "group_hygiene.cli", "operator"]
        command += ["--health-port", str(health_port), "--leader-election-namespace", _ACCOUNT]
        path = os.pathsep.join(map(str, (ROOT / "operator", ROOT)))
        log = self._keeper.scratch / "operator.log"
        environment = {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": path}
        log.unlink(missing_ok=True)
        self._operator = self._keeper.start("operator", Command(command, log, environment))
        wait_for(lambda: " leading: " in log.read_text(errors="replace"), "the operator leads")

    def apply(self, connection: Mapping[str, Any], policy: Mapping[str, Any]) -> float:
        """Apply a connection and a policy by their specs; the wall time."""
        self.apply_object("KafkaConnection", "main", connection)
        self.apply_object("GroupPolicy", "purge", policy)
        return time.time()

    def apply_object(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        metadata = {"name": name, "namespace": NAMESPACE}
        self._kube.apply({"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": dict(spec)})

    def remove_policies(self) -> None:
        """Delete all GroupPolicies."""
        self._kube.call("DELETE", f"/apis/{_API}/namespaces/{NAMESPACE}/grouppolicies")

    def stop(self) -> None:
        """Stop the operator, which can be started again."""
        self._operator.stop(_STOP_SECONDS)

    @property
    def pid(self) -> int:
        return self._operator.pid

    def exit_code(self) -> int | None:
        return self._operator.exit_code()

    def not_ready(self) -> dict[str, int]:
        """The reasons of policies whose condition Ready is False, and how many have each."""
        policies = self._kube.call("GET", f"/apis/{_API}/namespaces/{NAMESPACE}/grouppolicies")["items"]
        conditions = [c for policy in policies for c in (policy.get("status") or {}).get("conditions") or []]
        return dict(Counter(c["reason"] for c in conditions if c["type"] == "Ready" and c["status"] == "False"))

    def watch(self, groups: int, began: float, patience: float, on_deletion: Callable[[Watched], None]) -> Watched:
        """Look on until the policy's status says that so many groups are deleted.

        patience: raises BenchError when so many seconds pass without a deletion. on_deletion: called at each such run.
        """
        watched = Watched(began)
        versions: dict[str, str] = {}
        last = time.time()
        while not watched.runs or watched.runs[-1].deleted < groups:
            time.sleep(_POLL_SECONDS)
            policy = self._status("GroupPolicy", "purge", versions, watched)
            self._status("KafkaConnection", "main", versions, watched)
            deleted = (policy.get("totals") or {}).get("deleted", 0)
            if deleted > (watched.runs[-1].deleted if watched.runs else 0):
                last = time.time()
                watched.runs.append(DeletingRun(last, deleted, memory_mb(self._operator.pid, "VmRSS")))
                on_deletion(watched)
            if time.time() - last > patience or self._operator.exit_code() is not None:
                conditions = [f"{c['type']} {c['status']} {c['message']}" for c in policy.get("conditions") or []]
                raise BenchError(
                    f"{deleted} of {groups} groups are deleted, none of them in the last {patience:.0f} s: "
                    f"{'; '.join(conditions)}; {policy.get('reasons')}; {self._operator.log_tail(8)}"
                )
        watched.peak_rss_mb, watched.cpu_s = memory_mb(self._operator.pid, "VmHWM"), self._cpu()
        return watched

    def _status(self, kind: str, name: str, versions: dict[str, str], watched: Watched) -> Object:
        obj = self._kube.get(kind, NAMESPACE, name)
        status = obj.get("status") or {}
        version = obj["metadata"]["resourceVersion"]
        if versions.get(kind) != version:
            versions[kind] = version
            watched.statuses.append(len(json.dumps(status, separators=(",", ":"), ensure_ascii=False).encode()))
        return dict(status)

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._operator.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
