"""The command `doctor`: its options and help, the order of its checks, and their findings.

`doctor_kafka` and `doctor_kubernetes`, imported when it runs, make the checks. Changes nothing.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from group_hygiene.cli.options import (
    ChosenCluster,
    activity_option,
    connection_file_option,
    short_output_option,
    target_options,
    with_addresses,
)
from group_hygiene.cli.output import MARKS, Report, Table, show, working
from group_hygiene.errors import HygieneError
from group_hygiene.spec.connection import ActivitySpec, Connection

if TYPE_CHECKING:
    from group_hygiene.cli.doctor_kubernetes import Account


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
    from group_hygiene.cli.doctor_kubernetes import account_of
    from group_hygiene.cli.target import read_connection_file

    if connection_file is not None and target.connection is not None:
        raise click.UsageError("--connection and --connection-file can't be given together")
    if service_account is not None and service_account.count("/") != 1:
        raise click.UsageError("--service-account must be NAMESPACE/NAME")
    account = account_of(service_account, operator_namespace)
    return show(_examine(target, read_connection_file(connection_file), activity, account), output)


def _examine(
    target: ChosenCluster, document: Connection | None, activity: ActivitySpec | None, account: Account
) -> Report:
    """Check one cluster. document: a KafkaConnection of a file. activity: instead of the connection's."""
    from group_hygiene.cli.doctor_kafka import CheckedCluster, connect_and_examine
    from group_hygiene.cli.doctor_kubernetes import Kubernetes, examine_kubernetes
    from group_hygiene.cli.target import read_settings
    from group_hygiene.reconcile import Memory
    from group_hygiene.spec.connection import cluster_of

    findings: list[Finding] = []
    cluster: CheckedCluster | None = None
    if target.connection is None:
        connection, settings = read_settings(target, document)
        cluster = CheckedCluster(connection, settings, activity, memory=Memory(cluster_id=connection.cluster_id))
    else:
        with working("checking the API server"):
            known = Kubernetes(target, target.connection, account)
            findings += examine_kubernetes(known)
        if known.connection is not None and known.settings is not None:
            memory = Memory(cluster_id=cluster_of(known.obj))
            cluster = CheckedCluster(known.connection, known.settings, activity, known, memory)
        elif known.connection is not None:
            advice = "fix the failures above, and run doctor again"
            findings.append(failed(Area.KAFKA, "Kafka", "not checked: the credentials are not known", advice))
    if cluster is not None:
        findings += connect_and_examine(cluster, target.timeout, account.namespace)
    return report_of(findings)


class CheckResult(StrEnum):
    """Warning: the operator works, but something should be better, or could not be checked."""

    OK = "Ok"
    WARNING = "Warning"
    FAILED = "Failed"


class Area(Enum):
    """The subject of a check, and the exit code if it fails; of several failures the first decides."""

    KUBERNETES = 10
    CONNECTION = 11
    KAFKA = 12
    PERMISSIONS = 13
    LEDGER = 14
    EVIDENCE = 15
    CLOCK = 16


class Finding(NamedTuple):
    """check: the name of the check. found: its result in words. advice: the remedy; empty = none."""

    area: Area
    check: str
    result: CheckResult
    found: str
    advice: str = ""


def ok(area: Area, check: str, found: str) -> Finding:
    return Finding(area, check, CheckResult.OK, with_addresses(found))


def warning(area: Area, check: str, found: str, advice: str) -> Finding:
    return Finding(area, check, CheckResult.WARNING, found, with_addresses(advice))


def failed(area: Area, check: str, found: str, advice: str) -> Finding:
    return Finding(area, check, CheckResult.FAILED, found, with_addresses(advice))


def run_check(area: Area, check: str, examine: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of `examine`. An exception becomes a finding, so that the other checks run."""
    try:
        yield from examine()
    except HygieneError as error:
        yield failed(area, check, f"{error.reason}: {error}", f"docs/reasons.md, {error.reason}")
    except Exception as error:
        # The text may contain a secret: the line of the source is enough to find the bug.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        yield failed(area, check, f"unexpected: {type(error).__name__} at {where}", "report it as a bug")


def report_of(findings: Sequence[Finding]) -> Report:
    """All findings in order, and the exit code of the first failure."""
    lines = [f"{MARKS[f.result]} {f.check}: {f.found}" + (f" → {f.advice}" if f.advice else "") for f in findings]
    code = next((each.area.value for each in findings if each.result is CheckResult.FAILED), 0)
    checks = [
        {
            "area": finding.area.name.capitalize(),
            "check": finding.check,
            "result": str(finding.result),
            "found": finding.found,
            "advice": finding.advice or None,
        }
        for finding in findings
    ]
    return Report({"checks": checks, "exitCode": code}, (), [Table((), (), lines)], exit_code=code)
