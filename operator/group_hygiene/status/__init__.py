"""The status of both kinds: conditions, counts, samples, and whether a change is worth a write. Pure.

Conditions follow metav1.Condition and kstatus: Ready always; Reconciling and Stalled only while True. Bounded: counts,
and at most 20 sample groups.
"""

from group_hygiene.status.conditions import Problem, Status, build_problem_status, build_suspended_status
from group_hygiene.status.of_alerts import is_alerting, with_alerting, with_delivery
from group_hygiene.status.of_connections import ConnectionFacts, LedgerFacts, build_connection_status
from group_hygiene.status.of_policies import SAMPLE_SIZE, build_status, standing_entry, told, warns_late
from group_hygiene.status.redaction import OWN, connection_not_ready, redact, redact_problem, redact_run
from group_hygiene.status.writing import QUIET_PERIOD, RUN_ID, merge_patch, needs_write, signed

__all__ = [
    "OWN",
    "QUIET_PERIOD",
    "RUN_ID",
    "SAMPLE_SIZE",
    "ConnectionFacts",
    "LedgerFacts",
    "Problem",
    "Status",
    "build_connection_status",
    "build_problem_status",
    "build_status",
    "build_suspended_status",
    "connection_not_ready",
    "is_alerting",
    "merge_patch",
    "needs_write",
    "redact",
    "redact_problem",
    "redact_run",
    "signed",
    "standing_entry",
    "told",
    "warns_late",
    "with_alerting",
    "with_delivery",
]
