"""Alerts: the messages to receivers about policies, and their delivery.

Knows no Kafka and no Kubernetes; imports neither `kafka` nor `ledger` nor `controller`.

    state      the alerts of a policy, or of an owner's groups, and the items that a receiver has not received yet; pure
    messages   the body of a message to an Alertmanager, Slack or a webhook, and how an owner keeps a group; pure
    delivery   one receiver with its Secrets, and one request to it, at an address that `network.egress` allows
    outbox     what each receiver of one connection has yet to get: runs write it, the sender reads it
    sender     sends messages concurrently with the runs, with backoff after a failure
"""
