"""Alerts: the messages to receivers about policies, and their delivery.

Knows no Kafka and no Kubernetes; imports neither `kafka` nor `ledger` nor `controller`.

    state     the alerts of a policy, or of an owner's groups, and the items that a receiver has not received yet; pure
    messages  the body of a message to an Alertmanager, Slack or a webhook, how an owner keeps a group, and one request
              to a receiver, at an address that `network.egress` allows
    outbox    what each receiver of one connection has yet to get: runs write it, and its sender sends it
"""
