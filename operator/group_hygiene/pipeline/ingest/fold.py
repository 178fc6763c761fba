"""What records say of groups: combines new ones with the groups' rows in `activity`, by DuckDB. Opens no table.

All records of a group are in one partition of the log, so a worker folds a partition by itself. A group's row is
computed from its new records, and from its row of before, as if that were the first of its records. In all tables here,
"group" is a number: ids may be long, and would be repeated for each place.

`Moments` computes the rows of the past by the same steps: each moment of a group counts as a group there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from group_hygiene.kafka.offsets_log import hash_of, partition_of_hash
from group_hygiene.kafka.record_columns import Numbers
from group_hygiene.pipeline.store import FAR_MS

# Beyond this, what DuckDB computes goes into a temporary folder. For one worker; a machine has one per core.
_MEMORY = "700MB"
# Rows of a result that are in memory at once.
_CHUNK = 20_000

# A commit's own time may come from a client's clock (OffsetCommit v1), its record's time comes from the broker's. If
# its record is over a minute newer, a commit counts from then, but never from a time in the future.
_COMMITS = """
    "group", topic, "partition", log_partition, log_offset, record_time, committed_offset, leader_epoch, metadata,
    aborted, commit_ms,
    greatest(
        written_after,
        CASE WHEN record_time > to_time(commit_ms) + INTERVAL 1 MINUTE
            THEN least(record_time, (SELECT now FROM run)) END
    ) AS written_after
"""
_STATES = """
    "group", kind, split_part(kind, '-', 1) AS family, log_partition, log_offset, record_time, protocol_type, member_id,
    members, state_ms, gone, written_after, clients
"""
# Kinds of records with a group's members or its end; all other records only accompany these.
_STATE_RECORDS = """
    ('classic', 'consumer-epoch', 'consumer-member', 'share-epoch', 'share-member', 'streams-epoch', 'streams-member')
"""

# Records that show use of a group, also in Spark's SQL. Of commits, also aborted ones. Of states, also an epoch without
# members: of a consumer that joined and soon left, compaction leaves only this record.
COMMIT_IS_USE = "committed_offset IS NOT NULL"
STATE_IS_USE = """
    NOT gone AND coalesce(members > 0 OR protocol_type <> '' OR kind LIKE '%-member' OR kind LIKE '%-epoch', false)
"""
# Those that no coordinator causes: it removes members that it loaded from a partition.
_STATE_IS_CLIENTS = "NOT gone AND (members > 0 OR kind IN ('consumer-member', 'share-member', 'streams-member'))"

_OF_COMMITS = """
    CREATE OR REPLACE TEMP TABLE of_all_commits AS SELECT
        "group", log_partition, min(record_time) AS first_seen, to_time(min(commit_ms)) AS first_commit,
        to_time(max(commit_ms)) AS last_commit, max(written_after) FILTER (commit_ms IS NOT NULL) AS last_commit_after,
        max(log_offset) FILTER (NOT aborted AND committed_offset IS NOT NULL) AS committed_at,
        max(log_offset) FILTER (NOT aborted AND committed_offset IS NULL) AS wiped_at,
        arg_max_null(record_time, log_offset) FILTER (NOT aborted AND committed_offset IS NULL) AS wiped_time
    FROM all_commits GROUP BY "group", log_partition
"""
_GROUPS = 'SELECT "group", log_partition FROM of_all_commits UNION SELECT "group", log_partition FROM all_states'
# `old`: the groups' rows in `activity`; `was`: of the same era, as the end of an era ends a group's offsets, members
# and state. `run`: one row, with the arguments of `Fold`.
_WAS = "CREATE OR REPLACE TEMP VIEW was AS FROM old SEMI JOIN run USING (era)"
# The last commit of each place. A tombstone ends the offset.
_PLACES = """
    SELECT
        "group", topic, "partition", committed_offset AS "offset", leader_epoch, metadata,
        to_time(commit_ms) AS commit_time
    FROM commits SEMI JOIN (
        SELECT "group", max(log_offset) AS log_offset FROM commits WHERE NOT aborted
        GROUP BY "group", topic, "partition"
    ) USING ("group", log_offset)
    WHERE committed_offset IS NOT NULL
    UNION ALL BY NAME
    FROM (SELECT "group", unnest(offsets, recursive := true) FROM was)
    ANTI JOIN (FROM commits WHERE NOT aborted) USING ("group", topic, "partition")
"""
# Each uses those before it, and `places`.
_STEPS = (
    """
    CREATE OR REPLACE TEMP TABLE of_days AS SELECT
        "group", list_sort(list(struct_pack("key" := day, "value" := commits))) AS commits_by_day
    FROM (
        SELECT "group", day, sum(commits)::BIGINT AS commits FROM (
            SELECT "group", DATE '1970-01-01' + (bounded(commit_ms) // 86_400_000)::INT AS day, count(*) AS commits
            FROM commits GROUP BY ALL
            UNION ALL
            SELECT "group", unnest(commits_by_day, recursive := true) FROM old
        ) GROUP BY ALL
    ), run
    WHERE day >= first_day GROUP BY "group"
    """,
    """
    CREATE OR REPLACE TEMP TABLE topics AS SELECT
        "group", topic, count(*) AS partitions, min(commit_time) AS oldest_commit
    FROM places GROUP BY ALL
    """,
    """
    CREATE OR REPLACE TEMP TABLE of_places AS SELECT
        "group", sum(partitions)::INT AS partitions, count(*)::INT AS topics, min(oldest_commit) AS oldest_commit,
        list_sort(list(struct_pack("key" := topic, "value" := after)) FILTER (after IS NOT NULL)) AS topics_after
    FROM topics LEFT JOIN (
        SELECT "group", topic, max(after) AS after FROM (
            SELECT "group", topic, written_after AS after FROM commits
            WHERE NOT aborted AND committed_offset IS NOT NULL AND written_after IS NOT NULL
            UNION ALL
            SELECT "group", unnest(topics_after, recursive := true) FROM old
        ) GROUP BY ALL
    ) USING ("group", topic) GROUP BY "group"
    """,
    f"""
    CREATE OR REPLACE TEMP TABLE last_states AS SELECT
        *, gone AND NOT ends_with(kind, '-member') AS ended, log_offset AS position
    FROM states WHERE kind IN {_STATE_RECORDS}
    """,  # noqa: S608
    """
    CREATE OR REPLACE TEMP TABLE of_states AS SELECT
        "group", max(log_partition) AS log_partition, min(record_time) AS first_seen
    FROM states GROUP BY "group"
    """,
    *(
        f"""
        CREATE OR REPLACE TEMP TABLE {name} AS SELECT DISTINCT ON ("group") * FROM last_states WHERE {which}
        ORDER BY "group", position DESC
        """  # noqa: S608
        for name, which in {"latest": "true", "ends": "ended", "alive": "NOT ended"}.items()
    ),
    """
    CREATE OR REPLACE TEMP TABLE seen AS SELECT DISTINCT ON ("group") "group", clients, record_time FROM states
    WHERE len(clients) > 0 ORDER BY "group", log_offset DESC
    """,
    # The end of a Classic group may be its conversion into another type, which keeps the members.
    """
    CREATE OR REPLACE TEMP TABLE of_members AS SELECT "group", list_sort(list(member_id)) AS members FROM (
        SELECT "group", member_id, arg_max(gone, position) AS gone FROM (
            SELECT "group", member_id, position, gone FROM last_states WHERE ends_with(kind, '-member')
            UNION ALL
            SELECT "group", unnest(members), -1, false FROM was
        )
        LEFT JOIN (SELECT "group", position AS emptied_at FROM ends WHERE family <> 'classic') USING ("group")
        WHERE emptied_at IS NULL OR position > emptied_at
        GROUP BY "group", member_id
    ) WHERE NOT gone GROUP BY "group"
    """,
    """
    CREATE OR REPLACE TEMP VIEW found AS SELECT
        "group", was.type AS was_type, was.protocol_type AS was_protocol, was.state AS was_state,
        was.state_since AS was_since, was.empty_since AS was_empty_since, was.state_after AS was_after,
        latest.position IS NOT NULL AS has_state, latest.family, latest.ended, latest.position, latest.record_time,
        latest.protocol_type AS new_protocol, latest.members AS counted, latest.state_ms,
        latest.written_after AS new_after, ends.record_time AS ended_at,
        CASE WHEN alive.family = 'classic' THEN coalesce(alive.protocol_type, '') END AS joined,
        seen.clients, seen.record_time AS clients_at,
        committed_at, wiped_at, wiped_time,
        greatest(of_commits.log_partition, of_states.log_partition) AS log_partition,
        least(of_commits.first_seen, of_states.first_seen, old.first_seen) AS first_seen,
        least(of_commits.first_commit, old.first_commit) AS first_commit,
        greatest(of_commits.last_commit, old.last_commit) AS last_commit,
        greatest(of_commits.last_commit_after, old.last_commit_after) AS last_commit_after,
        old.tombstoned_at AS old_tombstoned_at, old.last_clients AS old_clients, old.last_clients_at AS old_clients_at,
        coalesce(of_places.partitions, 0) AS partitions, coalesce(of_places.topics, 0) AS topics,
        of_places.oldest_commit,
        coalesce(of_members.members, []) AS members,
        coalesce(of_days.commits_by_day, []) AS commits_by_day,
        coalesce(of_places.topics_after, []) AS topics_after
    FROM of_commits FULL JOIN of_states USING ("group")
    LEFT JOIN old USING ("group")
    LEFT JOIN was USING ("group")
    LEFT JOIN latest USING ("group") LEFT JOIN ends USING ("group") LEFT JOIN alive USING ("group")
    LEFT JOIN seen USING ("group")
    LEFT JOIN of_places USING ("group") LEFT JOIN of_members USING ("group")
    LEFT JOIN of_days USING ("group")
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
        first_seen, partitions, topics, commits_by_day,
        CASE WHEN wiped_out THEN wiped_time ELSE coalesce(ended_at, old_tombstoned_at) END AS tombstoned_at,
        era, now AS updated_at, last_commit_after,
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
                type_now IN ('Classic', 'Unknown') AND coalesce(protocol, '') = '' AND partitions = 0
                AND state_now IN ('Empty', 'Unknown') AND wiped_at > coalesce(position, -1), false
            ) AS wiped_out
        FROM found
    ), run
"""

# Without a time, it may be the newest record. A clock that is ahead must not protect groups for ever.
_LAST_STRAY = f"""
    SELECT max(greatest(least(coalesce(record_time, now), now), written_after)) FROM (
        SELECT "group", log_partition, record_time, written_after FROM all_commits WHERE {COMMIT_IS_USE}
        UNION ALL
        SELECT "group", log_partition, record_time, written_after FROM all_states WHERE {_STATE_IS_CLIENTS}
    ) JOIN strays USING ("group", log_partition), run
"""  # noqa: S608

# The row of before counts as a record, which says nothing itself, of the era of the group's first one.
_WITH_BEFORE = """
    CREATE OR REPLACE TEMP VIEW rows_of_groups AS
    FROM records UNION ALL BY NAME SELECT
        "group", coalesce(first_era, 0) AS era, -1 AS slice, '' AS kind, false AS gone, false AS used, true AS own,
        -1 AS log_offset
    FROM rows_of_before LEFT JOIN (SELECT "group", min(era) AS first_era FROM records GROUP BY ALL) USING ("group")
"""
_MOMENTS = """
    CREATE OR REPLACE TEMP TABLE moments AS
    SELECT
        *, row_number() OVER (ORDER BY "group", era, slice) - 1 AS moment,
        count(*) OVER (ORDER BY "group", era) AS after_era
    FROM (
        SELECT
            "group", era, slice, min(first_ms) AS first_ms, min(first_ms) FILTER (used) AS used_ms,
            arg_min(kind, first_ms) FILTER (used) AS used_by
        FROM rows_of_groups GROUP BY "group", era, slice
    )
"""
# A record counts from its moment on, until one that replaces it, or its era ends. Of an aborted commit, only the time
# counts. Members that left are forgotten, except for the last one: a group may have had very many.
_LASTING = """
    CREATE OR REPLACE TEMP TABLE lasting AS SELECT
        * EXCLUDE ("group"), unnest(range(moment, until)) AS "group", NULL::INT AS leader_epoch,
        NULL::VARCHAR AS metadata, NULL::TIMESTAMPTZ AS written_after, (SELECT last_clients FROM old LIMIT 0) AS clients
    FROM (
        SELECT
            rows_of_groups.*, moment, ends_with(kind, '-member') AS of_member,
            CASE WHEN aborted THEN moment + 1 ELSE least(
                lead(moment) OVER (
                    PARTITION BY
                        "group", era, kind, topic, "partition", aborted, member_id, of_member OR gone, of_member OR used
                    ORDER BY log_offset
                ),
                CASE WHEN of_member AND gone
                    THEN lead(moment) OVER (PARTITION BY "group", era, kind, gone ORDER BY log_offset) END,
                after_era
            ) END AS until
        FROM rows_of_groups JOIN moments USING ("group", era, slice)
        -- These accompany the records of members.
        WHERE own AND NOT ends_with(kind, '-target-member')
    )
"""
_OLD_MOMENTS = """
    CREATE OR REPLACE TEMP TABLE old AS SELECT
        rows_of_before.* REPLACE (moment AS "group", CASE WHEN moments.era = first_era THEN 0 ELSE -1 END AS era)
    FROM rows_of_before JOIN (
        SELECT "group", moment, era, min(era) OVER (PARTITION BY "group") AS first_era FROM moments
    ) AS moments USING ("group")
"""
_MOMENTS_ROWS = f"""
    SELECT
        moments."group", moment, first_ms, used_ms, used_by, type, protocol_type, state,
        epoch_ms(max(greatest(last_commit, last_commit_after)) OVER (PARTITION BY moments."group" ORDER BY moment))
            AS last_ms,
        epoch_ms(oldest_commit) AS oldest_ms, epoch_ms(empty_since) AS empty_ms
    FROM moments LEFT JOIN ({_ROWS}) AS found ON found."group" = moment ORDER BY moment
"""  # noqa: S608


class Run(NamedTuple):
    """The log that is folded. era: of all records. partitions: of the log. now: when its end was asked for.

    first_day: of `commits_by_day`.
    """

    cluster_id: str
    era: int
    partitions: int
    now: datetime
    first_day: date


class Fold:
    """New records of some groups, and what their rows say then. Raises duckdb.Error.

    groups: that have records. Records that are in another partition than their group's count for nothing: brokers wrote
    them by another number of partitions, before the log had so many, or until they are restarted. Their offsets say
    nothing about the group's own ones, so what they say of the group is not known.

    strays: the time of the last use among these; before that, any group may have been used. None = there is no use.
    """

    def __init__(self, commits: pa.Table, states: pa.Table, run: Run, spill: str) -> None:
        """Rows of `commits` and `group_states`. spill: an existing folder for what does not fit into memory."""
        self._database = _connected(run, spill)
        # DuckDB reads them where they are: tables of its own would be copies.
        tables = {"commits": commits, "states": states}
        chunks = [chunk for each in tables.values() for chunk in each["group"].chunks]
        encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode().unify_dictionaries()
        self._names = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], pa.string())
        numbers, first = pa.chunked_array([chunk.indices for chunk in encoded.chunks], pa.int32()), 0
        for name, table in tables.items():
            self._database.register(f"rows_of_{name}", _numbered(table, numbers.slice(first, len(table))))
            first += len(table)
        self._views()
        self._database.execute(_OF_COMMITS)
        rows = self._database.sql(_GROUPS).to_arrow_table()
        own = partitions_of(self._names, run.partitions)[rows["group"].to_numpy()]
        stray = pa.array(own != rows["log_partition"].to_numpy())
        self._left = rows["group"].filter(pc.invert(stray))
        self.groups = pc.take(self._names, self._left)
        self.strays = self._remove(rows.filter(stray)) if len(self.groups) < len(rows) else None

    def close(self) -> None:
        self._database.close()

    def _views(self, but: str = "") -> None:
        for name, columns in (("commits", _COMMITS), ("states", _STATES)):
            self._database.execute(
                f"CREATE OR REPLACE TEMP VIEW all_{name} AS SELECT {columns} FROM rows_of_{name} {but}"  # noqa: S608
            )

    def _remove(self, strays: pa.Table) -> datetime | None:
        self._database.register("strays", strays)
        found = self._database.execute(_LAST_STRAY).fetchone()
        self._views('ANTI JOIN strays USING ("group", log_partition)')
        self._database.execute('DELETE FROM of_all_commits WHERE ("group", log_partition) IN (FROM strays)')
        last: datetime | None = found[0] if found else None
        return last

    def rows(self, old: pa.Table, last: bool = True) -> Iterator[pa.Table]:
        """The rows of `activity` for groups with new records. old: the current rows of some of them.

        last: False = for these groups only, the others come later.
        """
        known = pc.index_in(old["group"], value_set=self._names)
        self._database.register("old", _numbered(_with_lists(old), known))
        now = self._left if last else known
        some = "" if len(now) == len(self.groups) else 'SEMI JOIN now USING ("group")'
        self._left = self._left.filter(pc.invert(pc.is_in(self._left, value_set=now.combine_chunks())))
        self._database.register("now", pa.table({"group": now}))
        offsets = _prepared(self._database, len(self._names), old.schema.field("offsets").type, some)
        for batch in self._database.sql(_ROWS).to_arrow_reader(_CHUNK):
            numbers = batch.column("group")
            made = {"offsets": offsets.take(numbers), "group": self._names.take(numbers)}
            cells = {name: batch.column(name) for name in batch.schema.names} | made
            columns = [_column(cells[field.name], field.type) for field in old.schema]
            yield pa.Table.from_arrays(columns, schema=old.schema)


class Moments:
    """Rows of `activity` as of many moments of the past. Raises duckdb.Error.

    Each slice of time in which a group has records is a moment of it, after all of these.
    """

    def __init__(self, spill: str) -> None:
        """spill: see Fold."""
        self._database = _connected(Run("", 0, 0, datetime.now(UTC), date.max), spill)

    def close(self) -> None:
        self._database.close()

    def rows(self, groups: pa.Array, records: pa.Table, before: pa.Table) -> pa.Table:
        """The moments of these groups, in their order.

        records: columns of `commits` and `group_states`, further `slice`, `first_ms` (see `tally.lives`), `used`
        (COMMIT_IS_USE or STATE_IS_USE) and `own`, whether it counts; `kind` is 'commit' for commits. In each slice, the
        last of several similar records is enough.

        before: rows of `activity` of some of the groups, from before their records: their first moment.

        Returns `group` (a number), first_ms (of its first record; null = of `before`), used_ms and used_by (time and
        kind of the first record that shows use; null = none does), and of `activity` type, protocol_type, state,
        last_ms (see Activity.committed_last), oldest_ms, empty_ms and offsets, all null if no record counts. Times are
        in milliseconds since 1970.
        """
        for name, table in {"records": records, "rows_of_before": _with_lists(before)}.items():
            numbers = pc.index_in(table["group"], value_set=groups)
            self._database.register(name, _numbered(table, numbers))
        for step in (_WITH_BEFORE, _MOMENTS, _OLD_MOMENTS, _LASTING):
            self._database.execute(step)
        for name, columns, which in (("commits", _COMMITS, "="), ("states", _STATES, "<>")):
            view = f"SELECT {columns} FROM lasting WHERE kind {which} 'commit'"  # noqa: S608
            self._database.execute(f"CREATE OR REPLACE TEMP VIEW all_{name} AS {view}")
        self._database.execute(_OF_COMMITS)
        count = self._database.sql("FROM moments").shape[0]
        offsets = _prepared(self._database, count, before.schema.field("offsets").type)
        found = self._database.sql(_MOMENTS_ROWS).to_arrow_table()
        return found.append_column("offsets", offsets)


def _connected(run: Run, spill: str) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(
        config={
            **{"threads": 1, "memory_limit": _MEMORY, "temp_directory": spill, "preserve_insertion_order": False},
            # It would download its extensions.
            **{"autoinstall_known_extensions": False, "autoload_known_extensions": False},
        }
    )
    database.execute("SET TimeZone = 'UTC'")
    # least and greatest ignore nulls.
    bounded = f"CASE WHEN ms IS NOT NULL THEN greatest({-FAR_MS}, least({FAR_MS}, ms)) END"
    database.execute(f"CREATE MACRO bounded(ms) AS {bounded}")
    database.execute("CREATE MACRO to_time(ms) AS make_timestamptz(bounded(ms) * 1000)")
    database.execute(
        "CREATE TEMP TABLE run AS SELECT $id AS cluster_id, $era::INT AS era, $now AS now, $day AS first_day",
        {"id": run.cluster_id, "era": run.era, "now": run.now, "day": run.first_day},
    )
    return database


def _prepared(database: duckdb.DuckDBPyConnection, groups: int, kind: pa.ListType, some: str = "") -> pa.ListArray:
    """Create the tables that _ROWS reads; returns the current offsets of each group.

    Of `all_commits`, `all_states`, `of_all_commits` and `old`. some: a join that selects groups.
    """
    for view in ("commits", "states", "of_commits"):
        source = view.replace("commits", "all_commits").replace("states", "all_states")
        database.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS FROM {source} {some}")
    database.execute(_WAS)
    places = database.sql(_PLACES).to_arrow_table()
    database.register("places", places)
    for step in _STEPS:
        database.execute(step)
    return _by_group(places, groups, kind)


def _with_lists(rows: pa.Table) -> pa.Table:
    """With lists of entries for maps: DuckDB compares the keys of each map, which takes as long as half of the rest."""
    types = [pa.list_(field.type.field(0)) if pa.types.is_map(field.type) else field.type for field in rows.schema]
    return rows.cast(pa.schema(zip(rows.schema.names, types, strict=True)))


def _numbered(table: pa.Table, numbers: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.schema.get_field_index("group"), "group", numbers)


def _by_group(places: pa.Table, groups: int, kind: pa.ListType) -> pa.ListArray:
    """Of each group, the list of its places. DuckDB takes three times as long."""
    numbers = places["group"].to_numpy()
    order = pa.array(np.argsort(numbers, kind="stable"))
    fields = list(kind.value_type)
    cells = [places[field.name].combine_chunks().cast(field.type).take(order) for field in fields]
    edges = pa.array(np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=groups))]), pa.int32())
    return pa.ListArray.from_arrays(edges, pa.StructArray.from_arrays(cells, fields=fields), kind)


def partitions_of(groups: pa.StringArray, partitions: int) -> Numbers:
    """The partition of each of these groups: see `partition_of`, which is slower."""
    plain = pc.string_is_ascii(groups).to_numpy(zero_copy_only=False)
    codes = np.zeros(len(groups), np.int64)
    for index in np.flatnonzero(~plain).tolist():
        codes[index] = hash_of(groups[index].as_py())
    _, ends, data = groups.buffers()
    letters = np.frombuffer(data or b"", np.uint8)
    edges = np.frombuffer(ends, np.int32)[groups.offset : groups.offset + len(groups) + 1]
    left, at = np.flatnonzero(plain), edges[:-1].astype(np.int64)
    # One letter of all that have so many at a time.
    while len(left := left[at[left] < edges[left + 1]]):
        codes[left] = (31 * codes[left] + letters[at[left]]) & 0xFFFFFFFF
        at[left] += 1
    found: Any = codes
    return np.array(partition_of_hash(found, partitions))


def _column(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_map(kind):
        return cells.cast(kind)
    keys, values = cells.values.flatten()
    return pa.MapArray.from_arrays(cells.offsets, keys, values, kind, mask=cells.is_null())
