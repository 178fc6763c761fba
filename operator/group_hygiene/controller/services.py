"""Services that the loops of all connections share."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from group_hygiene.controller.api import Api
from group_hygiene.controller.guard import Granted, Grants, Leadership, ObjectGuard
from group_hygiene.controller.objects import CONNECTIONS, Object, Objects
from group_hygiene.controller.recorder import Recorder
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.controller.unserved import Unserved
from group_hygiene.controller.workers import Workers
from group_hygiene.network.egress import Egress
from group_hygiene.process.clock import Clock, SystemClock
from group_hygiene.spec.connection import Connection
from group_hygiene.spec.storage import Allowed
from group_hygiene.telemetry.metrics import Metrics


class Lease(Leadership, Protocol):
    """The Lease that makes one process the leader. namespace: the Lease's; each release has another."""

    namespace: str

    def is_confirmed(self) -> bool:
        """Whether this process still holds the Lease, read again from the API server. Raises ApiError."""

    def other_leads(self, namespace: str) -> bool:
        """Whether a process of the release with its Lease in that namespace leads. Raises ApiError."""


class RoundProgress:
    """When the work on connections last made progress."""

    def __init__(self) -> None:
        self.at = time.monotonic()

    def made(self) -> None:
        """A round ended with or without an answer of Kafka, or the API server confirmed a change before it was made."""
        self.at = time.monotonic()


@dataclass(frozen=True)
class Services:
    """installation: the id under which this installation writes ledgers. stopping: set when the process must end.

    activity: where a pipeline's tables may be. egress: where messages may be sent.
    """

    api: Api
    objects: Objects
    grants: Grants
    unserved: Unserved
    recorder: Recorder
    metrics: Metrics
    workers: Workers
    leadership: Lease
    installation: str
    clock: Clock = field(default_factory=SystemClock)
    stopping: threading.Event = field(default_factory=threading.Event)
    activity: Allowed = field(default_factory=Allowed)
    egress: Egress = field(default_factory=Egress)
    progress: RoundProgress = field(default_factory=RoundProgress)

    def status_writer(self) -> StatusWriter:
        """A writer for one loop."""
        of = self.leadership.namespace
        return StatusWriter(self.api, self.objects, self.recorder, self.metrics, self.clock, of)

    def leads(self) -> bool:
        return self.leadership.seconds_left() > 0

    def may_send(self) -> bool:
        """Whether this process may send messages to receivers."""
        return self.leads() and not self.stopping.is_set()

    def granted(self, plural: str, connection: Connection) -> list[Object]:
        """The policies or restores that name this connection, of namespaces to which it grants something.

        Others are not even decoded: they cost the loop of a connection no more than their names.
        """
        found: list[Object] = []
        for key in self.objects.naming(plural, connection.namespace, connection.name):
            if self.grants.of(connection, key[0]).grant is None:
                self.unserved.skip(plural, key)
            elif (obj := self.objects.get(plural, *key)) is not None:
                found.append(obj)
        return found

    def guard(self, plural: str, obj: Object, connection: Object, granted: Granted) -> ObjectGuard:
        """The guard of one run of a policy, or of one restore. plural, obj: of the policy or restore."""
        objects = ((plural, obj), (CONNECTIONS, connection))
        return ObjectGuard(self.api, self.leadership, self.stopping, objects, granted, self.progress.made)
