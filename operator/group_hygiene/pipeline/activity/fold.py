"""Combines new records of groups with their rows in `activity`, by DuckDB. Opens no file and no table.

All records of a group are in one partition of the log, so a worker folds a partition by itself. A group's row is
computed from its new records, and from its row of before, as if that were the first of its records.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

import duckdb
import pyarrow as pa

from group_hygiene.kafka.partitions import partition_of
from group_hygiene.pipeline.store import FAR_MS

# Beyond this, DuckDB writes into a temporary folder. For one worker; a machine has one per core.
_MEMORY = "700MB"
# Rows of a result that are in memory at once.
_CHUNK = 20_000

_COMMITS = """
    "group", topic, "partition", log_partition, log_offset, record_time, committed_offset, leader_epoch, metadata,
    aborted, written_after, to_time(commit_ms) AS commit_time
"""
_STATES = """
    "group", kind, split_part(kind, '-', 1) AS family, log_partition, log_offset, record_time, protocol_type, member_id,
    members, state_ms, gone, written_after, clients
"""
# Kinds of records with a group's members or its end; all other records only accompany these.
_STATE_RECORDS = """
    ('classic', 'consumer-epoch', 'consumer-member', 'share-epoch', 'share-member', 'streams-epoch', 'streams-member')
"""

# Each uses those before it. `old`: the groups' rows in `activity`; `was`: of the same era, as the end of an era ends a
# group's offsets, members and state. `run`: one row, with the arguments of `Fold`.
_STEPS = (
    "CREATE TEMP TABLE old AS SELECT * FROM known",
    # Sorting whole rows takes ten times as long.
    'DELETE FROM old WHERE rowid NOT IN (SELECT arg_max(rowid, (era, read_to)) FROM old GROUP BY "group")',
    "CREATE TEMP VIEW was AS SELECT old.* FROM old JOIN run USING (era)",
    # A killed run may have added these.
    *(
        f"""
        DELETE FROM {table} USING old, run WHERE {table}."group" = old."group"
        AND (old.era > run.era OR old.era = run.era AND {table}.log_offset < old.read_to)
        """  # noqa: S608
        for table in ("commits", "states")
    ),
    """
    CREATE TEMP TABLE of_commits AS SELECT
        "group", max(log_partition) AS log_partition, max(log_offset) + 1 AS read_to, min(record_time) AS first_seen,
        min(commit_time) AS first_commit, max(commit_time) AS last_commit,
        max(written_after) FILTER (commit_time IS NOT NULL) AS last_commit_after,
        max(log_offset) FILTER (NOT aborted AND committed_offset IS NOT NULL) AS committed_at,
        max(log_offset) FILTER (NOT aborted AND committed_offset IS NULL) AS wiped_at,
        arg_max_null(record_time, log_offset) FILTER (NOT aborted AND committed_offset IS NULL) AS wiped_time
    FROM commits GROUP BY "group"
    """,
    # Of each place.
    """
    CREATE TEMP TABLE last_commits AS SELECT
        "group", topic, "partition", committed_offset AS "offset", leader_epoch, metadata, commit_time
    FROM commits WHERE rowid IN (
        SELECT arg_max(rowid, log_offset) FROM commits WHERE NOT aborted GROUP BY "group", topic, "partition"
    )
    """,
    # Without those that ended with a tombstone.
    """
    CREATE TEMP TABLE places AS
    FROM last_commits WHERE "offset" IS NOT NULL
    UNION ALL BY NAME
    FROM (SELECT "group", unnest(offsets, recursive := true) FROM was)
    ANTI JOIN last_commits USING ("group", topic, "partition")
    """,
    """
    CREATE TEMP TABLE of_places AS SELECT
        "group", count(*)::INT AS partitions, count(DISTINCT topic)::INT AS topics, min(commit_time) AS oldest_commit,
        list_sort(list(struct_pack(
            topic := topic, "partition" := "partition", "offset" := "offset", leader_epoch := leader_epoch,
            metadata := metadata, commit_time := commit_time
        ))) AS offsets
    FROM places GROUP BY "group"
    """,
    """
    CREATE TEMP TABLE of_days AS SELECT
        "group", list_sort(list(struct_pack("key" := day, "value" := commits))) AS commits_by_day
    FROM (
        SELECT "group", day, sum(commits)::BIGINT AS commits FROM (
            -- A cast of a time to a date takes three times as long.
            SELECT "group", DATE '1970-01-01' + (epoch_us(commit_time) // 86_400_000_000)::INT AS day,
                count(*) AS commits
            FROM commits GROUP BY ALL
            UNION ALL
            SELECT "group", unnest(commits_by_day, recursive := true) FROM old
        ) GROUP BY ALL
    ), run
    WHERE day >= first_day GROUP BY "group"
    """,
    # For topics where the group has an offset.
    """
    CREATE TEMP TABLE of_topics AS SELECT
        "group", list_sort(list(struct_pack("key" := topic, "value" := after))) AS topics_after
    FROM (
        SELECT "group", topic, max(after) AS after FROM (
            SELECT "group", topic, written_after AS after FROM commits
            WHERE NOT aborted AND committed_offset IS NOT NULL AND written_after IS NOT NULL
            UNION ALL
            SELECT "group", unnest(topics_after, recursive := true) FROM old
        ) GROUP BY ALL
    ) SEMI JOIN places USING ("group", topic) GROUP BY "group"
    """,
    f"""
    CREATE TEMP TABLE last_states AS SELECT
        *, gone AND NOT ends_with(kind, '-member') AS ended, log_offset AS position
    FROM states WHERE kind IN {_STATE_RECORDS}
    """,  # noqa: S608
    """
    CREATE TEMP TABLE of_states AS SELECT
        "group", max(log_partition) AS log_partition, max(log_offset) + 1 AS read_to, min(record_time) AS first_seen
    FROM states GROUP BY "group"
    """,
    *(
        f"""
        CREATE TEMP TABLE {name} AS SELECT DISTINCT ON ("group") * FROM last_states WHERE {which}
        ORDER BY "group", position DESC
        """  # noqa: S608
        for name, which in {"latest": "true", "ends": "ended", "alive": "NOT ended"}.items()
    ),
    """
    CREATE TEMP TABLE seen AS SELECT DISTINCT ON ("group") "group", clients, record_time FROM states
    WHERE len(clients) > 0 ORDER BY "group", log_offset DESC
    """,
    # The end of a Classic group may be its conversion into another type, which keeps the members.
    """
    CREATE TEMP TABLE of_members AS SELECT "group", list_sort(list(member_id)) AS members FROM (
        SELECT "group", member_id, arg_max(gone, position) AS gone FROM (
            SELECT "group", member_id, log_offset AS position, gone FROM states WHERE ends_with(kind, '-member')
            UNION ALL
            SELECT "group", unnest(members), -1, false FROM was
        )
        LEFT JOIN (SELECT "group", position AS emptied_at FROM ends WHERE family <> 'classic') USING ("group")
        WHERE emptied_at IS NULL OR position > emptied_at
        GROUP BY "group", member_id
    ) WHERE NOT gone GROUP BY "group"
    """,
    """
    CREATE TEMP VIEW found AS SELECT
        "group", was.type AS was_type, was.protocol_type AS was_protocol, was.state AS was_state,
        was.state_since AS was_since, was.empty_since AS was_empty_since, was.state_after AS was_after,
        latest.position IS NOT NULL AS has_state, latest.family, latest.ended, latest.position, latest.record_time,
        latest.protocol_type AS new_protocol, latest.members AS counted, latest.state_ms,
        latest.written_after AS new_after, ends.record_time AS ended_at,
        CASE WHEN alive.family = 'classic' THEN coalesce(alive.protocol_type, '') END AS joined,
        seen.clients, seen.record_time AS clients_at,
        committed_at, wiped_at, wiped_time,
        greatest(of_commits.log_partition, of_states.log_partition) AS log_partition,
        greatest(of_commits.read_to, of_states.read_to, was.read_to) AS read_to,
        least(of_commits.first_seen, of_states.first_seen, old.first_seen) AS first_seen,
        least(of_commits.first_commit, old.first_commit) AS first_commit,
        greatest(of_commits.last_commit, old.last_commit) AS last_commit,
        greatest(of_commits.last_commit_after, old.last_commit_after) AS last_commit_after,
        old.tombstoned_at AS old_tombstoned_at, old.last_clients AS old_clients, old.last_clients_at AS old_clients_at,
        coalesce(of_places.partitions, 0) AS partitions, coalesce(of_places.topics, 0) AS topics,
        of_places.oldest_commit,
        coalesce(of_places.offsets, []) AS offsets, coalesce(of_members.members, []) AS members,
        coalesce(of_days.commits_by_day, []) AS commits_by_day,
        coalesce(of_topics.topics_after, []) AS topics_after
    FROM of_commits FULL JOIN of_states USING ("group")
    LEFT JOIN old USING ("group")
    LEFT JOIN was USING ("group")
    LEFT JOIN latest USING ("group") LEFT JOIN ends USING ("group") LEFT JOIN alive USING ("group")
    LEFT JOIN seen USING ("group")
    LEFT JOIN of_places USING ("group") LEFT JOIN of_members USING ("group")
    LEFT JOIN of_days USING ("group") LEFT JOIN of_topics USING ("group")
    """,
)

_ROWS = """
    SELECT
        cluster_id, "group", log_partition, type_now AS type, protocol AS protocol_type,
        CASE WHEN wiped_out THEN 'Gone' ELSE state_now END AS state,
        CASE WHEN wiped_out THEN wiped_time WHEN simple THEN NULL WHEN has_state THEN since ELSE was_since END
            AS state_since,
        members, first_commit, last_commit, oldest_commit,
        CASE WHEN simple OR wiped_out THEN NULL WHEN NOT has_state THEN was_empty_since
            WHEN state_now = 'Empty' AND protocol <> '' THEN since END AS empty_since,
        first_seen, partitions, topics, offsets, commits_by_day,
        CASE WHEN wiped_out THEN wiped_time ELSE coalesce(ended_at, old_tombstoned_at) END AS tombstoned_at,
        era, read_to, now AS updated_at, last_commit_after,
        CASE WHEN has_state THEN new_after ELSE was_after END AS state_after,
        topics_after,
        -- A simple group has the name of a group that ended, and other clients.
        CASE WHEN NOT simple THEN coalesce(clients, old_clients) END AS last_clients,
        CASE WHEN NOT simple THEN coalesce(clients_at, old_clients_at) END AS last_clients_at
    FROM (
        SELECT
            *,
            -- A commit, after the group's end or as its first record, made it a group without members.
            coalesce(
                CASE WHEN has_state THEN ended ELSE coalesce(was_type, 'Unknown') = 'Unknown' OR was_state = 'Gone' END
                AND committed_at IS NOT NULL AND (NOT has_state OR committed_at > position), false
            ) AS simple,
            coalesce(CASE WHEN state_ms > 0 THEN to_time(state_ms) END, record_time) AS since,
            -- A Classic group's tombstone does not say whether it ever had members: its earlier records do, if known.
            CASE WHEN simple THEN ''
                WHEN NOT has_state THEN was_protocol
                WHEN family = 'classic' AND ended
                    THEN coalesce(joined, was_protocol, CASE WHEN committed_at IS NOT NULL THEN '' END)
                WHEN family = 'classic' THEN coalesce(new_protocol, '')
                ELSE family END AS protocol,
            CASE WHEN simple THEN 'Classic'
                WHEN NOT has_state THEN coalesce(was_type, 'Unknown')
                WHEN family = 'classic' AND protocol IS NULL THEN 'Unknown'
                ELSE upper(family[1]) || family[2:] END AS type_now,
            CASE WHEN simple THEN 'Empty'
                WHEN NOT has_state THEN coalesce(was_state, 'Unknown')
                WHEN ended THEN 'Gone'
                WHEN CASE WHEN family = 'classic' THEN counted = 0 ELSE len(members) = 0 END THEN 'Empty'
                ELSE 'Active' END AS state_now,
            -- A simple group lost its last offset: no other record of the log may show that it ended.
            coalesce(
                type_now IN ('Classic', 'Unknown') AND coalesce(protocol, '') = '' AND len(offsets) = 0
                AND state_now IN ('Empty', 'Unknown') AND wiped_at > coalesce(position, -1), false
            ) AS wiped_out
        FROM found
    ), run
"""
# A killed run had added all of these groups' records.
_REST = 'FROM old ANTI JOIN of_commits USING ("group") ANTI JOIN of_states USING ("group")'


# Only records that clients cause: coordinators remove what they loaded from such a partition. A clock that is ahead
# must not protect groups for ever.
_LAST_STRAY = """
    SELECT least(max(greatest(record_time, written_after)), max(now)) FROM (
        SELECT "group", log_partition, record_time, written_after FROM commits WHERE committed_offset IS NOT NULL
        UNION ALL
        SELECT "group", log_partition, record_time, written_after FROM states
        WHERE NOT gone AND (members > 0 OR kind IN ('consumer-member', 'share-member', 'streams-member'))
    ) JOIN strays USING ("group", log_partition), run
"""


class Fold:
    """One round of records of some groups, all of one era, and what their rows say then.

    Raises duckdb.Error. spill: an existing folder for what does not fit into memory.
    """

    def __init__(self, cluster_id: str, era: int, now: datetime, first_day: date, spill: str) -> None:
        """now: when the log was read. first_day: of `commits_by_day`."""
        self._database = duckdb.connect(
            config={
                **{"threads": 1, "memory_limit": _MEMORY, "temp_directory": spill, "preserve_insertion_order": False},
                # It would download its extensions.
                **{"autoinstall_known_extensions": False, "autoload_known_extensions": False},
            }
        )
        run = self._database.execute
        run("SET TimeZone = 'UTC'")
        # least and greatest ignore nulls.
        bounded = f"greatest({-FAR_MS}, least({FAR_MS}, ms))"
        run(f"CREATE MACRO to_time(ms) AS CASE WHEN ms IS NOT NULL THEN make_timestamptz({bounded} * 1000) END")
        run(
            """
            CREATE TEMP TABLE run AS SELECT
                ?::VARCHAR AS cluster_id, ?::INT AS era, ?::TIMESTAMPTZ AS now, ?::DATE AS first_day
            """,
            [cluster_id, era, now, first_day],
        )

    def close(self) -> None:
        self._database.close()

    def add(self, commits: Any, states: Any) -> int:
        """Add rows of the tables `commits` and `group_states`, as Arrow tables or readers; returns their number."""
        many = 0
        for name, rows, columns in (("commits", commits, _COMMITS), ("states", states, _STATES)):
            self._database.register("rows", rows)
            self._database.execute(f"CREATE TEMP TABLE {name} AS SELECT {columns} FROM rows")  # noqa: S608
            self._database.unregister("rows")
            many += len(self._database.table(name))
        return many

    def groups(self) -> pa.ChunkedArray:
        """The groups with such rows."""
        return self._distinct('"group"').column("group")

    def remove_strays(self, partitions: int) -> datetime | None:
        """Remove records from partitions that are not their group's, of so many of the log.

        Brokers wrote them by another number of partitions: before the log had so many, or until they are restarted.
        Their offsets say nothing about the group's own ones, so what they say of the group is not known. Returns the
        time of the last use among them: before that, any group may have been used. None = there is no use.
        """
        rows = self._distinct('"group", log_partition')
        stray = [
            partition_of(group, partitions) != partition
            for group, partition in zip(*(column.to_pylist() for column in rows.columns), strict=True)
        ]
        strays = rows.filter(pa.array(stray, pa.bool_()))
        if not len(strays):
            return None
        self._database.register("strays", strays)
        found = self._database.execute(_LAST_STRAY).fetchone()
        for table in ("commits", "states"):
            self._database.execute(
                f"""
                DELETE FROM {table} USING strays WHERE {table}."group" = strays."group"
                AND {table}.log_partition = strays.log_partition
                """  # noqa: S608
            )
        last: datetime | None = found[0] if found else None
        return last

    def _distinct(self, columns: str) -> pa.Table:
        union = f"SELECT {columns} FROM commits UNION SELECT {columns} FROM states"  # noqa: S608
        return self._database.sql(union).to_arrow_table()

    def rows(self, old: pa.Table) -> Iterator[pa.Table]:
        """The rows of `activity` for these groups. old: their current ones; each is replaced, or comes again."""
        # DuckDB compares the keys of each map, which takes as long as half of the rest: it gets lists of entries.
        types = [pa.list_(field.type.field(0)) if pa.types.is_map(field.type) else field.type for field in old.schema]
        self._database.register("known", old.cast(pa.schema(zip(old.schema.names, types, strict=True))))
        for step in _STEPS:
            self._database.execute(step)
        for found in (_ROWS, _REST):
            for batch in self._database.sql(found).to_arrow_reader(_CHUNK):
                columns = [_column(batch.column(field.name), field.type) for field in old.schema]
                yield pa.Table.from_arrays(columns, schema=old.schema)


def _column(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_map(kind):
        return cells.cast(kind)
    keys, values = cells.values.flatten()
    return pa.MapArray.from_arrays(cells.offsets, keys, values, kind, mask=cells.is_null())
