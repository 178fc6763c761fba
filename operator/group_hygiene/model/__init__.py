"""The records that all packages share: frozen, without I/O and without decisions.

Imports nothing of this package but `errors`.

    groups      groups, committed offsets, bounds of partitions, and the error of one of them
    refusal     reason and message of an action that is not done
    snapshot    one observation of a cluster
    entries     the entries of the ledger, except backups
    backups     the backup of one group, in parts and whole
    group_keep  a GroupKeep and its groups
    evidence    the evidence about one group when it is judged
    last_use    the last client of a group, in words
    programs    recognizes programs by the members of their groups
    verdicts    the verdict on one group, and the outcome
    reasons     the reasons of statuses, events, metrics and commands; docs/reasons.md has each
    naming      truncates names and texts for messages, and makes them printable
"""
