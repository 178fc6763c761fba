"""Alerts: what receivers are told of policies, in which form, and how it gets there. Knows no Kafka, no Kubernetes.

`situation` says what a run found that is worth telling, `state` what a receiver must hear of it given what it was told,
`messages` how that looks; all pure. `outbox` holds both sides for one connection, `courier` carries it out beside the
runs, `sending` is one request, which `group_hygiene.gate` lets go only where `group_hygiene.egress` allows.
`endpoints` reads what Secrets say of a receiver.
"""
