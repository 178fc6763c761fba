"""The commands on groups, `alert` and `doctor`: arguments, options and help.

Modules that are imported when they run do the work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import click

from group_hygiene.cli.options import (
    ChosenCluster,
    Names,
    PageOption,
    activity_option,
    as_record,
    connection_file_option,
    context_option,
    duration,
    duration_between,
    expression,
    file_option,
    groups_argument,
    kafka_text,
    kubeconfig_option,
    ledger_option,
    moment,
    option,
    output_option,
    pattern,
    shared,
    short_output_option,
    target_options,
    user_name,
    watch_options,
)
from group_hygiene.cli.output import printable, show, show_each
from group_hygiene.model.groups import GroupState, GroupType
from group_hygiene.spec.connection import ActivitySpec
from group_hygiene.spec.patterns import Patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """Options of `list`; an empty one, or None, selects all groups."""

    states: tuple[tuple[GroupState, ...], ...] = option(
        "--state",
        type=Names(GroupState),
        multiple=True,
        metavar="STATE[,...]",
        help="Only groups in one of these states, in Kafka's spelling: Empty, Stable, ...  [default: all]",
    )
    types: tuple[tuple[GroupType, ...], ...] = option(
        "--type",
        type=Names(GroupType, leave_out=[GroupType.UNKNOWN]),
        multiple=True,
        metavar="TYPE[,...]",
        help="Only groups of one of these types: Classic, Consumer, Share, Streams. Brokers older than 3.8 list no "
        "types: there every group is taken for Classic.  [default: all]",
    )
    patterns: tuple[str, ...] = option(
        "--match",
        type=pattern,
        multiple=True,
        metavar="PATTERN",
        cls=PageOption,
        help="Only groups whose whole id matches one of these patterns, as in a policy: * matches any characters, "
        "{uuid} a UUID; docs/patterns.md has all placeholders.",
    )
    regex: re.Pattern[str] | None = option(
        "--regex", type=expression, metavar="REGEX", help="Only groups whose whole id matches this expression."
    )
    sort_by: str = option(
        "--sort-by",
        type=click.Choice(["group", "state", "type", "owner", "coordinator", "lag"]),
        default="group",
        show_default=True,
        help="Order of the groups; those that are equal in it are in the order of their ids. lag: the highest first, "
        "with --lag.",
    )
    lag: bool = option(
        "--lag", is_flag=True, help="Show the lag of each group. Reads the offsets of all groups that are listed."
    )
    every: timedelta | None = shared(watch_options)
    output: str = shared(output_option)
    target: ChosenCluster = shared(target_options)

    def fits(self) -> Callable[[str], bool]:
        """A predicate of group ids."""
        matches, regex = Patterns(list(self.patterns)).matches, self.regex
        return lambda name: (not self.patterns or matches(name)) and (regex is None or bool(regex.fullmatch(name)))


@click.command("list")
@as_record("chosen", ListOptions)
def list_(chosen: ListOptions) -> int:
    """List the groups of a cluster with their state and type. In any state, and of all types.

    \b
    Examples:
      group-hygiene list --bootstrap-server kafka:9092
      group-hygiene list --state Empty,Dead --match 'perf-consumer-*' -o name
      group-hygiene list --regex 'perf-consumer-[0-9]+' --sort-by coordinator -o csv
      group-hygiene list --state Stable --sort-by lag
      group-hygiene list --state Empty --watch
      group-hygiene list --type Consumer --connection main -n kafka -o json

    Exit codes: 0 all groups are listed, 1 an error, or groups may be missing; the list has all groups that were found.
    """
    from group_hygiene.cli import groups

    return show_each(lambda: groups.list_groups(chosen), chosen.output, chosen.every)


@click.command()
@click.argument("names", type=kafka_text, metavar="GROUP...", nargs=-1, required=True)
@click.option("--members", is_flag=True, help="Show each member: host, client id, instance id, assignment.")
@click.option("--offsets", is_flag=True, help="Show each partition: committed, start, end, lag.")
@output_option
@target_options
def describe(target: ChosenCluster, output: str, names: tuple[str, ...], members: bool, offsets: bool) -> int:
    """Show groups in detail. Coordinator, state, type, assignor, epoch and number of members.

    \b
    Examples:
      group-hygiene describe billing --bootstrap-server kafka:9092
      group-hygiene describe billing shipping --members --offsets
      group-hygiene describe billing -o yaml

    Exit codes: 0 all of them are shown, 1 an error, or one of them could not be read; the others are shown.
    """
    from group_hygiene.cli import groups

    return show(groups.describe(target, names, members, offsets), output)


@click.command()
@click.argument("names", type=kafka_text, metavar="GROUP...", nargs=-1, required=True)
@output_option
@target_options
def offsets(target: ChosenCluster, output: str, names: tuple[str, ...]) -> int:
    """Show committed offsets and lag of groups. With start and end offsets of the partitions.

    The list has the partitions with a committed offset and those that are assigned to a member; - means no value.
    Brokers leave out topics that you may not describe: an error names them.

    \b
    Examples:
      group-hygiene offsets billing --bootstrap-server kafka:9092
      group-hygiene offsets billing shipping -o json

    Exit codes: 0 all of them are shown, 1 an error, or one of them could not be read; the others are shown.
    """
    from group_hygiene.cli import groups

    return show(groups.offsets(target, names), output)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of `plan`."""

    files: tuple[str, ...] = shared(file_option)
    activity: ActivitySpec | None = shared(activity_option)
    detailed_exitcode: bool = option(
        "--detailed-exitcode", is_flag=True, help="Exit with 2 instead of 0 if a group matches."
    )
    summary: bool = option("--summary", is_flag=True, help="Show only the summary of each policy, without its groups.")
    validate_only: bool = option("--validate-only", is_flag=True, help="Only validate the files. Needs no Kafka.")
    every: timedelta | None = shared(watch_options)
    output: str = shared(output_option)
    target: ChosenCluster = shared(target_options)


@click.command()
@as_record("chosen", PlanOptions)
def plan(chosen: PlanOptions) -> int:
    """Show the effect of GroupPolicies before they are applied. Changes nothing, and needs no Kubernetes.

    The command validates every document against the CRDs first; a mistake or an unknown field is an error. A
    KafkaConnection in the same files supplies all but Secrets. --connection supplies brokers, login and ledger, or
    --command-config with bootstrap.servers the first two: a login is not sent to brokers that only a file names. Each
    policy is planned on the cluster of its own KafkaConnection; with --connection, only policies of that connection are
    planned.

    \b
    Examples:
      group-hygiene plan -f policy.yaml --bootstrap-server kafka:9092
      group-hygiene plan -f connection.yaml -f policies/ --command-config client.properties
      group-hygiene plan -f policy.yaml --activity s3://kafka-hygiene/main --bootstrap-server kafka:9092
      group-hygiene plan -f policies/ --summary --bootstrap-server kafka:9092
      group-hygiene plan -f policies/ --validate-only
      kustomize build . | group-hygiene plan -f - -o json

    Exit codes: 0 planned or valid, 1 an error, or groups may be missing. With --detailed-exitcode: 0 no group matches,
    2 at least one group matches and would be reported or deleted.
    """
    from group_hygiene.cli import plans

    return show_each(lambda: plans.plan(chosen), chosen.output, chosen.every)


@click.command()
@click.argument("name", type=kafka_text, metavar="GROUP")
@file_option
@activity_option
@output_option
@target_options
def explain(
    target: ChosenCluster, output: str, name: str, files: tuple[str, ...], activity: ActivitySpec | None
) -> int:
    """Show why policies match one group or not. With its last use, and the check that decided.

    \b
    Examples:
      group-hygiene explain perf-consumer-48213 -f policy.yaml --bootstrap-server kafka:9092
      group-hygiene explain billing -f policies/ --connection main -n kafka -v

    Exit codes: 0 explained, 1 an error, or data that the checks need could not be read, or groups may be missing.
    """
    from group_hygiene.cli import plans

    return show(plans.explain(target, name, files, activity), output)


@click.command()
@click.argument("names", type=kafka_text, metavar="GROUP...", nargs=-1)
@click.option("--since", type=duration, metavar="DURATION", help="Only entries of the last 7d, 12h, ...")
@click.option(
    "--policy", metavar="NAMESPACE/NAME", help="Only entries of this GroupPolicy: marks, deletions, restores."
)
@ledger_option
@output_option
@target_options
def history(
    target: ChosenCluster,
    output: str,
    names: tuple[str, ...],
    since: timedelta | None,
    policy: str | None,
    ledger_topic: str | None,
) -> int:
    """Show the recorded actions on groups. Marks, deletions, refusals, restores and keep requests, with their reasons.

    BACKUP-UNTIL shows until when a deleted group can be restored; - means that there is no complete backup.

    \b
    Examples:
      group-hygiene history --since 7d --bootstrap-server kafka:9092
      group-hygiene history billing --connection main -n kafka -o yaml
      group-hygiene history --policy kafka/unused --since 7d

    Exit codes: 0 all entries are shown, 1 an error, or an entry can't be read; the others are shown.
    """
    from group_hygiene.cli import history as ledger_history

    if policy is not None and policy.count("/") != 1:
        raise click.UsageError("--policy must be NAMESPACE/NAME")
    return show(ledger_history.history(target, names, since, ledger_topic, policy), output)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOptions:
    """Options of `keep`."""

    names: tuple[str, ...] = shared(groups_argument)
    period: timedelta | None = option(
        "--for", type=duration, metavar="DURATION", help="Duration of the request: 30d, 12h, 1d12h."
    )
    why: str | None = option("--why", type=kafka_text, metavar="TEXT", help="Reason, for later readers.")
    by: str | None = option(
        "--by", type=kafka_text, metavar="NAME", help="Author of the request. Default: the user of this computer."
    )
    replace: bool = option("--replace", is_flag=True, help="Replace an existing request that lasts longer.")
    ignore_not_found: bool = option(
        "--ignore-not-found", is_flag=True, help="A group that does not exist is a note, not an error."
    )
    remove: bool = option("--remove", is_flag=True, help="Withdraw the request.")
    create_ledger: bool = option(
        "--create-ledger",
        is_flag=True,
        help="Create the topic of the ledger if there is none, as before the first policy that deletes; also for other "
        "KafkaConnections of the namespace to the same cluster. An operator takes it over.",
    )
    ledger_topic: str | None = shared(ledger_option)
    output: str = shared(output_option)
    target: ChosenCluster = shared(target_options)

    @property
    def has_terms(self) -> bool:
        """Whether an option of a new request is given."""
        return any((self.period, self.why, self.by, self.replace, self.ignore_not_found, self.create_ledger))


@click.command()
@as_record("chosen", KeepOptions)
def keep(chosen: KeepOptions) -> int:
    """Protect groups from all policies for a while.

    The request replaces an earlier one for the group; a request that lasts longer stays, unless --replace is given. A
    request for a group that does not exist is written, too, and protects the group if it appears. A user without rights
    to the KafkaConnection or its Secrets gets a GroupKeep in the namespace of the kubeconfig's context instead.

    \b
    Examples:
      group-hygiene keep billing --for 30d --why 'back after the migration' --bootstrap-server kafka:9092
      group-hygiene keep billing --for 30d --why 'before the first deletion' --create-ledger --connection main -n kafka
      group-hygiene keep billing --remove --connection main -n kafka

    Exit codes: 0 the requests protect the groups, 1 an error, or a group does not exist or has one that lasts longer.
    """
    from group_hygiene.cli import keep_requests
    from group_hygiene.errors import NotAllowed

    target, names = chosen.target, chosen.names
    if not names:
        raise click.UsageError("a GROUP, or --from-file with groups, must be given")
    if chosen.remove:
        if chosen.has_terms:
            raise click.UsageError("--remove can't be given with options of a new request, such as --for")
        try:
            return show(keep_requests.remove(target, names, chosen.ledger_topic), chosen.output)
        except NotAllowed as error:
            raise keep_requests.refuse_removal(target, names, error) from None
    if chosen.period is None or not (chosen.why or "").strip():
        raise click.UsageError("--for and --why must be given")
    terms = keep_requests.KeepTerms(
        chosen.period, chosen.why or "", chosen.by or user_name(), chosen.replace, chosen.ignore_not_found
    )
    try:
        report = keep_requests.keep(target, names, terms, chosen.ledger_topic, chosen.create_ledger)
    except NotAllowed as error:
        report = keep_requests.keep_by_object(target, names, terms, error)
    return show(report, chosen.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """Options of `restore`."""

    names: tuple[str, ...] = shared(groups_argument)
    at: datetime | None = option(
        "--at", type=moment, metavar="TIME", help="Restore the newest backup that is not newer. Default: the newest."
    )
    policy: str | None = option(
        "--policy",
        metavar="NAMESPACE/NAME",
        help="Restore all groups that this GroupPolicy deleted since --deleted-after.",
    )
    deleted_after: datetime | None = option(
        "--deleted-after", type=moment, metavar="TIME", help="Required with --policy: groups deleted since then."
    )
    out_of_range: str = option(
        "--out-of-range",
        type=click.Choice(["Skip", "Clamp"], case_sensitive=False),
        default="Skip",
        show_default=True,
        help="For an offset that its partition no longer contains: skip it, or commit the nearest one.",
    )
    allow_unknown_topic_identity: bool = option(
        "--allow-unknown-topic-identity",
        is_flag=True,
        help="Restore also on brokers below 2.8, which have no topic ids.",
    )
    overwrite_later: bool = option(
        "--overwrite-later",
        is_flag=True,
        help="Commit the saved offset also where a client committed a later one since: the records from there on are "
        "delivered again. Use --preview first.",
    )
    preview: bool = option("--preview", is_flag=True, help="Show the result without changing anything.")
    ledger_topic: str | None = shared(ledger_option)
    output: str = shared(output_option)
    target: ChosenCluster = shared(target_options)


@click.command()
@as_record("chosen", RestoreOptions)
def restore(chosen: RestoreOptions) -> int:
    """Restore the committed offsets of deleted groups. Needs groups without members.

    Restore a group before you start its clients: those with auto.offset.reset=latest skip the records that waited, and
    then commit later offsets, which stay unless --overwrite-later is given.

    \b
    Examples:
      group-hygiene restore billing --preview --bootstrap-server kafka:9092
      group-hygiene restore billing --overwrite-later --preview
      group-hygiene restore billing shipping --at 2030-01-31T12:00:00Z
      group-hygiene restore --policy kafka/unused --deleted-after 2030-01-31T12:00:00Z --connection main -n kafka

    Exit codes: 0 all groups are restored, or would be, 1 an error, or a group is not restored, or only in part.
    """
    import secrets

    from group_hygiene.cli.history import restore_groups
    from group_hygiene.engine.restorable import OutOfRange, RestoreRequest

    if bool(chosen.names) == bool(chosen.policy):
        raise click.UsageError("either GROUP... (or --from-file) or --policy must be given")
    if bool(chosen.policy) != bool(chosen.deleted_after):
        raise click.UsageError("--deleted-after must be given with --policy, and only with it")
    request = RestoreRequest(
        id=f"cli-{secrets.token_hex(8)}",
        groups=chosen.names,
        policy=chosen.policy,
        deleted_after=chosen.deleted_after,
        at=chosen.at,
        out_of_range=OutOfRange(chosen.out_of_range),
        allow_unknown_topic_identity=chosen.allow_unknown_topic_identity,
        overwrite_later=chosen.overwrite_later,
    )
    return show(restore_groups(chosen.target, request, chosen.preview, chosen.ledger_topic), chosen.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """Options of `delete` and `delete-offsets`."""

    names: tuple[str, ...] = shared(groups_argument)
    unused_for: timedelta = option(
        "--unused-for",
        type=duration_between("10m", "30d"),
        metavar="DURATION",
        default="1h",
        show_default=True,
        help="Delete nothing that was used within this time, by __consumer_offsets: no group with a commit or a "
        "member, and no offsets of a topic with a commit, or of a group whose members changed. From 10m to 30d.",
    )
    force: bool = option("--force", is_flag=True, help="Don't read __consumer_offsets. All other checks stay.")
    backup_retention: timedelta = option(
        "--backup-retention",
        type=duration_between("1h", "365d"),
        metavar="DURATION",
        default="30d",
        show_default=True,
        help="For how long `restore` can bring back what was deleted, from 1h to 365d.",
    )
    by: str | None = option(
        "--by", type=kafka_text, metavar="NAME", help="Your name, for history. Default: the user of this computer."
    )
    yes: bool = option(
        "--yes",
        is_flag=True,
        help="Don't ask for confirmation. Needs --connection, --connection-file or --without-connection.",
    )
    preview: bool = option("--preview", is_flag=True, help="Show the result without changing anything.")
    connection_file: str | None = shared(connection_file_option)
    without_connection: bool = option(
        "--without-connection",
        is_flag=True,
        help="With --yes: no KafkaConnection protects groups of this cluster or limits deletions.",
    )
    ledger_topic: str | None = shared(ledger_option)
    create_ledger: bool = option(
        "--create-ledger",
        is_flag=True,
        help="Create the topic of the ledger if there is none. An operator takes it over.",
    )
    output: str = shared(output_option)
    target: ChosenCluster = shared(target_options)


@click.command()
@as_record("chosen", DeleteOptions)
def delete(chosen: DeleteOptions) -> int:
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
    return _delete(chosen, ())


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
@as_record("chosen", DeleteOptions)
def delete_offsets(chosen: DeleteOptions, topics: tuple[str, ...]) -> int:
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
    return _delete(chosen, topics)


def _delete(chosen: DeleteOptions, topics: Sequence[str]) -> int:
    from group_hygiene.cli import deletions
    from group_hygiene.engine.requested import DeletionRequest

    if chosen.target.connection is not None and chosen.connection_file is not None:
        raise click.UsageError("--connection and --connection-file can't be given together")
    known = chosen.target.connection is not None or chosen.connection_file is not None
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
    return show(deletions.delete(chosen, request, confirm), chosen.output)


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
    from group_hygiene.cli.doctor import account_of, examine
    from group_hygiene.cli.target import read_connection_file

    if connection_file is not None and target.connection is not None:
        raise click.UsageError("--connection and --connection-file can't be given together")
    if service_account is not None and service_account.count("/") != 1:
        raise click.UsageError("--service-account must be NAMESPACE/NAME")
    account = account_of(service_account, operator_namespace)
    return show(examine(target, read_connection_file(connection_file), activity, account), output)


@click.group()
def alert() -> None:
    """Test the receivers of notifications.

    \b
    Examples:
      group-hygiene alert test main -n kafka

    Exit codes: 0 done, 1 an error.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TestOptions:
    """The receivers to test: of a connection or a policy, by name."""

    connection: str | None = shared(click.argument("connection", metavar="[CONNECTION]", required=False))
    policy: str | None = option(
        "--policy", metavar="NAME", help="Test the receivers of this GroupPolicy, instead of a connection."
    )
    receiver: str | None = option("--receiver", metavar="NAME", help="Test only this receiver.")
    namespace: str | None = option(
        "-n",
        "--namespace",
        metavar="NAME",
        help="Namespace of the KafkaConnection or GroupPolicy.  [default: that of the kubeconfig's current context]",
    )
    allowed: tuple[str, ...] = option(
        "--allow-receiver",
        multiple=True,
        metavar="HOST|CIDR",
        help="Allow messages only to this host, address or network, like the operator's option; repeatable. Loopback, "
        "link-local and similar addresses must be listed as addresses. Default: all other addresses.",
    )
    context: str | None = shared(context_option)
    kubeconfig: Path | None = shared(kubeconfig_option)
    output: str = shared(short_output_option)


@alert.command()
@as_record("chosen", TestOptions)
def test(chosen: TestOptions) -> int:
    """Send a test message to the receivers of a KafkaConnection or a GroupPolicy.

    This machine sends it like the operator does, with the Secrets that you may read. The command changes nothing else,
    and the operator does not notice it.

    \b
    Examples:
      group-hygiene alert test main -n kafka
      group-hygiene alert test main -n kafka --receiver team-chat
      group-hygiene alert test --policy unused -n kafka -o json

    Exit codes: 0 each receiver accepted the message, 1 an error, or a receiver did not accept it.
    """
    from group_hygiene.cli import alert_test

    if (chosen.connection is None) == (chosen.policy is None):
        raise click.UsageError("either CONNECTION or --policy must be given")
    return show(alert_test.send_tests(chosen), chosen.output)
