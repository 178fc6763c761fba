"""A Kafka that the pods of a node reach, with the objects that Strimzi makes of a cluster and its users.

The brokers are processes on the node's address. As with Strimzi's `my-cluster` in the namespace kafka, the Service
`my-cluster-kafka-bootstrap` has the port 9093 for TLS and SCRAM-SHA-512, the Secret `my-cluster-cluster-ca-cert` holds
the authority's certificate in `ca.crt`, and the Secret of a user has the user's name and `password`.
"""

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any

from testing.sandbox.errors import SandboxError
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.jars import VERSIONS
from testing.sandbox.kafka.layout import uses_kraft
from testing.sandbox.kafka.security import Security
from testing.sandbox.node.given import Cluster

NAMESPACE = "kafka"
CLUSTER = "my-cluster"
SERVICE = f"{CLUSTER}-kafka-bootstrap"
PORT = 9093
USER = "group-hygiene"


class NodeKafka(KafkaCluster):
    """A cluster on the node's address, with random passwords. Without an authorizer every user may do everything.

    Its plaintext listener is on the same address: pods reach it too. The node must run before it starts.
    Raises SandboxError for versions without KRaft, which listen on loopback only.
    """

    def __init__(
        self,
        node: Cluster,
        version: str = VERSIONS[0],
        brokers: int = 1,
        *,
        users: tuple[str, ...] = (USER,),
        config: Mapping[str, str] | None = None,
        doors: int = 0,
    ) -> None:
        passwords = {user: secrets.token_urlsafe(16) for user in users}
        security = Security(tls=True, sasl="SCRAM-SHA-512", users=passwords, doors=doors)
        super().__init__(version, brokers, security=security, config=config)
        if not uses_kraft(tuple(int(part) for part in version.split("."))):
            raise SandboxError(f"Kafka {version} with ZooKeeper runs on loopback only, where no pod reaches it")
        self._node_of = node

    def start(self) -> None:
        names = (SERVICE + suffix for suffix in ("", f".{NAMESPACE}", f".{NAMESPACE}.svc"))
        self._place = self._node_of.place(*names)
        super().start()

    def _start(self) -> None:
        super()._start()
        self.publish()

    def publish(self) -> None:
        """Make the namespace, the Secrets and the Service, or bring them up to date; a start does so."""
        self.publish_secrets(NAMESPACE)
        self._apply(_service(self.bootstrap_servers))

    def publish_secrets(self, namespace: str) -> None:
        """Make another namespace with the same Secrets."""
        self._apply(
            [
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
                _secret(f"{CLUSTER}-cluster-ca-cert", namespace, {"ca.crt": self.ca_file.read_text()}),
                *(_secret(user, namespace, {"password": each}) for user, each in self.security.users.items()),
            ]
        )

    def _apply(self, objects: list[dict[str, Any]]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self._node_of.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(listed))


def _secret(name: str, namespace: str, data: Mapping[str, str]) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    metadata = {"name": name, "namespace": namespace, "labels": {"strimzi.io/cluster": CLUSTER}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded}


def _service(bootstrap: str) -> list[dict[str, Any]]:
    """A Service without a selector, and a slice with one endpoint: the first broker, which knows the others.

    Two brokers of one address differ in their ports, which one slice cannot have.
    """
    address, _, port = bootstrap.partition(",")[0].rpartition(":")
    name = {"name": "tcp-clientstls", "protocol": "TCP"}
    metadata = {"name": SERVICE, "namespace": NAMESPACE, "labels": {"strimzi.io/cluster": CLUSTER}}
    labels = {"kubernetes.io/service-name": SERVICE, "endpointslice.kubernetes.io/managed-by": "sandbox"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": [{**name, "port": PORT}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": SERVICE, "namespace": NAMESPACE, "labels": labels},
            "addressType": "IPv4",
            "ports": [{**name, "port": int(port)}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
    ]
