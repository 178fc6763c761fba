"""Tries policies on the past: the groups that each would have deleted, and those of them that were used again.

Reads the tables, writes nothing and does not connect to Kafka. `replay` and parts of `tally` run in Spark's workers.

    run      one backtest; policies for the most frequent name patterns, each tried
    replay   the state of one group at any time, and the simulation of a policy for it; pure
    tally    reads the records of each group, in order; counts the results of many groups
"""
