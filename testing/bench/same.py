"""`python -m testing.bench.same OURS PLAIN`: in how many groups two tables differ. Both are folders of Parquet files.

OURS: columns of `activity`. PLAIN: the table of `bench.plain`. Compared are the last commit, since when a group is
Empty, and its commits by day and offsets, in any order.
"""

import sys

import duckdb

_QUERY = """
    SELECT count(*) FROM read_parquet($ours) AS ours FULL JOIN read_parquet($plain) AS plain USING ("group")
    WHERE ours.last_commit IS DISTINCT FROM plain.last_commit
        OR ours.empty_since IS DISTINCT FROM plain.empty_since
        OR ours.partitions IS DISTINCT FROM plain.partitions
        OR list_sort(map_entries(ours.commits_by_day)) IS DISTINCT FROM list_sort(map_entries(plain.commits_by_day))
        OR list_sort(ours.offsets) IS DISTINCT FROM list_sort(plain.offsets)
"""
COLUMNS = ("group", "last_commit", "empty_since", "partitions", "commits_by_day", "offsets")


def differences(ours: str, plain: str) -> int:
    """The number of groups that are in one table only, or are different."""
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    row = database.execute(_QUERY, {"ours": f"{ours}/*.parquet", "plain": f"{plain}/*.parquet"}).fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    print(differences(*sys.argv[1:]))
