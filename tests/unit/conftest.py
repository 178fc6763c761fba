"""Hypothesis without limits of time (a busy machine is no failure), and with the same examples at each run.

`EXPLORE=1 make test PYTEST_ARGS=tests/unit` looks at new ones; what it finds becomes an @example. `make test-all`
sets THOROUGH=1, for more examples.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

from group_hygiene.spec.patterns import Patterns
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


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are compared with any list of patterns, as the test goes on."""
    names, matches = list[str](), Patterns.matches

    def noting(patterns: Patterns, name: str) -> bool:
        names.append(name)
        return matches(patterns, name)

    monkeypatch.setattr(Patterns, "matches", noting)
    return names
