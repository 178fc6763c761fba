"""The API server of a cluster with a node: accounts for its components, and access to the kubelet."""

import secrets
from pathlib import Path

from testing.sandbox.kafka.tls import Authority
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.node.network import SERVICES, Network
from testing.sandbox.place import Place

NODE = "node1"


class ClusterApiServer(ApiServer):
    """kube-apiserver and etcd on the node's address, configured for a node and controllers."""

    _what = "API server of a node"

    def __init__(self, network: Network) -> None:
        super().__init__(place=Place(network.address, network.enter))
        self._node_token = secrets.token_urlsafe(32)

    @property
    def authority(self) -> Path:
        """PEM file of the authority of this API server's client certificate for the kubelet."""
        return self._pki.ca

    def node_kubeconfig(self) -> Path:
        """A kubeconfig file of the kubelet, with the permissions of the node authorizer."""
        return self.write_kubeconfig("node", self._node_token)

    def _start(self) -> None:
        self._pki = Authority(self._scratch / "kubelet-clients", self._place)
        self._client = self._pki.issue("kube-apiserver")
        super()._start()

    def _users(self) -> str:
        return super()._users() + f'{self._node_token},system:node:{NODE},{NODE},"system:nodes"\n'

    def _cluster_arguments(self) -> list[str]:
        return [
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={SERVICES}",
            f"--advertise-address={self._place.address}",
            "--allow-privileged",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={self._client.certificate}",
            f"--kubelet-client-key={self._client.key}",
        ]
