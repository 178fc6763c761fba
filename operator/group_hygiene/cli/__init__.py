"""The command line `group-hygiene`, also `kubectl group-hygiene`.

`program` and `commands` say what there is and import nothing slow, so that --help and completion answer at once; the
rest is imported by the command that needs it. Nothing here deletes: only `operator` changes a cluster.
"""

from group_hygiene.cli.program import main

__all__ = ["main"]
