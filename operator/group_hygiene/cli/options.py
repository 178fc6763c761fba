"""Options and their types that several commands share: the cluster, the output format, names and times."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from group_hygiene.cli.names import text_of
from group_hygiene.cli.output import printable, set_flag
from group_hygiene.cli.pages import PageOption
from group_hygiene.errors import SpecError
from group_hygiene.spec.connection import ActivitySpec, parse_activity
from group_hygiene.spec.durations import parse_duration
from group_hygiene.spec.fields import is_namespace
from group_hygiene.spec.patterns import check_pattern

E = TypeVar("E", bound=StrEnum)
F = TypeVar("F", bound=Callable[..., Any])

# Completes names of files. `documents` reports a file that can't be read.
YAML_FILE = click.Path(readable=False)

_NO_NAMESPACE = "default"
# A string of Kafka's protocol has its length in an int16.
_TEXT_MAX = 32_767
_SHOWN = 80
_WATCH_EVERY = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class ChosenCluster:
    """The cluster that the user specified: by addresses and properties, or by a KafkaConnection's name.

    cluster: the one of several in `command_config`.
    """

    bootstrap_servers: tuple[str, ...] = ()
    command_config: Path | None = None
    connection: str | None = None
    namespace: str = _NO_NAMESPACE
    timeout: timedelta | None = None
    context: str | None = None
    kubeconfig: Path | None = None
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of `plan` beside files and cluster. detailed_exitcode: the exit code is 2 if a group matches."""

    detailed_exitcode: bool = False
    summary: bool = False
    validate_only: bool = False


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


class DurationType(click.ParamType[timedelta]):
    """A duration as in the custom resources: 30d, 1d12h, 90m."""

    name = "duration"

    def __init__(self, at_least: str = "1ms", at_most: str = "3650d") -> None:
        self._at_least, self._at_most = at_least, at_most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            period = parse_duration(str(value), "it")
        except SpecError:
            weeks = re.fullmatch(r"([0-9]{1,3})w", str(value))
            advice = f": use days, like {int(weeks[1]) * 7}d" if weeks else ""
            self.fail(f"{str(value)!r} is not a duration like 30d, 12h or 1d12h{advice}", param, ctx)
        if not parse_duration(self._at_least, "it") <= period <= parse_duration(self._at_most, "it"):
            self.fail(f"it must be from {self._at_least} to {self._at_most}", param, ctx)
        return period


class Size(click.ParamType[str]):
    """An amount of memory in Spark's notation: 4g, 800m."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch("[1-9][0-9]*[kmgt]b?", str(value), re.IGNORECASE):
            self.fail(f"{_beginning(str(value))!r} is not a size like 4g or 800m", param, ctx)
        return str(value)


class Text(click.ParamType[str]):
    """Text for a Kafka request: UTF-8, and no longer than Kafka's longest string."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            # Python holds argument bytes that are not UTF-8 as surrogates (PEP 383).
            given = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            self.fail(f"{_beginning(given)} is not UTF-8", param, ctx)
        if size > _TEXT_MAX:
            self.fail(f"{_beginning(text)} is {size:,} bytes long, and Kafka's maximum is {_TEXT_MAX:,}", param, ctx)
        return text


def _beginning(text: str) -> str:
    shown = printable(text[:_SHOWN])
    return f"{shown[:_SHOWN]}..." if len(text) > _SHOWN or len(shown) > _SHOWN else shown


class ActivityType(click.ParamType[ActivitySpec]):
    """The folder of a pipeline's tables, local or in an object store."""

    name = "uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ActivitySpec:
        text = str(value)
        try:
            return parse_activity({"uri": text if "://" in text else str(Path(text).absolute())})
        except SpecError:
            self.fail(f"{text!r} is neither a folder nor an address like s3://bucket/path", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="dir")]


class Pattern(click.ParamType[str]):
    """A pattern of group ids, as in a policy's match.groups."""

    name = "pattern"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            check_pattern(str(value), repr(value))
        except SpecError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Expression(click.ParamType[re.Pattern[str]]):
    """A regular expression of Python's `re`."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[str]:
        if isinstance(value, re.Pattern):
            return value
        try:
            return re.compile(str(value), re.DOTALL)
        except (re.error, OverflowError, RecursionError) as error:
            self.fail(f"{_beginning(str(value))!r} is not a regular expression: {error}", param, ctx)


class Namespace(click.ParamType[str]):
    """The name of a Kubernetes namespace: a DNS label (RFC 1123), not a pattern."""

    name = "namespace"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_namespace(str(value)):
            self.fail(f"{_beginning(str(value))!r} is not a valid name of a namespace", param, ctx)
        return str(value)


_KUBECONFIG_OPTIONS = (
    click.option(
        "--context",
        metavar="NAME",
        help="Context of the kubeconfig, to read Kubernetes objects.  [default: the current one]",
    ),
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The kubeconfig, instead of $KUBECONFIG or ~/.kube/config.",
    ),
)


def kubeconfig_options(command: F) -> F:
    """Add the options for the kubeconfig; the command gets them as `context` and `kubeconfig`."""
    for option in reversed(_KUBECONFIG_OPTIONS):
        command = option(command)
    return command


_TARGET_OPTIONS = (
    click.option(
        "--bootstrap-server",
        type=Servers(),
        envvar="GROUP_HYGIENE_BOOTSTRAP_SERVER",
        show_envvar=True,
        help="Kafka bootstrap servers.",
    ),
    click.option(
        "--command-config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="GROUP_HYGIENE_COMMAND_CONFIG",
        show_envvar=True,
        cls=PageOption,
        help="Kafka client properties with TLS and SASL settings and passwords (docs/cli-reference.md lists "
        "the supported ones).",
    ),
    click.option(
        "--cluster",
        metavar="NAME",
        help="One of several clusters in the file of --command-config, whose properties begin with its name and a dot, "
        "as in MirrorMaker 2's: NAME.bootstrap.servers. They win over those without a name.",
    ),
    click.option(
        "--connection",
        metavar="NAME",
        help="Use a KafkaConnection of the Kubernetes cluster and its Secrets, instead of these options.",
    ),
    click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        help="Namespace of --connection, and of objects in files without a namespace; also before the command.  "
        "[default: with --connection that of the kubeconfig's current context, else `default`]",
    ),
    *_KUBECONFIG_OPTIONS,
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=set_flag,
        help="Show each step with its time on stderr. `explain` also shows each check.",
    ),
    click.option(
        "--timeout",
        type=DurationType("1s", "10m"),
        help="Maximum time for connecting, and for each read of the cluster, from 1s to 10m.  "
        "[default: the connection's, else 30s]",
    ),
)


def _refuse_with(option: str, *others: str) -> None:
    """Raise UsageError if the command line also has one of the other options."""
    context = click.get_current_context()
    for name in others:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{option} and --{name.replace('_', '-')} can't be given together", context)


def target_options(command: F) -> F:
    """Add the options for the cluster; the command gets them as one `target`."""

    @functools.wraps(command)
    def wrapped(
        bootstrap_server: tuple[str, ...] | None,
        command_config: Path | None,
        connection: str | None,
        namespace: str | None,
        timeout: timedelta | None,
        **others: Any,
    ) -> Any:
        command_context = click.get_current_context()
        context, kubeconfig, cluster = (others.pop(name) for name in ("context", "kubeconfig", "cluster"))
        # A flag takes precedence over environment variables.
        if cluster is not None:
            _refuse_with("cluster", "bootstrap_server", "connection")
            bootstrap_server = None
            if command_config is None:
                raise click.UsageError("--cluster must only be given with --command-config")
        if connection is not None:
            _refuse_with("connection", "bootstrap_server", "command_config")
            bootstrap_server, command_config = None, None
            if namespace is None:
                from group_hygiene.cli.kubeconfig import current_namespace

                namespace = current_namespace(context, kubeconfig)
        elif namespace is not None and "files" not in others:
            raise click.UsageError("--namespace must only be given with --connection", command_context)
        if connection is None and (context, kubeconfig) != (None, None):
            raise click.UsageError("--context and --kubeconfig must only be given with --connection", command_context)
        target = ChosenCluster(
            bootstrap_server or (),
            command_config,
            connection,
            namespace or _NO_NAMESPACE,
            timeout,
            context,
            kubeconfig,
            cluster,
        )
        return command(target=target, **others)

    for option in reversed(_TARGET_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def grouped(name: str, record: type) -> Callable[[F], F]:
    """Pass all options that are fields of a dataclass to the command as one argument with this name."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def wrapped(**given: Any) -> Any:
            options = {field.name: given.pop(field.name) for field in fields(record)}
            return command(**{name: record(**options)}, **given)

        return wrapped  # type: ignore[return-value]

    return decorate


def _format_option(command: F, formats: Sequence[str], text: str) -> F:
    headers = click.option(
        "--no-headers",
        is_flag=True,
        expose_value=False,
        callback=set_flag,
        help="Show rows of tables, and of csv, without the titles of columns.",
    )
    kind = click.Choice(formats)
    return click.option("-o", "--output", type=kind, default="table", show_default=True, help=text)(headers(command))


def output_option(command: F) -> F:
    """Add `-o`; the command gets it as `output`."""
    text = "Output format; wide is a table with more columns, name prints only group ids, csv has all columns."
    return _format_option(command, ("table", "wide", "name", "json", "yaml", "csv"), text)


def short_output_option(command: F) -> F:
    """Add `-o` to a command without optional columns; the command gets it as `output`."""
    return _format_option(command, ("table", "json", "yaml", "csv"), "Output format; csv has all columns.")


def groups_argument(command: F) -> F:
    """Add `GROUP...` and `--from-file`; the command gets the groups of both, each once, as `names`."""

    @functools.wraps(command)
    def wrapped(names: tuple[str, ...], from_file: TextIO | None, **others: Any) -> Any:
        if not all(names):
            # The value of a variable that is not set.
            raise click.UsageError(
                'GROUP must not be empty: a line "" of --from-file names the group with the empty id'
            )
        try:
            lines = [] if from_file is None else from_file.read().split("\n")
        except UnicodeDecodeError as error:
            raise click.UsageError(f"--from-file: {error.reason}: it is not UTF-8") from None
        listed = [Text().convert(text_of(line), None, None) for line in lines if line]
        return command(names=tuple(dict.fromkeys([*names, *listed])), **others)

    argument = click.argument("names", type=Text(), metavar="GROUP...", nargs=-1)
    option = click.option(
        "--from-file",
        type=click.File(encoding="utf-8-sig"),
        metavar="FILE",
        help="Also the groups in FILE, one per line, as -o name prints them: a line that begins with a quote is a JSON "
        "string.",
    )
    return argument(option(wrapped))  # type: ignore[return-value]


def file_option(command: F) -> F:
    """Add `-f`; the command gets it as `files`."""
    return click.option(
        "-f",
        "--filename",
        "files",
        type=YAML_FILE,
        multiple=True,
        required=True,
        metavar="FILE",
        help="YAML file with GroupPolicies, a folder of such files, or - for stdin; repeatable.",
    )(command)


def watch_options(command: F) -> F:
    """Add `--watch` and `--interval`; the command gets the interval as `every`, None = show one answer."""

    @functools.wraps(command)
    def wrapped(watch: bool, interval: timedelta | None, **others: Any) -> Any:
        if interval is not None and not watch:
            raise click.UsageError("--interval must only be given with --watch")
        if watch and others["output"] not in ("table", "wide"):
            raise click.UsageError("--watch prints rows: only -o table and -o wide can be given with it")
        if watch and "-" in others.get("files", ()):
            raise click.UsageError("--watch reads the files again each time: -f - can't be given with it")
        return command(every=(interval or _WATCH_EVERY) if watch else None, **others)

    option = click.option(
        "-w",
        "--watch",
        is_flag=True,
        help="After the first answer, go on to print rows that were added, changed or deleted, until Ctrl-C.",
    )
    interval = click.option(
        "--interval",
        type=DurationType("1s", "1d"),
        metavar="DURATION",
        help="With --watch: time between two reads of the cluster, from 1s to 1d.  [default: 10s]",
    )
    return option(interval(wrapped))  # type: ignore[return-value]


def activity_option(command: F) -> F:
    """Add `--activity`; the command gets it as `activity`, None = the connection's."""
    return click.option(
        "--activity",
        type=ActivityType(),
        metavar="URI",
        help="Folder with the tables of `group-hygiene pipeline`, for idleFor and expiresWithin: a local path, or "
        "s3://, gs://, az:// or abfss:// with credentials in the environment (AWS_ACCESS_KEY_ID, ...). Default: "
        "activity of the KafkaConnection.",
    )(command)


def connection_file_option(command: F) -> F:
    """Add `--connection-file`; the command gets it as `connection_file`."""
    return click.option(
        "--connection-file",
        type=YAML_FILE,
        metavar="FILE",
        help="YAML file with a KafkaConnection; if it names Secrets, --command-config supplies TLS, SASL and "
        "bootstrap.servers.",
    )(command)


def flattened(lists: Iterable[tuple[E, ...]]) -> frozenset[E]:
    """The values of an option that is both repeatable and a list."""
    return frozenset(member for one in lists for member in one)


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class MomentType(click.ParamType[datetime]):
    """A point in time in RFC 3339 format, with a time zone."""

    name = "time"
    # Other values that are valid, for messages.
    _others = ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{str(value)!r} is not a time like 2030-01-31T12:00:00Z{self._others}", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{str(value)!r} has no time zone: write it like 2030-01-31T12:00:00Z", param, ctx)
        return moment


class Past(MomentType):
    """A point in time like `MomentType`, or a day (its start in UTC). Returns it in UTC."""

    def __init__(self, others: str = ", or a day like 2030-01-31") -> None:
        self._others = others

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        text = str(value)
        moment = super().convert(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else value, param, ctx)
        try:
            return moment.astimezone(UTC)
        except OverflowError:
            self.fail(f"{text!r} can't be converted to UTC", param, ctx)


class SinceType(click.ParamType[datetime | timedelta]):
    """A point in time like `Past`, or a duration: 30d."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | timedelta:
        if isinstance(value, timedelta) or re.fullmatch(r"[0-9]+[dhmsw].*", str(value)):
            return DurationType().convert(value, param, ctx)
        return Past(", a day like 2030-01-31, or a duration like 30d").convert(value, param, ctx)


def ledger_option(command: F) -> F:
    """Add `--ledger-topic`; the command gets it as `ledger_topic`, None = the connection's, or the default."""
    return click.option(
        "--ledger-topic",
        type=Text(),
        metavar="TOPIC",
        help="Topic of the operator's ledger. Default: that of --connection, else __group_hygiene.",
    )(command)


def user_name() -> str:
    """The name of the user of this process. Raises UsageError if it has none, as in a pod with an arbitrary UID."""
    import getpass

    try:
        return getpass.getuser()
    # OSError since Python 3.13.
    except (KeyError, OSError):
        raise click.UsageError("--by must be given: the user of this computer has no name") from None
