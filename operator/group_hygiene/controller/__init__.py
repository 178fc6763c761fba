"""The operator's process: the only package that imports kopf and the Kubernetes client.

kopf's events feed one store of objects, from which rounds read; right before a change they are read from the API
server again. The modules app, admission, api, health, objects, policies, services and statuses import nothing from
`kafka`.

    app        the process: starts the parts, watches, wakes loops on events, and ends as a whole when a part fails
    leader     the Lease: which of several processes leads, and for how long
    loop       one loop per connection, and `run_due`, one round of it
    policies   the policies of one connection: when they are due, their runs (observe, decide, execute, publish), alerts
    turns      the GroupRestores and GroupKeeps of one connection, whose namespaces take turns
    services   shared by the loops of all connections: also their threads, with a limit for each namespace
    link       the open clients of one connection, and what it remembers between runs
    admission  which objects a connection admits, and checks right before each change whether the run may still make it
    statuses   statuses and Events, of objects that run and of those that don't
    objects    the current objects of the CRDs: one store for all loops, fed by the watch
    api        the requests to the API server that the operator and doctor need
    requests   one request to the API server: time limit and errors
    claims     the groups that custom resources of other products name
    health     /healthz, /readyz and /metrics
"""
