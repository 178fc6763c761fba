"""Records for tests. Each default is a group that a Delete policy matches, so that a test names only what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from group_hygiene.engine.plan import Plan, RunConditions, Verdicts, make_plan
from group_hygiene.model.entries import Mark
from group_hygiene.model.evidence import Activity, Deletion, Evidence, Need, Protections, Unchanged, Verdict
from group_hygiene.model.groups import (
    Bounds,
    Cluster,
    CommittedOffset,
    Fault,
    Group,
    GroupState,
    GroupType,
    Partition,
    Snapshot,
)
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.policy import Action, Mode, Policy, parse_policy

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
P0, P1 = Partition("orders", 0), Partition("invoices", 1)
OFFSETS = {P0: CommittedOffset(10), P1: CommittedOffset(20)}
LAG: Mapping[Partition, int | Fault] = {P0: 4, P1: 1}
FAULT = Fault("COORDINATOR_NOT_AVAILABLE", "try later", retriable=True)
DENIED = Fault("GROUP_AUTHORIZATION_FAILED", "needs DESCRIBE on the group")
NO_TOPIC = Fault("UNKNOWN_TOPIC_OR_PARTITION", "orders-0")
TOPIC_FAULT = Fault("TOPIC_AUTHORIZATION_FAILED", "needs READ on the topic orders")


def policy_object(
    action: str = "Delete", when: Mapping[str, Any] | None = None, match: Mapping[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """A GroupPolicy as the API server gives it; `match` is added to the pattern `*`."""
    if when is None:
        when = {"unchangedFor": "72h"} if action == "Delete" else {}
    return {
        "metadata": {"namespace": "kafka", "name": "unused", "uid": "uid-1", "generation": 3},
        "spec": {
            "connectionRef": {"name": "main"},
            "match": {"groups": ["*"], **(match or {})},
            **({"when": dict(when)} if when else {}),
            "action": action,
            **spec,
        },
    }


def delete(match: Mapping[str, Any] | None = None, *, enforce: bool = False, **when: Any) -> Policy:
    """A Delete policy with unchangedFor 72h, and `when` beside it."""
    mode = "Enforce" if enforce else "DryRun"
    return parse_policy(policy_object("Delete", {"unchangedFor": "72h", **when}, match, mode=mode))


def idle(match: Mapping[str, Any] | None = None, *, enforce: bool = False, **when: Any) -> Policy:
    """A Delete policy with idleFor 72h, and `when` beside it."""
    mode = "Enforce" if enforce else "DryRun"
    return parse_policy(policy_object("Delete", {"idleFor": "72h", **when}, match, mode=mode))


def alert(match: Mapping[str, Any] | None = None, **when: Any) -> Policy:
    """An Alert policy that asks for nothing but `when`."""
    return parse_policy(policy_object("Alert", when, match))


def group(name: str = "console-consumer-1", **changes: Any) -> Group:
    """An Empty classic group that consumers once joined."""
    return structs.replace(Group(name, GroupType.CLASSIC, "consumer", GroupState.EMPTY, 0), **changes)


def deletion(at: datetime, policy: str, until: datetime) -> Deletion:
    """A group's last deletion, which counts until then."""
    return Deletion(at, policy, until)


def seen(hours: float = 72, since: datetime | None = None) -> Unchanged:
    observed = timedelta(hours=hours)
    return Unchanged(since or NOW - observed, observed)


def activity(hours: float = 100, **changes: Any) -> Activity:
    """A classic group that consumers once joined, Empty for so long by a log that was read a minute ago."""
    since = NOW - timedelta(hours=hours)
    before = since - timedelta(minutes=1)
    read_at = NOW - timedelta(minutes=1)
    known = Activity(GroupType.CLASSIC, "consumer", "Empty", before, before, before, since, 7, 1000, read_at)
    return replace(known, **changes)


def simple_activity(hours: float = 100, **changes: Any) -> Activity:
    """A group that nobody ever joined, whose last commit is so long ago."""
    since = NOW - timedelta(hours=hours)
    known = {"protocol_type": "", "state": "Unknown", "empty_since": None, "last_commit": since, "oldest_commit": since}
    return activity(hours, **(known | changes))


def lagging(lag: Mapping[Partition, int | Fault]) -> dict[Partition, Bounds | Fault]:
    """Partitions that begin at 0 and end so many records after what OFFSETS has committed there."""
    return {
        place: behind if isinstance(behind, Fault) else Bounds(0, OFFSETS[place].offset + behind)
        for place, behind in lag.items()
    }


def evidence(lag: Mapping[Partition, int | Fault] | None = LAG, **changes: Any) -> Evidence:
    """Two committed partitions, seen unchanged for 72h, records waiting in both; lag None = it was not read.

    What waits are committed records, unless `records` says else.
    """
    bounds = None if lag is None else lagging(lag)
    known = structs.replace(Evidence(Protections(), unchanged=seen(), offsets=OFFSETS, bounds=bounds), **changes)
    return known if "records" in changes else structs.replace(known, records=to_the_end(known.bounds))


def case(
    name: str,
    expected: str | Need | None,
    policy: Policy | None = None,
    of: Group | None = None,
    known: Evidence | None = None,
    **changes: Any,
) -> Any:
    """A row (policy, group, evidence, expected) with this id. changes: of the default evidence; else it is `known`."""
    return pytest.param(policy or delete(), of or group(), known or evidence(**changes), expected, id=name)


def to_the_end(bounds: Mapping[Partition, Bounds | Fault] | None) -> dict[Partition, int | Fault]:
    """What waits are committed records."""
    return {place: known.end - 1 for place, known in (bounds or {}).items() if isinstance(known, Bounds)}


def match(name: str = "console-consumer-1", **changes: Any) -> Verdict:
    return Verdict(group(name), evidence(**changes), None)


def refused(name: str, reason: str = "TooRecent", message: str = "seen unchanged for 1h of 72h") -> Verdict:
    return Verdict(group(name), evidence(), Refusal(reason, message))


def mark(policy: Policy, name: str, since: datetime | None = None, **changes: Any) -> Mark:
    """A mark that the policy made, just as long ago as its grace period unless `since` says when."""
    began = since or NOW - policy.grace_period
    known = Mark(
        policy_uid=policy.uid,
        group=name,
        policy=policy.key,
        digest=policy.digest,
        since=began,
        due=began + policy.grace_period,
    )
    return structs.replace(known, **changes)


def plan(
    policy: Policy, verdicts: Iterable[Verdict], marks: Mapping[str, Mark] | None = None, **conditions: Any
) -> Plan:
    """The plan for these verdicts in a cluster of 100 groups, all of them marked long enough ago, unless told else."""
    by_name = {verdict.group.id: verdict for verdict in verdicts}
    if marks is None:
        enforced = policy.mode is Mode.ENFORCE and policy.action is Action.DELETE
        marks = {name: mark(policy, name) for name, verdict in by_name.items() if verdict.matches and enforced}
    return make_plan(
        policy,
        Verdicts.of(by_name.values()),
        marks,
        RunConditions(**{"total": 100, "announced": NOW, **conditions}),
        NOW,
    )


def cluster(**changes: Any) -> Cluster:
    known = Cluster("cluster-1", {0: "kafka-0:9092", 1: "kafka-1:9092"}, {0: (0, 7), 1: (1, 7)})
    return replace(known, **changes)


def snapshot(**changes: Any) -> Snapshot:
    """A complete look at a cluster of two brokers."""
    return replace(Snapshot(cluster(), {}, {}, (), (), NOW), **changes)


def decided(verdict: Verdict) -> str | Need | None:
    """What must be read first, or the reason why the group stays; None = it matches."""
    if verdict.need is not None:
        assert verdict.refusal == verdict.need.refusal
        return verdict.need
    assert verdict.refusal is None or verdict.refusal.message
    return verdict.refusal.reason if verdict.refusal else None
