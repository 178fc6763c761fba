"""Which objects a connection admits, and whether a run may still make a change for them. Reads only; no Kafka here.

A grant is known at the start of a run, and read again right before each change (see executor.Guard). An error in our
own code ends one piece of work, such as one policy's plan, and not that of others.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, ParamSpec, TypeVar

from group_hygiene.controller.api import KINDS, Api
from group_hygiene.controller.objects import Object, is_over, refuse_unusable
from group_hygiene.engine.restorable import RestoreRequest
from group_hygiene.errors import ApiError, HygieneError, LedgerProblem, NotFound, SpecError
from group_hygiene.model import reasons
from group_hygiene.model.group_keep import GroupKeep
from group_hygiene.model.reasons import Refusal
from group_hygiene.process.clock import Clock
from group_hygiene.spec.connection import (
    Connection,
    Grant,
    Right,
    admit_right,
    grant,
    parse_access_only,
    parse_connection,
)
from group_hygiene.spec.policy import Policy

log = logging.getLogger(__name__)

P = ParamSpec("P")
Result = TypeVar("Result")

# For so long labels of namespaces count as current when it is decided which policies run.
_LABELS_S = 30.0

S = TypeVar("S", Policy, RestoreRequest, GroupKeep)
R = TypeVar("R", RestoreRequest, GroupKeep)


def isolated(what: str, work: Callable[P, Result], *arguments: P.args, **named: P.kwargs) -> Result | Refusal:
    """The result of `work`; a Refusal after an error in our own code. what: the work's object, for the log.

    Raises HygieneError and MemoryError, which concern all work.
    """
    try:
        return work(*arguments, **named)
    except (HygieneError, MemoryError):
        raise
    except Exception as error:
        log.exception("%s: unexpected; trying again at its next run", what)
        return internal_error(error)


def tried(what: str, work: Callable[P, Result], *arguments: P.args, **named: P.kwargs) -> Result | Refusal:
    """As `isolated`; a Refusal also if the ledger can't be used, so that policies still run."""
    try:
        return isolated(what, work, *arguments, **named)
    except LedgerProblem as error:
        return Refusal.of(error)


def internal_error(error: Exception) -> Refusal:
    """The Refusal for an internal error. Its text may name objects of other tenants: only the log shows it."""
    if isinstance(error, MemoryError):
        return Refusal(reasons.MEMORY_EXHAUSTED, "the operator has too little memory for this run; it tries again")
    return Refusal(reasons.INTERNAL_ERROR, f"{type(error).__name__}: see the operator's log; it tries again")


@dataclass(frozen=True)
class Granted:
    """The grant of a connection to a namespace at the start of a run, by the namespace's labels at that time.

    is_certain: False = the labels matter and could not be read, or the namespace is gone: it may be wider.
    """

    connection: Connection
    namespace: str
    grant: Grant | None
    is_certain: bool = field(default=True, compare=False)


def parsed(obj: Object) -> tuple[Connection, SpecError | None]:
    """The connection; if its spec is not valid, what it grants, and why.

    The statuses of the policies and restores that it admits must show that it can't be used now.
    """
    try:
        refuse_unusable(obj)
        return parse_connection(obj), None
    except SpecError as error:
        return parse_access_only(obj), error


def read_grant(api: Api, connection: Connection, namespace: str) -> Granted:
    """The connection's current grant to the namespace. Reads its labels only if they matter. Raises ApiError."""
    labels = api.namespace_labels(namespace) if _labels_matter(connection, namespace) else {}
    return Granted(connection, namespace, grant(connection, namespace, labels), labels is not None)


def _labels_matter(connection: Connection, namespace: str) -> bool:
    return namespace != connection.namespace and connection.selects_by_label


class Grants:
    """The grants of connections, by labels that were read at most 30 s ago. Thread-safe. A Guard reads them again."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api, self._clock = api, clock
        # Namespace -> when its labels were read, and the labels; None = not readable.
        self._labels: dict[str, tuple[float, dict[str, str] | None]] = {}

    def are_possible(self, connection: Connection, namespace: str) -> bool:
        """Whether the connection may grant something to the namespace, by labels known now. Sends no request."""
        at, labels = self._labels.get(namespace, (-math.inf, None))
        is_unknown = connection.selects_by_label and self._clock.monotonic() - at >= _LABELS_S
        return is_unknown or grant(connection, namespace, labels) is not None

    def of(self, connection: Connection, namespace: str) -> Granted:
        """Raises ApiError."""
        labels: dict[str, str] | None = {}
        if _labels_matter(connection, namespace):
            now = self._clock.monotonic()
            at, labels = self._labels.get(namespace, (-math.inf, None))
            if now - at >= _LABELS_S:
                labels = self._api.namespace_labels(namespace)
                self._labels = {name: known for name, known in self._labels.items() if now - known[0] < _LABELS_S}
                self._labels[namespace] = now, labels
        return Granted(connection, namespace, grant(connection, namespace, labels), labels is not None)


@dataclass(frozen=True)
class ObjectGuard:
    """The guard of one run of a policy, or of one restore. stopping: set when the process must end.

    objects: plural and object of the policy or restore and of the connection, as they were at the start. granted: the
    connection's grant to the namespace of the policy or restore at the start. seconds_left: see executor.Guard.
    confirmed: called when nothing refuses.
    """

    api: Api
    seconds_left: Callable[[], float]
    stopping: threading.Event
    objects: tuple[tuple[str, Object], ...]
    granted: Granted
    confirmed: Callable[[], None] = lambda: None

    def refusal(self) -> Refusal | None:
        """Read the objects again: an edit, a deletion, changed labels or a stop of the operator end the run."""
        if self.stopping.is_set():
            return Refusal(reasons.STOPPING, "the operator is stopping")
        for plural, before in self.objects:
            if (change := read_change(self.api, plural, before)) is not None:
                return change
        namespace = self.granted.namespace
        try:
            now = read_grant(self.api, self.granted.connection, namespace)
        except ApiError as error:
            return Refusal(error.reason, f"the labels of namespace {namespace} could not be read again: {error}")
        if now != self.granted:
            message = (
                f"the labels of namespace {namespace} changed or became unreadable during the run: so did its grant"
            )
            return Refusal(reasons.POLICY_CHANGED, message)
        self.confirmed()
        return None


def read_change(api: Api, plural: str, before: Object) -> Refusal | None:
    """Read the object again: a Refusal if it was edited or deleted since it was as `before`, or can't be read.

    Also if an older CRD has dropped fields of it, or if a watch that began under an older CRD reported it without
    them: neither changes the generation.
    """
    name = before["metadata"]["name"]
    try:
        if problem := api.crd_problem(plural):
            return Refusal(reasons.CRD_OUTDATED, problem)
        obj: Object | None = api.get(plural, before["metadata"]["namespace"], name)
    except NotFound:
        obj = None
    except ApiError as error:
        return Refusal(error.reason, f"{KINDS[plural]} {name} could not be read again: {error}")
    if obj is None or _version(obj) != _version(before) or obj["metadata"].get("deletionTimestamp"):
        return Refusal(reasons.POLICY_CHANGED, f"{KINDS[plural]} {name} was edited or deleted during the run")
    return None


def _version(obj: Object) -> tuple[Any, ...]:
    """The edition of a spec, and whether a restore is over: its status may be older in the store."""
    return obj["metadata"]["uid"], int(obj["metadata"].get("generation") or 0), obj["spec"], is_over(obj)


@dataclass(frozen=True)
class Admitted(Generic[S]):
    """A policy, GroupRestore or GroupKeep that the connection admits. spec: narrowed to what its namespace may use."""

    obj: Object
    spec: S
    granted: Granted

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"]["uid"])

    @property
    def namespace(self) -> str:
        return str(self.obj["metadata"]["namespace"])

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.obj['metadata']['name']}"

    @property
    def status(self) -> Mapping[str, Any]:
        return self.obj.get("status") or {}


AdmittedPolicy = Admitted[Policy]


def admitted(granted: Granted, obj: Object, right: Right, parse: Callable[[Object], R]) -> Admitted[R] | Refusal:
    """A GroupRestore or GroupKeep, narrowed to the groups of the grant; a Refusal = it does not run."""
    patterns = None if granted.grant is None else granted.grant.groups(right)
    what, connection = "restore" if right is Right.RESTORE else "keep", granted.connection.key
    try:
        refuse_unusable(obj)
        admit_right(connection, granted.namespace, granted.grant, right)
        spec = isolated(f"a {what} of connection {connection}", parse, obj)
    except SpecError as error:
        return Refusal.of(error)
    if isinstance(spec, Refusal):
        return spec
    return Admitted(obj, spec if patterns is None else replace(spec, granted=patterns.matches), granted)
