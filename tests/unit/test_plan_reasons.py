"""Why a group matches, as `plan` says it: what is known of it, and never nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from group_hygiene.cli.plans import judged, matched_because
from group_hygiene.model.entries import UsedBy
from group_hygiene.model.evidence import Commits, LastClient, Unchanged, Verdict
from group_hygiene.model.groups import Bounds, Program
from tests.unit.make import NOW, OFFSETS, P0, activity, evidence, group

_CLIENT = LastClient("billing-7", "10.1.2.3", None, None, 2, NOW)
_EARLIER = Unchanged(NOW - timedelta(hours=90), timedelta(hours=72))


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        pytest.param(
            Verdict(group(), evidence(activity=activity(90, last_client=_CLIENT), unchanged=None), None),
            "idle since 2030-01-27T18:00:00Z; 5 records wait for it; "
            "its last member was client 'billing-7' from 10.1.2.3 and 2 more",
            id="idle",
        ),
        pytest.param(
            Verdict(group(), evidence(unchanged=_EARLIER), None),
            "seen unchanged since 2030-01-27T18:00:00Z; 5 records wait for it",
            id="unchanged-by-the-ledger",
        ),
        pytest.param(
            Verdict(group(), evidence(unchanged=Unchanged(NOW, timedelta(hours=72))), None),
            "5 records wait for it",
            id="only-this-scan-saw-it",
        ),
        pytest.param(
            Verdict(
                group(),
                evidence(
                    unchanged=_EARLIER,
                    used_by=UsedBy(group="g", program=Program.STREAMS, client_id="app-1", at=NOW),
                ),
                None,
            ),
            "seen unchanged since 2030-01-27T18:00:00Z; 5 records wait for it; "
            "its last member was client 'app-1' at 2030-01-31T12:00:00Z (Streams)",
            id="last-member-by-the-ledger",
        ),
        pytest.param(
            Verdict(group(), evidence(None, unchanged=None, offsets={}), None),
            "it has no committed offsets",
            id="no-offsets",
        ),
        pytest.param(
            Verdict(group(), evidence(None, unchanged=None, missing_topics=frozenset({"b", "a"})), None),
            "it has offsets of deleted topics: a, b",
            id="deleted-topics",
        ),
        pytest.param(
            Verdict(
                group(),
                evidence(
                    None, unchanged=None, offsets={P0: OFFSETS[P0]}, bounds={P0: Bounds(20, 30)}, records={P0: 30}
                ),
                None,
            ),
            "10 records wait for it; 1 of its offsets are out of range",
            id="out-of-range",
        ),
        pytest.param(
            Verdict(
                group(),
                evidence(activity=activity(1, by_topic={"old": Commits(NOW - timedelta(days=9), NOW)})),
                None,
                topics=frozenset({"old", "unknown"}),
            ),
            "offsets of old (last commit at 2030-01-31T12:00:00Z), unknown",
            id="stale-offsets",
        ),
        pytest.param(
            Verdict(group(), evidence(None, unchanged=None, offsets=None), None),
            "its state is Empty, and match selects it",
            id="no-condition",
        ),
    ],
)
def test_a_match_says_why(verdict: Verdict, text: str) -> None:
    assert matched_because(verdict, NOW) == text


def test_as_json() -> None:
    """Dates as in `status.sample`."""
    found = judged("g", Verdict(group(), evidence(activity=activity(90), unchanged=_EARLIER), None), NOW)
    assert (found["idleSince"], found["unchangedSince"]) == ("2030-01-27T18:00:00Z",) * 2
    found = judged("g", Verdict(group(), evidence(unchanged=Unchanged(NOW, timedelta())), None), NOW)
    assert not {"idleSince", "unchangedSince"} & found.keys()
