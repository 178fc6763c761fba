"""The story of one run: observe -> decide -> apply. Knows Kafka and the policies; no Kubernetes, no clock of its own.

`open_journal` finds out what earlier runs wrote, and `settle` brings to an end what one of them left open. `observe`
looks at a cluster once for all policies that are due. `plan.make_plan` decides for each. `note_marks` writes whom that
warns, and `apply` deletes; it is called for a plan that has actions and for nothing else: a dry run is a run in which
nobody calls it.
"""

from group_hygiene.reconcile.context import Clock, Context, Memory, Observation
from group_hygiene.reconcile.deletion import Guard, apply
from group_hygiene.reconcile.journal import SKEW_MAX, Journal
from group_hygiene.reconcile.marking import forget_policies, note_marks
from group_hygiene.reconcile.opening import Need, ledger_settings, open_journal
from group_hygiene.reconcile.scan import observe
from group_hygiene.reconcile.settling import settle

__all__ = [
    "SKEW_MAX",
    "Clock",
    "Context",
    "Guard",
    "Journal",
    "Memory",
    "Need",
    "Observation",
    "apply",
    "forget_policies",
    "ledger_settings",
    "note_marks",
    "observe",
    "open_journal",
    "settle",
]
