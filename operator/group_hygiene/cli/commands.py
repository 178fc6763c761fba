"""The commands for people: what each takes, and its help. What they do is in modules that are loaded then."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from group_hygiene.cli.options import (
    Moment,
    Names,
    Pattern,
    Period,
    Target,
    Text,
    activity_option,
    file_option,
    flattened,
    ledger_option,
    output_option,
    target_options,
)
from group_hygiene.connection import ActivitySpec
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

    Exit codes: 0 all groups are listed, 1 an error, or groups may be missing; those that were found are printed.
    """
    from group_hygiene.cli import groups
    from group_hygiene.cli import output as out

    return out.show(groups.list_groups(target, flattened(states), flattened(types), patterns), output)


@click.command()
@click.argument("names", type=Text(), metavar="GROUP...", nargs=-1, required=True)
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
@click.argument("names", type=Text(), metavar="GROUP...", nargs=-1, required=True)
@output_option
@target_options
def offsets(target: Target, output: str, names: tuple[str, ...]) -> int:
    """Show the committed offsets of groups, where their partitions begin and end, and the lag.

    Partitions are those with a committed offset, and those that a member has now; - means that there is no value.
    Topics that you may not describe are left out by the brokers: an error names them.

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
@activity_option
@output_option
@target_options
def plan(target: Target, output: str, files: tuple[str, ...], activity: ActivitySpec | None) -> int:
    """Show what GroupPolicies would do, before they are applied. Reads only, and needs no Kubernetes.

    Every document is held against the CRDs first; a mistake or an unknown field is an error. A KafkaConnection in the
    same files supplies bootstrapServers, protect, limits and activity. Secrets come from --command-config or
    --connection. Policies of several KafkaConnections are planned each on its own, or with --connection those of that
    one.

    \b
    Examples:
      group-hygiene plan -f policy.yaml --bootstrap-server kafka:9092
      group-hygiene plan -f connection.yaml -f policies/ --command-config client.properties
      group-hygiene plan -f policy.yaml --activity s3://kafka-hygiene/main --bootstrap-server kafka:9092
      kustomize build . | group-hygiene plan -f - -o json

    Exit codes: 0 nothing would be done, 2 some group matches and would be reported or deleted, 1 an error, or groups
    may be missing.
    """
    from group_hygiene.cli import output as out
    from group_hygiene.cli import planning

    return out.show(planning.plan(target, files, activity), output)


@click.command()
@click.argument("name", type=Text(), metavar="GROUP")
@file_option
@activity_option
@output_option
@target_options
def explain(target: Target, output: str, name: str, files: tuple[str, ...], activity: ActivitySpec | None) -> int:
    """Show why GroupPolicies keep one group or match it: each check, why it exists, and what it says.

    \b
    Examples:
      group-hygiene explain console-consumer-48213 -f policy.yaml --bootstrap-server kafka:9092
      group-hygiene explain billing -f policies/ --connection main -n kafka -o yaml

    Exit codes: 0 explained, 1 an error, or something that decides could not be read, or groups may be missing.
    """
    from group_hygiene.cli import explaining
    from group_hygiene.cli import output as out

    return out.show(explaining.explain(target, name, files, activity), output)


@click.command()
@click.argument("names", type=Text(), metavar="GROUP...", nargs=-1)
@click.option("--since", type=Period(), metavar="DURATION", help="Only what happened in the last 7d, 12h, ...")
@ledger_option
@output_option
@target_options
def history(
    target: Target, output: str, names: tuple[str, ...], since: timedelta | None, ledger_topic: str | None
) -> int:
    """Show what the operator did with groups and why: marked, deleted, kept, restored; and what is asked to be kept.

    BACKUP-UNTIL says until when a deleted group can be restored; - means that there is no whole backup.

    \b
    Examples:
      group-hygiene history --since 7d --bootstrap-server kafka:9092
      group-hygiene history billing --connection main -n kafka -o yaml

    Exit codes: 0 shown, 1 an error, or an entry can't be read; the others are shown.
    """
    from group_hygiene.cli import history as telling
    from group_hygiene.cli import output as out

    return out.show(telling.history(target, names, since, ledger_topic), output)


@click.command()
@click.argument("names", type=Text(), metavar="GROUP...", nargs=-1, required=True)
@click.option("--for", "period", type=Period(), metavar="DURATION", help="For how long: 30d, 12h, 1d12h.")
@click.option("--why", type=Text(), metavar="TEXT", help="Why, for whoever reads it later.")
@click.option("--by", type=Text(), metavar="NAME", help="Who asks. Default: the user of this computer.")
@click.option("--replace", is_flag=True, help="Also in place of a request that lasts longer.")
@click.option("--remove", is_flag=True, help="Take the request back.")
@ledger_option
@output_option
@target_options
def keep(
    target: Target, output: str, names: tuple[str, ...], ledger_topic: str | None, remove: bool, **words: Any
) -> int:
    """Ask the operator to leave groups alone for a while, whatever policies say.

    In place of an earlier request for the group; one that lasts longer stays, unless --replace is given.

    \b
    Examples:
      group-hygiene keep billing --for 30d --why 'back after the migration' --bootstrap-server kafka:9092
      group-hygiene keep billing --remove --connection main -n kafka

    Exit codes: 0 the ledger holds it, 1 an error, or a group has a request that lasts longer.
    """
    import getpass

    from group_hygiene.cli import keeping
    from group_hygiene.cli import output as out

    period, why, by, replace = words["period"], words["why"], words["by"], words["replace"]
    if not all(names):
        raise click.UsageError("GROUP must not be empty")
    if remove:
        if period or why or by or replace:
            raise click.UsageError("--remove can't be given with --for, --why, --by or --replace")
        return out.show(keeping.unkeep(target, names, ledger_topic), output)
    if period is None or not (why or "").strip():
        raise click.UsageError("--for and --why must be given")
    wish = keeping.Wish(period, why, by or getpass.getuser(), replace)
    return out.show(keeping.keep(target, names, wish, ledger_topic), output)


@click.command()
@click.argument("names", type=Text(), metavar="GROUP...", nargs=-1)
@click.option("--at", type=Moment(), metavar="TIME", help="The newest backup that is not newer. Default: the newest.")
@click.option("--policy", metavar="NAMESPACE/NAME", help="Instead of groups: all that this GroupPolicy deleted.")
@click.option("--deleted-after", type=Moment(), metavar="TIME", help="With --policy: only those deleted since.")
@click.option(
    "--out-of-range",
    type=click.Choice(["Skip", "Clamp"], case_sensitive=False),
    default="Skip",
    show_default=True,
    help="An offset that its partition does not hold: leave it out, or commit the nearest one.",
)
@click.option(
    "--allow-unknown-topic-identity", is_flag=True, help="Also on brokers below 2.8, which have no topic ids."
)
@click.option("--preview", is_flag=True, help="Only show what would be done. Changes nothing.")
@ledger_option
@output_option
@target_options
def restore(
    target: Target, output: str, names: tuple[str, ...], preview: bool, ledger_topic: str | None, **wanted: Any
) -> int:
    """Bring the committed offsets of deleted groups back. Never overwrites one, and needs groups without members.

    \b
    Examples:
      group-hygiene restore billing --preview --bootstrap-server kafka:9092
      group-hygiene restore billing shipping --at 2030-01-31T12:00:00Z
      group-hygiene restore --policy kafka/litter --deleted-after 2030-01-31T12:00:00Z --connection main -n kafka

    Exit codes: 0 all of them are restored, or would be, 1 an error, or one is not, or only in part.
    """
    import secrets

    from group_hygiene.cli import output as out
    from group_hygiene.cli import restoring
    from group_hygiene.reconcile.restorable import OutOfRange, RestoreRequest

    if bool(names) == bool(wanted["policy"]):
        raise click.UsageError("either GROUP... or --policy must be given")
    if bool(wanted["policy"]) != bool(wanted["deleted_after"]):
        raise click.UsageError("--deleted-after must be given with --policy, and only with it")
    wanted["out_of_range"] = OutOfRange(wanted["out_of_range"])
    request = RestoreRequest(id=f"cli-{secrets.token_hex(8)}", groups=names, **wanted)
    return out.show(restoring.restore_groups(target, request, preview, ledger_topic), output)
