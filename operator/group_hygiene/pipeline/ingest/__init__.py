"""From the offsets log to all tables, exactly once, in one pass.

What runs in Spark's workers imports no Spark.

    reading   one run as the driver does it: where to continue, batches of tasks, and a version of each table for each
    task      the task of a worker: some partitions of the log become files of all tables
    fetch     reads partitions of the log from their leaders
    fold      what records say of groups: rows of `activity`, of now and of the past, in DuckDB's SQL
"""
