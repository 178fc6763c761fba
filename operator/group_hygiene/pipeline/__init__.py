"""From Kafka's offsets log to Delta tables, on Spark: the only package that imports pyspark.

`ingest` is Python that Spark schedules: a task reads some partitions of the log itself, and writes their files. Spark's
own Kafka source is not used: it divides a log by offsets, where the cost follows bytes; it does not show which of
a transaction's commits were aborted; and it returns no records of an internal topic without a deprecated option.

It writes nothing to Kafka and joins no group; `.importlinter` lists the modules that it may not import. Spark's workers
import parts of it, too, so this file imports nothing.

    ingest         from the offsets log to all tables
    backtest       policies tried on the past
    jobs           the Spark session, and its jobs: ingest, and maintain, which drops old rows, compacts, removes files
    survey         the report's findings about the current groups
    name_patterns  finds the patterns of generated group names
    tables         the Delta tables: names, schemas, properties; `coverage`: how far the log was read
    store          reads and writes a Delta table, mostly without Spark, and the files that workers write
"""
