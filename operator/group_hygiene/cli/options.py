"""What several commands take: where the cluster is, which form the answer has, lists of Kafka's own names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from group_hygiene.errors import SpecError
from group_hygiene.policy import Patterns, parse_duration

E = TypeVar("E", bound=StrEnum)
F = TypeVar("F", bound=Callable[..., Any])

_TIMEOUT_MIN, _TIMEOUT_MAX = timedelta(seconds=1), timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Target:
    """How to reach the cluster, as the user said it: by addresses and properties, or by a KafkaConnection's name."""

    bootstrap_servers: tuple[str, ...] = ()
    command_config: Path | None = None
    connection: str | None = None
    namespace: str = "default"
    timeout: timedelta | None = None


class Names(click.ParamType[tuple[E, ...]], Generic[E]):
    """A comma-separated list of Kafka's own names, in any case; an unknown one is an error that lists all."""

    def __init__(self, kind: type[E], leave_out: Iterable[E] = ()) -> None:
        hidden = set(leave_out)
        self._known = {member.lower(): member for member in kind if member not in hidden}
        self.name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[E, ...]:
        chosen = []
        for part in str(value).split(","):
            found = self._known.get(part.strip().lower())
            if found is None:
                self.fail(f"{part.strip()!r} is none of {', '.join(self._known.values())}", param, ctx)
            chosen.append(found)
        return tuple(chosen)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [
            CompletionItem(f"{before}{comma}{member}")
            for name, member in self._known.items()
            if name.startswith(last.strip().lower())
        ]


class Servers(click.ParamType[tuple[str, ...]]):
    """host:port,... as Kafka's own tools take it."""

    name = "host:port[,...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        servers = tuple(part.strip() for part in str(value).split(",") if part.strip())
        for server in servers:
            host, _, port = server.rpartition(":")
            if not host or "/" in server or not port.isdecimal() or not 0 < int(port) < 65536:
                self.fail(f"{server!r} is not host:port", param, ctx)
        if not servers:
            self.fail("at least one host:port must be given", param, ctx)
        return servers


class Duration(click.ParamType[timedelta]):
    """A duration as in Kubernetes: 30s, 1m30s."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(str(value), "it", _TIMEOUT_MIN, _TIMEOUT_MAX)
        except SpecError as error:
            self.fail(str(error), param, ctx)


class Pattern(click.ParamType[str]):
    """A pattern of group ids, as in a policy's match.groups."""

    name = "pattern"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            Patterns([str(value)], "it")
        except SpecError as error:
            self.fail(str(error), param, ctx)
        return str(value)


_TARGET_OPTIONS = (
    click.option(
        "--bootstrap-server",
        type=Servers(),
        envvar="GROUP_HYGIENE_BOOTSTRAP_SERVER",
        show_envvar=True,
        help="Kafka brokers to start from.",
    ),
    click.option(
        "--command-config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="GROUP_HYGIENE_COMMAND_CONFIG",
        show_envvar=True,
        help="Kafka's client properties: TLS and SASL, passwords included (see docs/cli.md for what is supported).",
    ),
    click.option(
        "--connection",
        metavar="NAME",
        help="Instead of these two: a KafkaConnection of the Kubernetes cluster, with the Secrets that it names.",
    ),
    click.option(
        "-n", "--namespace", default="default", show_default=True, help="The namespace of --connection.", metavar="NAME"
    ),
    click.option(
        "--timeout",
        type=Duration(),
        help="How long connecting, and then each reading of the cluster, may take, from 1s to 10m.  "
        "[default: the connection's, else 30s]",
    ),
)


def target_options(command: F) -> F:
    """Add the options that say where the cluster is; the command gets them as one `target`."""

    @functools.wraps(command)
    def wrapped(
        bootstrap_server: tuple[str, ...] | None,
        command_config: Path | None,
        connection: str | None,
        namespace: str,
        timeout: timedelta | None,
        **others: Any,
    ) -> Any:
        context = click.get_current_context()
        if connection is not None:
            for name in ("bootstrap_server", "command_config"):
                if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                    option = name.replace("_", "-")
                    raise click.UsageError(f"--connection and --{option} can't be given together", context)
            # What a flag says wins over what the environment says.
            bootstrap_server, command_config = None, None
        elif context.get_parameter_source("namespace") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--namespace must only be given with --connection", context)
        target = Target(bootstrap_server or (), command_config, connection, namespace, timeout)
        return command(target=target, **others)

    for option in reversed(_TARGET_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def output_option(command: F) -> F:
    """Add `-o`; the command gets it as `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "wide", "json", "yaml", "name"]),
        default="table",
        show_default=True,
        help="table; wide = with more columns; json, yaml; name = only the ids of the groups, one a line.",
    )(command)


def file_option(command: F) -> F:
    """Add `-f`; the command gets it as `files`."""
    return click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        required=True,
        metavar="FILE",
        help="A YAML file of GroupPolicies, a folder of such, or - for stdin; may be given more than once.",
    )(command)


def flattened(lists: Iterable[tuple[E, ...]]) -> frozenset[E]:
    """The values of an option that is both repeatable and a list."""
    return frozenset(member for one in lists for member in one)
