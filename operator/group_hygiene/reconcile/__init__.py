"""One run: observe -> decide -> apply. Knows Kafka and the policies; no Kubernetes, no clock of its own.

`open_journal` reads the ledger, and `recover_intents` resolves interrupted deletions. `observe` scans the cluster once
for all due policies. `decide.plan.make_plan` decides for each. `note_marks` writes the marks, and `apply` deletes.
`apply` is called only for a plan with actions: a dry run never calls it.

    context          the records, and the reads, that the steps of a run share
    preconditions    what must hold before Kafka is changed, as data
    executor         the one object that changes Kafka, and writes what changes depend on
    opening          opens the ledger for one run, if its policies need one
    settle           how a deletion ends: the table of facts and outcomes
    recovery         deletions that a process began and did not finish: what is left, and their outcomes
    scan             the first half: scans the cluster and judges groups; changes none
    selection        which groups the policies of a scan select, and which policies take too much time
    evidence         reads the pipeline's tables, and whether they may be used
    uses             finds uses of a group between two scans in the offsets log
    sightings        notes which groups Kafka Connect and Kafka Streams use
    unread           finds out whether a group has unread records
    allowance        how much one namespace may write into a ledger that others use
    marks            writes new marks and removes ended ones
    deletion         the second half: reads each group again, and deletes it
    window           adds to a backup what was committed right before the deletion
    recheck          reads all evidence about a group again before its deletion
    vetoes           what can prevent a deletion, after its evidence was read again
    keeping          writes the requests of GroupKeeps, and what they came too late for
    requested        deletes groups that a user names
    delete_requests  sends the requests that delete, several for a large group, and interprets their responses
"""

from group_hygiene.reconcile.context import Context, Memory, Observation
from group_hygiene.reconcile.deletion import apply
from group_hygiene.reconcile.executor import Executor, may_create_ledger, open_ledger
from group_hygiene.reconcile.keeping import keep_groups, keepers, withdraw
from group_hygiene.reconcile.marks import forget_policies, note_marks
from group_hygiene.reconcile.opening import LedgerNeed, few_replicas, ledger_settings, open_journal
from group_hygiene.reconcile.preconditions import Guard
from group_hygiene.reconcile.recovery import recover_commands, recover_intents
from group_hygiene.reconcile.requested import DeletionRequest, Judged, delete_requested, judge_requested
from group_hygiene.reconcile.scan import observe
from group_hygiene.reconcile.sightings import note_programs

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
