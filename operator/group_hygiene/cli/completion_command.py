"""The command `completion` prints the script of a shell, by click. Also completes for kubectl, in the form of cobra."""

from __future__ import annotations

import sys

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
# cobra's ShellCompDirectiveDefault, which completes file names, and ShellCompDirectiveNoFileComp.
_FILES, _NO_FILES = ":0", ":4"


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
