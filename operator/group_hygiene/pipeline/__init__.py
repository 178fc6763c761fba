"""From Kafka's offsets log to Delta tables, on Spark: the only package that imports pyspark.

It writes nothing to Kafka and joins no group; `.importlinter` lists the modules that it may not import. Spark's workers
import parts of it, too, so this file imports nothing.

    ingest         from the offsets log to all tables
    backtest       policies tried on the past
    jobs           ingest and maintain in one Spark session
    survey         the report's findings about the current groups
    maintain       drops old rows, compacts and removes files
    coverage       how far the log was read: the table `coverage`, and the version of `activity` for it
    name_patterns  finds the patterns of generated group names
    tables         the Delta tables: names, schemas, properties
    store          reads and writes a Delta table, mostly without Spark
    session        the Spark session
    table_file     a file in the folder of a table, as workers write it
"""
