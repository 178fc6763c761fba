"""Finds the objects that name a connection, and those that it admits. No Kafka here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from group_hygiene.controller.guard import Granted
from group_hygiene.controller.isolation import isolated
from group_hygiene.controller.objects import POLICIES, Object, key_of, refuse_unusable
from group_hygiene.controller.services import Services
from group_hygiene.errors import SpecError
from group_hygiene.model.group_keep import GroupKeep
from group_hygiene.model.reasons import Refusal
from group_hygiene.restore.restorable import RestoreRequest
from group_hygiene.spec.connection import Connection, Right, admit, admit_right
from group_hygiene.spec.policy import Policy, parse_policy

S = TypeVar("S", Policy, RestoreRequest, GroupKeep)
R = TypeVar("R", RestoreRequest, GroupKeep)


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


def bind(services: Services, connection: Connection) -> tuple[list[Policy], list[AdmittedPolicy]]:
    """The valid policies of namespaces to which the connection grants something; and those of them that it admits and
    that are not suspended. The others of namespaces without a grant cost no more than their names.
    """
    bound, active = list[Policy](), list[AdmittedPolicy]()
    for obj in services.granted(POLICIES, connection):
        admitted = None
        with suppress(SpecError):
            refuse_unusable(obj)
            policy = isolated("policy {namespace}/{name}".format(**obj["metadata"]), parse_policy, obj)
            if not isinstance(policy, Refusal):
                bound.append(policy)
                granted = services.grants.of(connection, policy.namespace)
                admitted = admit(connection, policy, granted.grant)
        if admitted is None or admitted.suspend:
            services.unserved.skip(POLICIES, key_of(obj))
        else:
            active.append(Admitted(obj, admitted, granted))
    return bound, active


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
