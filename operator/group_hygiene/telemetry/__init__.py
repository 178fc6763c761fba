"""Logs and metrics. Decides nothing.

Labels and fields name policies and connections, never groups: their number has no bound.

    logs     log lines as text or JSON
    metrics  Prometheus metrics
"""
