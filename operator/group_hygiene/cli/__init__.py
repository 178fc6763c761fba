"""The command line `group-hygiene`, also `kubectl group-hygiene`.

`program` and the modules of commands import nothing slow, so that --help and completion answer at once; each command
imports the rest when it runs. `delete` and `delete-offsets` delete by the steps of `reconcile`, `restore` commits
offsets, `keep` writes to the ledger; the others only read.

    program             the commands, exit codes and errors
    commands            arguments and help of list, describe, offsets, plan, explain, keep, restore, history
    deletion_commands   arguments and help of delete and delete-offsets
    alert_commands      arguments and help of alert
    pipeline_commands   the command pipeline
    about_commands      the commands version, crds, catalogue and completion
    options             options that several commands share
    spark_options       options of the commands that start Spark
    target              connects a client by the options; the namespace of the current context
    documents           YAML files as documents, with their lines
    manifests           parses documents as policies and connections, and collects all errors
    output              tables, CSV, JSON, YAML, names, notes and progress
    watch               the rows that changed, again and again
    layout              groups, members and partitions as rows and as JSON
    groups              list, describe and offsets
    plans               plan
    plan_summary        the matches by pattern and owner, and limits for a first clean-up
    explanations        explain
    history             history; opens the ledger for all commands
    keep_objects        keep, for users without rights to the KafkaConnection
    keep_requests       keep
    deletions           delete and delete-offsets
    restores            restore
    alert_test          alert test
    backtests           the command backtest
    reports             the command report
    doctor              the command doctor, the order of its checks, and their findings
    doctor_kafka        the checks of the Kafka cluster
    doctor_kubernetes   the checks of the API server
"""

from group_hygiene.cli.program import main

__all__ = ["main"]
