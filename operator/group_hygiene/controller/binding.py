"""Finds the policies of a connection and those that it admits. No Kafka here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from group_hygiene.controller.guard import Granted
from group_hygiene.controller.isolation import isolated
from group_hygiene.controller.objects import POLICIES, Object, key_of, refuse_unusable
from group_hygiene.controller.services import Services
from group_hygiene.errors import SpecError
from group_hygiene.model.refusal import Refusal
from group_hygiene.spec.connection import Connection, admit
from group_hygiene.spec.policy import Policy, parse_policy


@dataclass
class Bound:
    """A policy of this connection, as listed in this run."""

    obj: Object
    policy: Policy

    @property
    def status(self) -> Mapping[str, Any]:
        return self.obj.get("status") or {}


@dataclass
class Admitted(Bound):
    """A policy that the connection admits, narrowed to what it grants."""

    granted: Granted


def bind(services: Services, connection: Connection) -> tuple[list[Policy], list[Admitted]]:
    """The valid policies of namespaces to which the connection grants something; and those of them that it admits and
    that are not suspended. The others of namespaces without a grant cost no more than their names.
    """
    bound, active = list[Policy](), list[Admitted]()
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
