"""A policy that enforces on the node's Kafka over TLS and SCRAM, through the proxy of `faults`, and is audited."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from testing.faults.enforcement import Enforcement, Specs
from testing.faults.kafka_proxy import Front, KafkaProxy, Rule, When
from testing.faults.stage import needed
from testing.sandbox.node import Node
from testing.sandbox.node.kafka import CLUSTER, USER, NodeKafka

# Three requests of the operator.
GROUPS = 150
# What a replica needs at most: the Lease runs out, or a probe ends it and it starts again.
SECONDS = 240.0
_LEASE_SECONDS = 30.0
CONNECTION: Mapping[str, Any] = {
    "tls": {"caSecretRef": {"name": f"{CLUSTER}-cluster-ca-cert", "key": "ca.crt"}},
    "sasl": {"mechanism": "SCRAM-SHA-512", "username": USER, "passwordSecretRef": {"name": USER, "key": "password"}},
}
_POLICY = {"delete": {"gracePeriod": "1s", "maxPerRun": 1000, "maxPercent": 100}}


class _Addresses:
    """Pods are known by their addresses."""

    def of(self, peer: tuple[str, int], listener: int) -> str:
        return peer[0]


@contextmanager
def enforcing(
    node: Node, kafka: NodeKafka, name: str, connection: Mapping[str, Any] = CONNECTION
) -> Iterator[Enforcement]:
    """The policy in a namespace of its own, with groups that must outlive everything.

    The operator, the namespace and its Secrets are there already. connection: fields of the KafkaConnection's spec.
    """
    certificate = kafka.authority.issue("proxy")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate.certificate, certificate.key)
    with ExitStack() as stack:
        stack.callback(node.kubectl, "delete", "namespace", name, "--wait=false")
        proxy = KafkaProxy(kafka.door(0), _Addresses(), Front(node.address, node.listen, tls))
        stack.callback(proxy.close)
        made = Enforcement(name, kafka, Specs(connection, _POLICY, late=_LEASE_SECONDS))
        made.prepare(node.api, proxy)
        needed(made, stack)
        made.apply()
        yield made


def strike(enforcement: Enforcement, what: Callable[[], None]) -> list[str]:
    """Do something amid a deletion of many groups: brokers did a part, and the operator does not know it yet."""
    names = enforcement.abandon(GROUPS)
    rule = Rule(lambda exchange: exchange.step == "delete", When.BETWEEN, lambda _: what(), skip=1)
    enforcement.proxy.rule(rule)
    # The API server may be what breaks.
    with suppress(OSError):
        enforcement.until_deleted(names, rule.fired.is_set, SECONDS)
    rule.wait("a deletion is under way", SECONDS)
    return names


def assert_all_is_well(enforcement: Enforcement, names: list[str]) -> None:
    """These groups go, each with its backup and its record, and none that must stay."""
    enforcement.until_deleted(names, seconds=SECONDS)
    audit = enforcement.audit()
    assert (audit.wrong, audit.no_backup, audit.unrecorded) == ([], [], [])
    assert audit.deletions >= len(names)
