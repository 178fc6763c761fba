"""What one connection has open and remembers between runs: its object, its client of Kafka, its ledger."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from group_hygiene import reasons, reconcile, status
from group_hygiene.connection import Connection, Settings
from group_hygiene.controller.api import CONNECTIONS, Api, Object
from group_hygiene.controller.evidence import Source
from group_hygiene.errors import ApiError, NotFound
from group_hygiene.kafka import client as kafka_client
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.memory import Intake, Turns
from group_hygiene.model import Claims, Fault
from group_hygiene.snapshot import Cluster
from group_hygiene.status import Problem
from group_hygiene.storage import Allowed

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 10.0
# For all connections of this process. One slot, as two runs that find enough memory left at the same time would take it
# twice; whoever has it for 20 s gives way to those who wait.
_turns = Turns(seconds=20.0)


class Link:
    """Of one connection. installation: who we are to the ledgers. `uid`: of its object as last read, None = none."""

    def __init__(self, namespace: str, name: str, api: Api, installation: str, allowed: Allowed) -> None:
        self._namespace, self._name, self._api, self._installation = namespace, name, api, installation
        self._evidence, self._egress = Source(api, allowed), allowed.egress
        self._client: kafka_client.Client | None = None
        self._features: tuple[str, ...] = ()
        self._intake = Intake(namespace, _turns)
        self.memory = reconcile.Memory()
        self.uid: str | None = None

    def read_object(self) -> Object | None:
        """The KafkaConnection as it is now; None = there is none, and what was learnt of one is forgotten."""
        try:
            obj = self._api.get(CONNECTIONS, self._namespace, self._name)
        except NotFound:
            self.close()
            self.uid = None
            return None
        if obj["metadata"]["uid"] != self.uid:
            # Another object of that name: nothing that was learnt about the old one holds.
            self.uid = obj["metadata"]["uid"]
            self.close()
            self.memory = reconcile.Memory(cluster_id=(obj.get("status") or {}).get("clusterId"))
        return obj

    def connect(self, connection: Connection) -> kafka_client.Client:
        """Make or keep the client. Secrets are read each time, so a changed one takes effect at the next run."""
        settings: Settings = connection.settings(lambda ref: self._api.read_secret(connection.namespace, ref))
        if self._client is not None and self._client.settings != settings:
            self.close()
        if self._client is None:
            timeout = min(_CONNECT_TIMEOUT_S, settings.timeout.total_seconds())
            self._client = kafka_client.connect(settings, timeout, self._egress, self._intake)
            self._features = ()
        return self._client

    def open_context(
        self,
        connection_obj: Object,
        connection: Connection,
        clock: reconcile.Clock,
        need: reconcile.Need,
        policies: Sequence[str],
    ) -> reconcile.Context:
        """Whom a run talks to, over the client that `connect` made, with the ledger read to its end.

        policies: uids of those that are active.
        """
        if self._client is None:
            raise RuntimeError("a context needs a client")
        settings = reconcile.ledger_settings(connection, connection_obj.get("status") or {}, self._installation)
        deadline = kafka_client.Deadline(connection.timeout.total_seconds())
        journal = reconcile.open_journal(self.memory, self._client, settings, need, policies, deadline)
        who = self._client, connection, self.memory, clock, journal
        return reconcile.Context(*who, claims=self._claims, tables=self._evidence.tables(connection))

    def journal(self) -> reconcile.Journal:
        """Of what is open, for a last note after the runs."""
        memory = self.memory
        return reconcile.Journal(memory.ledger, memory.contents, memory.unwritten, writable=memory.claimed)

    def end_run(self) -> None:
        """When what a run took in is needed no more."""
        self._intake.end()

    def close(self) -> None:
        """End what is open; the next `connect` begins anew."""
        self.memory.close_ledger()
        if self._client is not None:
            self._client.close()
            self._client = None

    def forget(self) -> None:
        """As if the process had just begun: what is remembered takes memory, and its loss only delays."""
        self.close()
        self.memory = reconcile.Memory(cluster_id=self.memory.cluster_id)

    def features(self, context: reconcile.Context, anew: bool) -> tuple[str, ...]:
        """What the brokers can do; asked once, and again when `anew`."""
        if anew or not self._features:
            self._features = kafka_cluster.features(context.client)
        return self._features

    def identity_problem(self, cluster: Cluster) -> Problem | None:
        """Why the cluster that answers may not be the one that is meant."""
        known = self.memory.cluster_id
        if known is None or known == cluster.id:
            return None
        message = (
            f"bootstrapServers led to cluster {known} and now lead to {cluster.id}: nothing is deleted. "
            f"If that is right, delete this KafkaConnection and apply it again"
        )
        return Problem(reasons.CLUSTER_CHANGED, message, stalled=True)

    def _claims(self) -> Claims | Fault:
        """See reconcile.Context; unknown, and so everybody's, when the API server does not tell."""
        try:
            found = self._api.claimed_groups()
        except ApiError as error:
            found = Fault("API_SERVER_ERROR", str(error))
        if isinstance(found, Fault):
            log.warning("which groups Kubernetes objects name is not known: %s", found.message)
        return found


def ledger_facts(journal: reconcile.Journal, topic: str) -> status.LedgerFacts | None:
    """What a status shows of the ledger; None = there is none, and nobody needs one."""
    if not journal.exists and journal.problem is None:
        return None
    owner = journal.contents.owner
    return status.LedgerFacts(topic, owner.ledger if owner else None, journal.contents.unreadable, journal.problem)
