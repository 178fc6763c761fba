"""For how long the API server answers the requests about the Lease, by a clock of the test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from group_hygiene.controller.leader import Candidate
from group_hygiene.errors import ApiError

# The steps of this test ask nothing of it.
NO_API: Any = None


@pytest.mark.parametrize(
    ("failing", "at", "expected"),
    [
        pytest.param([], 90, 90, id="always"),
        pytest.param([30], 90, 90, id="a-short-failure"),
        pytest.param([30, 35], 90, 90, id="two-failures"),
        pytest.param([30, 60, 90], 91, 85, id="one-of-many"),
        pytest.param([30, 35, 40, 45], 90, 40, id="an-outage"),
        pytest.param([75, 80, 85, 90], 90, 0, id="not-now"),
        pytest.param([90], 90, 85, id="a-failure-now"),
    ],
)
def test_for_how_long_the_api_server_answers(failing: list[int], at: int, expected: float) -> None:
    """Requests that fail now and then are no outage, for which a leader would be forgiven that it sees no changes."""
    time = 0.0
    candidate = Candidate(NO_API, "n", clock=lambda: time)

    def step() -> None:
        if time in failing:
            raise ApiError("no answer")

    for second in range(0, at + 1, 5):
        time = float(second)
        asyncio.run(candidate._round(step))
    time = float(at)
    assert candidate.answered_for == expected
