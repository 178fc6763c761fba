"""Alerts: which messages receivers get about policies, and how they are delivered.

Knows no Kafka and no Kubernetes; imports neither `kafka` nor `ledger` nor `controller`.

    situation  what one run found that receivers may have to be notified of; pure
    state      how the alerts of a policy go on from run to run, and what a receiver still has to get of them; pure
    messages   a message as Alertmanager, Slack or a webhook takes it; pure
    queue      both sides for one connection: runs fill it, a courier empties it
    courier    delivers messages beside the runs, with growing pauses after a failure
    delivery   one request to one receiver, which `network.gate` lets through only where `network.egress` allows
    endpoints  the address and the credentials of one receiver, from its Secrets
"""
