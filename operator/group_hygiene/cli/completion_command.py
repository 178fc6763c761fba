"""The command `completion`: print the script that completes commands in a shell. click writes the scripts."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print a script for your shell. It completes commands, options and their values.

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
