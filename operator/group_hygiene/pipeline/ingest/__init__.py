"""From the offsets log to the bronze tables, exactly once.

`decoder`, `columns` and `files` run in Spark's workers: they import neither Spark nor a client library. Imports neither
`activity` nor `backtest`.

    batches   one run of the ingest
    source    Spark's Kafka source, configured to read everything without joining a group
    progress  how far the log was read, and how to continue after the log changed
    decoder   decodes an Arrow batch of Kafka's bytes into columns
    columns   decodes the commits of a batch at once, by numpy
    files     decoded records written as Parquet
"""
