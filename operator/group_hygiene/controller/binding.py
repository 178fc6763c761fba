"""Finds the policies of a connection and those that it admits. No Kafka here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from group_hygiene import status
from group_hygiene.controller.guard import Granted
from group_hygiene.controller.isolation import isolated
from group_hygiene.controller.objects import POLICIES, Object, key_of, refuse_unusable
from group_hygiene.controller.services import Services
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.errors import HygieneError, SpecError
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


class Binding:
    """The policies that name one connection."""

    def __init__(self, services: Services, writer: StatusWriter, namespace: str, name: str) -> None:
        """namespace, name: of the connection."""
        self._services, self._writer = services, writer
        self._namespace, self._name = namespace, name

    def bind(self, connection: Connection) -> list[Bound]:
        """The policies that refer to this connection, without those that can't be used, and those of namespaces to
        which it grants nothing: these cost no more than their names.
        """
        bound: list[Bound] = []
        for obj in self._services.granted(POLICIES, connection):
            try:
                refuse_unusable(obj)
                policy = isolated("policy {namespace}/{name}".format(**obj["metadata"]), parse_policy, obj)
            except SpecError as error:
                policy = Refusal.of(error)
            if isinstance(policy, Refusal):
                self._services.unserved.skip(POLICIES, key_of(obj))
            else:
                bound.append(Bound(obj, policy))
        return bound

    def active(self, connection: Connection, bound: Sequence[Bound]) -> list[Admitted]:
        """The policies that the connection admits and that are not suspended."""
        active: list[Admitted] = []
        for entry in bound:
            granted = self._services.grants.of(connection, entry.policy.namespace)
            try:
                policy = admit(connection, entry.policy, granted.grant)
            except SpecError:
                policy = None
            if policy is None or policy.suspend:
                self._services.unserved.skip(POLICIES, key_of(entry.obj))
            else:
                active.append(Admitted(entry.obj, policy, granted))
        return active

    def report(self, bound: Sequence[Bound], problem: Refusal) -> None:
        for entry in bound:
            self._writer.write_problem(POLICIES, entry.obj, problem)

    def report_not_ready(self, bound: Sequence[Bound], error: HygieneError) -> None:
        """Report that this error prevents use of the connection."""
        key = f"{self._namespace}/{self._name}"
        for entry in bound:
            self._writer.write_problem(
                POLICIES, entry.obj, status.connection_not_ready(error, entry.policy.namespace, key)
            )
