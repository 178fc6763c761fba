"""The owner and the topic of a ledger, and the names of its writers."""

from __future__ import annotations

from dataclasses import dataclass

TOPIC = "__group_hygiene"
# Begins the transactional.id of a command; it has a new one each time, so it fences no other process.
COMMAND_WRITER = "group-hygiene-cli-"
# Owns a ledger that a command created, until an installation claims it.
COMMAND_LINE = "command-line"


@dataclass(frozen=True, kw_only=True)
class LedgerSettings:
    """The owner and the topic of a ledger.

    installation: the required owner; None = any. writer: the transactional.id; a new process with the same one fences
    the previous writer. known, known_topic: id and topic of the ledger that was seen before. transaction_timeout:
    seconds after which brokers abort a transaction that a dead process left open; until then no client can read past
    it.
    """

    installation: str | None
    writer: str
    known: str | None = None
    known_topic: str | None = None
    topic: str = TOPIC
    replication_factor: int = 3
    transaction_timeout: float = 60.0
