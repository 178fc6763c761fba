"""Real servers on one machine for the demo, the tests and the benchmarks: Kafka brokers and a Kubernetes API server.

Not part of the product, and does not import it. Standard library only.
"""
