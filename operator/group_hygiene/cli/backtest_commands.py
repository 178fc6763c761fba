"""The commands `backtest` and `report`: arguments, options and help. They read the pipeline's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from group_hygiene.cli.options import YAML_FILE, DurationType, Past, SinceType, file_option, output_option
from group_hygiene.cli.spark_options import spark_options


@click.command()
@file_option
@click.option(
    "--from",
    "start",
    type=SinceType(),
    metavar="TIME",
    help="Start: a day (2026-10-01), a time, or a duration before --to (30d).  [default: all]",
)
@click.option(
    "--to", "end", type=Past(), metavar="TIME", help="End: a day or a time.  [default: the last read of the log]"
)
@click.option(
    "--step",
    type=DurationType(),
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="Time steps of the output. Checks of groups follow the interval of each policy.",
)
@click.option(
    "--max-regret",
    type=click.IntRange(min=0),
    metavar="N",
    help="Exit with code 3 if more deletions than this are regretted.",
)
@click.option(
    "--offsets-retention",
    type=DurationType(),
    metavar="DURATION",
    help="offsets.retention.minutes of the brokers; required for expiresWithin and for the reason ExpiresFirst.",
)
@click.option("-n", "--namespace", default="default", metavar="NAME", help="Namespace of objects in files without one.")
@output_option
@spark_options
def backtest(output: str, **given: Any) -> int:
    """Try GroupPolicies on the past. Shows which groups each would have deleted, and which of them were used later.

    Reads only the tables of `group-hygiene pipeline`: no Kafka, no Kubernetes. The operator's own checks judge each
    group at the policy's interval, with the data of that time. A deletion is regretted if a consumer joins the group or
    commits to it later. The command also tries other periods, and shows the shortest idleFor without regret for each
    pattern of names.

    \b
    Examples:
      group-hygiene backtest -f policies/ --warehouse /data/hygiene
      group-hygiene backtest -f policy.yaml --warehouse s3a://bucket/hygiene --from 30d --max-regret 0
      group-hygiene backtest -f policy.yaml --warehouse /data/hygiene --from 14d --step 6h -o json

    Exit codes: 0 done, 1 an error, 3 more regret than --max-regret.
    """
    from group_hygiene.cli import backtests
    from group_hygiene.cli import output as out

    answer = backtests.backtest(given)
    shown = out.show(answer, output)
    # Too much regret decides the exit code, also if another policy could not be tried.
    return answer.exit_code or shown


@click.command()
@click.option(
    "--output-file", "file", type=click.Path(path_type=Path), metavar="FILE", required=True, help="The HTML file."
)
@click.option(
    "--offsets-retention",
    type=DurationType(),
    metavar="DURATION",
    default="7d",
    show_default=True,
    help="offsets.retention.minutes of the brokers, to calculate when offsets expire.",
)
@click.option(
    "--connection-file",
    type=YAML_FILE,
    metavar="FILE",
    help="YAML file with a KafkaConnection; the report shows its owners of groups.",
)
@click.option(
    "--since",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="JSON file of an earlier report; the new one shows what changed since then.  [default: the last 7 days]",
)
@spark_options
def report(**given: Any) -> int:
    """Write a report on all groups: an HTML file that loads nothing, a CSV file and a JSON file of the same name.

    Reads only the tables of `group-hygiene pipeline`: no Kafka, no Kubernetes. The report shows what idle groups cost,
    and policies that the command has tried on the past; groups by pattern of names, owner and program; offsets that
    expire within a week, and topics that groups in use no longer read. The CSV file lists all groups. With the JSON
    file, a later report shows what changed.

    \b
    Examples:
      group-hygiene report --warehouse /data/hygiene --output-file report.html
      group-hygiene report --warehouse s3a://bucket/hygiene --offsets-retention 30d --output-file report.html
      group-hygiene report --warehouse /data/hygiene --connection-file connection.yaml --output-file report.html
      group-hygiene report --warehouse /data/hygiene --since report.json --output-file report.html

    Exit codes: 0 written, 1 an error.
    """
    from group_hygiene.cli import reports

    return reports.report(given)
