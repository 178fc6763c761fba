"""`doctor`: is everything there that the operator needs? Looks in order, tells each thing, writes nothing anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from group_hygiene.cli.doctor_kafka import Cluster, examine_kafka
from group_hygiene.cli.doctor_kubernetes import Account, Kubernetes, examine_kubernetes
from group_hygiene.cli.findings import Area, Finding, failed, looking, report_of
from group_hygiene.cli.options import Target
from group_hygiene.cli.output import Report, working
from group_hygiene.cli.target import Session, read_settings
from group_hygiene.connection import ActivitySpec, Connection
from group_hygiene.errors import AuthenticationFailed, ConnectError, TLSFailed
from group_hygiene.kafka.client import connect
from group_hygiene.model import Claims


def examine(target: Target, document: Connection | None, activity: ActivitySpec | None, account: Account) -> Report:
    """Everything about one cluster. document: a KafkaConnection of a file. activity: instead of the connection's."""
    findings: list[Finding] = []
    if target.connection is None:
        connection, settings = read_settings(target, document)
        findings += _kafka(Cluster(connection, settings, activity), target)
    else:
        with working("asking the API server"):
            known = Kubernetes(target.namespace, target.connection, account)
            findings += examine_kubernetes(known)
        if known.connection is not None and known.settings is not None:
            cluster = Cluster(known.connection, known.settings, activity, known)
            findings += _kafka(cluster, target)
        elif known.connection is not None:
            advice = "mend what is above, and look again"
            findings.append(failed(Area.KAFKA, "Kafka", "not asked: how to log in is not known", advice))
    return report_of(findings)


def _kafka(cluster: Cluster, target: Target) -> Sequence[Finding]:
    if target.timeout is not None:
        cluster.connection = replace(cluster.connection, timeout=target.timeout)
        cluster.settings = replace(cluster.settings, timeout=target.timeout)
    return list(looking(Area.KAFKA, "Kafka", lambda: _connected(cluster)))


def _connected(cluster: Cluster) -> Iterator[Finding]:
    try:
        with working(f"connecting to {', '.join(cluster.settings.bootstrap_servers)}"):
            client = connect(cluster.settings)
    except (TLSFailed, AuthenticationFailed) as error:
        advice = "see --command-config, or spec.tls and spec.sasl of the KafkaConnection"
        yield failed(Area.KAFKA, "TLS and SASL", f"{error.reason}: {error}", advice)
        return
    except ConnectError as error:
        advice = "check the addresses, network policies, and whether the brokers want TLS or SASL"
        yield failed(Area.KAFKA, "Kafka", f"{error.reason}: {error}", advice)
        return
    try:
        session = Session(client, cluster.connection, Claims(), cluster.known is not None, cluster.read_texts)
        with working("asking Kafka"):
            yield from examine_kafka(session, cluster)
    finally:
        client.close()
