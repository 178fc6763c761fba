"""The operator's process: the only package that imports kopf and the Kubernetes client.

kopf is the wake-up and the API server is the truth: an event says only "look again", and each run lists afresh.
`app` wires and ends it, `leader` says which of several processes acts, `loop` runs one connection, `link` is what that
has open, `binding` says for which policies, `guarding` when it must stop, `alerting` who is told, `api` talks to the
API server, `recorder` writes Events, `health` answers probes and Prometheus.
"""
