"""`doctor`: check the operator's prerequisites in order, and report each result. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from group_hygiene.cli.doctor_findings import Area, Finding, failed, report_of, run_check
from group_hygiene.cli.doctor_kafka import CheckedCluster, examine_kafka
from group_hygiene.cli.doctor_kubernetes import Account, Kubernetes, examine_kubernetes
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Report, working
from group_hygiene.cli.target import Session, read_settings
from group_hygiene.errors import AuthenticationFailed, ConnectError, TLSFailed
from group_hygiene.kafka.client import connect
from group_hygiene.kafka.probe import UNRESOLVED
from group_hygiene.model.evidence import Claims
from group_hygiene.reconcile import Memory
from group_hygiene.spec.connection import ActivitySpec, Connection, cluster_of


def examine(
    target: ChosenCluster, document: Connection | None, activity: ActivitySpec | None, account: Account
) -> Report:
    """Check one cluster. document: a KafkaConnection of a file. activity: instead of the connection's."""
    findings: list[Finding] = []
    if target.connection is None:
        connection, settings = read_settings(target, document)
        findings += _kafka(
            CheckedCluster(connection, settings, activity, memory=Memory(cluster_id=connection.cluster_id)),
            target,
            account,
        )
    else:
        with working("checking the API server"):
            known = Kubernetes(target, target.connection, account)
            findings += examine_kubernetes(known)
        if known.connection is not None and known.settings is not None:
            memory = Memory(cluster_id=cluster_of(known.obj))
            cluster = CheckedCluster(known.connection, known.settings, activity, known, memory)
            findings += _kafka(cluster, target, account)
        elif known.connection is not None:
            advice = "fix the failures above, and run doctor again"
            findings.append(failed(Area.KAFKA, "Kafka", "not checked: the credentials are not known", advice))
    return report_of(findings)


def _kafka(cluster: CheckedCluster, target: ChosenCluster, account: Account) -> Sequence[Finding]:
    if target.timeout is not None:
        cluster.connection = replace(cluster.connection, timeout=target.timeout)
        cluster.settings = replace(cluster.settings, timeout=target.timeout)
    return list(run_check(Area.KAFKA, "Kafka", lambda: _connected(cluster, account)))


def _connected(cluster: CheckedCluster, account: Account) -> Iterator[Finding]:
    try:
        with working(f"connecting to {', '.join(cluster.settings.bootstrap_servers)}"):
            client = connect(cluster.settings)
    except (TLSFailed, AuthenticationFailed) as error:
        advice = "see --command-config, or spec.tls and spec.sasl of the KafkaConnection"
        yield failed(Area.KAFKA, "TLS and SASL", f"{error.reason}: {error}", advice)
        return
    except ConnectError as error:
        advice = "check the addresses, network policies, and whether the brokers require TLS or SASL"
        if UNRESOLVED in str(error):
            pod = f"kubectl exec -n {account.namespace} deploy/group-hygiene -- group-hygiene doctor ..."
            advice = f"the name of a Service resolves only in its Kubernetes cluster: {pod}; else correct the name"
        yield failed(Area.KAFKA, "Kafka", f"{error.reason}: {error}", advice)
        return
    try:
        session = Session(client, cluster.connection, Claims, cluster.known is not None, cluster.read_texts)
        with working("checking Kafka"):
            yield from examine_kafka(session, cluster)
    finally:
        client.close()
