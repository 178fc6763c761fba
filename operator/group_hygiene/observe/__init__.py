"""What others see: statuses of objects, logs and metrics, messages to receivers, the report. Decides nothing.

Knows no Kafka and no Kubernetes. Conditions follow metav1.Condition and kstatus: Ready always; Reconciling and Stalled
only while True. Statuses are bounded: counts, and at most 20 sample groups; labels of metrics and fields of log lines
name policies and connections, never groups. Statuses, messages and the report don't import each other.

    conditions  conditions, statuses that are nothing else, whether a change is worth a write, and redaction
    of_objects  the statuses of a GroupPolicy and a GroupRestore after a run, of a KafkaConnection, and of a GroupKeep
    logs        log lines as text or JSON
    metrics     Prometheus metrics
    alerts      the alerts of a policy, or of an owner's groups, and the items that a receiver has not received yet
    messages    the body of a message to an Alertmanager, Slack or a webhook, how an owner keeps a group, and one
                request to a receiver, at an address that `process.egress` allows
    outbox      what each receiver of one connection has yet to get: runs write it, and its sender sends it
    findings    the content of the report, as records; its names, numbers and times as text; numbers for a later report
    page        findings as HTML with charts, by page.html.j2, page.css and page.js; only `cli` imports it
"""
