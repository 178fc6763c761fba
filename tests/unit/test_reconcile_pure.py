"""What reconcile computes without asking anybody: filters, applications, and why a scan is incomplete."""

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from group_hygiene.engine import context, deletion, scan
from group_hygiene.engine.settle import RequestState
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.groups import Cluster, Fault, GroupState, GroupType, Listing, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.policy import Policy
from tests.unit.make import DENIED, FAULT, alert, cluster, delete, group

_EMPTY_DEAD = frozenset({GroupState.EMPTY, GroupState.DEAD})
_DEFAULT_TYPES = frozenset({GroupType.CLASSIC, GroupType.CONSUMER})
_NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("policies", "states", "types"),
    [
        pytest.param([delete()], _EMPTY_DEAD, _DEFAULT_TYPES, id="delete"),
        pytest.param([delete(), alert()], _NONE, _NONE, id="one-wants-everything"),
        pytest.param(
            [delete(), alert({"states": ["Stable"], "types": ["Classic"]})],
            _EMPTY_DEAD | {GroupState.STABLE},
            _DEFAULT_TYPES,
            id="union-of-states",
        ),
        pytest.param(
            [delete({"types": ["Classic"]}), delete({"states": ["Empty"], "types": ["Classic"]})],
            _EMPTY_DEAD,
            frozenset({GroupType.CLASSIC}),
            id="union-of-types",
        ),
        pytest.param([alert({"types": ["Share"]})], _NONE, frozenset({GroupType.SHARE}), id="one-type"),
        pytest.param([], _NONE, _NONE, id="no-policies-leave-nothing-out"),
    ],
)
def test_filters(policies: list[Policy], states: frozenset[GroupState], types: frozenset[GroupType]) -> None:
    """Only what no policy asks for is left out of the lists."""
    assert scan._filters(policies) == (states, types)


@pytest.mark.parametrize(
    ("topic", "ids"),
    [
        pytest.param("app-store-changelog", {"app"}, id="one"),
        pytest.param("my-app-KSTREAM-1-repartition", {"my", "my-app", "my-app-KSTREAM"}, id="dashes-in-the-id"),
        pytest.param("app-changelog", set(), id="none"),
        pytest.param("app-store-topic", set(), id="another-topic"),
    ],
)
def test_applications(topic: str, ids: set[str]) -> None:
    """Every id that a Streams topic may belong to is taken: too many protects too much, too few deletes."""
    others = ["ap", "app-s", "app-store", "my-app-KSTREAM-1", "m", "zoo", ""]
    topics = [topic, "apa-store-changelog", "b-changelog"]
    assert context._applications(topics, [*others, "app", "my", "my-app", "my-app-KSTREAM"]) == ids


def test_applications_of_a_long_name_take_little() -> None:
    """A name of 45 KB in a broker's answer has as many dashes; its beginnings would be a gigabyte."""
    tracemalloc.start()
    try:
        assert context._applications(["-" * 45_000 + "x-changelog"], ["-", "x"]) == {"-"}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("before", "faults", "after", "problems"),
    [
        pytest.param(cluster(), {}, cluster(), [], id="complete"),
        pytest.param(cluster(), {1: FAULT}, cluster(), ["broker 1"], id="broker-without-an-answer"),
        pytest.param(cluster(), {}, FAULT, ["could not be read again"], id="no-second-look"),
        pytest.param(cluster(), {}, cluster(leaders={0: (1, 7), 1: (1, 7)}), ["leaders"], id="leader-moved"),
        pytest.param(cluster(), {}, cluster(leaders={0: (0, 8), 1: (1, 7)}), ["leaders"], id="leader-came-back"),
        pytest.param(cluster(), {}, cluster(leaders={0: (0, 7)}), ["leaders"], id="partition-vanished"),
        pytest.param(cluster(problems=("denied",)), {}, cluster(), ["denied"], id="problem-of-the-cluster"),
        pytest.param(
            cluster(problems=("x", "x")), {1: FAULT}, FAULT, ["x", "broker 1", "could not"], id="all-each-once"
        ),
    ],
)
def test_incomplete(before: Cluster, faults: Mapping[int, Fault], after: Cluster | Fault, problems: list[str]) -> None:
    """A scan is complete only when every broker answered and the same leaders led before and after."""
    found = scan._incomplete(before, Listing({}, faults), after, [])
    assert len(found) == len(problems)
    assert all(problem in text for problem, text in zip(problems, found, strict=True))


def test_incomplete_by_what_was_not_read() -> None:
    """A broker that is lost after the lists takes offsets along; one group's own fault concerns nobody else."""
    lost = replace(FAULT, code="NETWORK_EXCEPTION")
    facts = scan._Scan(context=cast("Any", None), cluster=cluster(), deadline=Deadline(1))
    facts.offsets.update({"a": {}, "b": DENIED, "c": lost})
    facts.end_slice()
    facts.offsets.update({"d": lost})
    facts.end_slice()
    (problem,) = scan._incomplete(cluster(), Listing({}, {}), cluster(), facts.lost)
    assert "of 2 groups" in problem
    assert scan._incomplete(cluster(), Listing({}, {}), cluster(), []) == ()


def test_incomplete_where_groups_have_no_topic() -> None:
    """A broker with old metadata may not know the offsets topic: then nobody knows who coordinates what."""
    groups = {"a": group("a")}
    (problem,) = scan._incomplete(cluster(leaders={}), Listing(groups, {}), cluster(leaders={}), [])
    assert "no topic __consumer_offsets" in problem


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        pytest.param("NON_EMPTY_GROUP", OutcomeType.NOT_DELETED, reasons.BECAME_ACTIVE, id="joined-at-the-last-moment"),
        pytest.param("GROUP_AUTHORIZATION_FAILED", OutcomeType.FAILED, reasons.DENIED, id="denied"),
        pytest.param("INVALID_GROUP_ID", OutcomeType.FAILED, reasons.DELETE_FAILED, id="refused"),
    ],
)
def test_answer_that_proves_a_refusal(code: str, kind: OutcomeType, reason: str) -> None:
    """The coordinator wrote nothing: the deletion is over, and its backup can go."""
    request, outcome = deletion.result_of_group("a", Fault(code, ""))
    assert request is RequestState.REFUSED
    assert (outcome.kind, outcome.reason) == (kind, reason)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param("REQUEST_TIMED_OUT", reasons.INTERRUPTED, id="no-answer"),
        pytest.param("NETWORK_EXCEPTION", reasons.INTERRUPTED, id="no-connection"),
        pytest.param("GROUP_ID_NOT_FOUND", reasons.DELETE_FAILED, id="gone-already-by-us-or-by-somebody"),
        pytest.param("NOT_COORDINATOR", reasons.DELETE_FAILED, id="unloaded-after-the-write"),
        pytest.param("COORDINATOR_NOT_AVAILABLE", reasons.DELETE_FAILED, id="not-replicated-in-time"),
        pytest.param("COORDINATOR_LOAD_IN_PROGRESS", reasons.DELETE_FAILED, id="loading"),
        pytest.param("UNKNOWN", reasons.DELETE_FAILED, id="unknown-to-the-broker-or-to-us"),
    ],
)
def test_answer_that_proves_nothing(code: str, reason: str) -> None:
    """It may have been carried out: nothing of it is removed until somebody has looked."""
    for result in (
        deletion.result_of_group("a", Fault(code, "")),
        deletion.result_of_offsets("a", {Partition("t", 0): Fault(code, ""), Partition("t", 1): None}),
    ):
        assert result.request is RequestState.UNCLEAR
        assert result.outcome.reason == reason


def test_deletion_without_fault() -> None:
    """No fault means deleted."""
    request, outcome = deletion.result_of_group("a", None)
    assert request is RequestState.CONFIRMED
    assert outcome.kind is OutcomeType.DELETED


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        pytest.param(reasons.DENIED, OutcomeType.FAILED, id="denied"),
        pytest.param(reasons.OFFSETS_UNKNOWN, OutcomeType.FAILED, id="unreadable"),
        pytest.param(reasons.DELETE_FAILED, OutcomeType.FAILED, id="refused"),
        pytest.param(reasons.CHANGED, OutcomeType.NOT_DELETED, id="used"),
        pytest.param(reasons.POLICY_CHANGED, OutcomeType.NOT_DELETED, id="edited"),
        pytest.param(reasons.INTERRUPTED, OutcomeType.NOT_DELETED, id="interrupted"),
    ],
)
def test_what_counts_as_failed(reason: str, kind: OutcomeType) -> None:
    """One list for groups that are deleted by one request and by several, before and after it is sent."""
    assert deletion.not_deleted("a", Refusal(reason, "why")) == Outcome("a", kind, reason, "why")


_SUBSCRIBED = Fault("GROUP_SUBSCRIBED_TO_TOPIC", "")


@pytest.mark.parametrize(
    ("answers", "kind", "reason", "topics"),
    [
        pytest.param([None, None, None], OutcomeType.DELETED, reasons.OFFSETS_DELETED, ("a", "b"), id="all"),
        pytest.param([_SUBSCRIBED, _SUBSCRIBED, None], OutcomeType.DELETED, reasons.OFFSETS_DELETED, ("b",), id="one"),
        pytest.param([DENIED, None, DENIED], OutcomeType.DELETED, reasons.OFFSETS_DELETED, ("a",), id="part-of-one"),
        pytest.param(
            [_SUBSCRIBED] * 3, OutcomeType.NOT_DELETED, reasons.SUBSCRIBED, (), id="subscribed-at-the-last-moment"
        ),
        pytest.param([DENIED] * 3, OutcomeType.FAILED, reasons.DENIED, (), id="denied"),
    ],
)
def test_answer_to_a_deletion_of_offsets(
    answers: list[Fault | None], kind: OutcomeType, reason: str, topics: tuple[str, ...]
) -> None:
    """One outcome a group; what is gone counts as deleted, since only then its backup stays."""
    places = (Partition("a", 0), Partition("a", 1), Partition("b", 0))
    request, outcome = deletion.result_of_offsets("g", dict(zip(places, answers, strict=True)))
    assert request is (RequestState.CONFIRMED if topics else RequestState.REFUSED)
    assert (outcome.kind, outcome.reason, outcome.topics) == (kind, reason, topics)
