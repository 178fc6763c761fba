"""The status of the custom resources: conditions, counts, samples, and whether a change is worth a write. Pure.

Conditions follow metav1.Condition and kstatus: Ready always; Reconciling and Stalled only while True. Bounded: counts,
and at most 20 sample groups.

    conditions  conditions, statuses that are nothing else, whether a change is worth a write, and redaction
    of_objects  the statuses of a GroupPolicy after a run, of a KafkaConnection after a scan, and of a GroupKeep
"""
