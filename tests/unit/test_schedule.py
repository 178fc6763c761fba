"""When policies run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from group_hygiene.controller.policies import Schedule


@dataclass
class Clock:
    seconds: float = 1_000.0

    def now(self) -> datetime:
        return datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.mark.parametrize(
    ("pause", "runs"), [pytest.param(0.0, 60, id="own-namespace"), pytest.param(5.0, 12, id="another-namespace")]
)
def test_a_policy_that_is_edited_all_the_time(pause: float, runs: int) -> None:
    """Each edit runs it; one of another namespace at most every five seconds, and the last edit is not forgotten."""
    clock = Clock()
    schedule, ran, generation = Schedule(clock), 0, 0
    for second in range(65):
        generation += second < 60
        if schedule.due("p", generation, pause):
            schedule.ran("p", generation, timedelta(hours=1))
            ran += 1
            shown = generation
        assert schedule.wait(["p"]) <= 3600
        if shown != generation:
            assert schedule.wait(["p"]) <= pause
        clock.seconds += 1
    assert (shown, generation) == (60, 60)
    assert abs(ran - runs) <= 1
