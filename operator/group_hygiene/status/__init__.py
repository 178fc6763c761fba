"""The status of the custom resources: conditions, counts, samples, and whether a change is worth a write. Pure.

Conditions follow metav1.Condition and kstatus: Ready always; Reconciling and Stalled only while True. Bounded: counts,
and at most 20 sample groups.

    conditions      conditions, and the statuses that are nothing else
    of_policies     the status of a GroupPolicy after a run
    of_connections  the status of a KafkaConnection after a scan
    of_keeps        the status of a GroupKeep
    of_alerts       the conditions of alerts
    redaction       messages that objects outside the connection's namespace may show
    patch           whether a change is worth a write, and the patch
"""

from group_hygiene.status.conditions import (
    Conditions,
    Status,
    build_problem_status,
    build_suspended_status,
    is_stalled,
    without_announcements,
)
from group_hygiene.status.of_alerts import is_alerting, with_alerting, with_delivery
from group_hygiene.status.of_connections import ConnectionFacts, LedgerFacts, build_connection_status
from group_hygiene.status.of_keeps import build_keep_status
from group_hygiene.status.of_policies import SAMPLE_SIZE, build_status, has_evidence, lag_entry, last_marked, warns_late
from group_hygiene.status.patch import QUIET_PERIOD, RUN_ID, changed_conditions, merge_patch, needs_write, signed
from group_hygiene.status.redaction import OWN, connection_not_ready, redact, redact_problem, redact_run

__all__ = [
    "OWN",
    "QUIET_PERIOD",
    "RUN_ID",
    "SAMPLE_SIZE",
    "Conditions",
    "ConnectionFacts",
    "LedgerFacts",
    "Status",
    "build_connection_status",
    "build_keep_status",
    "build_problem_status",
    "build_status",
    "build_suspended_status",
    "changed_conditions",
    "connection_not_ready",
    "has_evidence",
    "is_alerting",
    "is_stalled",
    "lag_entry",
    "last_marked",
    "merge_patch",
    "needs_write",
    "redact",
    "redact_problem",
    "redact_run",
    "signed",
    "warns_late",
    "with_alerting",
    "with_delivery",
    "without_announcements",
]
