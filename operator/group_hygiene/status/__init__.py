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
