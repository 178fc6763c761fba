"""Operator processes that can be killed, frozen and resumed."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from testing.faults.api_proxy import ApiProxy
from testing.faults.owners import Owners
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.process import Command, Keeper
from testing.sandbox.waiting import wait_for

ROOT = Path(__file__).parents[2]
# The shortest that the operator accepts, so that a successor soon leads.
LEASE_SECONDS = 6
_NAMESPACE = "group-hygiene"
# RLIMIT_DATA counts the whole stack of each thread, 8 MiB that are mostly untouched; 5 to 60 threads were counted, and
# what they really take is compared with the limit at the end.
_STACKS = 30 * 8 << 20


@dataclass(frozen=True)
class Launch:
    """How operators are started. without: the guards that are taken out (see `faults.reckless`). lease: in seconds.

    memory: how many bytes of memory of its own the process may have beside its threads' stacks (RLIMIT_DATA); None = as
    many as there are.
    """

    without: str = ""
    lease: int = LEASE_SECONDS
    memory: int | None = None

    @property
    def command(self) -> list[str]:
        """The program, before its options."""
        module = ["testing.faults.reckless", self.without] if self.without else ["group_hygiene.cli"]
        limits = [] if self.memory is None else ["prlimit", f"--data={self.memory + _STACKS}"]
        return [*limits, sys.executable, "-m", *module, "operator", "--lease-duration", str(self.lease)]


class OperatorProcess:
    """One life of one replica. name: as proxies and reports call it. `api`: its own way to the API server."""

    def __init__(self, keeper: Keeper, name: str, api: ApiProxy, kubeconfig: Path, launch: Launch) -> None:
        log = keeper.scratch / f"{name}.log"
        self.name, self.api, self.log_file = name, api, log
        command = [*launch.command, "--health-port", "0", "--log-level", "info"]
        command += ["--leader-election-namespace", _NAMESPACE]
        # Endpoints of tokens and of alerts are on this machine.
        command += ["--allow-local-activity", str(keeper.scratch), "--allow-receiver", "127.0.0.0/8"]
        path = os.pathsep.join(map(str, (ROOT / "operator", ROOT)))
        environment = {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": path, "FAULTS_CLOCK": str(keeper.scratch / "clock")}
        # A keeper, so that it surely ends with the runner.
        self._process = keeper.start(name, Command(command, log, environment))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.exit_code() is None

    @property
    def leads(self) -> bool:
        """Whether it said so, and lives: a process that lost the Lease ends."""
        return self.alive and " leading: " in self.log()

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.send(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP, and wait until it stands."""
        self._process.send(signal.SIGSTOP)
        self._process.wait_stopped()

    def thaw(self) -> None:
        """SIGCONT."""
        self._process.send(signal.SIGCONT)

    def wait(self, seconds: float) -> int:
        """Its exit code, once it ended by itself. Raises NotReached."""
        wait_for(lambda: not self.alive, f"{self.name} ends", seconds)
        return self._process.exit_code() or 0

    def end(self) -> None:
        """At the end of a scenario: whatever it does, it is gone."""
        self._process.stop(0)


class Replicas:
    """Makes operator processes for one API server, each with a way of its own to it."""

    def __init__(self, server: ApiServer, owners: Owners, keeper: Keeper, launch: Launch) -> None:
        self._server, self._owners, self._keeper, self._launch = server, owners, keeper, launch
        account = json.loads(server.kubeconfig_for_service_account(_NAMESPACE, _NAMESPACE).read_text())
        self._account = account
        self._authority = server.certificate
        self._made = 0
        self.clock = keeper.scratch / "clock"
        self.all: list[OperatorProcess] = []

    def start(self) -> OperatorProcess:
        """Start one more, and don't wait for it."""
        self._made += 1
        name = f"operator-{self._made}"
        host, port = self._server.url.removeprefix("https://").split(":")
        api = ApiProxy((host, int(port)), self._authority)
        config = {
            **self._account,
            "clusters": [{"name": "sandbox", "cluster": {"server": f"http://127.0.0.1:{api.port}"}}],
        }
        kubeconfig = self._keeper.scratch / f"{name}.kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        kubeconfig.chmod(0o600)
        process = OperatorProcess(self._keeper, name, api, kubeconfig, self._launch)
        self._owners.add(process.pid, name)
        self.all.append(process)
        return process

    def leader(self, seconds: float = 60.0) -> OperatorProcess:
        """The one that leads, once there is one."""
        return self._wait(None, seconds)

    def another_leader(self, than: OperatorProcess, seconds: float = 60.0) -> OperatorProcess:
        """The one that leads after this one, which may not know yet that it leads no more."""
        return self._wait(than, seconds)

    def end(self) -> None:
        for process in self.all:
            process.end()
            process.api.close()

    def _wait(self, but: OperatorProcess | None, seconds: float) -> OperatorProcess:
        def leading() -> list[OperatorProcess]:
            return [each for each in self.all if each is not but and each.leads]

        what = "a replica leads" if but is None else "another replica leads"
        return wait_for(leading, what, seconds)[-1]
