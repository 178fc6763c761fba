"""The list of preconditions as data: complete, and each refuses by itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest

from docsite.proofs_page import texts
from group_hygiene.engine.context import Memory
from group_hygiene.engine.executor import MARGIN_S, PRECONDITIONS, Moment, ProofInput, refusals
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.process.clock import SystemClock


class _Guard:
    def __init__(self, edited: Refusal | None = None, seconds: float = 60.0) -> None:
        self._edited, self._seconds = edited, seconds

    def refusal(self) -> Refusal | None:
        return self._edited

    def seconds_left(self) -> float:
        return self._seconds


def _case(
    guard: _Guard | None, *, written: bool = True, behind: timedelta = timedelta(), hidden: bool = False
) -> ProofInput:
    clock, journal = SystemClock(), Journal(None, Contents(hidden={7: "damaged"} if hidden else {}), {})
    journal.has_written, journal.stamp = written, clock.now() - behind
    client = cast("Any", None)
    return ProofInput(client=client, memory=Memory(), deadline=Deadline(1), journal=journal, clock=clock, guard=guard)


def test_every_precondition_is_asked() -> None:
    """Each is proved at some moment, and has all texts that the page on safety shows."""
    assert {moment for each in PRECONDITIONS for moment in each.moments} == set(Moment)
    assert len({each.name for each in PRECONDITIONS}) == len(PRECONDITIONS)
    assert all(each.moments for each in PRECONDITIONS)
    assert [each.name for each in PRECONDITIONS] == list(texts())
    for name, each in texts().items():
        assert each.keys() == {"protects", "proof", "lasts", "unknown", "reasons", "right"}, name
        assert all(each.values()), name
        assert set(each["reasons"]) <= reasons.all_reasons(), name


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(partial(_case, _Guard()), None, id="all-hold"),
        pytest.param(partial(_case, None), None, id="a-command-without-objects"),
        pytest.param(partial(_case, _Guard(Refusal(reasons.POLICY_CHANGED, ""))), reasons.POLICY_CHANGED, id="edited"),
        pytest.param(partial(_case, _Guard(seconds=MARGIN_S / 2)), reasons.NOT_LEADER, id="lease-ends"),
        pytest.param(partial(_case, _Guard(), behind=timedelta(minutes=6)), reasons.CLOCK_SKEW, id="clocks-differ"),
        pytest.param(partial(_case, _Guard(), hidden=True), reasons.RECORD_UNREADABLE, id="hidden-batch"),
        pytest.param(partial(_case, _Guard(), written=False, behind=timedelta(days=1)), None, id="nothing-was-written"),
    ],
)
def test_right_before_a_deletion(make: Callable[[], ProofInput], reason: str | None) -> None:
    """The first one that does not hold gives the reason. Clocks are read in the test, not at collection."""
    refusal = next(refusals(make(), Moment.REQUEST, Moment.DELETION), None)
    assert (refusal.reason if refusal else None) == reason


def test_a_restore_needs_less() -> None:
    """It commits what a backup has, whatever the time is, and whatever else the ledger holds."""
    assert not list(refusals(_case(_Guard(), behind=timedelta(days=1), hidden=True), Moment.REQUEST))
