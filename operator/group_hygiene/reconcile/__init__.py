"""The story of one run: observe -> decide -> apply. Knows Kafka and the policies; no Kubernetes, no clock of its own.

`observe` looks at a cluster once for all policies that are due. `plan.make_plan` decides for each. `apply` deletes, and
is called for a plan that has actions and for nothing else: a dry run is a run in which nobody calls it.
"""

from group_hygiene.reconcile.context import Clock, Context, Memory, Observation
from group_hygiene.reconcile.deletion import apply
from group_hygiene.reconcile.scan import observe

__all__ = ["Clock", "Context", "Memory", "Observation", "apply", "observe"]
