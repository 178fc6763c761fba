"""The vetoes right before a deletion: each, and which one gives the reason where several refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from group_hygiene.engine import recheck
from group_hygiene.engine.context import Context, Facts, Memory
from group_hygiene.kafka.offsets_log import Commit
from group_hygiene.kafka.offsets_topic import Found
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.entries import Intent, KeepRequest, Mark
from group_hygiene.model.evidence import Activity
from group_hygiene.model.groups import CommittedOffset, Description, Fault, Group, GroupState, Offsets
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import parse_connection
from tests.unit.make import (
    DENIED,
    FAULT,
    LAG,
    NO_TOPIC,
    NOW,
    OFFSETS,
    P0,
    P1,
    TOPIC_FAULT,
    activity,
    group,
    idle,
    lagging,
    mark,
    to_the_end,
)

_NAME = "console-consumer-1"
_POLICY = idle(enforce=True)
_IDS = {"orders": "id-of-orders", "invoices": "id-of-invoices"}
_SOON = NOW + timedelta(days=1)
_INTENT = Intent(
    group=_NAME,
    id="d1",
    type="Classic",
    policy="kafka/unused",
    policy_uid="uid-1",
    generation=3,
    at=NOW,
    deadline=NOW,
    expires=_SOON,
)
_REQUEST = KeepRequest(group=_NAME, until=_SOON, why="audit", by="ann", at=NOW)
_CONNECTION = parse_connection(
    {
        "metadata": {"namespace": "kafka", "name": "main", "uid": "uid-c", "generation": 1},
        "spec": {"bootstrapServers": ["kafka-0:9092"]},
    }
)


class _Clock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


@dataclass
class _Reads:
    """What the reads found: by default, that the group is as the scan saw it, and due."""

    mark: Mark | None = field(default_factory=lambda: mark(_POLICY, _NAME))
    intents: Mapping[str, Intent] = field(default_factory=dict)
    keeps: Mapping[str, KeepRequest] = field(default_factory=dict)
    described: Group | Fault = field(default_factory=lambda: group(_NAME))
    pending: Refusal | None = None
    offsets: Offsets | Fault = field(default_factory=lambda: OFFSETS)
    used: Refusal | None = None
    late: bool = False
    activity: Activity | Refusal = field(default_factory=activity)
    commits: Found | Fault | None = None
    topic_ids: Mapping[str, str | Fault] = field(default_factory=lambda: _IDS)

    def case(self) -> recheck.Case:
        contents = Contents(intents=dict(self.intents), keeps=dict(self.keeps))
        contents.marks = {} if self.mark is None else {_POLICY.uid: {_NAME: self.mark}}
        who = cast("Any", None), _CONNECTION, Memory(contents=contents), _Clock(), Journal(None, contents, {})
        bounds = lagging(LAG)
        known = {"activity": {_NAME: self.activity}, "bounds": bounds, "records": to_the_end(bounds)}
        return recheck.Case(
            recheck.Reads(
                context=Context(*who),
                policy=_POLICY,
                groups={_NAME: group(_NAME)},
                targets={_NAME: None},
                seen={_NAME: OFFSETS},
                pending={} if self.pending is None else {_NAME: self.pending},
                topic_ids=self.topic_ids,
                internal={_NAME: []},
                coordinators={_NAME: 1},
                log_ends={},
                started=0.0,
                late=self.late,
                facts=Facts(**cast("Any", known), offsets={_NAME: self.offsets}),
                described={_NAME: _described(self.described)},
                commits={_NAME: self.commits},
                used={} if self.used is None else {_NAME: self.used},
            ),
            group(_NAME),
        )


def _described(found: Group | Fault) -> Description | Fault:
    return found if isinstance(found, Fault) else Description(found, "", None, ())


def _refusing(case: recheck.Case) -> tuple[str, str]:
    """Which veto refuses first, and the reason that it gives."""
    for veto in recheck.VETOES:
        refusal = veto(case)
        if refusal is not None:
            return veto.__name__, refusal.reason
    return "", ""


_COMMIT = Found(7, 1000, 1_000, Commit(_NAME, "orders", 0, 11))
_OPEN = Refusal(reasons.PENDING_TRANSACTION, "open")
_USED = Refusal(reasons.RECENTLY_ACTIVE, "it committed")
_EARLY = mark(_POLICY, _NAME, NOW - timedelta(hours=101))
_TABLE = [
    pytest.param(_Reads(mark=None), "mark_ended", reasons.CHANGED, id="no-mark"),
    pytest.param(
        _Reads(mark=mark(_POLICY, _NAME, digest="other")), "mark_ended", reasons.CHANGED, id="mark-of-another-spec"
    ),
    pytest.param(_Reads(mark=mark(_POLICY, _NAME, NOW)), "mark_ended", reasons.CHANGED, id="grace-not-over"),
    pytest.param(_Reads(intents={_NAME: _INTENT}), "deletion_open", reasons.INTERRUPTED, id="open-intent"),
    pytest.param(
        _Reads(described=group(_NAME, state=GroupState.STABLE)), "state_changed", reasons.BECAME_ACTIVE, id="members"
    ),
    pytest.param(_Reads(described=group(_NAME, state=GroupState.DEAD)), "state_changed", reasons.GONE, id="dead"),
    pytest.param(_Reads(described=Fault("GROUP_ID_NOT_FOUND", "")), "state_changed", reasons.GONE, id="gone"),
    pytest.param(_Reads(described=FAULT), "state_changed", reasons.OFFSETS_UNKNOWN, id="state-unknown"),
    pytest.param(_Reads(described=DENIED), "state_changed", reasons.DENIED, id="state-denied"),
    pytest.param(
        _Reads(described=group(_NAME, protocol_type="connect")), "state_changed", reasons.CHANGED, id="another-protocol"
    ),
    pytest.param(_Reads(pending=_OPEN), "transaction_open", reasons.PENDING_TRANSACTION, id="open-transaction"),
    pytest.param(
        _Reads(offsets={P0: CommittedOffset(11), P1: OFFSETS[P1]}), "offsets_changed", reasons.CHANGED, id="commit"
    ),
    pytest.param(_Reads(offsets={}), "offsets_changed", reasons.CHANGED, id="offsets-gone"),
    pytest.param(_Reads(offsets=FAULT), "offsets_changed", reasons.OFFSETS_UNKNOWN, id="offsets-unknown"),
    pytest.param(
        _Reads(offsets=Fault("UNSTABLE_OFFSET_COMMIT", "orders-0")),
        "offsets_changed",
        reasons.PENDING_TRANSACTION,
        id="offsets-pending",
    ),
    pytest.param(_Reads(used=_USED), "used_between_scans", reasons.RECENTLY_ACTIVE, id="used-between-scans"),
    pytest.param(_Reads(late=True), "read_late", reasons.OFFSETS_UNKNOWN, id="slow-brokers"),
    pytest.param(_Reads(keeps={_NAME: _REQUEST}), "refused_by_check", reasons.KEEP_REQUESTED, id="keep-request"),
    pytest.param(
        _Reads(activity=Refusal(reasons.EVIDENCE_STALE, "old")),
        "refused_by_check",
        reasons.EVIDENCE_STALE,
        id="tables-are-old",
    ),
    pytest.param(_Reads(activity=activity(71)), "refused_by_check", reasons.TOO_RECENT, id="tables-went-on"),
    pytest.param(
        _Reads(mark=_EARLY),
        "used_since_marked",
        reasons.RECENTLY_ACTIVE,
        id="used-after-the-mark",
    ),
    pytest.param(_Reads(commits=_COMMIT), "used_after_tables", reasons.RECENTLY_ACTIVE, id="commit-after-the-tables"),
    pytest.param(_Reads(commits=FAULT), "used_after_tables", reasons.EVIDENCE_UNREADABLE, id="log-unreadable"),
    pytest.param(
        _Reads(commits=Fault("OFFSET_OUT_OF_RANGE", "")),
        "used_after_tables",
        reasons.EVIDENCE_INCOMPLETE,
        id="log-was-cut-off",
    ),
    pytest.param(
        _Reads(topic_ids=_IDS | {"orders": TOPIC_FAULT}),
        "topic_unidentified",
        reasons.TOPICS_UNKNOWN,
        id="topic-id-unknown",
    ),
]


@pytest.mark.parametrize(("reads", "veto", "reason"), _TABLE)
def test_a_veto_refuses(reads: _Reads, veto: str, reason: str) -> None:
    """Each change since the scan, and each read that failed, keeps the group from being deleted."""
    assert _refusing(reads.case()) == (veto, reason)


def test_recent_use_says_when_and_until_when() -> None:
    """Of a record, its time by the broker; of a mark, since when the group is unused."""
    used = _Reads(commits=_COMMIT).case()
    refusal = next(filter(None, (veto(used) for veto in recheck.VETOES)))
    assert refusal.message.startswith("it committed for orders-0 at 1970-01-01T00:00:01Z (offset 1000 of __consumer")
    refusal = next(filter(None, (veto(_Reads(mark=_EARLY).case()) for veto in recheck.VETOES)))
    assert refusal.message == (
        "it was used after it was marked, until 2030-01-27T08:00:00Z: it is marked again, and due at "
        "2030-02-01T12:00:00Z at the earliest"
    )


def test_every_veto_is_tried() -> None:
    """The table has a row for each veto, and each says why it exists."""
    assert {str(row.values[1]) for row in _TABLE} == {veto.__name__ for veto in recheck.VETOES}
    assert all((veto.__doc__ or "").strip().endswith(".") for veto in recheck.VETOES)


def test_what_all_let_go_is_saved_whole() -> None:
    """Every offset with the ids of its topics, from the coordinator that answered; a topic that is gone has no id."""
    case = _Reads(topic_ids=_IDS | {"orders": NO_TOPIC}).case()
    assert _refusing(case) == ("", "")
    ready = case.ready()
    assert (ready.group, ready.coordinator, ready.offsets, ready.lag) == (group(_NAME), 1, OFFSETS, LAG)
    assert (ready.topic_ids, ready.internal_topics) == ({"invoices": "id-of-invoices"}, {})
    assert ready.why.startswith("idle since 2030-01-27T08:00:00Z")


def test_the_first_veto_gives_the_reason() -> None:
    """In the order of the list: what the ledger says, then what changed, then the age of the reads, then the checks."""
    reads = _Reads(None, {_NAME: _INTENT}, {_NAME: _REQUEST}, FAULT, _OPEN, FAULT, _USED, late=True)
    found: list[str] = []
    for name, value in vars(_Reads()).items():
        if name != "keeps":
            found.append(_refusing(reads.case())[0])
            setattr(reads, name, value)
    assert found[:7] == [
        "mark_ended",
        "deletion_open",
        "state_changed",
        "transaction_open",
        "offsets_changed",
        "used_between_scans",
        "read_late",
    ]
    assert set(found[7:]) == {"refused_by_check"}
