"""Options and their types that several commands share: the cluster, the output format, names and times."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from group_hygiene.cli.output import printable, set_flag, text_of
from group_hygiene.errors import SpecError
from group_hygiene.spec.connection import ActivitySpec, parse_activity
from group_hygiene.spec.fields import is_namespace, parse_duration
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


def with_addresses(text: str) -> str:
    """The text with the address of each page in place of its file, such as docs/install.md; unchanged without one.

    A package of a release has them in its metadata (`deploy/release.py`).
    """
    return re.sub(r"\bdocs/([\w/-]+)\.md", lambda page: _address(page[1]) or page[0], text)


@functools.cache
def _address(page: str) -> str | None:
    """On the site, else in the repository at this version."""
    # Slow, so that only what names a page imports it.
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        entries = metadata("kafka-group-hygiene").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    urls = dict(entry.split(", ", 1) for entry in entries)
    if site := urls.get("Documentation"):
        return f"{site.removesuffix('index.html')}{page}.html"
    changelog = urls.get("Changelog")
    return changelog and f"{changelog.removesuffix('CHANGELOG.md')}docs/{page}.md"


class PageOption(click.Option):
    """An option whose help names a page."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and (record[0], with_addresses(record[1]))


class Names(click.ParamType[tuple[E, ...]], Generic[E]):
    """A comma-separated list of Kafka's own names, in any case; an unknown one is an error that lists all."""

    def __init__(self, kind: type[E], leave_out: Collection[E] = ()) -> None:
        self._known = {member.lower(): member for member in kind if member not in leave_out}
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


def servers(text: str) -> tuple[str, ...]:
    """host:port,... as Kafka's own tools take it."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for server in found:
        host, _, port = server.rpartition(":")
        if not host or "/" in server or not port.isdecimal() or not 0 < int(port) < 65536:
            raise click.BadParameter(f"{server!r} is not host:port")
    if not found:
        raise click.BadParameter("at least one host:port must be given")
    return found


def duration(text: str) -> timedelta:
    """A duration as in the custom resources: 30d, 1d12h, 90m."""
    return duration_between("1ms", "3650d")(text)


def duration_between(at_least: str, at_most: str) -> Callable[[str], timedelta]:
    """A type of durations with bounds."""

    def parse(text: str) -> timedelta:
        try:
            period = parse_duration(text, "it")
        except SpecError:
            weeks = re.fullmatch(r"([0-9]{1,3})w", text)
            advice = f": use days, like {int(weeks[1]) * 7}d" if weeks else ""
            raise click.BadParameter(f"{text!r} is not a duration like 30d, 12h or 1d12h{advice}") from None
        if not parse_duration(at_least, "it") <= period <= parse_duration(at_most, "it"):
            raise click.BadParameter(f"it must be from {at_least} to {at_most}")
        return period

    return parse


def size(text: str) -> str:
    """An amount of memory in Spark's notation: 4g, 800m."""
    if not re.fullmatch("[1-9][0-9]*[kmgt]b?", text, re.IGNORECASE):
        raise click.BadParameter(f"{_beginning(text)!r} is not a size like 4g or 800m")
    return text


def kafka_text(text: str) -> str:
    """Text for a Kafka request: UTF-8, and no longer than Kafka's longest string."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        # Python holds argument bytes that are not UTF-8 as surrogates (PEP 383).
        given = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        raise click.BadParameter(f"{_beginning(given)} is not UTF-8") from None
    if length > _TEXT_MAX:
        message = f"{_beginning(text)} is {length:,} bytes long, and Kafka's maximum is {_TEXT_MAX:,}"
        raise click.BadParameter(message)
    return text


def _beginning(text: str) -> str:
    shown = printable(text[:_SHOWN])
    return f"{shown[:_SHOWN]}..." if len(text) > _SHOWN or len(shown) > _SHOWN else shown


def activity_location(text: str) -> ActivitySpec:
    """The folder of a pipeline's tables, local or in an object store."""
    try:
        return parse_activity({"uri": text if "://" in text else str(Path(text).absolute())})
    except SpecError:
        message = f"{text!r} is neither a folder nor an address like s3://bucket/path"
        raise click.BadParameter(message) from None


def pattern(text: str) -> str:
    """A pattern of group ids, as in a policy's match.groups."""
    try:
        check_pattern(text, repr(text))
    except SpecError as error:
        raise click.BadParameter(str(error)) from None
    return text


def expression(text: str) -> re.Pattern[str]:
    """A regular expression of Python's `re`."""
    try:
        return re.compile(text, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise click.BadParameter(f"{_beginning(text)!r} is not a regular expression: {error}") from None


def namespace_name(text: str) -> str:
    """The name of a Kubernetes namespace: a DNS label (RFC 1123), not a pattern."""
    if not is_namespace(text):
        raise click.BadParameter(f"{_beginning(text)!r} is not a valid name of a namespace")
    return text


def moment(text: str, others: str = "") -> datetime:
    """A point in time in RFC 3339 format, with a time zone. others: other values that are valid, for messages."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time like 2030-01-31T12:00:00Z{others}") from None
    if found.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no time zone: write it like 2030-01-31T12:00:00Z")
    return found


def past(text: str, others: str = ", or a day like 2030-01-31") -> datetime:
    """A point in time like `moment`, or a day (its start in UTC). Returns it in UTC."""
    is_day = re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text)
    found = moment(f"{text}T00:00:00Z" if is_day else text, others)
    try:
        return found.astimezone(UTC)
    except OverflowError:
        raise click.BadParameter(f"{text!r} can't be converted to UTC") from None


def since(text: str) -> datetime | timedelta:
    """A point in time like `past`, or a duration: 30d."""
    if re.fullmatch(r"[0-9]+[dhmsw].*", text):
        return duration(text)
    return past(text, ", a day like 2030-01-31, or a duration like 30d")


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Add several options to a command, in this order."""
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


def with_arguments(change: Callable[[dict[str, Any]], None]) -> Callable[[F], F]:
    """Change the arguments that a command gets from its options."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def wrapped(**given: Any) -> Any:
            change(given)
            return command(**given)

        return wrapped  # type: ignore[return-value]

    return decorate


def option(*names: str, or_else: Any = None, **settings: Any) -> Any:
    """A field of a record that an option fills: see `as_record`. settings: see click.option.

    or_else: its value in a record that code creates without it.
    """
    return field(default=or_else, metadata={"add": lambda name: click.option(*names, name, **settings)})


def shared(add: Callable[[F], F], or_else: Any = None) -> Any:
    """A field like `option`, by a decorator that several commands use. The command gets its value by the same name."""
    return field(default=or_else, metadata={"add": lambda _: add})


def as_record(
    name: str, record: type, make: Callable[[dict[str, Any], Mapping[str, Any]], object] | None = None
) -> Callable[[F], F]:
    """Add an option for each field of a dataclass, in their order; the command gets one record with this name.

    make: creates the record from their values; also takes the other arguments of the command.
    """

    def group(given: dict[str, Any]) -> None:
        options = {each.name: given.pop(each.name) for each in fields(record)}
        given[name] = make(options, given) if make else record(**options)

    return with_options(*(each.metadata["add"](each.name) for each in fields(record)), with_arguments(group))


context_option = click.option(
    "--context",
    metavar="NAME",
    help="Context of the kubeconfig, to read Kubernetes objects.  [default: the current one]",
)
kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The kubeconfig, instead of $KUBECONFIG or ~/.kube/config.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCluster:
    """The cluster that the user specified: by addresses and properties, or by a KafkaConnection's name."""

    bootstrap_servers: tuple[str, ...] = option(
        "--bootstrap-server",
        type=servers,
        metavar="HOST:PORT[,...]",
        envvar="GROUP_HYGIENE_BOOTSTRAP_SERVER",
        show_envvar=True,
        help="Kafka bootstrap servers.",
        or_else=(),
    )
    command_config: Path | None = option(
        "--command-config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="GROUP_HYGIENE_COMMAND_CONFIG",
        show_envvar=True,
        cls=PageOption,
        help="Kafka client properties with TLS and SASL settings and passwords (docs/cli-reference.md lists "
        "the supported ones).",
    )
    cluster: str | None = option(
        "--cluster",
        metavar="NAME",
        help="One of several clusters in the file of --command-config, whose properties begin with its name and a dot, "
        "as in MirrorMaker 2's: NAME.bootstrap.servers. They win over those without a name.",
    )
    connection: str | None = option(
        "--connection",
        metavar="NAME",
        help="Use a KafkaConnection of the Kubernetes cluster and its Secrets, instead of these options.",
    )
    namespace: str = option(
        "-n",
        "--namespace",
        metavar="NAME",
        help="Namespace of --connection, and of objects in files without a namespace; also before the command.  "
        "[default: with --connection that of the kubeconfig's current context, else `default`]",
        or_else=_NO_NAMESPACE,
    )
    context: str | None = shared(context_option)
    kubeconfig: Path | None = shared(kubeconfig_option)
    verbose: bool = option(
        "-v",
        "--verbose",
        is_flag=True,
        callback=set_flag,
        help="Show each step with its time on stderr. `explain` also shows each check.",
        or_else=False,
    )
    timeout: timedelta | None = option(
        "--timeout",
        type=duration_between("1s", "10m"),
        metavar="DURATION",
        help="Maximum time for connecting, and for each read of the cluster, from 1s to 10m.  "
        "[default: the connection's, else 30s]",
    )


def _refuse_with(option: str, *others: str) -> None:
    """Raise UsageError if the command line also has one of the other options."""
    context = click.get_current_context()
    for param in context.command.params:
        if param.name in others and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{option} and {param.opts[0]} can't be given together", context)


def _chosen_cluster(given: dict[str, Any], others: Mapping[str, Any]) -> ChosenCluster:
    """With the default namespace. A flag takes precedence over environment variables."""
    command_context, connection = click.get_current_context(), given["connection"]
    if given["cluster"] is not None:
        _refuse_with("cluster", "bootstrap_servers", "connection")
        given["bootstrap_servers"] = None
        if given["command_config"] is None:
            raise click.UsageError("--cluster must only be given with --command-config")
    if connection is not None:
        _refuse_with("connection", "bootstrap_servers", "command_config")
        given |= {"bootstrap_servers": None, "command_config": None}
        if given["namespace"] is None:
            from group_hygiene.cli.target import current_namespace

            given["namespace"] = current_namespace(given["context"], given["kubeconfig"])
    elif given["namespace"] is not None and "files" not in others:
        raise click.UsageError("--namespace must only be given with --connection", command_context)
    if connection is None and (given["context"], given["kubeconfig"]) != (None, None):
        raise click.UsageError("--context and --kubeconfig must only be given with --connection", command_context)
    servers, namespace = given["bootstrap_servers"] or (), given["namespace"] or _NO_NAMESPACE
    return ChosenCluster(**given | {"bootstrap_servers": servers, "namespace": namespace})


# A command gets them as one `target`.
target_options = as_record("target", ChosenCluster, _chosen_cluster)


def _format_option(text: str, *formats: str) -> Callable[[F], F]:
    """`-o`; the command gets it as `output`."""
    return with_options(
        click.option("-o", "--output", type=click.Choice(formats), default="table", show_default=True, help=text),
        click.option(
            "--no-headers",
            is_flag=True,
            expose_value=False,
            callback=set_flag,
            help="Show rows of tables, and of csv, without the titles of columns.",
        ),
    )


output_option = _format_option(
    "Output format; wide is a table with more columns, name prints only group ids, csv has all columns.",
    *("table", "wide", "name", "json", "yaml", "csv"),
)
# For commands without optional columns.
short_output_option = _format_option("Output format; csv has all columns.", "table", "json", "yaml", "csv")


def _read_groups(given: dict[str, Any]) -> None:
    """The groups of both, each once."""
    names, from_file = given["names"], given.pop("from_file")
    if not all(names):
        # The value of a variable that is not set.
        raise click.UsageError('GROUP must not be empty: a line "" of --from-file names the group with the empty id')
    try:
        lines = [] if from_file is None else from_file.read().split("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"--from-file: {error.reason}: it is not UTF-8") from None
    listed = [kafka_text(text_of(line)) for line in lines if line]
    given["names"] = tuple(dict.fromkeys([*names, *listed]))


# The command gets the groups as `names`.
groups_argument = with_options(
    click.argument("names", type=kafka_text, metavar="GROUP...", nargs=-1),
    click.option(
        "--from-file",
        type=click.File(encoding="utf-8-sig"),
        metavar="FILE",
        help="Also the groups in FILE, one per line, as -o name prints them: a line that begins with a quote is a JSON "
        "string.",
    ),
    with_arguments(_read_groups),
)
file_option = click.option(
    "-f",
    "--filename",
    "files",
    type=YAML_FILE,
    multiple=True,
    required=True,
    metavar="FILE",
    help="YAML file with GroupPolicies, a folder of such files, or - for stdin; repeatable.",
)


def _check_watch(given: dict[str, Any]) -> None:
    watch, interval = given.pop("watch"), given.pop("interval")
    if interval is not None and not watch:
        raise click.UsageError("--interval must only be given with --watch")
    if watch and given["output"] not in ("table", "wide"):
        raise click.UsageError("--watch prints rows: only -o table and -o wide can be given with it")
    if watch and "-" in given.get("files", ()):
        raise click.UsageError("--watch reads the files again each time: -f - can't be given with it")
    given["every"] = (interval or _WATCH_EVERY) if watch else None


# The command gets the interval as `every`, None = show one answer.
watch_options = with_options(
    click.option(
        "-w",
        "--watch",
        is_flag=True,
        help="After the first answer, go on to print rows that were added, changed or deleted, until Ctrl-C.",
    ),
    click.option(
        "--interval",
        type=duration_between("1s", "1d"),
        metavar="DURATION",
        help="With --watch: time between two reads of the cluster, from 1s to 1d.  [default: 10s]",
    ),
    with_arguments(_check_watch),
)
activity_option = click.option(
    "--activity",
    type=activity_location,
    shell_complete=lambda _ctx, _param, incomplete: [CompletionItem(incomplete, type="dir")],
    metavar="URI",
    help="Folder with the tables of `group-hygiene pipeline`, for idleFor and expiresWithin: a local path, or "
    "s3://, gs://, az:// or abfss:// with credentials in the environment (AWS_ACCESS_KEY_ID, ...). Default: "
    "activity of the KafkaConnection.",
)
connection_file_option = click.option(
    "--connection-file",
    type=YAML_FILE,
    metavar="FILE",
    help="YAML file with a KafkaConnection; if it names Secrets, --command-config supplies TLS, SASL and "
    "bootstrap.servers.",
)
ledger_option = click.option(
    "--ledger-topic",
    type=kafka_text,
    metavar="TOPIC",
    help="Topic of the operator's ledger. Default: that of --connection, else __group_hygiene.",
)


def user_name() -> str:
    """The name of the user of this process. Raises UsageError if it has none, as in a pod with an arbitrary UID."""
    import getpass

    try:
        return getpass.getuser()
    # OSError since Python 3.13.
    except (KeyError, OSError):
        raise click.UsageError("--by must be given: the user of this computer has no name") from None
