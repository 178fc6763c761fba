"""One node of a real Kubernetes, with its control plane: start, stop, break, and load images.

containerd, the kubelet and all pods live in process, mount and network namespaces that end with the process that made
them: after a SIGKILL of the caller the kernel kills and unmounts what is in there. kube-apiserver, etcd, and brokers of
`sandbox.node.kafka` share the network only; keepers of their own end them.
"""

import os
import platform
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from testing.sandbox import process
from testing.sandbox.errors import SandboxError
from testing.sandbox.files import write_private
from testing.sandbox.kubernetes.binaries import control_plane, node_programs
from testing.sandbox.node import cgroups, configuration, network, programs, requirements
from testing.sandbox.node.apiserver import NODE, ClusterApiServer
from testing.sandbox.node.configuration import Files
from testing.sandbox.node.image import write_pause
from testing.sandbox.place import Place
from testing.sandbox.prerequisites import KUBECTL, OPENSSL, find
from testing.sandbox.process import POLL_SECONDS, Command, Keeper, Server, check_running, wait_until
from testing.sandbox.service import Service

START_SECONDS = 300.0
STOP_SECONDS = 20.0
LOAD_SECONDS = 600.0
_IMAGES = "k8s.io"


class Node(Service):
    """A Kubernetes cluster of one node, ready when the node is ready and pods can be made in the namespace default."""

    _what = "node"

    def __init__(self) -> None:
        super().__init__()
        self._servers: dict[str, Server] = {}
        self._api: ClusterApiServer | None = None

    def prepare(self) -> None:
        requirements.check()
        for needed in (KUBECTL, OPENSSL):
            find(needed)
        control_plane()
        self._kubernetes = node_programs()
        self._containerd = programs.containerd()
        self._coredns, self._pause = programs.coredns(), programs.pause()

    def stop(self) -> None:
        # Pods first: during shutdown they may still need the API server.
        super().stop()
        self._servers.clear()
        if self._api is not None:
            self._api.stop()
            self._api = None

    @property
    def api(self) -> ClusterApiServer:
        """Its API server."""
        if self._api is None:
            raise SandboxError("this node is not running")
        return self._api

    @property
    def address(self) -> str:
        """Its IPv4 address, which this machine and the pods reach."""
        return self._network.address

    @property
    def pid(self) -> int:
        """The first process of its namespaces, as this machine numbers it."""
        return self._running.pid

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file of an administrator (group system:masters)."""
        return self.api.kubeconfig

    def place(self, *names: str) -> Place:
        """Where servers run that pods shall reach on the node's address; names: DNS names of theirs."""
        return Place(self._network.address, self._network.enter, names)

    def listen(self, port: int) -> socket.socket:
        """A socket of this process that listens on the node's address, and sees pods by their own addresses."""
        return self._network.listen(port)

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; raises SandboxError with its error text when `check` and it fails."""
        return self.api.kubectl(*arguments, input=input, check=check)

    def load_image(self, name: str) -> None:
        """Copy an image from podman's store to the node, under the same name."""
        saved = [requirements.program("podman"), "save", "--quiet", "--uncompressed", "--format", "oci-archive", name]
        with subprocess.Popen(saved, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as save:
            loaded = subprocess.run(
                self._ctr("images", "import", "-"),
                stdin=save.stdout,
                capture_output=True,
                text=True,
                timeout=LOAD_SECONDS,
                check=False,
            )
            # Otherwise podman would wait for a reader that has ended.
            if save.stdout is not None:
                save.stdout.close()
            error = save.stderr.read().decode() if save.stderr is not None else ""
        if save.returncode != 0 or loaded.returncode != 0:
            raise SandboxError(f"loading the image {name}: {error}{loaded.stderr}".strip())

    def images(self) -> list[str]:
        """The names of the images that the node has."""
        done = subprocess.run(self._ctr("images", "ls", "-q"), capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.split()

    def signal_container(self, namespace: str, pod: str, number: signal.Signals) -> None:
        """Send a signal to the first process of a pod's only container, as an administrator does on the node."""
        wanted = "-o=jsonpath={.status.containerStatuses[*].containerID}"
        container = self.kubectl("get", "pod", pod, "-n", namespace, wanted).stdout.removeprefix("containerd://")
        sent = self._ctr("tasks", "kill", f"--signal={number.name}", container)
        done = subprocess.run(sent, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise SandboxError(f"{number.name} to {pod}: {done.stderr.strip()}")

    def restart_containerd(self) -> None:
        """Stop and start containerd; containers continue to run, as their shims hold them."""
        self._servers["containerd"].stop(STOP_SECONDS)
        self._start_containerd()

    def stop_kubelet(self) -> None:
        """Stop the kubelet; containers continue to run."""
        self._servers["kubelet"].stop(STOP_SECONDS)

    def start_kubelet(self) -> None:
        """Start the kubelet again, and wait until it reports the node as ready."""
        before = self._heartbeat()
        self._start_kubelet()
        self._wait(lambda: self._heartbeat() != before and self.is_ready())

    def restart_api_server(self) -> None:
        """Stop and start kube-apiserver: same address, certificate, keys and objects; watches and connections break."""
        self.api.restart()

    def is_ready(self) -> bool:
        """Whether the node is Ready for the API server."""
        wanted = '-o=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "node", NODE, wanted, check=False).stdout == "True"

    def check(self) -> None:
        """Raise StartFailed with the end of its log when a process has ended by itself."""
        self.api.check()
        check_running(self._servers.values())

    def log(self, program: str) -> Path:
        """The log file of one of the node's programs: kubelet, containerd, coredns, kube-proxy, ..."""
        return self._files.scratch / f"{program}.log"

    def _heartbeat(self) -> str:
        """When the kubelet last renewed its Lease."""
        lease = ("get", "lease", NODE, "-n", "kube-node-lease", "-o=jsonpath={.spec.renewTime}")
        return self.kubectl(*lease, check=False).stdout

    def _new_keeper(self) -> Keeper:
        clear_dead()
        return Keeper(isolated=True)

    def _start(self) -> None:
        keeper = self._running
        self._files = Files(self._scratch)
        keeper.ask({"do": "remove", "directories": cgroups.create(self._scratch.name)})
        self._network = network.connect(keeper.pid)
        self._run_inside("setup", ["sh", "-c", configuration.setup(self._files)])
        self._api = ClusterApiServer(self._network)
        self._start_containerd()
        self._api.start()
        self._load_pause()
        self._start_controllers()
        self._start_kubelet()
        self._wait(self.is_ready)
        self._wait(lambda: self.kubectl("get", "serviceaccount", "default", check=False).returncode == 0)

    def _start_containerd(self) -> None:
        files = self._files
        files.networks.mkdir(exist_ok=True)
        write_private(files.networks / "10-pods.conflist", configuration.pod_network(files))
        settings = write_private(files.scratch / "containerd.toml", configuration.containerd(files))
        self._launch("containerd", [self._containerd / "containerd", "--config", settings])
        self._wait(lambda: subprocess.run(self._ctr("version"), capture_output=True, check=False).returncode == 0)

    def _start_kubelet(self) -> None:
        files, address = self._files, self._network.address
        text = configuration.kubelet(files, address, self.api.authority, files.scratch.name)
        settings = write_private(files.scratch / "kubelet.json", text)
        argv: list[str | Path] = [
            self._kubernetes / "kubelet",
            f"--config={settings}",
            f"--kubeconfig={self.api.node_kubeconfig()}",
            f"--root-dir={files.scratch / 'kubelet'}",
            f"--cert-dir={files.scratch / 'kubelet-certificates'}",
            f"--hostname-override={NODE}",
            f"--node-ip={address}",
        ]
        self._launch("kubelet", argv)

    def _start_controllers(self) -> None:
        kubeconfig, api = self.kubeconfig, self.api
        self._launch(
            "kube-controller-manager",
            [
                self._kubernetes / "kube-controller-manager",
                f"--kubeconfig={kubeconfig}",
                f"--service-account-private-key-file={api.service_account_key}",
                f"--root-ca-file={api.certificate}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                # It would make the default one, in /usr/libexec of this machine.
                f"--flex-volume-plugin-dir={self._files.plugins}",
                # A silent node becomes NotReady after 40 s.
                "--node-monitor-grace-period=40s",
            ],
        )
        self._launch(
            "kube-scheduler",
            [
                self._kubernetes / "kube-scheduler",
                f"--kubeconfig={kubeconfig}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
            ],
        )
        # The limits of connections that it would set are those of the whole machine.
        unlimited: list[str | Path] = [f"--conntrack-{limit}=0" for limit in ("max-per-core", "min")]
        unlimited += [f"--conntrack-tcp-timeout-{state}=0s" for state in ("established", "close-wait")]
        self._launch(
            "kube-proxy",
            [
                self._kubernetes / "kube-proxy",
                f"--kubeconfig={kubeconfig}",
                "--proxy-mode=nftables",
                f"--cluster-cidr={network.CLUSTER}",
                f"--hostname-override={NODE}",
                f"--bind-address={self._network.address}",
                *unlimited,
            ],
        )
        settings = self._files.scratch / "Corefile"
        write_private(settings, configuration.corefile(self._network.address, kubeconfig))
        self._launch("coredns", [self._coredns, "-conf", settings])

    def _load_pause(self) -> None:
        archive = self._files.scratch / "pause.tar"
        write_pause(self._pause, configuration.PAUSE, platform.machine(), archive)
        done = subprocess.run(self._ctr("images", "import", archive), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SandboxError(f"loading the image {configuration.PAUSE}: {done.stderr.strip()}")

    def _launch(self, name: str, argv: Sequence[str | Path]) -> None:
        # It finds its shim and runc there. No proxy is asked for anything: all addresses are in this network.
        path = os.pathsep.join([str(self._containerd), requirements.PATH])
        environment = {"PATH": path, "NO_PROXY": "*", "no_proxy": "*", "HOME": str(self._files.scratch)}
        self._servers[name] = self._running.start(name, Command(argv, self.log(name), environment))

    def _run_inside(self, name: str, argv: list[str]) -> None:
        """Run a short command in all of the node's namespaces."""
        server = self._running.start(name, Command(argv, self.log(name)))
        while (code := server.exit_code()) is None:
            time.sleep(POLL_SECONDS)
        if code != 0:
            raise SandboxError(f"the node's {name}: {server.log_tail()}")

    def _wait(self, ready: Callable[[], bool]) -> None:
        wait_until(ready, list(self._servers.values()), START_SECONDS)

    def _ctr(self, *arguments: str | Path) -> list[str | Path]:
        return [self._containerd / "ctr", f"--address={self._files.socket}", f"--namespace={_IMAGES}", *arguments]


def clear_dead() -> None:
    """Remove files of nodes whose keepers were killed. The kernel has already ended their processes and mounts."""
    process.clear_dead("node", lambda directory: cgroups.remove(directory.name))
