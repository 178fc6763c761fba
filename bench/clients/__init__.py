"""The measured programs in Python; those in Java and Go are in `bench/java` and `bench/go`.

Each is a process that connects, prints a line, and then does its job once for every line that it reads.
"""
