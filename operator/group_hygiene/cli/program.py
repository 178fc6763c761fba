"""The program: its commands, and how it ends. Exit codes: 0 done, 1 an error, 2 `plan` would act, 130 interrupted."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from group_hygiene import __version__
from group_hygiene.cli import commands
from group_hygiene.errors import HygieneError

_INTERRUPTED = 130


class Program(click.Group):
    """A click.Group whose commands return their exit code, and whose usage errors exit 1: 2 is `plan`'s own."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        self._run(args, prog_name or _name(), complete_var, extra)

    def _run(
        self, args: Sequence[str] | None, name: str | None, complete_var: str | None, extra: dict[str, Any]
    ) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            # A group id may hold what the terminal's encoding can't show: that is no reason to fail.
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        try:
            code = super().main(args, name, complete_var, standalone_mode=False, **extra)
        except click.UsageError as error:
            error.show()
            code = 1
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except click.Abort:
            code = _INTERRUPTED
        except HygieneError as error:
            click.echo(f"Error: {error}", err=True)
            code = 1
        sys.exit(code if isinstance(code, int) else 0)


def _name() -> str | None:
    """As kubectl's users call it; else what click finds out by itself."""
    called = os.path.basename(sys.argv[0])
    return "kubectl group-hygiene" if called.startswith("kubectl-") else None


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="group-hygiene")
def main() -> None:
    """Keep Kafka consumer groups tidy: find the groups that nobody uses, prove it, and only then act.

    \b
    Examples:
      group-hygiene list --bootstrap-server kafka:9092 --state Empty
      group-hygiene describe billing --members --connection main -n kafka
      group-hygiene plan -f policies/

    Only `operator` ever changes a cluster; every other command reads.

    Exit codes: 0 done, 1 an error, 2 plan would act.
    """


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
    app.run(app.Options(health_port, allow_delete_without_backup))


for command in (commands.list_, commands.describe, commands.offsets, commands.plan, commands.explain):
    main.add_command(command)
