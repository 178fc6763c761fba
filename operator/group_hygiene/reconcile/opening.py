"""Open the ledger of a connection for one run, as far as its policies need one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from group_hygiene.connection import Connection
from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.ledger import LedgerSettings, open_ledger
from group_hygiene.model import Keep
from group_hygiene.reconcile.context import Memory
from group_hygiene.reconcile.journal import Journal
from group_hygiene.reconcile.settling import leaves_open
from group_hygiene.tracing import traced


class Need(Enum):
    """What a run needs the ledger for."""

    READ = "to know what it says"
    WRITE = "to restore what is in it, so that there must be one"
    MAKE = "some policy may change Kafka or has receivers, so that it is made where there is none"


def ledger_settings(connection: Connection, status: Mapping[str, Any], installation: str) -> LedgerSettings:
    """Where a connection's ledger is, and which it must be. status: of its object, as it is now."""
    return LedgerSettings(
        topic=connection.ledger.topic,
        replication_factor=connection.ledger.replication_factor,
        installation=installation,
        writer=f"group-hygiene-{installation}-{connection.uid}",
        known=connection.ledger.confirmed or (status.get("ledger") or {}).get("id"),
    )


@traced("ledger")
def open_journal(
    memory: Memory,
    client: Client,
    settings: LedgerSettings,
    need: Need,
    policies: Iterable[str],
    deadline: Deadline,
) -> Journal:
    """The journal of one run: the ledger read to its end, where there is one or a policy needs one.

    It is made for Need.MAKE only. This process writes it for that, for a restore, or while it holds a mark of one of
    `policies` (their uids) or a deletion of this connection that came to no end, whatever became of its policy. Raises
    LedgerFenced.
    """
    try:
        if memory.ledger is None:
            making = need is Need.MAKE
            memory.ledger = open_ledger(client, settings, deadline, making, claim=making)
            memory.claimed = making
        ledger = memory.ledger
        if ledger is None:
            return Journal(None, memory.contents, memory.unwritten)
        ledger.read_on(deadline)
        # An empty topic is nobody's ledger yet, and becomes nobody's by a restore.
        needed = need is Need.MAKE or (need is Need.WRITE and ledger.id is not None)
        marked = any(ledger.contents.marks.get(uid) for uid in policies)
        writes = needed or marked or leaves_open(ledger.contents, ledger.writer)
        if writes and not memory.claimed:
            ledger.claim(deadline)
            memory.claimed = True
    except LedgerProblem as error:
        memory.close_ledger()
        return Journal(None, memory.contents, memory.unwritten, problem=Keep(error.reason, str(error)))
    ledger.contents.apply(memory.unwritten.values())
    # From now on the same: should the ledger be out of reach later, what it said is still known.
    memory.contents = ledger.contents
    return Journal(ledger, ledger.contents, memory.unwritten, writes)
