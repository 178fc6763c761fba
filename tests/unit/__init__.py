"""Tests of what needs neither Kafka nor Kubernetes: pure functions, and the documents that must agree with them."""
