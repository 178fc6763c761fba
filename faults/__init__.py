"""What the operator does when everything around it breaks: `python -m faults`, or `make faults`.

Real operator processes, real brokers and a real API server, with proxies in between that stop the world at a chosen
request. What came of it is told by an auditor that shares no code with the operator. Nothing here is imported by it.
"""
