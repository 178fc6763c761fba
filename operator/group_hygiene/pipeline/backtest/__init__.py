"""Tries policies on the past: the groups that each would have deleted, and those of them that were used again.

Reads the tables, writes nothing and does not connect to Kafka. `replay`, `trial` and `tally` run in Spark's workers.

    run      one backtest
    lives    the records of each group, in order
    replay   the state of one group at any time; pure
    trial    simulates a policy for one group, with the operator's own checks; pure
    tally    counts the results of many groups
    suggest  policies for the most frequent name patterns, each tried
"""
