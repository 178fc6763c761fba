"""The task of a Spark worker: fetches pieces of the offsets log from their leaders, and writes them into files.

Each piece ends with the offset up to which it was read, so the driver knows without a further read that all of it is in
the files, whatever gaps compaction and transaction markers left. The connection comes in the task itself, in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from deltalake.exceptions import DeltaError

from group_hygiene.errors import HygieneError, PipelineError
from group_hygiene.kafka.bounds import TooMuch
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.partition import Leader, fetch_raw
from group_hygiene.kafka.record_batches import parse
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.pipeline.ingest.codecs import unpacked
from group_hygiene.pipeline.ingest.files import Files, Target
from group_hygiene.pipeline.table_file import Part, leave_out_pandas
from group_hygiene.spec.connection import Settings
from group_hygiene.spec.secret import one_line

# Of a task: far more than the pieces of a log without gaps have.
RECORDS_MAX = 10_000_000


class Piece(NamedTuple):
    """Offsets of one partition of the log, without `end`. All of them are before its last stable offset."""

    partition: int
    start: int
    end: int


class Done(NamedTuple):
    """The result of a task: by piece, the offset up to which it was read; and the files. failure: why it ended.

    crowded: it stopped, as its pieces have more than RECORDS_MAX records.
    """

    reached: dict[Piece, int]
    parts: list[Part]
    failure: str | None = None
    crowded: bool = False


def read_and_write(tasks: Iterator[Sequence[Piece]], settings: Settings, target: Target) -> Iterator[Done]:
    """For mapPartitions. Failures are results: Spark would pass on the text of an exception only as a traceback."""
    leave_out_pandas()
    for pieces in tasks:
        reached: dict[Piece, int] = {}
        try:
            client = connect(settings)
            try:
                files = Files(target)
                for piece in pieces:
                    reached[piece] = _read(client, piece, files)
                yield Done(reached, files.finished(), crowded=files.rows > RECORDS_MAX)
            finally:
                client.close()
        except HygieneError as error:
            yield Done(reached, [], str(error))
        except (OSError, DeltaError) as error:
            yield Done(reached, [], f"the records can't be written into the tables: {one_line(str(error))}")


def _read(client: Client, piece: Piece, files: Files) -> int:
    place, position, little = Partition(OFFSETS_TOPIC, piece.partition), piece.start, True
    leader = Leader(client, place)
    while position < piece.end and files.rows <= RECORDS_MAX:
        # The limit for the timeout of a scan applies to each request.
        answer = fetch_raw(leader, position, Deadline(client.settings.timeout.total_seconds()), little)
        if isinstance(answer, Fault):
            raise PipelineError(_explained(place, answer))
        if not answer.data:
            if answer.stable < piece.end:
                raise PipelineError(f"{place} ends earlier than a moment ago: nothing is lost, run this again")
            # Compaction removed everything up to the last stable offset.
            return piece.end
        before, little = position, False
        try:
            for records in parse(answer, unpacked):
                position = max(position, records.next)
                files.add(piece.partition, records.between(before, piece.end))
        except (ValueError, IndexError, TooMuch) as error:
            raise PipelineError(f"{place} can't be read at offset {position}: {error}") from error
        if position <= before:
            raise PipelineError(f"{place} can't be read: the broker's answer does not reach offset {before}")
    return position


def _explained(place: Partition, fault: Fault) -> str:
    if fault.code == "OFFSET_OUT_OF_RANGE":
        return "the log lost records, or was recreated, while it was read: the next run explains what to do"
    return f"{place} can't be read: {fault}"
