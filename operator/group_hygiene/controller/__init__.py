"""The operator's process: the only package that imports kopf and the Kubernetes client.

A kopf event only wakes a loop; each run lists the objects again from the API server. Modules that serve Kubernetes
alone (app, api, recorder, health, binding, guard) import nothing of `kafka`.

    app            the process: starts the parts, wakes loops on events, and ends as a whole when a part fails
    leader         the Lease: which of several processes acts, and for how long
    loop           one loop per connection, and `run_due`, one round of it
    policies       runs the due policies of one connection: observe, decide, execute, publish
    schedule       when each policy is due
    services       what the loops of all connections share
    workers        the threads in which connections run, shared out by namespace
    link           what one connection has open and remembers between runs
    binding        which policies belong to a connection, and which of them it admits
    guard          whether a run may still change something, asked right before each change
    restores       the GroupRestores of one connection
    alerts         ties the runs of one connection to its receivers
    evidence       the pipeline's tables of one connection, opened with its Secret
    claims         the groups that custom resources of other products name
    inspection     what doctor asks the API server
    status_writer  statuses and Events of a run
    recorder       Kubernetes Events
    api            the requests to the API server that the operator needs
    requests       one request to the API server: time limit and errors
    health         /healthz, /readyz and /metrics
"""
