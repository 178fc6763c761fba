"""The command `alert`: what it takes, and its help. What it does is in a module that is loaded then."""

from __future__ import annotations

import click

from group_hygiene.cli.options import short_output_option


@click.group()
def alert() -> None:
    """Try out what tells people of groups.

    \b
    Examples:
      group-hygiene alert test main -n kafka

    Exit codes: 0 done, 1 an error.
    """


@alert.command()
@click.argument("connection", metavar="[CONNECTION]", required=False)
@click.option("--policy", metavar="NAME", help="Instead of a connection: the receivers that this GroupPolicy tells.")
@click.option("--receiver", metavar="NAME", help="Only this one.")
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Of the KafkaConnection or GroupPolicy.  [default: that of the kubeconfig's current context]",
)
@click.option(
    "--allow-receiver",
    multiple=True,
    metavar="HOST|CIDR",
    help="As the operator's option: where the message may go; may be given more than once, and then nowhere else. "
    "Loopback, link-local and the like must be named as addresses. Default: all but those.",
)
@short_output_option
def test(
    connection: str | None,
    policy: str | None,
    receiver: str | None,
    namespace: str | None,
    allow_receiver: tuple[str, ...],
    output: str,
) -> int:
    """Send a message that says it is a test to the receivers of a KafkaConnection, or of a GroupPolicy.

    It goes from this machine, with the Secrets that you may read, in the same way as from the operator. Nothing else
    is changed, and the operator does not learn of it.

    \b
    Examples:
      group-hygiene alert test main -n kafka
      group-hygiene alert test main -n kafka --receiver team-chat
      group-hygiene alert test --policy litter -n kafka -o json

    Exit codes: 0 each receiver took it, 1 an error, or one did not.
    """
    from group_hygiene.cli import alerting
    from group_hygiene.cli import output as out
    from group_hygiene.cli.kubeconfig import current_namespace

    if (connection is None) == (policy is None):
        raise click.UsageError("either CONNECTION or --policy must be given")
    wanted = alerting.Wanted(namespace or current_namespace(), connection, policy, receiver, allow_receiver)
    return out.show(alerting.send_tests(wanted), output)
