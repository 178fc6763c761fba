"""An existing cluster, for tests that otherwise start a node: it is used only through its kubeconfig."""

import os
import subprocess
from pathlib import Path
from typing import Protocol

from testing.sandbox.errors import SandboxError
from testing.sandbox.kubectl import kubectl
from testing.sandbox.place import Place


class Cluster(Protocol):
    """A cluster for tests, existing or started by them."""

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file of an administrator."""

    def place(self, *names: str) -> Place:
        """Where servers run that pods shall reach; names: DNS names of theirs."""

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; raises SandboxError with its error text when `check` and it fails."""


class GivenCluster:
    """The cluster of a kubeconfig's current context. address: IPv4 of this machine, as that cluster's pods reach it.

    Its images come from a registry, or were loaded before.
    """

    def __init__(self, kubeconfig: Path, address: str) -> None:
        self.kubeconfig, self._address = kubeconfig, address

    def place(self, *names: str) -> Place:
        """On this machine: brokers run here, and pods connect to them."""
        return Place(self._address, names=names)

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """As of a `Node`."""
        environment = {"KUBECONFIG": os.devnull}
        return kubectl(*arguments, kubeconfig=self.kubeconfig, environment=environment, input=input, check=check)

    def require_none(self, *namespaces: str) -> None:
        """Raise SandboxError if one of these namespaces or our CRDs exist, as tests would remove them."""
        there = self.kubectl("get", "crd,namespaces", "-o=name").stdout.split()
        ours = [name for name in there if name.endswith(".grouphygiene.io")]
        ours += [f"namespace/{name}" for name in namespaces if f"namespace/{name}" in there]
        if ours:
            raise SandboxError(f"this cluster is in use, and tests would remove these: {', '.join(ours)}")
