"""Connect a client to the cluster that the options specify; the default namespace, by the kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from msgspec import structs

from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import note, working
from group_hygiene.controller.objects import CONNECTIONS, Object
from group_hygiene.errors import ApiError, Forbidden, NotAllowed, NotFound, SecretProblem, UsageError
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.ledger.contents import TOPIC
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Claims
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.reasons import Refusal
from group_hygiene.process.clock import SystemClock
from group_hygiene.spec.client_settings import (
    ClientProperties,
    Settings,
    is_region,
    parse_client_properties,
    region_of,
    run_by_aws,
)
from group_hygiene.spec.connection import ActivitySpec, Connection, Right, cluster_of, missing_entry, parse_connection
from group_hygiene.spec.fields import SecretRef

if TYPE_CHECKING:
    from group_hygiene.controller.api import Api

API_ADVICE = "check the kubeconfig, and whether the server can be reached: kubectl cluster-info"
_SHOWN = 3
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT = "default"


class OtherLedgers(NamedTuple):
    """topics: of connections that have a ledger, and of those of the same namespace that will have one.

    unbound: connections of other namespaces, as namespace/name, without a ledger. unknown: connections whose cluster
    no status shows.
    """

    topics: Sequence[str] = ()
    unbound: Sequence[str] = ()
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """A connected cluster. connection: with its limits and protection.

    api: where the KafkaConnection `obj` was read; None = without Kubernetes. with_claims: it reads objects that name
    groups.
    """

    client: Client
    connection: Connection
    api: Api | None = None
    obj: Object = field(default_factory=dict)
    with_claims: bool = False
    clock: SystemClock = field(default_factory=SystemClock)

    @property
    def known(self) -> Mapping[str, Any]:
        """The status of the KafkaConnection; empty without Kubernetes."""
        return self.obj.get("status") or {}

    @property
    def cluster_id(self) -> str | None:
        """The id of the Kafka cluster that the connection must lead to; None = any."""
        return self.connection.cluster_id or self.known.get("clusterID")

    def claims(self) -> Claims | Refusal:
        """See context.Context."""
        return self.api.claimed_groups() if self.api is not None and self.with_claims else Claims()

    def read_change(self) -> Refusal | None:
        """Read the KafkaConnection again; a Refusal if it was edited, always None without Kubernetes."""
        if self.api is None:
            return None
        from group_hygiene.controller.admission import read_change

        return read_change(self.api, CONNECTIONS, self.obj)

    def deadline(self) -> Deadline:
        return Deadline(self.connection.timeout.total_seconds())

    def stage_deadlines(self, stages: int) -> Iterator[Deadline]:
        """One deadline for each of the stages that share the time of one read; take it when the stage begins.

        A stage may use its share, and time that earlier stages left: a broker that hangs can't use up all of it.
        """
        whole = self.deadline()
        for left in range(stages, 0, -1):
            yield Deadline(whole.left / left)


@contextmanager
def open_session(target: ChosenCluster, document: Connection | None = None, claims: bool = False) -> Iterator[Session]:
    """Connect by `target`, or else by the KafkaConnection `document` of a file; closes the client at the end.

    `claims`: the session reads objects that name groups, if `target` is in Kubernetes. Raises HygieneError.
    """
    api: Api | None = None
    obj: Object = {}
    if target.connection is not None:
        with working("reading the KafkaConnection"):
            api, obj, connection, settings = _from_kubernetes(target, target.connection)
        if document is not None:
            # Of the cluster's object stays where it leads, and which one it is.
            names = ("namespace", "name", "uid", "generation", "bootstrap_servers", "tls", "sasl", "ledger")
            connection = structs.replace(document, **{name: getattr(connection, name) for name in names})
    else:
        connection, settings = read_settings(target, document)
    if target.timeout is not None:
        connection = connection.with_timeout(target.timeout)
        settings = replace(settings, timeout=target.timeout)
    with working(f"connecting to {', '.join(settings.bootstrap_servers)}"):
        client = connect(settings)
    try:
        yield Session(client, connection, api, obj, claims)
    finally:
        client.close()


def read_connection_file(name: str | None) -> Connection | None:
    """The KafkaConnection of a file. Raises UsageError for mistakes in the file, and unless there is exactly one."""
    if name is None:
        return None
    from group_hygiene.cli.manifests import read_manifests

    found = read_manifests([name], policy_needed=False).connections
    if len(found) != 1:
        raise UsageError(f"{name} must contain one KafkaConnection, not {len(found)}")
    return next(iter(found.values()))


def open_tables(session: Session, asked: ActivitySpec | None) -> Tables | Refusal | None:
    """The pipeline's tables: those of the option (`asked`), else the connection's; None = there are none.

    Credentials come from the Secret that the connection names, if Kubernetes is available, else from the environment.
    Local folders need no permission: only the user of this machine can name them.
    """
    own = session.connection.activity
    if asked is not None:
        return Tables(structs.replace(asked, max_age=own.max_age) if own else asked)
    if own is None:
        return None
    if own.secret is None or session.api is None:
        return Tables(own)
    try:
        return Tables(own, own.store(partial(session.api.read_secret_texts, session.connection.namespace)))
    except SecretProblem as error:
        return Refusal(reasons.EVIDENCE_UNREADABLE, str(error))


def names_cluster(target: ChosenCluster) -> bool:
    """Whether the options alone specify a cluster. Raises UsageError for an invalid properties file."""
    if target.bootstrap_servers or target.connection is not None:
        return True
    return target.command_config is not None and bool(
        _read_properties(target.command_config, target.cluster).bootstrap_servers
    )


def read_settings(target: ChosenCluster, document: Connection | None) -> tuple[Connection, Settings]:
    """The connection and settings by options and files, without Kubernetes. Raises UsageError.

    The author of the KafkaConnection may be someone else, as in a pull request: a login goes only to brokers that the
    options or the properties name.
    """
    properties = None if target.command_config is None else _read_properties(target.command_config, target.cluster)
    if properties is not None and properties.ignored:
        note(f"{target.command_config}: ignored: {', '.join(properties.ignored)}")
    servers = target.bootstrap_servers or (properties.bootstrap_servers if properties else ())
    if document is not None and not servers:
        if properties is None:
            return document, document.settings(_no_secret)
        if properties.has_login:
            raise UsageError(
                f"{target.command_config} has a login, which is not sent to brokers that only the KafkaConnection of "
                f"a file names: add bootstrap.servers to {target.command_config}, or give --bootstrap-server"
            )
        servers = document.bootstrap_servers
    if not servers and properties is not None and properties.clusters:
        names = ", ".join(properties.clusters)
        raise UsageError(f"which Kafka cluster? {target.command_config} has {names}: give --cluster NAME")
    if not servers:
        raise UsageError(
            "which Kafka cluster? Give --bootstrap-server host:port (or set GROUP_HYGIENE_BOOTSTRAP_SERVER), "
            "or --connection NAME"
        )
    if document is None:
        document = Connection()
    tls, sasl = (properties.tls, properties.sasl) if properties else (None, None)
    if sasl is not None and sasl.msk is not None:
        region = region_of(servers) or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
        if not is_region(region):
            raise UsageError("the AWS region is not in the brokers' names: set AWS_REGION")
        sasl = replace(sasl, msk=replace(sasl.msk, region=region, hosts=run_by_aws(region, servers)))
    return document, Settings(servers, tls, sasl, document.timeout)


def _read_properties(path: Path, cluster: str | None) -> ClientProperties:
    def read_file(name: str) -> str:
        try:
            # CA bundles have comments in any encoding.
            return Path(name).read_text("ascii", errors="ignore")
        except OSError as error:
            raise UsageError(f"{name} can't be read: {error.strerror}") from error

    try:
        # As java.util.Properties reads a file.
        text = path.read_text("latin-1")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    try:
        return parse_client_properties(text, read_file, cluster)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _no_secret(ref: SecretRef) -> str:
    raise UsageError(
        f"the KafkaConnection in the file needs Secret {ref.name!r}, which a file can't supply: "
        f"give --command-config FILE, or --connection NAME to read it from Kubernetes"
    )


def other_ledgers(api: Api, connection: Object, cluster: str | None) -> OtherLedgers | Refusal:
    """Those of other KafkaConnections to the cluster with this id, None = not known; a Refusal = can't be listed."""
    try:
        found = api.list_all(CONNECTIONS)
    except ApiError as error:
        return Refusal.of(error)
    topics, unbound, unknown = set[str](), set[str](), set[str]()
    for each in found:
        where, topic, its = each["metadata"]["namespace"], _ledger_topic(each), cluster_of(each)
        if (its and cluster and its != cluster) or topic == _ledger_topic(connection):
            continue
        name, same = f"{where}/{each['metadata']['name']}", where == connection["metadata"]["namespace"]
        if its is None or cluster is None:
            unknown.add(name)
        elif same or (each["status"].get("ledger") or {}).get("topic"):
            topics.add(topic)
        else:
            # The tenant's spec names the topic: it is neither read nor created.
            unbound.add(name)
    return OtherLedgers(sorted(topics), sorted(unbound), sorted(unknown))


def _ledger_topic(connection: Object) -> str:
    """The topic that it uses, or will use once it needs a ledger."""
    parts = (connection.get("status") or {}, connection.get("spec") or {})
    return next((str(topic) for each in parts if (topic := (each.get("ledger") or {}).get("topic"))), TOPIC)


def open_api(context: str | None, kubeconfig: Path | None, namespaces: Collection[str] = ()) -> Api:
    """The API server of the kubeconfig, without a request. namespaces: see `Api`. Raises HygieneError."""
    from group_hygiene.controller.api import Api, load_config

    # The Kubernetes library prints its attempts to stdout, which is for the output of the command.
    with redirect_stdout(StringIO()):
        return Api(load_config(context=context, file=kubeconfig), namespaces)


def read_object(api: Api, plural: str, namespace: str, name: str, here: str | None = None) -> Object:
    """One object of our CRDs. here: of a KafkaConnection for a command on groups, the user's own namespace.

    Raises UsageError if there is none, or if it may not be read (with `here` NotAllowed), and otherwise ApiError with
    advice.
    """
    from group_hygiene.controller.api import KINDS

    kind = KINDS[plural]
    try:
        return api.get(plural, namespace, name)
    except NotFound:
        raise UsageError(f"there is no {kind} {namespace}/{name}: {_others(api, plural)}") from None
    except Forbidden:
        message = f"you may not read {kind} {namespace}/{name}: ask for get on {plural} in namespace {namespace}"
        if here is not None:
            raise NotAllowed(f"{message}. {_without_connection(namespace, here)}") from None
        raise UsageError(message) from None
    except ApiError as error:
        raise ApiError(f"{error}; {API_ADVICE}") from error


def _without_connection(namespace: str, here: str) -> str:
    """What a user without rights to a connection of `namespace` can do, and what to ask its owner for."""
    grant = ""
    if here != namespace:
        entry = missing_entry(here, (Right.ALERT, Right.KEEP, Right.RESTORE))
        grant = f", once its owner adds {entry} to spec.access"
    return (
        f"Objects in your namespace need no right to it{grant}: a GroupPolicy with action Alert shows the use of "
        "groups, a GroupKeep keeps them, and a GroupRestore restores them. Or use a Kafka user of your own: "
        "--bootstrap-server with --command-config"
    )


def _others(api: Api, plural: str) -> str:
    """What there is instead."""
    try:
        names = [f"{obj['metadata']['namespace']}/{obj['metadata']['name']}" for obj in api.list_all(plural)]
    except ApiError:
        names = []
    shown = truncated_list(sorted(names), _SHOWN)
    return f"there is {shown}; -n names the namespace" if names else "-n names the namespace"


def _from_kubernetes(target: ChosenCluster, name: str) -> tuple[Api, Object, Connection, Settings]:
    namespace, api = target.namespace, open_api(target.context, target.kubeconfig)
    here = current_namespace(target.context, target.kubeconfig)
    obj = read_object(api, CONNECTIONS, namespace, name, here)
    connection = parse_connection(obj)
    try:
        settings = connection.settings(lambda ref: api.read_secret(namespace, ref))
    except SecretProblem as error:
        if error.reason != reasons.SECRET_FORBIDDEN:
            raise
        # The message of the API has advice for the operator, not for a user.
        raise NotAllowed(
            f"you may not read the Secrets that KafkaConnection {namespace}/{name} names, with which the operator logs "
            f"in: ask for get on secrets in namespace {namespace}. {_without_connection(namespace, here)}"
        ) from None
    return api, obj, connection, settings


def current_namespace(context: str | None = None, file: Path | None = None) -> str:
    """As kubectl: the namespace of the kubeconfig's context; else, in a pod, the pod's; else `default`.

    context: its name; None = the current one. file: the kubeconfig; None = $KUBECONFIG, else that of the user.

    Of several files, the first with a current context decides, and the first with a context of that name. Files that
    can't be read are skipped here: the client reports them when it connects.
    """
    names = (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep) if file is None else [str(file)]
    files = list(_kubeconfigs(filter(None, names)))
    if not files:
        return _read_text(_POD_NAMESPACE).strip() or _DEFAULT
    current = context or next((each["current-context"] for each in files if each.get("current-context")), None)
    for config in files:
        for entry in config.get("contexts") or ():
            if isinstance(entry, Mapping) and entry.get("name") == current:
                found = entry.get("context")
                return str((isinstance(found, Mapping) and found.get("namespace")) or _DEFAULT)
    return _DEFAULT


def _kubeconfigs(names: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for name in names:
        try:
            config = yaml.safe_load(_read_text(Path(name).expanduser()))
        # RuntimeError: in a container without HOME, whose user has no entry in /etc/passwd.
        except (yaml.YAMLError, RuntimeError):
            continue
        if isinstance(config, Mapping):
            yield config


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
