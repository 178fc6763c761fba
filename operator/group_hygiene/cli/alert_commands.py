"""The command `alert`: arguments, options and help. `alert_test`, imported when it runs, does the work."""

from __future__ import annotations

from typing import Any

import click

from group_hygiene.cli.options import kubeconfig_options, short_output_option
from group_hygiene.cli.output import show


@click.group()
def alert() -> None:
    """Test the receivers of notifications.

    \b
    Examples:
      group-hygiene alert test main -n kafka

    Exit codes: 0 done, 1 an error.
    """


@alert.command()
@click.argument("connection", metavar="[CONNECTION]", required=False)
@click.option("--policy", metavar="NAME", help="Test the receivers of this GroupPolicy, instead of a connection.")
@click.option("--receiver", metavar="NAME", help="Test only this receiver.")
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Namespace of the KafkaConnection or GroupPolicy.  [default: that of the kubeconfig's current context]",
)
@click.option(
    "--allow-receiver",
    multiple=True,
    metavar="HOST|CIDR",
    help="Allow messages only to this host, address or network, like the operator's option; repeatable. Loopback, "
    "link-local and similar addresses must be listed as addresses. Default: all other addresses.",
)
@kubeconfig_options
@short_output_option
def test(output: str, **given: Any) -> int:
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
    from group_hygiene.cli.target import current_namespace

    if (given["connection"] is None) == (given["policy"] is None):
        raise click.UsageError("either CONNECTION or --policy must be given")
    namespace = given.pop("namespace") or current_namespace(given["context"], given["kubeconfig"])
    wanted = alert_test.Wanted(namespace=namespace, allowed=given.pop("allow_receiver"), **given)
    return show(alert_test.send_tests(wanted), output)
