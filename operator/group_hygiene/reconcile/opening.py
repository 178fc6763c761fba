"""Opens the ledger of a connection for one run, if its policies need one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.reconcile.context import Memory
from group_hygiene.reconcile.executor import Ledger, open_ledger
from group_hygiene.reconcile.preconditions import Moment, ProofInput, refusals
from group_hygiene.reconcile.recovery import has_unresolved
from group_hygiene.spec.connection import Connection


class LedgerNeed(Enum):
    """A run's use of the ledger."""

    SHOW = "to show its entries, as a command that changes nothing"
    READ = "to read its entries; it is written if an earlier run left something open"
    WRITE = "to restore from it, so it must exist"
    CREATE = "some policy may change Kafka or has receivers, so it is created if there is none"


def ledger_settings(connection: Connection, status: Mapping[str, Any], installation: str) -> LedgerSettings:
    """The settings of a connection's ledger. status: the current one of its object."""
    known = status.get("ledger") or {}
    return LedgerSettings(
        topic=connection.ledger.topic,
        replication_factor=connection.ledger.replication_factor,
        installation=installation,
        writer=f"group-hygiene-{installation}-{connection.uid}",
        known=connection.ledger.confirmed or known.get("id"),
        known_topic=known.get("topic") if known.get("id") else None,
    )


def few_replicas(ledger: Ledger | None, connection: Connection) -> Refusal | None:
    """A note that the ledger's topic has fewer replicas than the spec asks for; None = it has enough."""
    wanted = connection.ledger.replication_factor
    if ledger is None or ledger.replicas >= wanted:
        return None
    message = (
        f"topic {ledger.topic} has {ledger.replicas} replicas, and ledger.replicationFactor asks for {wanted}: if "
        "their brokers are lost, so are backups. Add replicas with kafka-reassign-partitions, or lower the number"
    )
    return Refusal(reasons.FEW_REPLICAS, message)


def open_journal(
    memory: Memory,
    client: Client,
    settings: LedgerSettings,
    need: LedgerNeed,
    policies: Iterable[str],
    deadline: Deadline,
) -> Journal:
    """The journal of one run: the ledger read to its end, if there is one or a policy needs one.

    Creates the ledger only for LedgerNeed.CREATE. This process writes it for that, for a restore, or while it has a
    mark of one of `policies` (their uids) or an unresolved deletion of this connection, even of a deleted policy.
    Raises LedgerFenced.
    """
    case = ProofInput(
        client=client,
        memory=memory,
        deadline=deadline,
        settings=settings,
        writes=need in (LedgerNeed.WRITE, LedgerNeed.CREATE),
    )
    problem = next(refusals(case, Moment.OPENING), None)
    try:
        if problem is not None:
            raise LedgerProblem(problem.message, problem.reason)
        if memory.ledger is None:
            create = need is LedgerNeed.CREATE
            # The status may not have it yet, or lack it for as long as it can't be written.
            known = replace(settings, known=settings.known or memory.ledger_id)
            memory.ledger = open_ledger(client, known, deadline, create, claim=create)
            memory.claimed = create
        ledger = memory.ledger
        if ledger is None:
            return Journal(None, memory.contents, memory.unwritten)
        memory.ledger_topic = settings.topic
        problem = next(refusals(case, Moment.OPENED), None)
        if problem is not None:
            raise LedgerProblem(problem.message, problem.reason)
        # An empty topic has no owner yet, and a restore does not claim it.
        needed = need is LedgerNeed.CREATE or (need is LedgerNeed.WRITE and ledger.id is not None)
        marked = any(ledger.contents.marks.get(uid) for uid in policies)
        writes = needed or marked or has_unresolved(ledger.contents, ledger.writer)
        writes = writes and need is not LedgerNeed.SHOW
        if writes and not memory.claimed:
            ledger.claim(deadline)
            memory.claimed = True
        memory.ledger_id = ledger.id or memory.ledger_id
    except LedgerProblem as error:
        memory.close_ledger()
        return Journal(None, memory.contents, memory.unwritten, problem=Refusal.of(error))
    ledger.contents.apply(memory.unwritten.values())
    # The same object from now on: if the ledger is not reachable later, its contents are still known.
    memory.contents = ledger.contents
    return Journal(ledger, ledger.contents, memory.unwritten, writes)
