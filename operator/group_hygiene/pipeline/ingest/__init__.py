"""From the offsets log to all tables, exactly once, in one pass.

What runs in Spark's workers imports no Spark. Imports neither `activity` nor `backtest`.

    reading   one run, from what the log has to what is left of it
    batch     one batch as the driver does it: tasks, then a version of each table
    progress  the table `coverage`: how far the log was read, and how to continue after the log changed
    task      the task of a worker: some partitions of the log become files of all tables
    fetch     reads partitions of the log from their leaders
    decoder   decodes the keys and values of records into columns
    fold      how new records change a group's row of `activity`, in DuckDB's SQL
"""
