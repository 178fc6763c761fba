"""Reads partitions of the offsets log from their leaders, in the task of a Spark worker.

It returns the offset up to which each was read, so no further read proves that nothing is missing, whatever gaps
compaction and transaction markers left. The connection comes in the task itself, in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from group_hygiene.errors import PipelineError
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.partition import PartitionLeader, fetch_raw
from group_hygiene.kafka.record_batches import parse
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.pipeline.ingest.task import Range, Sink
from group_hygiene.process.memory import TooMuch
from group_hygiene.spec.client_settings import Settings


def read(ranges: Sequence[Range], sink: Sink, settings: Settings) -> dict[int, int]:
    """Read these partitions, one after the other, until the sink is full. Raises HygieneError.

    Returns by partition the offset up to which the sink has all of its records.
    """
    with closing(connect(settings)) as client:
        leaders = dict[int, int]()
        return {each.partition: _read(client, each, leaders, sink) for each in ranges}


def _read(client: Client, offsets: Range, leaders: dict[int, int], sink: Sink) -> int:
    place, position = Partition(OFFSETS_TOPIC, offsets.partition), offsets.start
    leader = PartitionLeader(client, place, leaders)
    while position < offsets.end and not sink.full:
        # The limit for the timeout of a scan applies to each request.
        answer = fetch_raw(leader, position, Deadline(client.settings.timeout.total_seconds()))
        if isinstance(answer, Fault):
            if answer.code == "OFFSET_OUT_OF_RANGE":
                why = "the log lost records, or was recreated, while it was read: the next run explains what to do"
                raise PipelineError(why)
            raise PipelineError(f"{place} can't be read: {answer}")
        if not answer.data:
            if answer.stable < offsets.end:
                raise PipelineError(f"{place} ends earlier than a moment ago: nothing is lost, run this again")
            # Compaction removed everything up to the last stable offset.
            return offsets.end
        before = position
        try:
            for records in parse(answer):
                position = max(position, records.next)
                sink.add_records(offsets.partition, records.between(before, offsets.end))
                # An answer of few bytes may be many when unpacked.
                if sink.full:
                    break
        except (ValueError, IndexError, TooMuch) as error:
            raise PipelineError(f"{place} can't be read at offset {position}: {error}") from error
        if position <= before:
            raise PipelineError(f"{place} can't be read: the broker's answer does not reach offset {before}")
    return min(position, offsets.end)
