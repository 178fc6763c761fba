"""The tables `activity` (one row per group) and `coverage` (how far `activity` is complete), and the report's findings.

Does not connect to Kafka. Imports `ingest`, but not `backtest`.

    update         adds newly ingested records to `activity`
    shards         the task of a worker: rewrites the files of some partitions of the log
    fold           how new records change a group's row, in DuckDB's SQL
    coverage       reads `coverage`
    name_patterns  finds the patterns of generated group names
    survey         the report's findings about the current groups
"""
