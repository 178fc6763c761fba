"""What `doctor` asks of the API server: what is installed, who may do what, who leads, which Secrets are there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from typing import NamedTuple

from group_hygiene.alerts.endpoints import read_endpoint
from group_hygiene.cli.doctor_findings import Area, Finding, failed, looking, ok, warning
from group_hygiene.cli.validation import PLURALS, fields_of, fields_of_schema, load_crd
from group_hygiene.controller import inspection
from group_hygiene.controller.api import CONNECTIONS, POLICIES, VERSION, Api, Object, connection_of, load_config
from group_hygiene.controller.leader import NAME as LEASE
from group_hygiene.errors import ApiError, Forbidden, HygieneError, NotFound, SecretProblem, SpecError
from group_hygiene.ledger.journal import SKEW_MAX
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.refusal import Refusal
from group_hygiene.spec.connection import Connection, Role, Settings, parse_connection, receivers_of
from group_hygiene.spec.durations import format_duration
from group_hygiene.spec.policy import Policy, parse_policy
from group_hygiene.spec.receivers import Receiver
from group_hygiene.spec.secret import SecretRef

_TIMEOUT_S = 10.0
_SKEW_SEEN = timedelta(seconds=5)
_SHOWN = 5
_KUBERNETES, _CONNECTION = Area.KUBERNETES, Area.CONNECTION
_CLAIMS = "objects that name groups"
_ASK_OTHERS = "run doctor as a user who may list GroupPolicies there"


# What else writes groups of another cluster, and leaves nothing there that shows it.
_REPLICATORS = "Confluent Cluster Linking, MSK Replicator, cluster mirroring (KIP-1279) and other replicators"
_ROLES = {
    Role.FAILOVER_TARGET: "FailoverTarget: groups may be synced from another cluster, and no policy deletes any",
    Role.PRIMARY: f"Primary: MirrorMaker 2 is seen by its checkpoint topics; {_REPLICATORS} are not, nor ShadowLinks",
    None: "not set: MirrorMaker 2 is seen by its checkpoint topics, and Redpanda by ShadowLinks in Kubernetes; "
    f"{_REPLICATORS} are not: where one syncs groups into this cluster, set spec.role: FailoverTarget",
}


class Account(NamedTuple):
    """Whose rights are asked for. name: a ServiceAccount `namespace/name`; empty = the caller.

    namespace: where the operator and its Lease are.
    """

    name: str
    namespace: str


def account_of(service_account: str | None, namespace: str | None) -> Account:
    """By the options; without them the pod's own, else as chart and manifests have it."""
    own = os.environ.get("POD_NAMESPACE") or "group-hygiene"
    name = service_account or ""
    return Account(name, namespace or name.partition("/")[0] or own)


class Kubernetes:
    """One KafkaConnection and the API server that has it; what is learnt on the way is kept for what comes after."""

    api: Api
    inspection: inspection.Inspection

    def __init__(self, namespace: str, name: str, account: Account) -> None:
        self.namespace, self.name, self.account = namespace, name, account
        self.reached, self.ahead = False, timedelta()
        self.obj: Object = {}
        self.connection: Connection | None = None
        self.settings: Settings | None = None
        self.policies: list[Policy] = []

    def find(self) -> None:
        """Where the API server is; nothing is asked of it. Raises HygieneError."""
        # The Kubernetes library prints what it tries, where our answer belongs.
        with redirect_stdout(StringIO()):
            self._client = load_config()
        self.api, self.inspection = Api(self._client), inspection.Inspection(self._client)

    def api_of(self, namespace: str) -> Api:
        """The API server as an operator of that namespace alone sees it."""
        return Api(self._client, (namespace,))

    def now(self) -> datetime:
        """By the API server's clock."""
        return datetime.now(UTC) + self.ahead


def examine_kubernetes(known: Kubernetes) -> Iterator[Finding]:
    """In the order in which one thing hangs on another; nothing follows when the API server does not answer."""
    yield from looking(_KUBERNETES, "API server", lambda: _server(known))
    if not known.reached:
        return
    yield from looking(_KUBERNETES, "CRDs", lambda: _crds(known))
    # Read first, as some rights are needed only where it asks for them.
    told = list(looking(_CONNECTION, "KafkaConnection", lambda: _connection(known)))
    yield from looking(_KUBERNETES, "rights in Kubernetes", lambda: _rights(known))
    yield from looking(_KUBERNETES, "Lease", lambda: _lease(known))
    yield from told
    connection = known.connection
    if connection is None:
        return
    yield from looking(_CONNECTION, "Secrets", lambda: _secrets(known, connection))
    yield from looking(_CONNECTION, "receivers", lambda: _receivers(known, connection))
    yield from looking(_KUBERNETES, _CLAIMS, lambda: _claims(known))
    yield ok(_CONNECTION, "role", _ROLES[connection.role])


def _server(known: Kubernetes) -> Iterator[Finding]:
    known.find()
    server = known.inspection.server()
    known.reached, known.ahead = True, server.ahead
    user = known.inspection.user()
    yield ok(_KUBERNETES, "API server", f"Kubernetes {server.version} answers" + (f"; you are {user}" if user else ""))
    apart = abs(server.ahead)
    text = f"that of the API server is {_apart(server.ahead)}"
    if apart > SKEW_MAX:
        yield failed(Area.CLOCK, "clock of the API server", text, "set the clock that is wrong: no date can be trusted")
    elif apart > _SKEW_SEEN:
        yield warning(Area.CLOCK, "clock of the API server", text, "let both follow the same time server")
    else:
        yield ok(Area.CLOCK, "clock of the API server", "agrees with the one here")


def _apart(ahead: timedelta) -> str:
    seconds = timedelta(seconds=round(abs(ahead).total_seconds()))
    return f"{format_duration(seconds)} {'ahead of' if ahead > timedelta() else 'behind'} the one here"


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
    """The fields of a CRD as the API server has it; empty = in another version; None = there is none.

    Users who may not read CRDs, as the operator, read the published schema, which has served versions alone.
    """
    try:
        installed = known.inspection.crd(PLURALS[kind])
    except Forbidden:
        published = known.inspection.schemas().get(kind)
        return None if published is None else fields_of_schema(published)
    return None if installed is None else fields_of(installed, VERSION)


def _rights(known: Kubernetes) -> Iterator[Finding]:
    account = known.account
    by_label = known.connection is not None and known.connection.selects_by_label
    asked = inspection.rights(known.namespace, account.namespace, LEASE, by_label)
    asked += inspection.claim_rights(known.api.claiming_kinds())
    # A person needs none of them: they are the operator's.
    person = not account.name and not known.inspection.user().startswith("system:serviceaccount:")
    who = f"ServiceAccount {account.name}" if account.name else "you"
    try:
        missing = [right for right in asked if not known.inspection.may(right, account.name)]
    except Forbidden:
        found = f"you may not ask what {who} may do"
        yield warning(_KUBERNETES, "rights in Kubernetes", found, "ask as somebody who may create subjectaccessreviews")
        return
    if not missing:
        yield ok(_KUBERNETES, "rights in Kubernetes", f"{who} may do all that the operator asks for")
        return
    effects = "; ".join(dict.fromkeys(right.what_for for right in missing))
    found = f"{who} may not {truncated_list(missing, _SHOWN)}: as the operator, {effects}"
    if person:
        yield warning(_KUBERNETES, "rights in Kubernetes", found, "to ask for the operator: --service-account")
    else:
        advice = (
            "apply the chart or the manifests again; Secrets: name the namespace in the chart's rbac.secretNamespaces, "
            "or bind the role for Secrets there (of the manifests: group-hygiene-secrets, docs/install.md); "
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
        yield warning(_KUBERNETES, "Lease", f"you may not read {where}", "ask somebody who may")
        return
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    advice = "look at the operator's pods and their logs (the runbook, GroupHygieneNoLeader)"
    if not holder or not renewed:
        yield failed(_KUBERNETES, "Lease", f"nobody holds {where}", advice)
        return
    age = known.now() - datetime.fromisoformat(renewed)
    told = f"{holder} holds {where}, renewed {max(0, round(age.total_seconds()))} s ago"
    if age > timedelta(seconds=int(spec.get("leaseDurationSeconds") or 0)) + _SKEW_SEEN:
        yield failed(_KUBERNETES, "Lease", f"{told}: it has run out, and nobody took over", advice)
    else:
        yield ok(_KUBERNETES, "Lease", told)


# The tables only decide for policies that ask for them, are looked at below, and by the operator not at each run.
_SAID = (
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
        yield failed(_CONNECTION, "KafkaConnection", f"you may not read {key}", "ask as somebody who may")
        return
    known.connection = parse_connection(known.obj)
    yield from _said(known, key)


def _said(known: Kubernetes, key: str) -> Iterator[Finding]:
    """What the operator wrote of it, when it looked last."""
    status = known.obj.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    if "Ready" not in conditions:
        found = f"{key} has not been seen by an operator yet"
        yield warning(_CONNECTION, "KafkaConnection", found, "is one running? See the Lease above")
        return
    if status.get("observedGeneration") != known.obj["metadata"].get("generation"):
        found = f"{key} was edited, and the operator has not looked since; before, it was {_words(conditions['Ready'])}"
        yield warning(_CONNECTION, "KafkaConnection", found, "look again soon; is one running? See the Lease above")
        return
    for kind, area, check, worse in _SAID:
        condition = conditions.get(kind)
        if condition is not None and condition["status"] != "True":
            when = f"since {condition['lastTransitionTime']}; last scan: {status.get('lastScanTime', 'none')}"
            advice = f"the runbook, {condition['reason']}; if that is mended already, look again after its next run"
            yield worse(area, check, f"{key}, says the operator: {_words(condition)} ({when})", advice)
        elif kind == "Ready":
            yield ok(area, check, f"{key}, says the operator: {_words(conditions[kind])}")


def _words(condition: Mapping[str, str]) -> str:
    return f"{condition['reason']}: {condition['message']}"


def _secrets(known: Kubernetes, connection: Connection) -> Iterator[Finding]:
    """Each that the connection names, so that one which is missing does not hide the next; none is shown."""
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
            yield failed(_CONNECTION, "Secret of the tables", f"{error.reason}: {error}", _mend(error))
    yield from (failed(_CONNECTION, "Secret", f"{error.reason}: {error}", _mend(error)) for error in problems)
    if problems:
        return
    known.settings = settings
    counted = (
        f"all {named} that the connection names are there, with their keys" if named else "the connection names none"
    )
    yield ok(_CONNECTION, "Secrets", counted)


_MENDED = {
    "SecretNotFound": "create it there, or correct its name in the object",
    "SecretKeyMissing": "add the key, or correct its name in the object",
    "SecretInvalid": "correct its value",
    "SecretForbidden": "name the namespace in the chart's rbac.secretNamespaces, or bind the role for Secrets there",
}


def _mend(error: HygieneError) -> str:
    runbook = f"the runbook, {error.reason}"
    return f"{_MENDED[error.reason]} ({runbook})" if error.reason in _MENDED else runbook


def _receivers(known: Kubernetes, connection: Connection) -> Iterator[Finding]:
    """Whether each could be spoken to, as far as Secrets and addresses tell; nothing is sent."""
    objects, problems = _listed_policies(known, connection)
    known.policies = list(_policies(objects, connection))
    for policy in known.policies:
        for name, receiver in receivers_of(connection, policy).items():
            if receiver is None:
                found = f"GroupPolicy {policy.key} names {name}, which the connection does not have"
                problems.append(failed(_CONNECTION, "receiver", found, "the runbook, ReceiverNotFound"))
    for receiver in connection.receivers:
        problems += _receiver(known, connection.namespace, receiver)
    yield from problems
    if not problems:
        many = len(connection.receivers)
        found = f"{many}, each with what it needs (nothing was sent)" if many else "there are none"
        yield ok(_CONNECTION, "receivers", found)


def _receiver(known: Kubernetes, namespace: str, receiver: Receiver) -> Iterable[Finding]:
    try:
        read_endpoint(receiver, partial(known.api.read_secret, namespace))
    except HygieneError as error:
        found = f"{receiver.name}: {error.reason}: {error}"
        return [failed(_CONNECTION, "receiver", found, _mend(error))]
    return []


def _listed_policies(known: Kubernetes, connection: Connection) -> tuple[list[Object], list[Finding]]:
    """The policies of all namespaces that may use the connection, and a warning if some of them can't be listed.

    An operator of some namespaces may not list those of others. Without `access` no other namespace may use it.
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
    for namespace in sorted({connection.namespace}.union(*(entry.names for entry in connection.access))):
        try:
            found += known.api_of(namespace).list_all(POLICIES)
        except ApiError as error:
            text = f"policies of namespace {namespace} can't be listed: {error}"
            problems.append(warning(_CONNECTION, "receivers", text, _ASK_OTHERS))
    return found, problems


def _policies(objects: Iterable[Object], connection: Connection) -> Iterator[Policy]:
    """Those that name the connection, and say what can be."""
    for obj in objects:
        if connection_of(obj) != (connection.namespace, connection.name):
            continue
        try:
            yield parse_policy(obj)
        except SpecError:
            # Its own condition says so.
            continue


def _claims(known: Kubernetes) -> Iterator[Finding]:
    try:
        claimed = known.api.claimed_groups()
    except ApiError as error:
        claimed = Refusal.of(error)
    if isinstance(claimed, Refusal):
        found = f"which groups they name is not known, so every group is kept: {claimed.message}"
        advice = "ask as somebody who may read them, or mend the object that is named"
        yield warning(_KUBERNETES, _CLAIMS, found, advice)
        return
    links = sorted({*claimed.synced.values(), *claimed.prefixes.values()})
    synced = f"; groups are synced by {truncated_list(links, _SHOWN)}" if links else ""
    yield ok(_KUBERNETES, _CLAIMS, f"name {len(claimed.named)} groups{synced}")
