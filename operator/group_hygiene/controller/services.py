"""Services that the loops of all connections share, and the threads in which these run.

Each namespace has a share of the threads, so that one that hangs does not take all.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from group_hygiene.controller.admission import Admitted, AdmittedPolicy, Granted, Grants, ObjectGuard, isolated
from group_hygiene.controller.api import Api
from group_hygiene.controller.leader import Candidate
from group_hygiene.controller.objects import CONNECTIONS, POLICIES, Object, Objects, key_of, refuse_unusable
from group_hygiene.controller.statuses import Recorder, StatusWriter, Unserved
from group_hygiene.errors import SpecError
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.metrics import Metrics
from group_hygiene.process.clock import Clock, SystemClock
from group_hygiene.process.egress import Egress
from group_hygiene.spec.connection import Connection, admit
from group_hygiene.spec.policy import Policy, parse_policy
from group_hygiene.spec.storage import Allowed

T = TypeVar("T")

# A thread is created when it is needed. A namespace whose endpoints all hang occupies only its share; 32 such
# namespaces occupy all threads. More threads would exhaust the memory and the process ids of the pod instead.
_SHARE, _ALL = 64, 2_048


class Workers:
    """Runs work in `threads`, at most `share` of them at the same time for one namespace. For one event loop only."""

    def __init__(self, share: int = _SHARE, threads: int = _ALL) -> None:
        self._share = share
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="round")
        self._shares: dict[str, asyncio.Semaphore] = {}

    async def run(self, namespace: str, work: Callable[[], T]) -> T:
        """Run `work` as soon as the namespace's share allows it; returns its result, or raises its error."""
        # One semaphore for each namespace that has a connection.
        share = self._shares.setdefault(namespace, asyncio.Semaphore(self._share))
        async with share:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def stop(self) -> None:
        """Start no more work; do not wait for running work."""
        self._executor.shutdown(wait=False, cancel_futures=True)


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
    leadership: Candidate
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

    def bind(self, connection: Connection) -> tuple[list[Policy], list[AdmittedPolicy]]:
        """The valid policies of namespaces to which the connection grants something; and those of them that it admits
        and that are not suspended. The others of namespaces without a grant cost no more than their names.
        """
        bound, active = list[Policy](), list[AdmittedPolicy]()
        for obj in self.granted(POLICIES, connection):
            admitted = None
            with suppress(SpecError):
                refuse_unusable(obj)
                policy = isolated("policy {namespace}/{name}".format(**obj["metadata"]), parse_policy, obj)
                if not isinstance(policy, Refusal):
                    bound.append(policy)
                    granted = self.grants.of(connection, policy.namespace)
                    admitted = admit(connection, policy, granted.grant)
            if admitted is None or admitted.suspend:
                self.unserved.skip(POLICIES, key_of(obj))
            else:
                active.append(Admitted(obj, admitted, granted))
        return bound, active

    def guard(self, plural: str, obj: Object, connection: Object, granted: Granted) -> ObjectGuard:
        """The guard of one run of a policy, or of one restore. plural, obj: of the policy or restore."""
        objects = ((plural, obj), (CONNECTIONS, connection))
        left, made = self.leadership.seconds_left, self.progress.made
        return ObjectGuard(self.api, left, self.stopping, objects, granted, made)
