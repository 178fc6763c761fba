"""Fault injection: `python -m testing.faults`, or `make faults`.

Real operator processes, real brokers and a real API server, with proxies in between that inject a fault at a chosen
request. An auditor that shares no code with the operator checks the result. The operator imports nothing from here.
"""
