"""The command `doctor`: what it takes, and its help. What it does is in modules that are loaded then."""

from __future__ import annotations

import click

from group_hygiene.cli.options import (
    Target,
    activity_option,
    connection_file_option,
    short_output_option,
    target_options,
)
from group_hygiene.connection import ActivitySpec


@click.command()
@connection_file_option
@click.option(
    "--service-account",
    metavar="NAMESPACE/NAME",
    help="Ask what this ServiceAccount may do in Kubernetes, as the operator's own. Default: what you may do.",
)
@click.option(
    "--operator-namespace",
    metavar="NAME",
    help="Where the operator and its Lease are. Default: that of --service-account, else $POD_NAMESPACE, else "
    "group-hygiene.",
)
@activity_option
@short_output_option
@target_options
def doctor(
    target: Target,
    connection_file: str | None,
    service_account: str | None,
    operator_namespace: str | None,
    activity: ActivitySpec | None,
    output: str,
) -> int:
    """Look whether everything is there that the operator needs, and say what to do where it is not.

    With --connection: the API server, CRDs, rights, Lease, Secrets and receivers, then Kafka as the KafkaConnection
    says; else Kafka alone: brokers, permissions, ledger, the pipeline's tables, clocks. It writes nothing anywhere.

    \b
    Examples:
      group-hygiene doctor --connection main -n kafka --service-account group-hygiene/group-hygiene
      group-hygiene doctor --bootstrap-server kafka:9092 --activity /data/hygiene -o json

    Exit codes: 0 nothing failed, 1 wrong usage; else of the first that failed: 10 Kubernetes, 11 the KafkaConnection or
    a Secret, 12 Kafka, 13 permissions in Kafka, 14 the ledger, 15 the evidence, 16 a clock.
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
