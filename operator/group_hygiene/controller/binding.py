"""Which policies belong to a connection and which of them it lets in; the others get their status. Knows no Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from group_hygiene import reasons, reconcile, status
from group_hygiene.connection import Connection, admit, nothing_granted
from group_hygiene.controller.api import POLICIES, Api, Object, connection_of
from group_hygiene.controller.guarding import Granted, read_grant
from group_hygiene.controller.telling import Teller
from group_hygiene.errors import HygieneError, SpecError
from group_hygiene.policy import Policy, parse_policy
from group_hygiene.status import Problem


@dataclass
class Bound:
    """A policy of this connection, as listed in this run. granted: None until the connection was asked."""

    obj: Object
    policy: Policy
    granted: Granted | None = None

    @property
    def status(self) -> Mapping[str, Any]:
        return self.obj.get("status") or {}


class Binding:
    """The policies that name one connection."""

    def __init__(self, api: Api, teller: Teller, clock: reconcile.Clock, namespace: str, name: str) -> None:
        """namespace, name: of the connection, whether there is one or not."""
        self._api, self._teller, self._clock = api, teller, clock
        self._namespace, self._name = namespace, name

    def bind(self, objects: Sequence[Object]) -> list[Bound]:
        """The policies that refer to this connection; those that never may get their status here, and are left out."""
        bound: list[Bound] = []
        for obj in objects:
            if connection_of(obj) != (self._namespace, self._name):
                continue
            try:
                policy = parse_policy(obj)
            except SpecError as error:
                self._teller.problem(POLICIES, obj, Problem(reasons.INVALID_SPEC, str(error), stalled=True))
                continue
            bound.append(Bound(obj, policy))
        return bound

    def active(self, connection: Connection, bound: Sequence[Bound]) -> list[Bound]:
        """Those that the connection lets in, each narrowed to what it grants, and that are not suspended."""
        return self._settle_suspended(self._admit(connection, bound))

    def _admit(self, connection: Connection, bound: Sequence[Bound]) -> list[Bound]:
        admitted: list[Bound] = []
        for entry in bound:
            granted = read_grant(self._api, connection, entry.policy.namespace)
            try:
                admitted.append(Bound(entry.obj, admit(connection, entry.policy, granted.grant), granted))
            except SpecError as error:
                # Not stalled: an edit of the connection helps as well as one of the policy.
                self._teller.problem(POLICIES, entry.obj, Problem(error.reason, str(error)))
        return admitted

    def _settle_suspended(self, bound: Sequence[Bound]) -> list[Bound]:
        for entry in bound:
            if entry.policy.suspend:
                now = self._clock.now()
                new = status.build_suspended_status(entry.policy.generation, entry.status, now)
                self._teller.tell(POLICIES, entry.obj, new)
        return [entry for entry in bound if not entry.policy.suspend]

    def tell(self, bound: Sequence[Bound], problem: Problem) -> None:
        for entry in bound:
            self._teller.problem(POLICIES, entry.obj, problem)

    def tell_missing(self, bound: Sequence[Bound]) -> None:
        """There is no such connection; to other namespaces that is no other news than one that grants them nothing."""
        for entry in bound:
            if entry.policy.namespace == self._namespace:
                problem = Problem(
                    reasons.CONNECTION_NOT_FOUND, f"there is no KafkaConnection {self._namespace}/{self._name} (yet)"
                )
            else:
                message = nothing_granted(f"{self._namespace}/{self._name}", entry.policy.namespace)
                problem = Problem(reasons.CROSS_NAMESPACE, message)
            self._teller.problem(POLICIES, entry.obj, problem)

    def tell_not_ready(self, bound: Sequence[Bound], error: HygieneError) -> None:
        """The connection can't be used now, for this error."""
        key = f"{self._namespace}/{self._name}"
        for entry in bound:
            self._teller.problem(POLICIES, entry.obj, status.connection_not_ready(error, entry.policy.namespace, key))
