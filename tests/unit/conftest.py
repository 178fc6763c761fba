"""Hypothesis without limits of time (a busy machine is no failure), and with the same examples at each run.

`EXPLORE=1 make test PYTEST_ARGS=tests/unit` looks at new ones; what it finds becomes an @example.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "unit",
    deadline=None,
    database=None,
    max_examples=100,
    derandomize="EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unit")
