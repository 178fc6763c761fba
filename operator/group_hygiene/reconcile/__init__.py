"""One run: observe -> decide -> apply. Knows Kafka and the policies; no Kubernetes, no clock of its own.

`open_journal` reads the ledger, and `recover_intents` resolves interrupted deletions. `observe` scans the cluster once
for all due policies. `decide.plan.make_plan` decides for each. `note_marks` writes the marks, and `apply` deletes.
`apply` is called only for a plan with actions: a dry run never calls it.

    context    the records and the reads that the steps of a run share, and the evidence about a group
    executor   what must hold before Kafka is changed, and the one object that changes it
    recovery   opens the ledger for one run, and ends the deletions that an ended process left open
    settle     how a deletion ends: the table of facts and outcomes
    scan       the first half: scans the cluster and judges groups; changes none
    selection  which groups the policies of a scan select, and which policies take too much time
    uses       uses of a group that no scan saw: in the offsets log, up to its deletion; programs that use groups
    marks      writes and ends marks and requests to keep groups
    deletion   the second half: reads each group again, and deletes it by one request, or by several if it is large
    recheck    reads all evidence about a group again before its deletion, and what can prevent it then
    requested  deletes groups that a user names
"""

from group_hygiene.reconcile.context import Context, Memory, Observation
from group_hygiene.reconcile.deletion import apply
from group_hygiene.reconcile.executor import Executor, Guard, may_create_ledger, open_ledger
from group_hygiene.reconcile.marks import forget_policies, keep_groups, keepers, note_marks, withdraw
from group_hygiene.reconcile.recovery import (
    LedgerNeed,
    few_replicas,
    ledger_settings,
    open_journal,
    recover_commands,
    recover_intents,
)
from group_hygiene.reconcile.requested import DeletionRequest, Judged, delete_requested, judge_requested
from group_hygiene.reconcile.scan import observe
from group_hygiene.reconcile.uses import note_programs

__all__ = [
    "Context",
    "DeletionRequest",
    "Executor",
    "Guard",
    "Judged",
    "LedgerNeed",
    "Memory",
    "Observation",
    "apply",
    "delete_requested",
    "few_replicas",
    "forget_policies",
    "judge_requested",
    "keep_groups",
    "keepers",
    "ledger_settings",
    "may_create_ledger",
    "note_marks",
    "note_programs",
    "observe",
    "open_journal",
    "open_ledger",
    "recover_commands",
    "recover_intents",
    "withdraw",
]
