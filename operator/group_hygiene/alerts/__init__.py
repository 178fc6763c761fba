"""Alerts: the messages to receivers about policies, and their delivery.

Knows no Kafka and no Kubernetes; imports neither `kafka` nor `ledger` nor `controller`.

    situation     the result of one run that alerts depend on; pure
    state         the alerts of a policy from run to run, and the items that a receiver has not received yet; pure
    of_owners     a policy's alerts for the owner of some groups: a policy and plan of their own; pure
    instructions  how an owner keeps a group: the command and the link in a message; pure
    messages      the body of a message to an Alertmanager, Slack or a webhook; pure
    queue         the pending messages of one connection: runs write, a courier reads
    courier       delivers messages concurrently with the runs, with backoff after a failure
    delivery      one request to one receiver, at an address that `network.egress` allows
    endpoints     the address and the credentials of one receiver, from its Secrets
"""
