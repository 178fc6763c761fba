"""Reads the requests that a broker handled from its own request log: one line for each, written after the response."""

import json
import re
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from testing.sandbox.errors import SandboxError
from testing.sandbox.kafka.wire import known_brokers

LOGGER = "kafka.request.logger"
QUIET_SECONDS = 0.1
SETTLE_SECONDS = 120.0
# Brokers before 2.7 write the header as text, later ones all as JSON.
_TEXT = re.compile(r"RequestHeader\(apiKey=(\w+), apiVersion=\d+, clientId=(.*?), correlationId=")
_JSON = "Completed request:"


class Request(NamedTuple):
    """One handled request: the name of its API (as in Kafka's ApiKeys, such as LIST_GROUPS) and the client id."""

    api: str
    client_id: str


def settled_size(log: Path, port: int) -> int:
    """The size of a broker's log once it has all requests that were answered before this call.

    A line is written just after the response, so a client may be ahead of it. How long depends on the load of the
    machine: so this sends its own request to a plaintext port of the broker, and waits for its line.
    """
    start = log.stat().st_size
    us = f"settle-{uuid.uuid4()}"
    deadline = time.monotonic() + SETTLE_SECONDS
    known_brokers(port, SETTLE_SECONDS, us)
    # Other network threads may be a little behind the one that served us.
    time.sleep(QUIET_SECONDS)
    while us.encode() not in (written := _read(log, start)) or not written.endswith(b"\n"):
        if time.monotonic() > deadline:
            raise SandboxError(f"no sign of our own request in {log} after {SETTLE_SECONDS:.0f} s")
        time.sleep(0.02)
    return start + len(written)


def requests_in(log: Path, start: int, end: int, topic: str | None = None) -> list[Request]:
    """The requests of all clients and brokers between two sizes of a log, without those that name the topic."""
    lines = _read(log, start)[: end - start].decode(errors="replace").splitlines()
    others = (line for line in lines if LOGGER in line and (topic is None or topic not in line))
    return [request for line in others if (request := _parse(line)) is not None]


def _read(log: Path, start: int) -> bytes:
    with log.open("rb") as file:
        file.seek(start)
        return file.read()


def _parse(line: str) -> Request | None:
    text = line.partition(_JSON)[2]
    if text.startswith("{"):
        header = json.loads(text)["requestHeader"]
        return Request(header["requestApiKeyName"], header["clientId"] or "")
    found = _TEXT.match(text)
    return Request(found[1], found[2]) if found else None
