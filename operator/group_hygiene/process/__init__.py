"""This process: its clocks, its memory, the run that a thread works on, and child processes with limits.

Imports nothing of this package.

    start   garbage collection and logs, set when a process begins
    clock   wall time, elapsed seconds, and turns of CPU-bound work by namespace
    memory  how much memory the process has left, and who may use it now
    runs    the run that log lines and Events belong to
    child   runs a function in a process with limits of memory and time
"""
