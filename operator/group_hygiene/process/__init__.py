"""This process: its clocks, its memory, the run that a thread works on, child processes, requests to given addresses.

Imports nothing of this package but `errors`. An address that a tenant configures is checked after its name was
resolved: every room that connects to one uses `egress`.

    start    garbage collection and logs, set when a process begins
    clock    wall time, elapsed seconds, and turns of CPU-bound work by namespace
    memory   how much memory the process has left, and who may use it now
    sockets  how many connections to brokers may be open, by namespace
    runs     the run that log lines and Events belong to
    child    runs a function in a process with limits of memory and time
    egress   which addresses are allowed, and which certificate authorities a TLS client trusts
    post     one HTTP POST with limits on its address, its time and its response
"""
