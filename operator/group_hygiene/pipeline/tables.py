"""The Delta tables of one Kafka cluster: names, schemas, properties. How they are filled is elsewhere.

One warehouse (a folder or an object store URI) holds one cluster. The first columns of every bronze row are the
record's position: `era` is 0, and rises each time that the topic was recreated and a user chose to continue, since
offsets then start again; `batch` is the number of the batch, over all eras; `log_partition`, `log_offset` and
`record_time` are the record's own. They are first because Delta has minima and maxima of the first columns only, and
later reads filter by them.

A column that is NOT NULL here never holds a null, but Delta does not enforce that.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa
from deltalake import Schema

from group_hygiene.model.evidence import CLIENT
from group_hygiene.pipeline.store import Table

# A property of a bronze table: rows from before this time (ISO 8601) were dropped, after `activity` had them.
PRUNED = "grouphygiene.pruned"
# A property of `commits`: of the days before this time (ISO 8601), only the first and the last commits are there.
THINNED = "grouphygiene.thinned"
_parser = duckdb.connect(config={"threads": 1})
_parser.execute("SET TimeZone = 'UTC'")


def _schema(columns: str) -> pa.Schema:
    """The Arrow schema of these columns in DuckDB's SQL. Every one is nullable, as in tables that Spark creates."""
    _parser.execute(f"CREATE OR REPLACE TABLE t ({columns})")
    # By way of Delta, which has names of its own for the elements of lists.
    return pa.schema(Schema.from_arrow(_parser.table("t").to_arrow_table().schema))


_POSITION = """
    era INT NOT NULL, batch BIGINT NOT NULL, log_partition INT NOT NULL, log_offset BIGINT NOT NULL,
    record_time TIMESTAMPTZ
"""
_INDEXED = 5
# Time of the previous complete read of the partition, which did not find the record, or found its transaction open: the
# record was written later, whatever its own times are. null = there was no such read.
_WRITTEN_AFTER = "written_after TIMESTAMPTZ"

# Every commit of an offset, and every tombstone of one (committed_offset and commit_ms are null). aborted: its
# transaction was aborted, so its time counts as activity, but its offset never applied. commit_ms: from the record's
# value, in milliseconds since 1970. leader_epoch: -1 = unknown.
COMMITS = Table(
    "commits",
    _schema(
        f"""
        {_POSITION}, "group" VARCHAR NOT NULL, topic VARCHAR NOT NULL, "partition" INT NOT NULL,
        committed_offset BIGINT, leader_epoch INT, metadata VARCHAR, commit_ms BIGINT, aborted BOOLEAN NOT NULL,
        {_WRITTEN_AFTER}
        """
    ),
    _INDEXED,
)

# Clients of members: see offsets_log.MemberClient. host: null also if the pipeline stores no hosts. null = no member.
_CLIENTS = f"STRUCT({', '.join(f'{name} VARCHAR' for name in CLIENT)})[]"

# Every other record of a group: see offsets_log.StateRecord for the columns of each kind of record.
GROUP_STATES = Table(
    "group_states",
    _schema(
        f"""
        {_POSITION}, kind VARCHAR NOT NULL, "group" VARCHAR NOT NULL, protocol_type VARCHAR, generation INT,
        member_id VARCHAR, members INT, state_ms BIGINT, gone BOOLEAN NOT NULL, {_WRITTEN_AFTER}, clients {_CLIENTS}
        """
    ),
    _INDEXED,
)

# Records that could not be decoded, unchanged, and why.
QUARANTINE = Table(
    "quarantine", _schema(f"{_POSITION}, key BLOB, value BLOB, error VARCHAR NOT NULL, {_WRITTEN_AFTER}"), _INDEXED
)

# One row per group. Times are those of the log's records; null = unknown. offsets: its last commit in each partition
# for which it still has an offset. `*_after`: the latest `written_after` of its commits, of the record of its state,
# and of the commits for each topic of `offsets`: these were written no earlier. last_clients: of the last record that
# names clients, and its time. log_partition: each file has the groups of one partition, or of all: see
# ingest.task.
ACTIVITY = Table(
    "activity",
    _schema(
        f"""
        cluster_id VARCHAR NOT NULL, log_partition INT NOT NULL, "group" VARCHAR NOT NULL, type VARCHAR NOT NULL,
        protocol_type VARCHAR, state VARCHAR NOT NULL, state_since TIMESTAMPTZ, members VARCHAR[] NOT NULL,
        first_commit TIMESTAMPTZ, last_commit TIMESTAMPTZ, oldest_commit TIMESTAMPTZ, empty_since TIMESTAMPTZ,
        first_seen TIMESTAMPTZ, partitions INT NOT NULL, topics INT NOT NULL,
        offsets STRUCT(
            topic VARCHAR, "partition" INT, "offset" BIGINT, leader_epoch INT, metadata VARCHAR, commit_time TIMESTAMPTZ
        )[] NOT NULL,
        commits_by_day MAP(DATE, BIGINT) NOT NULL, tombstoned_at TIMESTAMPTZ, era INT NOT NULL,
        updated_at TIMESTAMPTZ NOT NULL, last_commit_after TIMESTAMPTZ, state_after TIMESTAMPTZ,
        topics_after MAP(VARCHAR, TIMESTAMPTZ), last_clients {_CLIENTS}, last_clients_at TIMESTAMPTZ
        """
    ),
    indexed=2,
)

# One row per log partition: every record of that era before `covered_to` is in the three tables of records, and in
# version `activity_version` of `activity`, and no later record was written before `read_at` (with an open transaction,
# the time of its first record; null = never completely read). leader_epoch: of the partition at that read, -1 = its log
# has none. batch: the last completed one, 0 = none; rows of a later one will be written again. complete_since: records
# from before this time were lost unread, could not be decoded, or are of unknown groups (null = none). first_read_at:
# time of the first complete read; of older records, compaction had left only the last ones. topic_id: null = a broker
# before 2.8, which has none. version: TABLES_VERSION of the writer, for all tables.
COVERAGE = Table(
    "coverage",
    _schema(
        """
        cluster_id VARCHAR NOT NULL, topic_id VARCHAR, era INT NOT NULL, batch BIGINT NOT NULL,
        log_partition INT NOT NULL, covered_to BIGINT NOT NULL, read_at TIMESTAMPTZ, complete_since TIMESTAMPTZ,
        first_read_at TIMESTAMPTZ, version INT NOT NULL, leader_epoch INT, activity_id VARCHAR NOT NULL,
        activity_version BIGINT NOT NULL
        """
    ),
)

# The bronze tables: every record of the log is in one of them.
RECORDS = (COMMITS, GROUP_STATES, QUARANTINE)
