"""Parses the requests and responses between clients and brokers, as far as faults need it. Pure: no sockets."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest
from kafka.protocol.consumer import OffsetDeleteRequest, OffsetDeleteResponse, OffsetFetchRequest
from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecords

from group_hygiene.kafka.cluster import PREFIX

# Kafka's ApiKeys.
PRODUCE, OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS, ADD_PARTITIONS, END_TXN, DELETE_GROUPS = 0, 9, 15, 16, 24, 26, 42
OFFSET_DELETE, FETCH = 47, 1


@dataclass
class Exchange:
    """One request and its response.

    sender: the operator process that sent it, empty = another client. step: its step of a run, see `Steps`. sent,
    forwarded: when the proxy received and forwarded it, wall time in seconds; 0.0 = not yet. answer: the broker's
    response, even if the client never got it. instead: the response that the client gets in its place.
    """

    sender: str
    broker: int
    api: int
    version: int
    correlation: int
    body: bytes = field(repr=False)
    step: str = ""
    sent: float = 0.0
    forwarded: float = 0.0
    answer: bytes = field(default=b"", repr=False)
    instead: bytes = field(default=b"", repr=False)


def parse(frame: bytes, sender: str, broker: int) -> Exchange:
    """Parse a request without its size."""
    api, version, correlation = struct.unpack_from(">hhi", frame)
    return Exchange(sender, broker, api, version, correlation, frame)


def deleted_groups(exchange: Exchange) -> dict[str, int | None]:
    """Of a DeleteGroups: group -> error code; None = no response."""
    request = DeleteGroupsRequest.decode(exchange.body, version=exchange.version, header=True)
    results: dict[str, int | None] = dict.fromkeys(request.groups_names)
    if exchange.answer:
        answer = DeleteGroupsResponse.decode(exchange.answer, version=exchange.version, header=True)
        results |= {row.group_id: row.error_code for row in answer.results}
    return results


def answer_with(exchange: Exchange, codes: Mapping[str, int]) -> None:
    """Replace the error codes of a response to DeleteGroups, by group."""
    answer = DeleteGroupsResponse.decode(exchange.answer, version=exchange.version, header=True)
    for row in answer.results:
        row.error_code = codes.get(row.group_id, row.error_code)
    exchange.instead = bytes(answer.encode(header=True))


def offsets_of(exchange: Exchange) -> str:
    """The group of an OffsetDelete."""
    return str(OffsetDeleteRequest.decode(exchange.body, version=exchange.version, header=True).group_id)


def answer_offsets_with(exchange: Exchange, code: int, whole: bool) -> None:
    """Replace the error code of a response to OffsetDelete, of the `whole` response or of each partition."""
    answer = OffsetDeleteResponse.decode(exchange.answer, version=exchange.version, header=True)
    if whole:
        answer.error_code, answer.topics = code, []
    for topic in answer.topics:
        for place in topic.partitions:
            place.error_code = code
    exchange.instead = bytes(answer.encode(header=True))


def written(exchange: Exchange) -> list[tuple[list[str], Any]]:
    """Of a Produce: the JSON keys and values of its records, None for a tombstone; JSON records only."""
    request = ProduceRequest.decode(exchange.body, version=exchange.version, header=True)
    found: list[tuple[list[str], Any]] = []
    for topic in request.topic_data:
        for place in topic.partition_data:
            records = MemoryRecords(bytes(place.records))
            while (batch := records.next_batch()) is not None:
                for record in batch:
                    try:
                        value = None if record.value is None else json.loads(record.value)
                        found.append((json.loads(record.key or b""), value))
                    except ValueError:
                        continue
    return found


def requires_stable(exchange: Exchange) -> bool:
    """Of an OffsetFetch: whether it is a re-read (KIP-447)."""
    request = OffsetFetchRequest.decode(exchange.body, version=exchange.version, header=True)
    return bool(getattr(request, "require_stable", False)) and not asks_whether_loaded(exchange)


def asks_whether_loaded(exchange: Exchange) -> bool:
    """Whether an OffsetFetch or DescribeGroups only checks which partitions its broker has loaded, before a list."""
    if exchange.api == DESCRIBE_GROUPS:
        described = DescribeGroupsRequest.decode(exchange.body, version=exchange.version, header=True)
        return any(group.startswith(PREFIX) for group in described.groups)
    request = OffsetFetchRequest.decode(exchange.body, version=exchange.version, header=True)
    return any(group.group_id.startswith(PREFIX) for group in getattr(request, "groups", None) or ())


class Steps:
    """Names the steps of a run by the requests of one process, in order.

    note: observations of scans. mark: marks and their end. reread-state, reread-offsets: reads right before a deletion.
    intent: backup and intent. delete. outcome. Each write has `-add`, `-produce` and `-end`.
    """

    def __init__(self) -> None:
        self._phase = "note"
        self._writes = "note"

    def name(self, exchange: Exchange) -> str:
        """The step, empty = none of these."""
        match exchange.api:
            case api if api == DESCRIBE_GROUPS and not asks_whether_loaded(exchange):
                self._phase = "intent"
                return "reread-state"
            case api if api == OFFSET_FETCH:
                stable = self._phase == "intent" and requires_stable(exchange)
                return "reread-offsets" if stable else ""
            case api if api == DELETE_GROUPS:
                self._phase = "outcome"
                return "delete"
            case api if api == ADD_PARTITIONS:
                return f"{self._phase}-add"
            case api if api == PRODUCE:
                self._writes = _kind(exchange)
                return f"{self._writes}-produce"
            case api if api == END_TXN:
                self._phase = "note"
                return f"{self._writes}-end"
        return ""


def _kind(exchange: Exchange) -> str:
    kinds = {key[0] for key, value in written(exchange) if value is not None and key}
    return next((kind for kind in ("intent", "outcome", "mark") if kind in kinds), "note")
