"""What the tables say of the current groups: the report's findings.

Does not connect to Kafka, and writes nothing. Imports neither `ingest` nor `backtest`.

    coverage       reads `coverage`, and the version of `activity` that it names
    name_patterns  finds the patterns of generated group names
    survey         the report's findings about the current groups
"""
