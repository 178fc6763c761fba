"""Real parts on one machine for the demo, the tests and the benchmarks: Kafka brokers and a Kubernetes API server.

Not shipped with the product, and it imports nothing of it. Standard library only.
"""
