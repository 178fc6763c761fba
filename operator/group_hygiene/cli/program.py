"""The program: its commands, exit codes and errors; `operator`, and the commands on the program itself.

Exit codes: 0 done, 1 an error, 2 `plan --detailed-exitcode` would act, 3 `backtest` found too much regret, 10 to 16 a
check of `doctor` failed, 130 interrupted.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from group_hygiene import __version__
from group_hygiene.cli import backtests, commands, spark_commands
from group_hygiene.cli.options import PageOption, as_record, namespace_name, option, output_option, short_output_option
from group_hygiene.cli.output import Column, Report, Table, show
from group_hygiene.errors import HygieneError
from group_hygiene.model.naming import printable
from group_hygiene.observe.logs import FORMS, configure
from group_hygiene.process.start import start

_INTERRUPTED = 130
# Errors of a write: a full disk, an exceeded quota, or a closed terminal or file.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
_CATALOGUE = (
    Column("PROGRAM"),
    Column("GROUPS", cell=lambda d: ", ".join(d["groups"]) or "given by users"),
    Column("COMMITS"),
    Column("EMPTY-AND-NEEDED", "needed"),
    Column("ADVICE", wide=True),
    Column("SEEN", wide=True),
)
_CRDS = ("KafkaConnection", "GroupPolicy", "GroupRestore", "GroupKeep")
_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
# cobra's ShellCompDirectiveDefault, which completes file names, and ShellCompDirectiveNoFileComp.
_FILES, _NO_FILES = ":0", ":4"


class CommandLine(click.Group):
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
        if os.path.basename(sys.argv[0]).startswith("kubectl-"):
            prog_name = prog_name or "kubectl group-hygiene"
        self._run(args, prog_name, complete_var, extra)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A namespace before the command is the command's own: one that has none refuses it, as after its name."""
        name, command, rest = super().resolve_command(ctx, args)
        given = ctx.params.get("namespace")
        if given is not None:
            place = 1 if isinstance(command, click.Group) else 0
            rest = [*rest[:place], "--namespace", given, *rest[place:]]
        return name, command, rest

    def _run(
        self, args: Sequence[str] | None, name: str | None, complete_var: str | None, extra: dict[str, Any]
    ) -> NoReturn:
        if sys.stderr is None:
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # stderr was closed on purpose
        if sys.stdout is None:
            # Stop before any work: the output would be lost, and the next socket would get file descriptor 1.
            click.echo("Error: the output can't be written: stdout is closed", err=True)
            sys.exit(1)
        for stream in (sys.stdout, sys.stderr):
            # A group id may contain characters that the terminal's encoding does not have: escape them.
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
            click.echo("Error: " + "\n  ".join(map(printable, str(error).split("\n"))), err=True)
            code = 1
        except OSError as error:
            # click exits with 1 if a pipe's reader closes it early (EPIPE).
            if error.errno not in _UNWRITABLE:
                raise
            # Python flushes stdout at exit, and would report the error again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            click.echo(f"Error: the output can't be written: {error.strerror}", err=True)
            code = 1
        sys.exit(code if isinstance(code, int) else 0)


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="group-hygiene")
@click.option("-n", "--namespace", metavar="NAME", help="The option of the command with this name.")
def main(namespace: str | None) -> None:
    """Find Kafka consumer groups that no client uses, prove it, and only then delete them.

    \b
    Examples:
      group-hygiene list --bootstrap-server kafka:9092 --state Empty
      group-hygiene -n kafka describe billing --members --connection main
      group-hygiene plan -f policies/

    Only `operator`, `delete`, `delete-offsets` and `restore` change groups. `keep` writes to the
    operator's ledger, `alert test` sends a message, `pipeline` writes tables; all other commands only read.

    Exit codes: 0 done, 1 an error, 2 plan --detailed-exitcode would act, 3 backtest found more regret than allowed, 10
    to 16 a check of doctor failed.
    """
    start()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of `operator`."""

    namespaces: tuple[str, ...] = option(
        "--namespace",
        type=namespace_name,
        multiple=True,
        metavar="NAME",
        cls=PageOption,
        help="Serve only objects in this namespace; repeatable. The operator then needs permissions only there (see "
        "docs/install.md). Default: all namespaces.",
    )
    health_port: int = option(
        "--health-port", default=8080, show_default=True, help="Port of /healthz, /readyz and /metrics; 0 = any."
    )
    lease_namespace: str | None = option(
        "--leader-election-namespace",
        metavar="NAMESPACE",
        help="Namespace of the Lease for leader election. Default: the pod's namespace, else the kubeconfig's.",
    )
    lease_duration: int = option(
        "--lease-duration",
        type=click.IntRange(min=6),
        metavar="SECONDS",
        default=30,
        show_default=True,
        help="Time after the leader's last renewal until another replica takes over.",
    )
    local_activity: tuple[Path, ...] = option(
        "--allow-local-activity",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="DIR",
        help="Allow activity.uri of KafkaConnections in this folder of the machine; repeatable. Default: none, only "
        "object stores.",
    )
    activity_identity: tuple[str, ...] = option(
        "--allow-activity-identity",
        multiple=True,
        metavar="NAMESPACE=URI",
        help="For KafkaConnections of this namespace without a secretRef: read tables at or below this address "
        "(s3://bucket/path) with the operator's own cloud identity; repeatable. Default: none.",
    )
    msk_identity: tuple[str, ...] = option(
        "--allow-msk-identity",
        multiple=True,
        metavar="NAMESPACE=HOST[,ROLE_ARN]",
        help="For KafkaConnections of this namespace with mechanism AWS_MSK_IAM: send tokens of the operator's own AWS "
        "identity, or of this role, to brokers with this host (like *.kafka.eu-west-1.amazonaws.com); repeatable. "
        "Default: none.",
    )
    allow_receiver: tuple[str, ...] = option(
        "--allow-receiver",
        multiple=True,
        metavar="HOST|CIDR",
        help="Allow alerts, and requests to token endpoints and object stores, only to this host, address or network "
        "(10.0.0.0/8); repeatable. Loopback, link-local and similar addresses must be listed as addresses. Default: "
        "all other addresses.",
    )
    log_level: str = option(
        "--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True
    )
    log_format: str = option(
        "--log-format",
        type=click.Choice(FORMS),
        default="text",
        show_default=True,
        help="Format of the log; json writes one object per line.",
    )


@main.command()
@as_record("chosen", ServeOptions)
def operator(chosen: ServeOptions) -> int:
    """Run the operator.

    It serves the Kubernetes cluster of the pod's ServiceAccount, or of $KUBECONFIG. Of several replicas one is the
    leader; the others are standbys.

    \b
    Examples:
      group-hygiene operator
      group-hygiene operator --namespace kafka --namespace team-a
      KUBECONFIG=~/.kube/config group-hygiene operator --health-port 0 --log-level debug
      group-hygiene operator --log-format json

    Exit codes: 0 stopped by a signal, 1 a part of the operator failed, it lost the leadership, or the CRDs are missing.
    """
    from group_hygiene.controller import app
    from group_hygiene.process.egress import parse_egress
    from group_hygiene.spec.client_settings import parse_msk_grant
    from group_hygiene.spec.storage import Allowed, parse_grant

    egress = parse_egress(chosen.allow_receiver)
    grants = tuple(map(parse_grant, chosen.activity_identity))
    brokers = tuple(map(parse_msk_grant, chosen.msk_identity))
    configure(chosen.log_format, chosen.log_level)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    options = app.OperatorOptions(
        activity=Allowed(chosen.local_activity, grants, egress, brokers),
        egress=egress,
        # A namespace that is given twice would be listed twice.
        namespaces=tuple(dict.fromkeys(chosen.namespaces)),
        health_port=chosen.health_port,
        lease_namespace=chosen.lease_namespace,
        lease_duration=chosen.lease_duration,
    )
    if chosen.log_format == "text":
        app.run(options)
        return 0
    try:
        app.run(options)
    except Exception as error:
        # Else the error would be a plain line, which readers of JSON can't parse.
        ours = isinstance(error, HygieneError)
        logging.getLogger(__name__).critical("%s", error, exc_info=None if ours else error)
        return 1
    return 0


@click.command()
@short_output_option
def version(output: str) -> int:
    """Show the version of this program. With the API version of its CRDs, and that of Python.

    It connects to nothing; `doctor` compares the CRDs of a Kubernetes cluster with those of this version. `--version`
    prints its version alone.

    \b
    Examples:
      group-hygiene version
      group-hygiene version -o json

    Exit codes: 0 done, 1 an error.
    """
    from group_hygiene.spec.crds import API_VERSION

    found = {"version": __version__, "apiVersion": API_VERSION, "pythonVersion": platform.python_version()}
    columns = (Column("COMPONENT"), Column("VERSION"))
    rows = list(zip(("group-hygiene", "CRDs", "Python"), found.values(), strict=True))
    return show(Report(found, (), [Table(columns, rows)]), output)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(_CRDS, case_sensitive=False), metavar="[KIND]...")
def crds(names: tuple[str, ...]) -> int:
    """Print the CRDs of this version as YAML. All of them, or those of the named resources: KafkaConnection,
    GroupPolicy, GroupRestore, GroupKeep.

    Without Helm, apply them before you start or upgrade the operator to this version. The Helm chart installs and
    upgrades them itself, unless crds.enabled is false.

    \b
    Examples:
      group-hygiene crds | kubectl apply --server-side --force-conflicts -f -
      group-hygiene crds | kubectl diff --server-side --force-conflicts -f -
      group-hygiene crds GroupPolicy > grouppolicies.yaml

    Exit codes: 0 done, 1 an error.
    """
    from group_hygiene.spec.crds import crd_text

    texts = [crd_text(kind).removeprefix("---\n") for kind in _CRDS if not names or kind in names]
    click.echo("---\n".join(texts), nl=False)
    return 0


@click.command()
@output_option
def catalogue(output: str) -> int:
    """Show which programs leave groups behind. Their ids, when they commit, and when an Empty group is needed.

    `-o wide` adds what to do, and the version that was run or the source that was read. `plan` and `explain` name the
    program of a group whose id looks like one of these: a hint, and no evidence.

    \b
    Examples:
      group-hygiene catalogue
      group-hygiene catalogue -o yaml

    Exit codes: 0 done, 1 an error.
    """
    import msgspec

    from group_hygiene.spec import patterns as programs

    entries = msgspec.to_builtins(programs.catalogue())
    patterns = [pattern for entry in entries for pattern in entry["groups"]]
    return show(Report({"programs": entries}, patterns, [Table.of(entries, _CATALOGUE)]), output)


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print a script for your shell. It completes commands, options and their values.

    For `kubectl group-hygiene`, kubectl's own completion calls the script kubectl_complete-group_hygiene on the PATH.

    \b
    Examples:
      eval "$(group-hygiene completion bash)"     # in ~/.bashrc
      eval "$(group-hygiene completion zsh)"      # in ~/.zshrc, after compinit
      group-hygiene completion fish | source      # in ~/.config/fish/config.fish

    Exit codes: 0 done, 1 an error.
    """
    script = _SHELLS[shell](ctx.find_root().command, {}, "group-hygiene", "_GROUP_HYGIENE_COMPLETE")
    click.echo(script.source())
    return 0


def complete_for_kubectl() -> None:
    """The script `kubectl_complete-group_hygiene`. Its arguments are the words of the line, the last one incomplete.

    Source: kubectl's `SetupPluginCompletion`.
    """
    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(main, {}, "group-hygiene", "").get_completions(words, incomplete)
    plain = [item for item in found if item.type == "plain"]
    for item in plain:
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES if len(plain) == len(found) else _FILES)


for command in (
    *(commands.list_, commands.describe, commands.offsets, commands.plan, commands.explain),
    *(commands.history, commands.keep, commands.restore, commands.delete, commands.delete_offsets),
    *(commands.alert, commands.doctor, spark_commands.pipeline, backtests.backtest, spark_commands.report),
    *(crds, completion, version, catalogue),
):
    main.add_command(command)
