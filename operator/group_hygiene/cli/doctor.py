"""`doctor`: the order of its checks, their findings, and the checks of the API server. Changes nothing.

The API server: CRDs, permissions, Lease, KafkaConnection, Secrets, receivers. `doctor_kafka` checks the Kafka cluster.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from functools import partial
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from group_hygiene.cli.options import (
    ChosenCluster,
    with_addresses,
)
from group_hygiene.cli.output import MARKS, Report, Table, working
from group_hygiene.cli.target import API_ADVICE
from group_hygiene.controller import api as api_server
from group_hygiene.controller.api import Api, load_config
from group_hygiene.controller.leader import NAME as LEASE
from group_hygiene.controller.objects import CONNECTIONS, POLICIES, Object, connection_of
from group_hygiene.errors import ApiError, Forbidden, HygieneError, NotFound, SecretProblem, SpecError
from group_hygiene.ledger.journal import SKEW_MAX
from group_hygiene.model import reasons
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.conditions import COUNTING
from group_hygiene.observe.messages import read_endpoint
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.connection import ActivitySpec, Connection, Role, admit, grant, parse_connection, receivers_of
from group_hygiene.spec.crds import PLURALS, VERSION, fields_of, fields_of_schema, load_crd
from group_hygiene.spec.fields import SecretRef, format_duration
from group_hygiene.spec.policy import Policy, parse_policy

_TIMEOUT_S = 10.0
_SKEW_SEEN = timedelta(seconds=5)
_SHOWN = 5
_CLAIMS = "objects that name groups"
_ASK_OTHERS = "run doctor as a user who may list GroupPolicies there"
# Other programs that write groups of another cluster, and leave no trace in this one.
_REPLICATORS = "Confluent Cluster Linking, MSK Replicator, cluster mirroring (KIP-1279) and other replicators"
_ROLES = {
    Role.FAILOVER_TARGET: "FailoverTarget: groups may be synced from another cluster, and no policy deletes any",
    Role.PRIMARY: "Primary: MirrorMaker 2 is detected by its checkpoint topics; "
    f"{_REPLICATORS} and ShadowLinks are not",
    None: "not set: MirrorMaker 2 is detected by its checkpoint topics, and Redpanda by ShadowLinks in Kubernetes; "
    f"{_REPLICATORS} are not: if one syncs groups into this cluster, set spec.role: FailoverTarget",
}
_REMEDIES = {
    reasons.SECRET_NOT_FOUND: "create it there, or correct its name in the object",
    reasons.SECRET_KEY_MISSING: "add the key, or correct its name in the object",
    reasons.SECRET_INVALID: "correct its value",
    reasons.SECRET_FORBIDDEN: "name the namespace in the chart's rbac.secretNamespaces, or bind the role there",
}


class CheckResult(StrEnum):
    """Warning: the operator works, but something should be better, or could not be checked."""

    OK = "Ok"
    WARNING = "Warning"
    FAILED = "Failed"


class Area(Enum):
    """The subject of a check, and the exit code if it fails; of several failures the first decides."""

    KUBERNETES = 10
    CONNECTION = 11
    KAFKA = 12
    PERMISSIONS = 13
    LEDGER = 14
    EVIDENCE = 15
    CLOCK = 16


class Finding(NamedTuple):
    """check: the name of the check. found: its result in words. advice: the remedy; empty = none."""

    area: Area
    check: str
    result: CheckResult
    found: str
    advice: str = ""


def ok(area: Area, check: str, found: str) -> Finding:
    return Finding(area, check, CheckResult.OK, with_addresses(found))


def warning(area: Area, check: str, found: str, advice: str) -> Finding:
    return Finding(area, check, CheckResult.WARNING, found, with_addresses(advice))


def failed(area: Area, check: str, found: str, advice: str) -> Finding:
    return Finding(area, check, CheckResult.FAILED, found, with_addresses(advice))


def run_check(area: Area, check: str, examine: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of `examine`. An exception becomes a finding, so that the other checks run."""
    try:
        yield from examine()
    except HygieneError as error:
        yield failed(area, check, f"{error.reason}: {error}", f"docs/reasons.md, {error.reason}")
    except Exception as error:
        # The text may contain a secret: the line of the source is enough to find the bug.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        yield failed(area, check, f"unexpected: {type(error).__name__} at {where}", "report it as a bug")


def report_of(findings: Sequence[Finding]) -> Report:
    """All findings in order, and the exit code of the first failure."""
    lines = [f"{MARKS[f.result]} {f.check}: {f.found}" + (f" → {f.advice}" if f.advice else "") for f in findings]
    code = next((each.area.value for each in findings if each.result is CheckResult.FAILED), 0)
    checks = [
        {
            "area": finding.area.name.capitalize(),
            "check": finding.check,
            "result": str(finding.result),
            "found": finding.found,
            "advice": finding.advice or None,
        }
        for finding in findings
    ]
    return Report({"checks": checks, "exitCode": code}, (), [Table((), (), lines)], exit_code=code)


_KUBERNETES, _CONNECTION = Area.KUBERNETES, Area.CONNECTION


class Account(NamedTuple):
    """The account to check. name: a ServiceAccount `namespace/name`; empty = the user of this command.

    namespace: where the operator and its Lease are.
    """

    name: str
    namespace: str


def account_of(service_account: str | None, namespace: str | None) -> Account:
    """The account of the options; the namespace defaults to the pod's, else to that of the chart and manifests."""
    own = os.environ.get("POD_NAMESPACE") or "group-hygiene"
    name = service_account or ""
    return Account(name, namespace or name.partition("/")[0] or own)


class Kubernetes:
    """One KafkaConnection and its API server. Each check stores its results here for later checks."""

    api: Api
    inspection: api_server.Inspection

    def __init__(self, target: ChosenCluster, name: str, account: Account) -> None:
        self.namespace, self.name, self.account, self._target = target.namespace, name, account, target
        self.reached, self.ahead = False, timedelta()
        self.obj: Object = {}
        self.connection: Connection | None = None
        self.settings: Settings | None = None
        self.listed: list[Object] = []
        self.policies: list[Policy] = []

    def load(self) -> None:
        """Load the address and credentials of the API server, without a request. Raises HygieneError."""
        # The Kubernetes library prints its attempts to stdout, which is for the output of the command.
        with redirect_stdout(StringIO()):
            self._client = load_config(context=self._target.context, file=self._target.kubeconfig)
        self.api, self.inspection = Api(self._client), api_server.Inspection(self._client)

    def api_of(self, namespace: str) -> Api:
        """A client like that of an operator for only this namespace."""
        return Api(self._client, (namespace,))

    def now(self) -> datetime:
        """By the API server's clock."""
        return datetime.now(UTC) + self.ahead


def examine(
    target: ChosenCluster, document: Connection | None, activity: ActivitySpec | None, account: Account
) -> Report:
    """Check one cluster. document: a KafkaConnection of a file. activity: instead of the connection's."""
    from group_hygiene.cli.doctor_kafka import CheckedCluster, connect_and_examine
    from group_hygiene.cli.target import read_settings
    from group_hygiene.engine.context import Memory
    from group_hygiene.spec.connection import cluster_of

    findings: list[Finding] = []
    cluster: CheckedCluster | None = None
    if target.connection is None:
        connection, settings = read_settings(target, document)
        cluster = CheckedCluster(connection, settings, activity, memory=Memory(cluster_id=connection.cluster_id))
    else:
        with working("checking the API server"):
            known = Kubernetes(target, target.connection, account)
            findings += examine_kubernetes(known)
        if known.connection is not None and known.settings is not None:
            memory = Memory(cluster_id=cluster_of(known.obj))
            cluster = CheckedCluster(known.connection, known.settings, activity, known, memory)
        elif known.connection is not None:
            advice = "fix the failures above, and run doctor again"
            findings.append(failed(Area.KAFKA, "Kafka", "not checked: the credentials are not known", advice))
    if cluster is not None:
        findings += connect_and_examine(cluster, target.timeout, account.namespace)
    return report_of(findings)


def examine_kubernetes(known: Kubernetes) -> Iterator[Finding]:
    """Run the checks, each after those that it depends on; only the first if the API server does not answer."""
    yield from run_check(_KUBERNETES, "API server", lambda: _server(known))
    if not known.reached:
        return
    yield from run_check(_KUBERNETES, "CRDs", lambda: _crds(known))
    # Before the permissions: the connection's fields decide which ones are needed.
    of_connection = list(run_check(_CONNECTION, "KafkaConnection", lambda: _connection(known)))
    yield from run_check(_KUBERNETES, "rights in Kubernetes", lambda: _rights(known))
    yield from run_check(_KUBERNETES, "Lease", lambda: _lease(known))
    yield from run_check(_KUBERNETES, "metrics", lambda: _metrics(known))
    yield from of_connection
    connection = known.connection
    if connection is None:
        return
    yield from run_check(_CONNECTION, "Secrets", lambda: _secrets(known, connection))
    yield from run_check(_CONNECTION, "receivers", lambda: _receivers(known, connection))
    yield from run_check(_CONNECTION, "deletions", lambda: _blocked(known.listed))
    yield from run_check(_KUBERNETES, _CLAIMS, lambda: _claims(known))
    yield ok(_CONNECTION, "role", _ROLES[connection.role])


def _server(known: Kubernetes) -> Iterator[Finding]:
    try:
        known.load()
        server = known.inspection.server()
    except HygieneError as error:
        yield failed(_KUBERNETES, "API server", f"{error.reason}: {error}", API_ADVICE)
        return
    known.reached, known.ahead = True, server.ahead
    user = known.inspection.user()
    yield ok(_KUBERNETES, "API server", f"Kubernetes {server.version} answers" + (f"; you are {user}" if user else ""))
    apart = abs(server.ahead)
    seconds, side = timedelta(seconds=round(apart.total_seconds())), "ahead of" if server.ahead == apart else "behind"
    text = f"it is {format_duration(seconds)} {side} this machine's clock"
    if apart > SKEW_MAX:
        yield failed(Area.CLOCK, "clock of the API server", text, "set the clock that is wrong: no date can be trusted")
    elif apart > _SKEW_SEEN:
        yield warning(Area.CLOCK, "clock of the API server", text, "synchronize both with the same time server")
    else:
        yield ok(Area.CLOCK, "clock of the API server", "agrees with this machine's clock")


def _crds(known: Kubernetes) -> Iterator[Finding]:
    advice = (
        "group-hygiene crds | kubectl apply --server-side --force-conflicts -f -; an upgrade of the chart applies them "
        "too, unless crds.enabled is false; kubectl apply -k does not"
    )
    for kind in PLURALS:
        ours, theirs = fields_of(load_crd(kind), VERSION), _fields_in_use(known, kind)
        lacks = sorted(ours - (theirs or frozenset()))
        if theirs is None:
            yield failed(_KUBERNETES, f"CRD {kind}", "is not installed", advice)
        elif not theirs:
            yield failed(_KUBERNETES, f"CRD {kind}", f"does not serve {VERSION}", advice)
        elif lacks:
            shown = f"is of another version than this program: it lacks {truncated_list(lacks, _SHOWN)}"
            yield warning(_KUBERNETES, f"CRD {kind}", shown, advice)
        else:
            yield ok(_KUBERNETES, f"CRD {kind}", f"serves {VERSION}, with all fields that this program knows")


def _fields_in_use(known: Kubernetes, kind: str) -> frozenset[str] | None:
    """The fields of a CRD in the API server; empty = it has another version; None = it is not installed.

    For users who may not read CRDs, like the operator: by the published schema, which has only served versions.
    """
    try:
        installed = known.inspection.crd(PLURALS[kind])
    except Forbidden:
        published = known.api.schemas().get(kind)
        return None if published is None else fields_of_schema(published)
    return None if installed is None else fields_of(installed, VERSION)


def _rights(known: Kubernetes) -> Iterator[Finding]:
    account = known.account
    connection = known.connection
    secrets = () if connection is None else _secret_names(connection)
    by_label = connection is not None and connection.selects_by_label
    claims = api_server.claim_rights(known.api.claiming_kinds())
    # A human user needs none of these permissions, only the operator does.
    person = not account.name and not known.inspection.user().startswith("system:serviceaccount:")
    subject = f"ServiceAccount {account.name}" if account.name else "you"
    try:
        everywhere = known.inspection.may(api_server.SEES_ALL, account.name)
        asked = api_server.rights(
            known.namespace, account.namespace, LEASE, secrets, by_label=by_label, everywhere=everywhere
        )
        asked += claims
        missing = [right for right in asked if not known.inspection.may(right, account.name)]
    except Forbidden:
        found = f"you may not check what {subject} may do"
        yield warning(
            _KUBERNETES, "rights in Kubernetes", found, "run doctor as a user who may create subjectaccessreviews"
        )
        return
    if not missing:
        yield ok(_KUBERNETES, "rights in Kubernetes", f"{subject} may do all that the operator needs")
        return
    effects = "; ".join(dict.fromkeys(right.what_for for right in missing))
    found = f"{subject} may not {truncated_list(missing, _SHOWN)}: as the operator, {effects}"
    if person:
        yield warning(
            _KUBERNETES, "rights in Kubernetes", found, "to check the operator's permissions, give --service-account"
        )
    else:
        advice = (
            f"if this operator serves some namespaces only, add {known.namespace} (docs/install.md, Only some "
            "namespaces); else apply the chart or the manifests again; Secrets: name the Secret or its namespace in "
            "the chart's rbac.secretNamespaces, or bind a role for it (of the manifests: group-hygiene-secrets); "
            "objects that name groups, and workloads: the chart's rbac.claims, or group-hygiene-claims of the manifests"
        )
        yield failed(_KUBERNETES, "rights in Kubernetes", found, advice)


def _lease(known: Kubernetes) -> Iterator[Finding]:
    account = known.account
    where = f"Lease {account.namespace}/{LEASE}"
    try:
        spec = known.api.get_lease(account.namespace, LEASE, _TIMEOUT_S).get("spec") or {}
    except NotFound:
        found = f"there is no {where}: no operator has run there"
        yield failed(_KUBERNETES, "Lease", found, "start the operator, or name its namespace: --operator-namespace")
        return
    except Forbidden:
        yield warning(_KUBERNETES, "Lease", f"you may not read {where}", "run doctor as a user who may read it")
        return
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    advice = "check the operator's pods and their logs (docs/runbook.md, GroupHygieneNoLeader)"
    if not holder or not renewed:
        yield failed(_KUBERNETES, "Lease", f"no operator holds {where}", advice)
        return
    age = known.now() - datetime.fromisoformat(renewed)
    held = f"{holder} holds {where}, renewed {max(0, round(age.total_seconds()))} s ago"
    if age > timedelta(seconds=int(spec.get("leaseDurationSeconds") or 0)) + _SKEW_SEEN:
        yield failed(_KUBERNETES, "Lease", f"{held}: it has expired, and no other replica has taken over", advice)
    else:
        yield ok(_KUBERNETES, "Lease", held)


def _metrics(known: Kubernetes) -> Iterator[Finding]:
    """Who may read the metrics, which require no password."""
    namespace = known.account.namespace
    try:
        peers = known.inspection.metrics_peers(namespace)
    except Forbidden:
        found = f"not known who may read them: you may not list NetworkPolicies in {namespace}"
        yield ok(_KUBERNETES, "metrics", f"{found}; the chart and the manifests close them")
        return
    if peers == []:
        opens = "networkPolicy.prometheusNamespace of the chart, or deploy/prometheus, opens them"
        yield ok(_KUBERNETES, "metrics", f"closed: no pod may reach their port; {opens}")
    elif peers is None or {} in peers:
        found = "open: no NetworkPolicy prevents that a pod reads them, and they count the groups of all teams"
        yield ok(_KUBERNETES, "metrics", found)
    else:
        yield ok(_KUBERNETES, "metrics", f"open to the {len(peers)} peers that NetworkPolicies in {namespace} name")


# EvidenceReady is a warning: only some policies need the tables, doctor checks them later, and the operator does not
# check them in each run.
_CONDITIONS = (
    ("Ready", Area.CONNECTION, "KafkaConnection", failed),
    ("LedgerReady", Area.LEDGER, "LedgerReady", failed),
    ("EvidenceReady", Area.EVIDENCE, "EvidenceReady", warning),
)


def _connection(known: Kubernetes) -> Iterator[Finding]:
    key = f"{known.namespace}/{known.name}"
    try:
        known.obj = known.api.get(CONNECTIONS, known.namespace, known.name)
    except NotFound:
        yield failed(_CONNECTION, "KafkaConnection", f"there is no {key}", "apply it, or correct --connection and -n")
        return
    except Forbidden:
        yield failed(_CONNECTION, "KafkaConnection", f"you may not read {key}", "run doctor as a user who may read it")
        return
    known.connection = parse_connection(known.obj)
    yield from _conditions(known, key)


def _conditions(known: Kubernetes, key: str) -> Iterator[Finding]:
    """The conditions that the operator's last scan wrote."""
    status = known.obj.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    if "Ready" not in conditions:
        found = f"no operator has processed {key} yet"
        yield warning(_CONNECTION, "KafkaConnection", found, "is an operator running? See the Lease above")
        return
    if status.get("observedGeneration") != known.obj["metadata"].get("generation"):
        before = _text(conditions["Ready"])
        found = f"{key} was edited, and the operator has not processed it yet; before, it was {before}"
        yield warning(
            _CONNECTION, "KafkaConnection", found, "run doctor again soon; is an operator running? See the Lease above"
        )
        return
    if (served := status.get("servedBy")) not in (None, known.account.namespace):
        found = f"{key} is served by the operator in namespace {served}, and not by that in {known.account.namespace}"
        yield warning(_CONNECTION, "release", found, "give --operator-namespace, or remove one of the two releases")
    for kind, area, check, finding in _CONDITIONS:
        condition = conditions.get(kind)
        if condition is not None and condition["status"] != "True":
            when = f"since {condition['lastTransitionTime']}; last scan: {status.get('lastScanTime', 'none')}"
            advice = (
                f"docs/reasons.md, {condition['reason']}; if that is fixed already, run doctor again after its next run"
            )
            yield finding(area, check, f"{key}, reported by the operator: {_text(condition)} ({when})", advice)
        elif kind == "Ready":
            yield ok(area, check, f"{key}, reported by the operator: {_text(conditions[kind])}")


def _text(condition: Mapping[str, str]) -> str:
    return f"{condition['reason']}: {condition['message']}"


def _secret_names(connection: Connection) -> frozenset[str]:
    """The Secrets that the connection refers to: for its credentials, its receivers and its tables."""
    refs: list[SecretRef | None] = []

    def note(ref: SecretRef) -> str:
        refs.append(ref)
        return ""

    connection.settings(note)
    refs += [ref for each in connection.receivers for ref in (each.url, each.token, each.hmac, each.ca)]
    tables = connection.activity.secret if connection.activity is not None else None
    return frozenset({ref.name for ref in refs if ref is not None} | ({tables} if tables else set()))


def _secrets(known: Kubernetes, connection: Connection) -> Iterator[Finding]:
    """Read each Secret that the connection names, also after a failure; no value is shown."""
    problems: list[SecretProblem] = []
    asked: list[SecretRef] = []

    def read(ref: SecretRef) -> str:
        asked.append(ref)
        try:
            return known.api.read_secret(connection.namespace, ref)
        except SecretProblem as error:
            problems.append(error)
            return ""

    settings = connection.settings(read)
    named = len({ref.name for ref in asked})
    if connection.activity is not None and connection.activity.secret is not None:
        try:
            connection.activity.store(partial(known.api.read_secret_texts, connection.namespace))
            named += 1
        except SecretProblem as error:
            yield failed(_CONNECTION, "Secret of the tables", f"{error.reason}: {error}", _remedy(error))
    yield from (failed(_CONNECTION, "Secret", f"{error.reason}: {error}", _remedy(error)) for error in problems)
    if problems:
        return
    known.settings = settings
    counted = f"all {named} that the connection names exist, with their keys" if named else "the connection names none"
    yield ok(_CONNECTION, "Secrets", counted)


def _remedy(error: HygieneError) -> str:
    runbook = f"docs/reasons.md, {error.reason}"
    return f"{_REMEDIES[error.reason]} ({runbook})" if error.reason in _REMEDIES else runbook


def _receivers(known: Kubernetes, connection: Connection) -> Iterator[Finding]:
    """Check the Secrets and the address of each receiver; nothing is sent."""
    objects, problems = _listed_policies(known, connection)
    of_connection = [obj for obj in objects if connection_of(obj) == (connection.namespace, connection.name)]
    known.listed, known.policies = of_connection, list(_policies(of_connection, connection))
    for policy in known.policies:
        for name, receiver in receivers_of(connection, policy).items():
            if receiver is None:
                found = f"GroupPolicy {policy.key} names {name}, which the connection does not have"
                problems.append(failed(_CONNECTION, "receiver", found, "docs/reasons.md, ReceiverNotFound"))
    for policy in known.policies:
        if policy.stricter:
            yield ok(_CONNECTION, "floors", f"GroupPolicy {policy.key}: {policy.stricter_note}")
    for receiver in connection.receivers:
        try:
            read_endpoint(receiver, partial(known.api.read_secret, connection.namespace))
        except HygieneError as error:
            found = f"{receiver.name}: {error.reason}: {error}"
            problems.append(failed(_CONNECTION, "receiver", found, _remedy(error)))
    yield from problems
    if not problems:
        many = len(connection.receivers)
        found = f"{many}, each with valid settings and Secrets (nothing was sent)" if many else "there are none"
        yield ok(_CONNECTION, "receivers", found)


def _listed_policies(known: Kubernetes, connection: Connection) -> tuple[list[Object], list[Finding]]:
    """The policies of all namespaces that may use the connection, and a warning if some of them can't be listed.

    An operator for some namespaces may not list the policies of others. Without `access`, policies of no other
    namespace may use the connection.
    """
    try:
        return known.api.list_all(POLICIES), []
    except ApiError:
        pass
    found: list[Object] = []
    problems: list[Finding] = []
    if connection.selects_by_label:
        text = "policies of namespaces that spec.access selects by labels can't be listed"
        problems.append(warning(_CONNECTION, "receivers", text, _ASK_OTHERS))
    for namespace in sorted(
        {connection.namespace}.union(*(entry.namespaces.names or () for entry in connection.access))
    ):
        try:
            found += known.api_of(namespace).list_all(POLICIES)
        except ApiError as error:
            text = f"policies of namespace {namespace} can't be listed: {error}"
            problems.append(warning(_CONNECTION, "receivers", text, _ASK_OTHERS))
    return found, problems


def _blocked(objects: Iterable[Object]) -> Iterator[Finding]:
    """Why the operator's last runs of these policies refused to delete.

    Some reasons, as ClockSkew, only a run that writes can find.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for obj in objects:
        status, meta = obj.get("status") or {}, obj["metadata"]
        if status.get("observedGeneration") != meta.get("generation"):
            continue
        for condition in status.get("conditions") or []:
            if condition["type"] == "DeletionBlocked" and condition["status"] == "True":
                policy = f"{meta['namespace']}/{meta['name']}"
                found.setdefault(condition["reason"], []).append((policy, _text(condition)))
    for reason, blocked in found.items():
        (policy, text), more = blocked[0], len(blocked) - 1
        names = f"GroupPolicy {policy}{f' and {more} more' if more else ''}"
        # That many groups are abandoned, or few exist, is no fault.
        finding = warning if reason in COUNTING else failed
        advice = f"docs/reasons.md, {reason}; if that is fixed already, run doctor again after the next run"
        yield finding(_CONNECTION, "deletions", f"{names}, reported by the operator: {text}", advice)


def _policies(objects: Iterable[Object], connection: Connection) -> Iterator[Policy]:
    """The valid policies of the connection, as it admits them; others as they are."""
    for obj in objects:
        with suppress(SpecError):
            # The policy's own condition reports a failure, and admission by labels of namespaces.
            policy = parse_policy(obj)
            given = grant(connection, policy.namespace, None)
            yield policy if given is None else admit(connection, policy, given)


def _claims(known: Kubernetes) -> Iterator[Finding]:
    claimed = known.api.claimed_groups()
    if isinstance(claimed, Refusal):
        found = f"the groups that they name are not known, so no group is deleted: {claimed.message}"
        advice = "run doctor as a user who may read them, or fix the object that is named"
        yield warning(_KUBERNETES, _CLAIMS, found, advice)
        return
    links = sorted({*claimed.synced.values(), *claimed.prefixes.values()})
    synced = f"; groups are synced by {truncated_list(links, _SHOWN)}" if links else ""
    yield ok(_KUBERNETES, _CLAIMS, f"name {len(claimed.named)} groups{synced}")
