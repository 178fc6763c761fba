"""The commands `delete` and `delete-offsets`: arguments, options and help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import click

from group_hygiene.cli.options import (
    ChosenCluster,
    connection_file_option,
    duration_between,
    grouped,
    groups_argument,
    kafka_text,
    ledger_option,
    output_option,
    target_options,
    user_name,
    with_options,
)
from group_hygiene.cli.output import printable, show


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of both commands. yes: don't ask."""

    names: tuple[str, ...]
    unused_for: timedelta
    force: bool
    backup_retention: timedelta
    by: str | None
    yes: bool
    preview: bool
    connection_file: str | None
    without_connection: bool
    ledger_topic: str | None
    create_ledger: bool


# The options of both commands, which get them as one `chosen`.
_delete_options = with_options(
    groups_argument,
    click.option(
        "--unused-for",
        type=duration_between("10m", "30d"),
        metavar="DURATION",
        default="1h",
        show_default=True,
        help="Delete nothing that was used within this time, by __consumer_offsets: no group with a commit or a "
        "member, and no offsets of a topic with a commit, or of a group whose members changed. From 10m to 30d.",
    ),
    click.option("--force", is_flag=True, help="Don't read __consumer_offsets. All other checks stay."),
    click.option(
        "--backup-retention",
        type=duration_between("1h", "365d"),
        metavar="DURATION",
        default="30d",
        show_default=True,
        help="For how long `restore` can bring back what was deleted, from 1h to 365d.",
    ),
    click.option(
        "--by", type=kafka_text, metavar="NAME", help="Your name, for history. Default: the user of this computer."
    ),
    click.option(
        "--yes",
        is_flag=True,
        help="Don't ask for confirmation. Needs --connection, --connection-file or --without-connection.",
    ),
    click.option("--preview", is_flag=True, help="Show the result without changing anything."),
    connection_file_option,
    click.option(
        "--without-connection",
        is_flag=True,
        help="With --yes: no KafkaConnection protects groups of this cluster or limits deletions.",
    ),
    ledger_option,
    click.option(
        "--create-ledger",
        is_flag=True,
        help="Create the topic of the ledger if there is none. An operator takes it over.",
    ),
    output_option,
    target_options,
    grouped("chosen", DeleteOptions),
)


@click.command()
@_delete_options
def delete(target: ChosenCluster, output: str, chosen: DeleteOptions) -> int:
    """Delete groups that no client uses, with a backup. The checks are those of a GroupPolicy, without a grace period.

    Not deleted are groups in use, protected groups, groups that a user asked to keep, and groups that were used lately,
    by __consumer_offsets. Each group is read again right before its deletion, and its committed offsets are saved in
    the operator's ledger: `restore` brings them back. protect and limits of the KafkaConnection apply with --connection
    or --connection-file.

    \b
    Examples:
      group-hygiene delete billing --preview --bootstrap-server kafka:9092
      group-hygiene delete billing shipping --connection main -n kafka
      group-hygiene list --match 'perf-consumer-*' --state Empty -o name > names
      group-hygiene delete --from-file names --connection main -n kafka

    Exit codes: 0 all groups are deleted, or would be, 1 an error, or a group is not deleted.
    """
    return _delete(target, output, chosen, ())


@click.command("delete-offsets")
@click.option(
    "--topic",
    "topics",
    type=kafka_text,
    multiple=True,
    required=True,
    metavar="TOPIC",
    help="A topic whose committed offsets to delete; repeatable.",
)
@_delete_options
def delete_offsets(target: ChosenCluster, output: str, chosen: DeleteOptions, topics: tuple[str, ...]) -> int:
    """Delete offsets of topics that a group in use no longer reads, with a backup. The group and other offsets stay.

    A group is refused unless it is Stable, no member subscribes to one of the topics or is assigned a partition of it,
    and __consumer_offsets has neither a recent commit for them nor a recent change of its members, as of a consumer
    that crashes again and again. A policy with action DeleteOffsets looks back for days (idleFor), and waits for its
    grace period. `restore` brings the offsets back while the group has no members. For a group without members, use
    `delete`.

    \b
    Examples:
      group-hygiene delete-offsets billing --topic orders-v1 --preview --bootstrap-server kafka:9092
      group-hygiene delete-offsets billing --topic orders-v1 --topic returns-v1 --connection main -n kafka

    Exit codes: 0 the offsets are deleted, or would be, 1 an error, or offsets of a group are not deleted.
    """
    if not all(topics):
        raise click.UsageError("TOPIC must not be empty")
    return _delete(target, output, chosen, topics)


def _delete(target: ChosenCluster, output: str, chosen: DeleteOptions, topics: Sequence[str]) -> int:
    from group_hygiene.cli import deletions
    from group_hygiene.reconcile import DeletionRequest

    if target.connection is not None and chosen.connection_file is not None:
        raise click.UsageError("--connection and --connection-file can't be given together")
    known = target.connection is not None or chosen.connection_file is not None
    if known and chosen.without_connection:
        raise click.UsageError("--without-connection can't be given with --connection or --connection-file")
    if chosen.yes and not (known or chosen.without_connection or chosen.preview):
        raise click.UsageError(
            "--yes needs --connection NAME or --connection-file FILE, as protect and limits of the KafkaConnection are "
            "not known otherwise; --without-connection if there is none"
        )
    if not chosen.names:
        raise click.UsageError("a GROUP, or --from-file with groups, must be given")
    what = f"Offsets of {', '.join(map(printable, topics))} in these groups" if topics else "These groups"

    def confirm(groups: Sequence[str]) -> None:
        if chosen.yes:
            return
        listed = "\n".join(f"  {printable(name)}" for name in groups)
        click.echo(f"{what} will be deleted:\n{listed}", err=True)
        try:
            confirmed = click.confirm("Delete them?", err=True)
        except click.Abort as error:
            if not isinstance(error.__context__, EOFError):
                raise
            click.echo(err=True)
            raise click.ClickException(
                "nothing was deleted: give --yes, or run it at a terminal (kubectl exec -it)"
            ) from None
        if not confirmed:
            raise click.ClickException("nothing was deleted")

    request = DeletionRequest(
        groups=chosen.names,
        by=chosen.by or user_name(),
        unused_for=None if chosen.force else chosen.unused_for,
        backup_retention=chosen.backup_retention,
        topics=tuple(dict.fromkeys(topics)),
    )
    return show(deletions.delete(target, chosen, request, confirm), output)
