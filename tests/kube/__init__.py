"""Tests of CRDs, roles, the chart and the election on a real API server."""
