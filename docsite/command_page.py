"""docs/cli-reference.md: each command and option, from click, with prose of docsite/cli.md and docsite/commands/.

No I/O except reading these.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from docsite.markdown import plain, table
from docsite.programs_table import programs
from group_hygiene.cli import main

_PROGRAM = "group-hygiene"
_PROSE = Path(__file__).parent / "commands"
# Options that so many commands share are listed once.
_SHARED_BY = 5


def page() -> str:
    """The text."""
    commands = list(_commands(main, _PROGRAM))
    counts = Counter(_key(option) for _, command in commands for option in _options(command))
    shared = {key for key, count in counts.items() if count >= _SHARED_BY}
    text = (_PROSE.parent / "cli.md").read_text() + "\n"
    for name, command in commands:
        text += f"## {name}\n\n{_about(name, command)}"
        own = [option for option in _options(command) if _key(option) not in shared]
        text += _table(own)
        names = [f"`{option.opts[-1]}`" for option in _options(command) if _key(option) in shared]
        if names:
            text += f"Also: {', '.join(names)}; [see below](#options-of-many-commands).\n\n"
        text += _prose(name)
    text += "## Options of many commands\n\n"
    options = {_key(option): option for _, command in commands for option in _options(command)}
    return text + _table([option for key, option in options.items() if key in shared]).rstrip("\n") + "\n"


def _commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    for word, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def _options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden]


def _key(option: click.Option) -> tuple[str, str]:
    return _spelled(option), option.help or ""


def _about(name: str, command: click.Command) -> str:
    """Its usage, and its help without the list of options."""
    pieces = command.collect_usage_pieces(click.Context(command, info_name=name))
    text = f"```\n{name} {' '.join(pieces)}\n```\n\n"
    for part in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = part.splitlines()
        if lines[0] != "\b":
            text += plain(" ".join(lines)) + "\n\n"
        elif lines[1] == "Examples:":
            text += "```sh\n" + "\n".join(line.strip() for line in lines[2:]) + "\n```\n\n"
        else:
            text += "```\n" + "\n".join(lines[1:]) + "\n```\n\n"
    return text


def _prose(name: str) -> str:
    """The handwritten text about its output: for `group-hygiene alert test` in alert-test.md; may be empty."""
    file = _PROSE / f"{'-'.join(name.split()[1:])}.md"
    return f"{file.read_text().replace('@programs', programs()).rstrip()}\n\n" if file.exists() else ""


def _table(options: list[click.Option]) -> str:
    rows = [[_spelled(option), _meaning(option)] for option in options]
    return table(["Option", "Description"], rows) + "\n" if rows else ""


def _spelled(option: click.Option) -> str:
    kind = "N" if isinstance(option.type, click.IntRange) else option.type.name.upper()
    metavar = "" if option.is_flag else f" {option.metavar or kind}"
    if isinstance(option.type, click.Choice) and not option.metavar:
        metavar = f" {'|'.join(map(str, option.type.choices))}"
    spellings = sorted([*option.opts, *option.secondary_opts], key=len)
    return ", ".join(f"`{spelling}{metavar}`" for spelling in spellings)


def _meaning(option: click.Option) -> str:
    text = plain(re.sub(r"\s+", " ", option.help or ""))
    if option.envvar:
        text += f" Environment: `{option.envvar}`."
    if option.required:
        text += " Required."
    if option.show_default and option.default is not None:
        text += f" Default: `{option.default}`."
    return text.strip()
