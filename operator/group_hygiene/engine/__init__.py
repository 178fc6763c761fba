"""One run: observe -> decide -> apply; and restores. Knows Kafka and the policies; no Kubernetes, no clock of its own.

What decides is pure: `checks`, `unchanged`, `pattern_notes`, `plan`, `settle` and `restorable` import neither Kafka nor
the ledger (`.importlinter`). A group with missing evidence is not deleted, and a partition without evidence is not
restored. `deletion.apply` is called only for a plan with actions: a dry run never calls it.

    checks         judges one group by an ordered chain of functions
    unchanged      counts for how long scans saw a group unchanged, for `unchangedFor`
    pattern_notes  finds patterns that select no group
    plan           plans the actions of one run: marks, grace periods, limits and order
    context        the records and the reads that the steps of a run share, and the evidence about a group
    executor       what must hold before Kafka is changed, and the one object that changes it
    recovery       opens the ledger for one run, and ends the deletions that an ended process left open
    settle         how a deletion ends: the table of facts and outcomes
    scan           the first half: scans the cluster and judges groups; changes none
    selection      which groups the policies of a scan select, and which policies take too much time
    uses           uses of a group that no scan saw: in the offsets log, up to its deletion; programs that use groups
    marks          writes and ends marks and requests to keep groups
    deletion       the second half: reads each group again, and deletes it by one request, or by several if it is large
    recheck        reads all evidence about a group again before its deletion, and what can prevent it then
    requested      deletes groups that a user names
    restorable     which offsets of a backup may be committed, and the results of a restore
    restoration    reads, decides, commits and verifies, group by group
"""
