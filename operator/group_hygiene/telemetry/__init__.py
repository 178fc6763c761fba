"""Logs, metrics and spans. Decides nothing.

Labels and fields name policies and connections, never groups: their number has no bound. `tracing` alone imports
OpenTelemetry.

    logs     log lines as text or JSON
    metrics  Prometheus metrics
    tracing  spans over OTLP, if a collector is configured
"""
