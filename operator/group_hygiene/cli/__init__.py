"""The command line `group-hygiene`, also `kubectl group-hygiene`.

`program` and the modules of commands import nothing slow, so that --help and completion answer at once; each command
imports the rest when it runs. `delete` and `delete-offsets` delete by the steps of `engine`, `restore` commits
offsets, `keep` writes to the ledger; the others only read.

    program         the commands, exit codes and errors; operator, version, crds, catalogue, completion
    commands        arguments and help of the commands on groups, of alert and of doctor
    spark_commands  pipeline and report, and the options of all commands that start Spark
    backtests       backtest
    options         options that several commands share
    target          connects a client by the options; the namespace of the current context
    manifests       policies and connections of YAML files, with all errors; scans of their clusters
    output          tables, CSV, JSON, YAML, names, notes and progress; the rows that changed, again and again
    groups          list, describe and offsets
    plans           plan and explain
    history         history and restore; opens the ledger for all commands
    keep_requests   keep
    deletions       delete and delete-offsets
    alert_test      alert test
    doctor          doctor: the order of its checks, their findings, and the checks of the API server
    doctor_kafka    doctor: the checks of the Kafka cluster
"""

from group_hygiene.cli.program import main

__all__ = ["main"]
