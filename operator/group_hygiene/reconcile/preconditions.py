"""What must hold before Kafka is changed, as data: the operator's runs, every command and `doctor` use this one list.

A proof answers None, or why nothing may be changed. It reads only, except that proving `ledger-read` opens the ledger.
To add one: `docs/adding-things.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import transactions
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.ledger.journal import Journal
from group_hygiene.ledger.settings import LedgerSettings
from group_hygiene.model import reasons
from group_hygiene.model.groups import Fault
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Snapshot
from group_hygiene.process.clock import Clock
from group_hygiene.reconcile.context import Memory
from group_hygiene.reconcile.uses import grown_refusal

T = TypeVar("T")

# The time for an admin request to reach the broker: nothing is sent if less is left.
MARGIN_S = 1.0
NOT_LEADER = Refusal(reasons.NOT_LEADER, "this process does not lead any more, or not for long enough")


class Guard(Protocol):
    """Asked right before each change of Kafka."""

    def refusal(self) -> Refusal | None:
        """Why the run must end here: the policy or connection was edited, or the operator stops. None = continue."""

    def seconds_left(self) -> float:
        """For how long this process is certainly the only one that acts; 0 = not any more."""


class Moment(Enum):
    """When a precondition is proved."""

    OPENING = "for each run, before its ledger is opened"
    OPENED = "for each run, when its ledger is open"
    SCAN = "for each run that deletes, at the end of its scan"
    DELETION = "right before each request that deletes"
    REQUEST = "right before each request that changes something, and each request to keep a group"
    SENDING = "again after the last read before a deletion; needs no request"


@dataclass(kw_only=True)
class Case:
    """What proofs read. Of the optional fields, each moment has those that its preconditions need.

    memory: of the connection, with the ledger that is open. settings: of the ledger that the spec names. writes:
    whether the run may write the ledger. journal, clock, snapshot: of the run. topics: whether all topics are visible,
    as `Observation.topics`; None = not checked. guard: of the change; None = it changes only the ledger.
    """

    client: Client
    memory: Memory
    deadline: Deadline
    settings: LedgerSettings | None = None
    writes: bool = False
    journal: Journal | None = None
    clock: Clock | None = None
    snapshot: Snapshot | None = None
    topics: Refusal | None = None
    guard: Guard | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """protects: from which harm. proof: how it is proved. lasts: how long the proof is relied on. unknown: what happens
    if it can't be read. reasons: of its refusals. right: the permission that the proof needs; "" = none.
    """

    name: str
    protects: str
    proof: str
    lasts: str = "one run"
    unknown: str = "nothing is deleted"
    reasons: tuple[str, ...]
    right: str = ""
    moments: tuple[Moment, ...]
    prove: Callable[[Case], Refusal | None]


def refusals(case: Case, *moments: Moment) -> Iterator[Refusal]:
    """The refusals of the preconditions of these moments, in order, each proved when it is asked for."""
    for precondition in PRECONDITIONS:
        if set(moments).intersection(precondition.moments) and (refusal := precondition.prove(case)) is not None:
            yield refusal


def _cluster(case: Case) -> Refusal | None:
    known, found = case.memory.cluster_id, kafka_cluster.read_identity(case.client, case.deadline)
    if isinstance(found, Fault):
        return Refusal(reasons.LEDGER_UNAVAILABLE, f"the id of the cluster could not be read: {found}")
    if known in (None, found.id):
        return None
    message = f"bootstrapServers led to cluster {known} and now lead to {found.id}: nothing is changed there"
    return Refusal(reasons.CLUSTER_CHANGED, message)


def _ledger_topic(case: Case) -> Refusal | None:
    settings = _given(case.settings)
    known = case.memory.ledger_topic or settings.known_topic
    if known in (None, settings.topic):
        return None
    message = (
        f"the ledger is in the topic {known}, and spec.ledger.topic names {settings.topic}: set it back to {known}. "
        "A ledger does not move: marks, backups and requests to keep a group would be lost"
    )
    return Refusal(reasons.LEDGER_CHANGED, message)


def _transactions(case: Case) -> Refusal | None:
    if not case.writes:
        return None
    settings, cluster = _given(case.settings), kafka_cluster.read_identity(case.client, case.deadline)
    if isinstance(cluster, Fault):
        return Refusal(reasons.LEDGER_UNAVAILABLE, f"the brokers could not be read: {cluster}")
    writer, timeout = settings.writer, settings.transaction_timeout
    problem = transactions.problem(case.client, cluster, writer, timeout, case.deadline)
    if problem is None:
        return None
    return Refusal(reasons.LEDGER_UNAVAILABLE, f"the ledger can't be written: {problem.message}")


def _ledger_settings(case: Case) -> Refusal | None:
    return _tried(_given(case.memory.ledger).check_settings, case.deadline)


def _ledger_read(case: Case) -> Refusal | None:
    return _tried(_given(case.memory.ledger).read_on, case.deadline)


def _tried(read: Callable[[Deadline], None], deadline: Deadline) -> Refusal | None:
    try:
        read(deadline)
    except LedgerProblem as error:
        return Refusal.of(error)
    return None


def _ledger_records(case: Case) -> Refusal | None:
    hidden = _given(case.journal).contents.hidden_summary
    return Refusal(reasons.RECORD_UNREADABLE, hidden) if hidden else None


def _complete(case: Case) -> Refusal | None:
    snapshot = _given(case.snapshot)
    return None if snapshot.complete else snapshot.refusal


def _partitions_used(case: Case) -> Refusal | None:
    return grown_refusal(case.memory.grown)


def _topics_visible(case: Case) -> Refusal | None:
    # A backup would lack offsets of topics that the user may not DESCRIBE.
    visible = case.topics is None or case.topics.reason in (reasons.TOPICS_VISIBLE, reasons.TOPICS_ATTESTED)
    return None if visible else case.topics


def _clocks(case: Case) -> Refusal | None:
    journal = _given(case.journal)
    # Without anything written there is no broker's time yet; a deletion has written its intent.
    return journal.skew(_given(case.clock).now()) if journal.has_written else None


def _unchanged(case: Case) -> Refusal | None:
    return None if case.guard is None else case.guard.refusal()


def _leads(case: Case) -> Refusal | None:
    if case.guard is None or case.guard.seconds_left() >= MARGIN_S:
        return None
    return NOT_LEADER


def _given(value: T | None) -> T:
    if value is None:
        raise RuntimeError("a precondition was proved without its input")
    return value


PRECONDITIONS = (
    Precondition(
        name="cluster id",
        protects="the groups of another cluster, to which the address leads now",
        proof="The cluster id in Metadata is `status.clusterID` of the KafkaConnection",
        unknown="nothing is changed. Without a KafkaConnection, the first answer counts",
        reasons=(reasons.CLUSTER_CHANGED, reasons.LEDGER_UNAVAILABLE),
        moments=(Moment.OPENING,),
        prove=_cluster,
    ),
    Precondition(
        name="ledger's topic",
        protects="marks, backups and requests to keep a group, which stay in the topic that was used before",
        proof="`spec.ledger.topic` is the topic that is open, and `status.ledger.topic`",
        unknown="the first topic counts",
        reasons=(reasons.LEDGER_CHANGED,),
        moments=(Moment.OPENING,),
        prove=_ledger_topic,
    ),
    Precondition(
        name="transactions",
        protects="a run that would end at its first write",
        proof="The brokers have a coordinator for the ledger's transactional id, and allow transactions of 60 s",
        unknown="settings that brokers hide count as right; the first write shows it",
        reasons=(reasons.LEDGER_UNAVAILABLE,),
        right="DESCRIBE on the transactional id",
        moments=(Moment.OPENING,),
        prove=_transactions,
    ),
    Precondition(
        name="ledger's content",
        protects="groups that another process deletes, or that a user asked to keep",
        proof="The ledger is read to its end, with the id, topic id, cluster id and installation id that it had before",
        lasts="one batch: what a write adds is read back, with all that others wrote before it",
        unknown="nothing is changed",
        reasons=(reasons.LEDGER_UNAVAILABLE, reasons.LEDGER_RESET, reasons.LEDGER_OWNED),
        right="READ and DESCRIBE on the ledger's topic",
        moments=(Moment.OPENED,),
        prove=_ledger_read,
    ),
    Precondition(
        name="ledger's settings",
        protects="backups, which Kafka would delete or lose with other settings",
        proof="DescribeConfigs of the ledger's topic: compaction, the broker's times, no unclean elections, replicas "
        "in sync, the size of batches, how long removals stay; one partition",
        unknown="nothing is changed; only numbers that brokers hide count as right",
        reasons=(reasons.LEDGER_UNAVAILABLE,),
        right="DESCRIBE_CONFIGS on the ledger's topic",
        moments=(Moment.OPENED,),
        prove=_ledger_settings,
    ),
    Precondition(
        name="ledger's records",
        protects="groups that a user asked to keep, by a record that can't be read",
        proof="Every batch of records in the ledger could be unpacked, and has the right checksum",
        lasts="one batch",
        unknown="nothing is deleted; restores and requests to keep a group go on",
        reasons=(reasons.RECORD_UNREADABLE,),
        moments=(Moment.SCAN, Moment.DELETION),
        prove=_ledger_records,
    ),
    Precondition(
        name="clocks",
        protects="grace periods and backups that a wrong clock would end",
        proof="This process's clock is within 5 minutes of the broker's time of its last write to the ledger",
        lasts="one batch",
        reasons=(reasons.CLOCK_SKEW,),
        moments=(Moment.SCAN, Moment.DELETION, Moment.SENDING),
        prove=_clocks,
    ),
    Precondition(
        name="partitions of the offsets log",
        protects="groups whose brokers still write into the partition of an earlier number of partitions",
        proof="No leader has a record of its epoch where the number of partitions in Metadata does not put its group, "
        "and no broker names another coordinator than that number does",
        lasts="one run; the log is read on before each batch",
        unknown="all partitions are read for uses of a group",
        reasons=(reasons.OFFSETS_TOPIC_GROWN,),
        right="READ on `__consumer_offsets`",
        moments=(Moment.SCAN,),
        prove=_partitions_used,
    ),
    Precondition(
        name="all groups",
        protects="groups in use that a list lacks",
        proof="Every broker lists its groups, and the leaders of the offsets log have loaded it, before and after",
        lasts="one run; the leaders are compared again before each batch",
        reasons=(reasons.SNAPSHOT_INCOMPLETE,),
        right="DESCRIBE on the cluster and on `__consumer_offsets`",
        moments=(Moment.SCAN,),
        prove=_complete,
    ),
    Precondition(
        name="all topics",
        protects="offsets that a backup would lack",
        proof="No broker has a topic on disk that Metadata hides",
        unknown="nothing is deleted, except with `topicVisibility: Attested`",
        reasons=(reasons.TOPICS_HIDDEN, reasons.TOPICS_UNKNOWN),
        right="DESCRIBE on the cluster and on all topics",
        moments=(Moment.SCAN,),
        prove=_topics_visible,
    ),
    Precondition(
        name="unchanged objects",
        protects="what an edit of the policy, the restore or the connection excludes",
        proof="They are read from the API server, and were neither edited nor deleted; so are the grants",
        lasts="one batch",
        unknown="nothing is changed. A command without `--connection` has no objects",
        reasons=(reasons.POLICY_CHANGED, reasons.STOPPING, reasons.API_SERVER_ERROR),
        moments=(Moment.REQUEST,),
        prove=_unchanged,
    ),
    Precondition(
        name="lead",
        protects="groups that the process that leads now uses its own evidence for",
        proof="The Lease is certainly held for another second, by this machine's clock",
        lasts="one batch",
        unknown="nothing is changed. Commands need no Lease: their transactional id and intents keep them apart",
        reasons=(reasons.NOT_LEADER,),
        moments=(Moment.REQUEST, Moment.SENDING),
        prove=_leads,
    ),
)
