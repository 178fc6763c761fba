"""The commands that look back on what the pipeline's tables hold: what each takes, and its help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from group_hygiene.cli.options import Past, Period, Since, file_option, output_option
from group_hygiene.cli.spark_options import spark_options


@click.command()
@file_option
@click.option(
    "--from",
    "start",
    type=Since(),
    metavar="TIME",
    help="2026-10-01, a time, or how long before --to: 30d.  [default: all]",
)
@click.option(
    "--to", "end", type=Past(), metavar="TIME", help="A day or a time.  [default: when the log was read last]"
)
@click.option(
    "--step",
    type=Period(),
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="By what the answer is told. When groups are looked at, the interval of each policy says.",
)
@click.option(
    "--max-regret",
    type=click.IntRange(min=0),
    metavar="N",
    help="End with exit code 3 where more than so many deletions would have hurt.",
)
@click.option(
    "--offsets-retention",
    type=Period(),
    metavar="DURATION",
    help="offsets.retention.minutes of the brokers: expiresWithin needs it, and ExpiresFirst is told with it only.",
)
@click.option("-n", "--namespace", default="default", metavar="NAME", help="Of objects in files that name none.")
@output_option
@spark_options
def backtest(output: str, **given: Any) -> int:
    """Try GroupPolicies on the past: what each would have deleted, and who came back later and would have missed it.

    Reads the tables of `group-hygiene pipeline` alone: no Kafka, no Kubernetes. The operator's own checks judge each
    group as often as the operator would, by what was known then. Regret: a group that is deleted, and that somebody
    commits to or joins later. Other periods are tried too, and for each pattern of names the least idleFor without
    regret is told.

    \b
    Examples:
      group-hygiene backtest -f policies/ --warehouse /data/hygiene
      group-hygiene backtest -f policy.yaml --warehouse s3a://bucket/hygiene --from 30d --max-regret 0
      group-hygiene backtest -f policy.yaml --warehouse /data/hygiene --from 14d --step 6h -o json

    Exit codes: 0 done, 1 an error, 3 more regret than --max-regret.
    """
    from group_hygiene.cli import backtesting
    from group_hygiene.cli import output as out

    answer = backtesting.backtest(given)
    shown = out.show(answer, output)
    # Too much regret is said also where another policy could not be tried.
    return answer.exit_code or shown


@click.command()
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path), metavar="FILE", required=True, help="The HTML file."
)
@click.option(
    "--offsets-retention",
    type=Period(),
    metavar="DURATION",
    default="7d",
    show_default=True,
    help="offsets.retention.minutes of the brokers, by which it is told what expires when.",
)
@spark_options
def report(**given: Any) -> int:
    """Write a report on all groups: one HTML file, which loads nothing and can be sent to anybody.

    Reads the tables of `group-hygiene pipeline` alone: no Kafka, no Kubernetes. It tells who is idle and since when,
    what expires within a week, by which names the number of groups grows, which topics groups in use left behind, and
    suggests policies that it has tried on the past.

    \b
    Examples:
      group-hygiene report --warehouse /data/hygiene -o report.html
      group-hygiene report --warehouse s3a://bucket/hygiene --offsets-retention 30d -o report.html

    Exit codes: 0 written, 1 an error.
    """
    from group_hygiene.cli import reporting

    return reporting.report(given)
