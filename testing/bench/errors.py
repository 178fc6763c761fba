"""What can go wrong in a benchmark.

BenchError       a program failed, or the cluster could not be filled
└── WrongCount   a program did not see what is in the cluster, so its time says nothing
"""


class BenchError(Exception):
    """The root of all errors that the benchmark raises on purpose."""


class WrongCount(BenchError):
    """A program counted other groups or partitions than were loaded."""
