"""The decisions: which groups match, and which actions a run takes. Pure: no I/O, no clock.

Imports only `spec`, `model` and packages below them. A group with missing evidence is not deleted.

    checks         judges one group by an ordered chain of functions
    unchanged      counts for how long scans saw a group unchanged, for `unchangedFor`
    pattern_notes  finds patterns that select no group
    plan           plans the actions of one run: marks, grace periods, limits and order
"""
