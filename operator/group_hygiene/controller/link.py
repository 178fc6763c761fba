"""The open clients of one connection, and what it remembers between runs: object, Kafka client, ledger."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from group_hygiene.controller.api import Api
from group_hygiene.controller.objects import Object
from group_hygiene.engine import recovery
from group_hygiene.engine.context import Context, Memory, Observation
from group_hygiene.engine.pattern_notes import pattern_notes
from group_hygiene.errors import SecretProblem
from group_hygiene.evidence.reader import Tables, refused
from group_hygiene.kafka import client as kafka_client
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Claims
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.of_objects import ConnectionFacts, LedgerFacts
from group_hygiene.process.clock import Clock
from group_hygiene.process.memory import Intake, MemoryTurns
from group_hygiene.spec.client_settings import Settings, with_granted_hosts
from group_hygiene.spec.connection import Connection, cluster_of
from group_hygiene.spec.policy import Policy
from group_hygiene.spec.storage import Allowed

log = logging.getLogger(__name__)

# Scans of all connections share a reading of this age: objects of other teams must not delay each of them.
_CLAIMS_AGE_S = 30.0

_CONNECT_TIMEOUT_S = 10.0
# For all connections of this process. One slot, as two runs that find enough free memory at the same time would both
# use it; a run that holds the slot for 20 s yields to those that wait.
_turns = MemoryTurns(seconds=20.0)


class Link:
    """One connection. installation: the id of this operator in ledgers. `uid`: of the last read object; None = none."""

    def __init__(self, namespace: str, api: Api, installation: str, allowed: Allowed) -> None:
        self._namespace, self._api, self._installation = namespace, api, installation
        self._allowed = allowed
        self._open_tables: Tables | None = None
        self._client: kafka_client.Client | None = None
        self._features: tuple[str, ...] = ()
        self._intake = Intake(namespace, _turns)
        self.memory = Memory()
        self.uid: str | None = None
        # `clusterID` of the spec; and the cluster without it, by the status or an answer.
        self._pinned: str | None = None
        self._found_cluster: str | None = None

    def follow(self, obj: Object | None) -> None:
        """obj: the current KafkaConnection; None = there is none. Forgets an earlier one of that name."""
        uid = None if obj is None else obj["metadata"]["uid"]
        if uid != self.uid:
            self.uid = uid
            self.close()
            self.memory = Memory()
            self._pinned = self._found_cluster = None
        if obj is not None:
            self.memory.cluster_id = self._cluster(obj)

    def _cluster(self, obj: Object) -> str | None:
        """The id of the cluster that the connection must lead to. None = that of the first answer.

        The spec may be edited: a `clusterID` that is taken away binds no more, unless that cluster has answered.
        """
        if self._pinned is None or self._pinned == self.memory.answered_last:
            self._found_cluster = self.memory.cluster_id
        # The object that was read first may have lacked the status.
        self._found_cluster = self._found_cluster or cluster_of({"status": obj.get("status")})
        self._pinned = cluster_of({"spec": obj["spec"]})
        return self._pinned or self._found_cluster

    def connect(self, connection: Connection) -> kafka_client.Client:
        """The client; a new one if settings changed. Reads Secrets each time, so the next run uses a changed one."""
        settings: Settings = connection.settings(lambda ref: self._api.read_secret(connection.namespace, ref))
        settings = with_granted_hosts(settings, connection.namespace, self._allowed.brokers)
        if self._client is not None and self._client.settings != settings:
            self.close()
        if self._client is None:
            timeout = min(_CONNECT_TIMEOUT_S, settings.timeout.total_seconds())
            self._client = kafka_client.connect(settings, timeout, self._allowed.egress, self._intake)
            self._features = ()
        return self._client

    def open_context(
        self,
        connection_obj: Object,
        connection: Connection,
        clock: Clock,
        need: recovery.LedgerNeed,
        policies: Sequence[str],
    ) -> Context:
        """The context of a run, with the client that `connect` made and the ledger read to its end.

        policies: uids of the active policies.
        """
        if self._client is None:
            raise RuntimeError("connect must be called before open_context")
        settings = recovery.ledger_settings(connection, connection_obj.get("status") or {}, self._installation)
        deadline = kafka_client.Deadline(connection.timeout.total_seconds())
        journal = recovery.open_journal(self.memory, self._client, settings, need, policies, deadline)
        return Context(
            client=self._client,
            connection=connection,
            memory=self.memory,
            clock=clock,
            journal=journal,
            claims=self._claims,
            recent_claims=partial(self._claims, _CLAIMS_AGE_S),
            tables=self.tables(connection),
        )

    def tables(self, connection: Connection) -> Tables | Refusal | None:
        """The pipeline's tables, opened again only after a change of the spec or the Secret.

        None = the connection names none, a Refusal = they can't be read. A Secret that can't be read concerns only the
        policies that need evidence from the tables.
        """
        spec = connection.activity
        if spec is None:
            return None
        why = refused(spec, connection.namespace, self._allowed)
        if why is not None:
            return why
        try:
            store = spec.store(partial(self._api.read_secret_texts, connection.namespace))
        except SecretProblem as error:
            return Refusal(reasons.EVIDENCE_UNREADABLE, str(error))
        if self._open_tables is None or not self._open_tables.same(spec, store):
            self._open_tables = Tables(spec, store, self._allowed.egress, connection.namespace)
        return self._open_tables

    def journal(self) -> Journal:
        """A journal of the ledger, for the last entries after the runs. A run that failed has closed the ledger."""
        memory = self.memory
        problem = None if memory.claimed else Refusal(reasons.LEDGER_UNAVAILABLE, "the ledger is closed")
        return Journal(memory.ledger, memory.contents, memory.unwritten, memory.claimed, problem)

    def end_run(self) -> None:
        """Release the memory for the responses that a run has read."""
        self._intake.end()

    def close(self) -> None:
        """Close the client and the ledger; the next `connect` opens them again."""
        self.memory.close_ledger()
        # It reads by the client.
        self.memory.tail = None
        if self._client is not None:
            self._client.close()
            self._client = None

    def forget(self) -> None:
        """Close the clients and forget what was remembered, to free memory. The loss only delays deletions."""
        self.close()
        known = self.memory
        self.memory = Memory(cluster_id=known.cluster_id, ledger_topic=known.ledger_topic, ledger_id=known.ledger_id)

    def facts(
        self, context: Context, observation: Observation, full: bool, policies: Sequence[Policy]
    ) -> ConnectionFacts:
        """The facts for the connection's status after a scan. policies: all that it admits.

        full: whether to read the brokers' features again, and to compare patterns with all groups.
        """
        if full or not self._features:
            self._features = kafka_cluster.features(context.client)
        connection, changed = context.connection, observation.conditions.other_cluster
        groups = observation.all_groups if changed is None else None
        compared = full and groups is not None and observation.snapshot.complete
        journal, contents, ledger = context.journal, context.journal.contents, None
        if journal.exists or journal.problem is not None:
            # Else there is no ledger, and no policy needs one.
            hidden = Refusal(reasons.RECORD_UNREADABLE, contents.hidden_summary) if contents.hidden else None
            ledger = LedgerFacts(
                connection.ledger.topic,
                contents.owner.ledger if contents.owner else None,
                contents.unreadable,
                journal.problem or hidden,
                recovery.few_replicas(context.memory.ledger, connection),
            )
        return ConnectionFacts(
            snapshot=observation.snapshot,
            features=self._features,
            retention=context.memory.retention,
            all_groups=groups,
            problem=changed,
            ledger=ledger,
            has_activity=connection.activity is not None,
            attests=connection.topics_attested,
            topics=observation.topics if changed is None else None,
            patterns=pattern_notes(connection, policies, groups or ()) if compared else None,
        )

    def _claims(self, age: float = 0.0) -> Claims | Refusal:
        """See `Context`. If the API server does not answer, any group may be claimed."""
        found = self._api.claimed_groups(age)
        if isinstance(found, Refusal):
            log.warning("the groups that Kubernetes objects name are not known: %s", found.message)
        return found
