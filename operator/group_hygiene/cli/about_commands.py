"""The commands on this program itself: `version`, `crds`, `catalogue` and `completion`, also in the form of cobra."""

from __future__ import annotations

import platform
import sys

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from group_hygiene import __version__
from group_hygiene.cli.options import output_option, short_output_option
from group_hygiene.cli.output import Column, Report, Table, show

_CRDS = ("KafkaConnection", "GroupPolicy", "GroupRestore", "GroupKeep")
_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
# cobra's ShellCompDirectiveDefault, which completes file names, and ShellCompDirectiveNoFileComp.
_FILES, _NO_FILES = ":0", ":4"


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
    from group_hygiene.cli.layout import catalogue_report

    return show(catalogue_report(), output)


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
    from group_hygiene.cli.program import main

    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(main, {}, "group-hygiene", "").get_completions(words, incomplete)
    plain = [item for item in found if item.type == "plain"]
    for item in plain:
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES if len(plain) == len(found) else _FILES)
