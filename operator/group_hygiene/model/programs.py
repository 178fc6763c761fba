"""Recognizes programs by the members of their groups. Pure.

Only members show their client ids and their assignor, so the operator remembers what it saw (`entries.UsedBy`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Program(StrEnum):
    """A program whose groups are Empty while it is stopped, and needed when it comes back."""

    CONNECT = "Connect"
    STREAMS = "Streams"


class Sighting(NamedTuple):
    """A program, and the client id of one of its members."""

    program: Program
    client_id: str


# org.apache.kafka.connect.runtime.Worker.baseConsumerConfigs, and ClientUtils and StreamsPartitionAssignor of Streams.
_CONNECT = re.compile(r"connector-consumer-.+-[0-9]+\Z", re.DOTALL)
_STREAMS = re.compile(r".-StreamThread-[0-9]+-consumer\Z", re.DOTALL)
_STREAMS_ASSIGNOR = "stream"
# One of these is in each of those client ids.
SIGNS = (b"connector-consumer-", b"-StreamThread-")


def program_of(client_ids: Iterable[str], assignor: str = "") -> Sighting | None:
    """The program that members with these client ids belong to; None = another one. assignor: "" = not known."""
    ids = sorted(client_ids)
    for program, pattern in ((Program.CONNECT, _CONNECT), (Program.STREAMS, _STREAMS)):
        found = next(filter(pattern.search, ids), None)
        if found is not None:
            return Sighting(program, found)
    return Sighting(Program.STREAMS, ids[0]) if ids and assignor == _STREAMS_ASSIGNOR else None
