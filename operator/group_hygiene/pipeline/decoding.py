"""The one piece of Python that sees every record: an Arrow batch of Kafka's bytes in, an Arrow batch of columns out.

Runs in Spark's workers: imports the decoder and pyarrow, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from group_hygiene.kafka.offsets_log import QUARANTINE, decode_columns

# Of Spark's Kafka source, in this order.
SOURCE_COLUMNS = ("partition", "offset", "timestamp", "key", "value")

_DECODED = {
    "what": pa.string(),
    "kind": pa.string(),
    "group": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "committed_offset": pa.int64(),
    "leader_epoch": pa.int32(),
    "metadata": pa.string(),
    "commit_ms": pa.int64(),
    "protocol_type": pa.string(),
    "generation": pa.int32(),
    "member_id": pa.string(),
    "members": pa.int32(),
    "state_ms": pa.int64(),
    "gone": pa.bool_(),
    "error": pa.string(),
}
# The columns of what comes out, as Spark's DDL.
SCHEMA = (
    "log_partition int, log_offset long, record_time timestamp, what string, kind string, `group` string, "
    "topic string, partition int, committed_offset long, leader_epoch int, metadata string, commit_ms long, "
    "protocol_type string, generation int, member_id string, members int, state_ms long, gone boolean, "
    "error string, key binary, value binary"
)


def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: SOURCE_COLUMNS in, SCHEMA out; key and value only of records that are kept aside."""
    for batch in batches:
        keys, values = batch.column("key"), batch.column("value")
        columns = decode_columns(keys.to_pylist(), values.to_pylist())
        arrays = {name: pa.array(columns[name], kind) for name, kind in _DECODED.items()}
        aside = pa.compute.equal(arrays["what"], QUARANTINE)
        for name, raw in (("key", keys), ("value", values)):
            arrays[name] = pa.compute.if_else(aside, raw, pa.scalar(None, raw.type))
        position = {
            "log_partition": batch.column("partition"),
            "log_offset": batch.column("offset"),
            "record_time": batch.column("timestamp"),
        }
        yield pa.RecordBatch.from_pydict(position | arrays)
