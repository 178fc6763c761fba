"""From the offsets log to the bronze tables, exactly once.

`fetch` and the modules below it run in Spark's workers, and import no Spark. Imports neither `activity` nor `backtest`.

    batches   one run of the ingest
    progress  how far the log was read, and how to continue after the log changed
    fetch     the task of a worker: reads partitions of the log, and writes them as Parquet
    decoder   decodes the keys and values of records into columns
"""
