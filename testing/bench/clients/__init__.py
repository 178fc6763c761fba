"""The measured programs in Python; those in Java and Go are in `testing/bench/java` and `testing/bench/go`.

Each is a process that connects, prints a line, and then does its job once for every line that it reads.
"""
