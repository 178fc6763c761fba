"""The operator's process: the only package that imports kopf and the Kubernetes client.

kopf's events feed one store of objects, from which rounds read; right before a change they are read from the API
server again. The modules app, api, objects, watches, unserved, recorder, health, binding and guard import nothing from
`kafka`.

    app            the process: starts the parts, wakes loops on events, and ends as a whole when a part fails
    leader         the Lease: which of several processes leads, and for how long
    loop           one loop per connection, and `run_due`, one round of it
    policies       runs the due policies of one connection: observe, decide, execute, publish
    isolation      an internal error ends one piece of work and not that of others
    schedule       when each policy is due, and when each GroupRestore and GroupKeep has its turn
    services       shared by the loops of all connections: also their threads, with a limit for each namespace
    link           the open clients of one connection, and what it remembers between runs
    binding        which policies, GroupRestores and GroupKeeps a connection admits
    guard          checks right before each change whether the run may still make it
    keeps          the GroupKeeps of one connection
    restores       the GroupRestores of one connection
    alerting       connects the runs of one connection to its receivers
    claims         the groups that custom resources of other products name
    inspection     the requests of doctor to the API server
    status_writer  statuses and Events of a run
    recorder       Kubernetes Events
    objects        the current objects of the CRDs: one store for all loops, fed by the watch
    watches        whether the watches are open
    unserved       statuses of the objects that don't run
    api            the requests to the API server that the operator needs
    requests       one request to the API server: time limit and errors
    health         /healthz, /readyz and /metrics
"""
