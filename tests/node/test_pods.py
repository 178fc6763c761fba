"""A pod of the node finds services by name, and reaches the API server and a broker."""

from __future__ import annotations

import json

from testing.sandbox.node.given import Cluster
from testing.sandbox.node.kafka import CLUSTER, NAMESPACE, PORT, SERVICE, USER, NodeKafka
from tests.node.conftest import IMAGE, run_pod

_SCRIPT = """
import json, os, socket, ssl, urllib.request
from kafka import KafkaAdminClient

service = os.environ["SERVICE"]
account = "/var/run/secrets/kubernetes.io/serviceaccount"
trust = ssl.create_default_context(cafile=f"{account}/ca.crt")
request = urllib.request.Request("https://kubernetes.default.svc/version")
request.add_header("Authorization", "Bearer " + open(f"{account}/token").read())
version = json.load(urllib.request.urlopen(request, context=trust, timeout=30))
admin = KafkaAdminClient(
    bootstrap_servers=service + ":" + os.environ["PORT"], security_protocol="SASL_SSL", ssl_cafile="/ca/ca.crt",
    sasl_mechanism="SCRAM-SHA-512", sasl_plain_username=os.environ["KAFKA_USER"],
    sasl_plain_password=os.environ["PASSWORD"],
)
print(json.dumps({
    "address": socket.gethostbyname(service),
    "version": version["gitVersion"],
    "brokers": [broker["broker_id"] for broker in admin.describe_cluster()["brokers"]],
}))
"""


def test_a_pod_reaches_the_api_server_and_a_broker_by_the_names_of_their_services(
    cluster: Cluster, kafka: NodeKafka
) -> None:
    """With the account that each pod has, and with the Secrets that Strimzi makes of a cluster and of a user."""
    password = {"secretKeyRef": {"name": USER, "key": "password"}}
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["/opt/group-hygiene/bin/python", "-c", _SCRIPT],
        "env": [
            {"name": "SERVICE", "value": f"{SERVICE}.{NAMESPACE}"},
            {"name": "PORT", "value": str(PORT)},
            {"name": "KAFKA_USER", "value": USER},
            {"name": "PASSWORD", "valueFrom": password},
        ],
        "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    }
    volume = {"name": "ca", "secret": {"secretName": f"{CLUSTER}-cluster-ca-cert"}}
    output = run_pod(cluster, "client", NAMESPACE, {"containers": [container], "volumes": [volume]})
    address = cluster.kubectl("get", "service", SERVICE, "-n", NAMESPACE, "-o=jsonpath={.spec.clusterIP}").stdout
    version = json.loads(cluster.kubectl("get", "--raw", "/version").stdout)["gitVersion"]
    seen = json.loads(output.splitlines()[-1])
    assert seen == {"address": address, "version": version, "brokers": kafka.broker_ids}
