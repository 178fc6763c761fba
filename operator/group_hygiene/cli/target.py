"""From what the user said about the cluster to a client that is connected to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from time import monotonic

from group_hygiene.cli.options import Target
from group_hygiene.cli.output import note, working
from group_hygiene.client_properties import ClientProperties, parse_client_properties
from group_hygiene.connection import Connection, SecretRef, Settings, parse_connection
from group_hygiene.errors import Forbidden, NotFound, SecretProblem, UsageError
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.policy import Patterns

_TIMEOUT = timedelta(seconds=30)


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return monotonic()


@dataclass(frozen=True, slots=True)
class Session:
    """A cluster to read. `connection`: what policies may do there; `claimed`: see reconcile.Context.

    in_kubernetes: whether objects that claim groups could be looked for.
    """

    client: Client
    connection: Connection
    claimed: Mapping[str, str] | None = field(default_factory=dict)
    in_kubernetes: bool = False
    clock: SystemClock = field(default_factory=SystemClock)

    def deadline(self) -> Deadline:
        return Deadline(self.connection.timeout.total_seconds())


@contextmanager
def open_session(target: Target, document: Connection | None = None, claims: bool = False) -> Iterator[Session]:
    """Connect as `target` says, or else as the KafkaConnection `document` of a file does; closes at the end.

    `claims`: also look, where there is a Kubernetes cluster to ask, for objects that name groups. Raises HygieneError.
    """
    claimed: Mapping[str, str] | None = {}
    if target.connection is not None:
        with working("reading the KafkaConnection"):
            connection, settings, claimed = _from_kubernetes(target.namespace, target.connection, claims)
        if document is not None:
            connection = replace(connection, protect=document.protect, limits=document.limits)
    else:
        connection, settings = _from_options(target, document)
    if target.timeout is not None:
        connection = replace(connection, timeout=target.timeout)
        settings = replace(settings, timeout=target.timeout)
    with working(f"connecting to {', '.join(settings.bootstrap_servers)}"):
        client = connect(settings)
    try:
        yield Session(client, connection, claimed, target.connection is not None)
    finally:
        client.close()


def _from_options(target: Target, document: Connection | None) -> tuple[Connection, Settings]:
    properties = None if target.command_config is None else _read_properties(target.command_config)
    servers = target.bootstrap_servers or (properties.bootstrap_servers if properties else ())
    if document is not None and not servers:
        if properties is None:
            return document, document.settings(_no_secret)
        servers = tuple(document.spec["bootstrapServers"])
    if not servers:
        raise UsageError(
            "which Kafka cluster? Give --bootstrap-server host:port (or set GROUP_HYGIENE_BOOTSTRAP_SERVER), "
            "or --connection NAME"
        )
    if document is None:
        document = Connection("", "", "", 0, Patterns([]), None, _TIMEOUT, {})
    tls, sasl = (properties.tls, properties.sasl) if properties else (None, None)
    return document, Settings(servers, tls, sasl, document.timeout)


def _read_properties(path: Path) -> ClientProperties:
    def read_file(name: str) -> str:
        try:
            # Bundles name their authorities in comments, in any encoding.
            return Path(name).read_text("ascii", errors="ignore")
        except OSError as error:
            raise UsageError(f"{name} can't be read: {error.strerror}") from error

    try:
        # As java.util.Properties reads a file.
        text = path.read_text("latin-1")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    try:
        properties = parse_client_properties(text, read_file)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    if properties.ignored:
        note(f"{path}: ignored: {', '.join(properties.ignored)}")
    return properties


def _no_secret(ref: SecretRef) -> str:
    raise UsageError(
        f"the KafkaConnection in the file needs Secret {ref.name!r}, which a file can't supply: "
        f"give --command-config FILE, or --connection NAME to read it from Kubernetes"
    )


def _from_kubernetes(namespace: str, name: str, claims: bool) -> tuple[Connection, Settings, Mapping[str, str] | None]:
    from group_hygiene.controller.api import CONNECTIONS, Api, load_config

    # The Kubernetes library prints what it tries, where our answer belongs.
    with redirect_stdout(StringIO()):
        api = Api(load_config())
    try:
        connection = parse_connection(api.get(CONNECTIONS, namespace, name))
    except NotFound:
        raise UsageError(f"there is no KafkaConnection {namespace}/{name}") from None
    except Forbidden:
        raise UsageError(f"you may not read KafkaConnection {namespace}/{name}") from None
    try:
        settings = connection.settings(lambda ref: api.read_secret(namespace, ref))
    except SecretProblem as error:
        if error.reason != "SecretForbidden":
            raise
        # The API's own advice is for the operator.
        message = f"you may not read the Secrets that KafkaConnection {namespace}/{name} names"
        raise SecretProblem(message, error.reason) from None
    return connection, settings, api.claimed_groups() if claims else {}
