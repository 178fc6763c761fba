"""Benchmarks of the operator's scan against its peers, on real brokers. Not shipped with the product."""
