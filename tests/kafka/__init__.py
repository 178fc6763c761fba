"""Tests of the product on real brokers."""
