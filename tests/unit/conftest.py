"""Hypothesis without limits of time (a busy machine is no failure), and with the same examples at each run.

`EXPLORE=1 make test PYTEST_ARGS=tests/unit` looks at new ones; what it finds becomes an @example. `make test-all`
sets THOROUGH=1, for more examples.
"""

import os

from hypothesis import HealthCheck, settings

from tests.examples import examples

settings.register_profile(
    "unit",
    deadline=None,
    database=None,
    max_examples=examples(100),
    derandomize="EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unit")
