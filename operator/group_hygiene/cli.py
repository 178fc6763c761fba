"""The command line `group-hygiene`, also `kubectl group-hygiene`."""

from __future__ import annotations

import logging
import sys

import click

from group_hygiene import __version__
from group_hygiene.errors import HygieneError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="group-hygiene")
def main() -> None:
    """Keep Kafka consumer groups tidy: find the groups that nobody uses, prove it, and only then act."""


@main.command()
@click.option("--health-port", default=8080, show_default=True, help="Port of /healthz, /readyz and /metrics; 0 = any.")
@click.option(
    "--allow-delete-without-backup",
    is_flag=True,
    help="Let policies in mode Enforce delete groups although there is no place for backups yet. "
    "Each group's committed offsets are written to this log before it is deleted.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
def operator(health_port: int, allow_delete_without_backup: bool, log_level: str) -> None:
    """Run the operator against the cluster of the pod's ServiceAccount, or of $KUBECONFIG.

    \b
    Examples:
      group-hygiene operator
      KUBECONFIG=~/.kube/config group-hygiene operator --health-port 0 --log-level debug

    Exit codes: 0 stopped by a signal, 1 a part of it failed or the CRDs are missing.
    """
    from group_hygiene.controller import app

    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        app.run(app.Options(health_port, allow_delete_without_backup))
    except HygieneError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
