"""The commands that read: what each takes, and its help. What they do is in `groups` and `planning`."""

from __future__ import annotations

import click

from group_hygiene.cli.options import Names, Pattern, Target, file_option, flattened, output_option, target_options
from group_hygiene.model import GroupState, GroupType


@click.command("list")
@click.option(
    "--state",
    "states",
    type=Names(GroupState),
    multiple=True,
    metavar="STATE[,...]",
    help="Only groups in one of these states, as Kafka spells them: Empty, Stable, ...",
)
@click.option(
    "--type",
    "types",
    type=Names(GroupType, leave_out=[GroupType.UNKNOWN]),
    multiple=True,
    metavar="TYPE[,...]",
    help="Only groups of one of these types: Classic, Consumer, Share, Streams.",
)
@click.option(
    "--match",
    "patterns",
    type=Pattern(),
    multiple=True,
    metavar="PATTERN",
    help="Only groups whose whole id fits one of these patterns, in which * is any run of characters.",
)
@output_option
@target_options
def list_(
    target: Target,
    output: str,
    states: tuple[tuple[GroupState, ...], ...],
    types: tuple[tuple[GroupType, ...], ...],
    patterns: tuple[str, ...],
) -> int:
    """List the groups of a cluster with their state and type.

    \b
    Examples:
      group-hygiene list --bootstrap-server kafka:9092
      group-hygiene list --state Empty,Dead --match 'console-consumer-*' -o name
      group-hygiene list --type Consumer --connection main -n kafka -o json

    Exit codes: 0 all brokers answered, 1 an error, or a broker gave no answer and its groups are missing.
    """
    from group_hygiene.cli import groups
    from group_hygiene.cli import output as out

    return out.show(groups.list_groups(target, flattened(states), flattened(types), patterns), output)


@click.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option("--members", is_flag=True, help="Also each member: host, client id, instance id, assignment.")
@click.option("--offsets", is_flag=True, help="Also each partition: committed, start, end, lag.")
@output_option
@target_options
def describe(target: Target, output: str, names: tuple[str, ...], members: bool, offsets: bool) -> int:
    """Show groups in detail: coordinator, state, type, assignor, epoch, and how many members.

    \b
    Examples:
      group-hygiene describe billing --bootstrap-server kafka:9092
      group-hygiene describe billing shipping --members --offsets
      group-hygiene describe billing -o yaml

    Exit codes: 0 all of them are shown, 1 an error, or one of them could not be read; the others are shown.
    """
    from group_hygiene.cli import groups
    from group_hygiene.cli import output as out

    return out.show(groups.describe(target, names, members, offsets), output)


@click.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@output_option
@target_options
def offsets(target: Target, output: str, names: tuple[str, ...]) -> int:
    """Show the committed offsets of groups, where their partitions begin and end, and the lag.

    Partitions are those with a committed offset, and those that a member has now; - means that there is no value.

    \b
    Examples:
      group-hygiene offsets billing --bootstrap-server kafka:9092
      group-hygiene offsets billing shipping -o json

    Exit codes: 0 all of them are shown, 1 an error, or one of them could not be read; the others are shown.
    """
    from group_hygiene.cli import groups
    from group_hygiene.cli import output as out

    return out.show(groups.offsets(target, names), output)


@click.command()
@file_option
@output_option
@target_options
def plan(target: Target, output: str, files: tuple[str, ...]) -> int:
    """Show what GroupPolicies would do, before they are applied. Reads only, and needs no Kubernetes.

    Every document is held against the CRDs first; a mistake or an unknown field is an error. A KafkaConnection in the
    same files supplies bootstrapServers, protect and limits. Secrets come from --command-config or --connection.

    \b
    Examples:
      group-hygiene plan -f policy.yaml --bootstrap-server kafka:9092
      group-hygiene plan -f connection.yaml -f policies/ --command-config client.properties
      kustomize build . | group-hygiene plan -f - -o json

    Exit codes: 0 nothing would be done, 2 some group matches and would be reported or deleted, 1 an error.
    """
    from group_hygiene.cli import output as out
    from group_hygiene.cli import planning

    return out.show(planning.plan(target, files), output)


@click.command()
@click.argument("name", metavar="GROUP")
@file_option
@output_option
@target_options
def explain(target: Target, output: str, name: str, files: tuple[str, ...]) -> int:
    """Show why GroupPolicies keep one group or match it: each check, why it exists, and what it says.

    \b
    Examples:
      group-hygiene explain console-consumer-48213 -f policy.yaml --bootstrap-server kafka:9092
      group-hygiene explain billing -f policies/ --connection main -n kafka -o yaml

    Exit codes: 0 explained, 1 an error, or something that decides could not be read.
    """
    from group_hygiene.cli import explaining
    from group_hygiene.cli import output as out

    return out.show(explaining.explain(target, name, files), output)
