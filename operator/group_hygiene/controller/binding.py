"""Finds the policies of a connection and those that it admits; writes the status of the others. No Kafka here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from group_hygiene import status
from group_hygiene.controller.api import POLICIES, Api, connection_of, refuse_terminating
from group_hygiene.controller.guard import Granted, read_grant
from group_hygiene.controller.isolation import isolated
from group_hygiene.controller.objects import Object
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.errors import HygieneError, SpecError
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.process.clock import Clock
from group_hygiene.spec.connection import Connection, admit, nothing_granted
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

    def __init__(self, api: Api, writer: StatusWriter, clock: Clock, namespace: str, name: str) -> None:
        """namespace, name: of the connection, which need not exist."""
        self._api, self._writer, self._clock = api, writer, clock
        self._namespace, self._name = namespace, name

    def bind(self, objects: Sequence[Object]) -> list[Bound]:
        """The policies that refer to this connection. Leaves out invalid ones, and those that are being deleted, and
        writes their status.
        """
        bound: list[Bound] = []
        for obj in objects:
            if connection_of(obj) != (self._namespace, self._name):
                continue
            try:
                refuse_terminating(obj)
                policy = isolated("policy {namespace}/{name}".format(**obj["metadata"]), parse_policy, obj)
            except SpecError as error:
                policy = Refusal.of(error)
            if isinstance(policy, Refusal):
                self._writer.write_problem(POLICIES, obj, policy, is_active=False)
            else:
                bound.append(Bound(obj, policy))
        return bound

    def active(self, connection: Connection, bound: Sequence[Bound]) -> list[Admitted]:
        """The policies that the connection admits and that are not suspended. Writes the status of the others."""
        active: list[Admitted] = []
        for entry in bound:
            granted = read_grant(self._api, connection, entry.policy.namespace)
            try:
                policy = admit(connection, entry.policy, granted.grant)
            except SpecError as error:
                # Not stalled: an edit of the connection can help, not only one of the policy.
                self._writer.write_problem(POLICIES, entry.obj, Refusal.of(error), is_active=False)
                continue
            if policy.suspend:
                new = status.build_suspended_status(policy.generation, entry.status, self._clock.now())
                self._writer.write(POLICIES, entry.obj, new)
            else:
                active.append(Admitted(entry.obj, policy, granted))
        return active

    def report(self, bound: Sequence[Bound], problem: Refusal) -> None:
        for entry in bound:
            self._writer.write_problem(POLICIES, entry.obj, problem)

    def report_missing(self, bound: Sequence[Bound]) -> None:
        """Report that the connection does not exist. Other namespaces see the same as if it granted them nothing."""
        for entry in bound:
            if entry.policy.namespace == self._namespace:
                problem = Refusal(
                    reasons.CONNECTION_NOT_FOUND, f"there is no KafkaConnection {self._namespace}/{self._name} (yet)"
                )
            else:
                message = nothing_granted(f"{self._namespace}/{self._name}", entry.policy.namespace)
                problem = Refusal(reasons.CROSS_NAMESPACE, message)
            self._writer.write_problem(POLICIES, entry.obj, problem, is_active=False)

    def report_not_ready(self, bound: Sequence[Bound], error: HygieneError) -> None:
        """Report that this error prevents use of the connection."""
        key = f"{self._namespace}/{self._name}"
        for entry in bound:
            self._writer.write_problem(
                POLICIES, entry.obj, status.connection_not_ready(error, entry.policy.namespace, key)
            )
