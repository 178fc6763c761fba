"""The network of a node: a pair of interfaces between this machine and the node's network namespace.

Pods and services have addresses that only the namespace knows. This machine reaches the node's own address, and the
node reaches nothing beyond this machine.
"""

import ctypes
import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from testing.sandbox.errors import SandboxError
from testing.sandbox.node.requirements import PATH, program

PODS = "10.244.0.0/24"
CLUSTER = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"
# setns(2): a network namespace.
_NETWORK_NAMESPACE = 0x40000000
# As many nodes at once.
_PAIRS = 64
_TAKEN = "File exists"


@dataclass(frozen=True)
class Network:
    """The node's address as this machine and the pods reach it, and the process whose network namespace it is in."""

    address: str
    pid: int

    @property
    def enter(self) -> tuple[str, ...]:
        """The command that starts a program in the namespace."""
        return (program("nsenter"), f"--net=/proc/{self.pid}/ns/net")

    def listen(self, port: int) -> socket.socket:
        """A socket that listens there and belongs to this process; it sees pods by their own addresses."""
        # A thread enters the namespace by itself, and a socket stays in the one where it was made.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._listen, port).result()

    def _listen(self, port: int) -> socket.socket:
        with open(f"/proc/{self.pid}/ns/net", "rb") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NETWORK_NAMESPACE) != 0:
                raise OSError(ctypes.get_errno(), f"entering the network namespace of process {self.pid}")
        return socket.create_server((self.address, port), backlog=128)


def connect(pid: int) -> Network:
    """Connect the namespace of a process. The interfaces go with the namespace.

    The name of the outer interface is the lock of its addresses (198.18.0.0/15 is for such uses, RFC 2544).
    """
    for pair in range(_PAIRS):
        outer, inner, prefix = f"hygiene{pair}", f"hygiene{pair}n", f"198.18.{pair}"
        if _has_route(prefix):
            continue
        made = _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", str(pid), check=False)
        if made.returncode == 0:
            break
        if _TAKEN not in made.stderr:
            raise SandboxError(f"the node's network: {made.stderr.strip()}")
    else:
        raise SandboxError(f"all {_PAIRS} networks for nodes (198.18.0.0 to 198.18.{_PAIRS - 1}.0) are in use")
    network = Network(f"{prefix}.1", pid)
    _run("ip", "addr", "add", f"{prefix}.2/30", "dev", outer)
    _run("ip", "link", "set", outer, "up")
    for arguments in (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "link", "set", inner, "name", "node0"),
        ("ip", "addr", "add", f"{network.address}/30", "dev", "node0"),
        ("ip", "link", "set", "node0", "up"),
        # An address is only translated to that of a pod once there is a route to it.
        ("ip", "route", "add", SERVICES, "dev", "node0"),
        ("sysctl", "-qw", "net.ipv4.ip_forward=1"),
    ):
        _run(*network.enter, *arguments)
    return network


def _has_route(prefix: str) -> bool:
    return bool(_run("ip", "route", "show", "root", f"{prefix}.0/24").stdout.strip())


def _run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": PATH}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if check and done.returncode != 0:
        raise SandboxError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done
