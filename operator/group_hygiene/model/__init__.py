"""The records that all packages share: frozen, without I/O and without decisions.

Imports nothing of this package but `errors`.

    groups      groups, committed offsets, bounds of partitions, one observation of a cluster, programs by their members
    entries     the entries of the ledger, and the backup of one group, in parts and whole
    group_keep  a GroupKeep and its groups
    evidence    the evidence about one group when it is judged, its last client, the verdict and the outcome
    reasons     the reasons of statuses, events, metrics and commands; docs/reasons.md has each
    naming      truncates names and texts for messages, and makes them printable
"""
