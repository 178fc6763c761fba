"""The command `doctor`: arguments, options and help. `doctor`, imported when it runs, does the work."""

from __future__ import annotations

import click

from group_hygiene.cli.options import (
    ChosenCluster,
    activity_option,
    connection_file_option,
    short_output_option,
    target_options,
)
from group_hygiene.spec.connection import ActivitySpec


@click.command()
@connection_file_option
@click.option(
    "--service-account",
    metavar="NAMESPACE/NAME",
    help="The operator's ServiceAccount, to check its permissions in Kubernetes. Default: your own permissions.",
)
@click.option(
    "--operator-namespace",
    metavar="NAME",
    help="Namespace of the operator and its Lease. Default: that of --service-account, else $POD_NAMESPACE, else "
    "group-hygiene.",
)
@activity_option
@short_output_option
@target_options
def doctor(
    target: ChosenCluster,
    connection_file: str | None,
    service_account: str | None,
    operator_namespace: str | None,
    activity: ActivitySpec | None,
    output: str,
) -> int:
    """Check the operator's prerequisites. Suggests a remedy for each failure.

    With --connection the command checks the API server, CRDs, permissions, Lease, Secrets and receivers, and then the
    Kafka cluster of the KafkaConnection. Without it, only Kafka: brokers, permissions, ledger, the pipeline's tables,
    clocks. It changes nothing.

    \b
    Examples:
      group-hygiene doctor --connection main -n kafka --service-account group-hygiene/group-hygiene
      group-hygiene doctor --bootstrap-server kafka:9092 --activity /data/hygiene -o json

    Exit codes: 0 no check failed, 1 wrong usage, else by the first failed check: 10 Kubernetes, 11 the KafkaConnection
    or a Secret, 12 Kafka, 13 permissions in Kafka, 14 the ledger, 15 the evidence, 16 a clock.
    """
    from group_hygiene.cli import output as out
    from group_hygiene.cli.doctor import examine
    from group_hygiene.cli.doctor_kubernetes import account_of
    from group_hygiene.cli.target import read_connection_file

    if connection_file is not None and target.connection is not None:
        raise click.UsageError("--connection and --connection-file can't be given together")
    if service_account is not None and service_account.count("/") != 1:
        raise click.UsageError("--service-account must be NAMESPACE/NAME")
    account = account_of(service_account, operator_namespace)
    return out.show(examine(target, read_connection_file(connection_file), activity, account), output)
