"""Clusters that refuse DescribeLogDirs or hide `__consumer_offsets`: what counts as visible, and as a complete list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace as Row
from typing import Any

import pytest
from kafka.protocol.admin import DescribeLogDirsResponse
from kafka.protocol.metadata import MetadataResponse

from group_hygiene.engine.scan import _Scan
from group_hygiene.engine.uses import Since, Uses
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, SAMPLES, read_cluster, sample_ids
from group_hygiene.kafka.groups import not_loaded_before, not_loaded_since
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.ledger.contents import Contents
from group_hygiene.model import reasons
from group_hygiene.model.entries import ScanClock, Watch
from group_hygiene.model.groups import Cluster, Fault, LogPlace
from tests.unit.make import NOW, delete

_UNKNOWN, _DENIED, _CLUSTER_DENIED, _LOADING, _NO_COORDINATOR = 3, 29, 31, 14, 15
_UNSUPPORTED = Fault("UNSUPPORTED_VERSION", "the broker is too old for this request")
_TIMED_OUT = Fault("REQUEST_TIMED_OUT", "no answer in time", retriable=True)


@dataclass
class _Brokers:
    """Answers as two brokers that hide topics; stands in for `Client`.

    visible: the topics in Metadata. disks: the answer to DescribeLogDirs: topics, an error code or a Fault.
    offsets_error: of `__consumer_offsets`. coordinator: of all groups; a negative number is an error code. loading:
    brokers that are loading groups.
    """

    visible: tuple[str, ...] = ("orders",)
    disks: tuple[str, ...] | int | Fault = ("orders",)
    offsets_error: int = _DENIED
    coordinator: int = 1
    loading: frozenset[int] = frozenset()
    sent: list[str] = field(default_factory=list)

    def supports(self, request_class: Any, version: int = 0) -> bool:
        return False

    def send(self, call: Any, deadline: Any) -> Any:
        return self.send_each({None: call}, deadline)[None]

    def send_each(self, calls: Mapping[Any, Any], deadline: Any, reduce: Any = None) -> dict[Any, Any]:
        found = {key: self._answer(call) for key, call in calls.items()}
        return {
            key: answer if reduce is None or isinstance(answer, Fault) else reduce(key, answer)
            for key, answer in found.items()
        }

    def _answer(self, call: Any) -> Any:
        kind = type(call.request).__name__.removesuffix("Request")
        self.sent.append(kind)
        if kind == "RawMetadata":
            return self._metadata(call.request)
        if kind == "RawDescribeLogDirs":
            return self.disks if isinstance(self.disks, Fault) else _log_dirs(self.disks)
        if kind == "FindCoordinator":
            return Row(error_code=max(0, -self.coordinator), node_id=self.coordinator)
        assert kind == "DescribeGroups"
        code = _LOADING if call.broker in self.loading else 0
        return Row(groups=[Row(group_id=name, error_code=code) for name in call.request.groups])

    def _metadata(self, request: Any) -> Any:
        asked = self.visible if request.topics is None else [topic.name for topic in request.topics]
        row, version = MetadataResponse.MetadataResponseTopic, 12

        def topic(name: str) -> Any:
            hidden = self.offsets_error if name == OFFSETS_TOPIC else _DENIED
            code = 0 if name in self.visible else hidden
            return row(name=name, error_code=code, partitions=[], topic_id=None)

        broker = MetadataResponse.MetadataResponseBroker
        answer = MetadataResponse(
            throttle_time_ms=0,
            controller_id=1,
            cluster_id="c",
            brokers=[broker(node_id=node, host="kafka", port=9092, rack=None) for node in (1, 2)],
            topics=[topic(name) for name in asked],
        )
        return Row(body=bytes(answer.encode(version=version)), version=version)


def _log_dirs(disks: tuple[str, ...] | int) -> Any:
    row, version = DescribeLogDirsResponse.DescribeLogDirsResult, 4
    names = () if isinstance(disks, int) else disks
    topics = [row.DescribeLogDirsTopic(name=name, partitions=[]) for name in names]
    code = disks if isinstance(disks, int) else 0
    answer = DescribeLogDirsResponse(
        throttle_time_ms=0, error_code=code, results=[row(error_code=0, log_dir="/a", topics=topics)]
    )
    return Row(body=bytes(answer.encode(version=version)), version=version)


def _cluster(brokers: _Brokers, attested: bool) -> Cluster:
    client: Any = brokers
    found = read_cluster(client, Deadline(1), attested)
    assert isinstance(found, Cluster)
    return found


@pytest.mark.parametrize(
    ("disks", "attested", "reason", "text"),
    [
        pytest.param(("orders",), False, reasons.TOPICS_VISIBLE, "every topic", id="all-shown"),
        pytest.param(("orders",), True, reasons.TOPICS_VISIBLE, "every topic", id="all-shown-and-attested"),
        pytest.param(("orders", "bills"), True, reasons.TOPICS_HIDDEN, "(bills)", id="contradicts-the-attestation"),
        pytest.param(_CLUSTER_DENIED, False, reasons.TOPICS_HIDDEN, "could not be read", id="refused"),
        pytest.param(_CLUSTER_DENIED, True, reasons.TOPICS_ATTESTED, "brokers refuse", id="refused-and-attested"),
        pytest.param(_UNSUPPORTED, True, reasons.TOPICS_ATTESTED, "too old", id="not-known-to-the-brokers"),
        pytest.param((), True, reasons.TOPICS_ATTESTED, "shows no topics", id="nothing-shown"),
        pytest.param((), False, reasons.TOPICS_HIDDEN, "shows no topics", id="nothing-shown-and-not-attested"),
        pytest.param(_TIMED_OUT, False, reasons.TOPICS_UNKNOWN, "in time", id="no-answer"),
        pytest.param(_TIMED_OUT, True, reasons.TOPICS_UNKNOWN, "in time", id="no-answer-is-no-refusal"),
    ],
)
def test_an_attestation_counts_only_where_brokers_refuse(
    disks: tuple[str, ...] | int | Fault, attested: bool, reason: str, text: str
) -> None:
    """It never replaces an answer of the brokers, nor one that is missing for another cause."""
    brokers = _Brokers(disks=disks)
    context: Any = Row(client=brokers, connection=Row(topics_attested=attested))
    cluster = _cluster(brokers, attested=True)
    found = _Scan(context=context, cluster=cluster, deadline=Deadline(0.3)).visibility()
    assert found.reason == reason
    assert text in found.message
    assert (f"hide {OFFSETS_TOPIC}" in found.message) == (reason == reasons.TOPICS_ATTESTED)


@pytest.mark.parametrize("code", [_DENIED, _UNKNOWN])
def test_a_hidden_offsets_topic_is_replaced_by_sample_groups(code: int) -> None:
    """Only if the owner attests that topics are visible; otherwise no such request is sent."""
    attested = _cluster(_Brokers(offsets_error=code), attested=True)
    assert attested.samples == dict.fromkeys(sample_ids(), 1)
    strict = _Brokers(offsets_error=code)
    without = _cluster(strict, attested=False)
    assert not without.samples
    assert "FindCoordinator" not in strict.sent
    denied = [f"topic {OFFSETS_TOPIC}: TOPIC_AUTHORIZATION_FAILED: needs DESCRIBE on the topic"]
    about_topics = [problem for problem in without.problems if problem.startswith("topic")]
    assert about_topics == (denied if code == _DENIED else [])


@pytest.mark.parametrize(
    ("coordinator", "problem"),
    [
        pytest.param(1, "", id="known"),
        pytest.param(9, "broker 9 coordinates groups", id="a-broker-that-metadata-lacks"),
        pytest.param(-_NO_COORDINATOR, "have no coordinator: COORDINATOR_NOT_AVAILABLE", id="no-coordinator"),
    ],
)
def test_a_sample_without_a_coordinator_leaves_the_list_incomplete(coordinator: int, problem: str) -> None:
    """As a partition of `__consumer_offsets` without a leader does."""
    found = _cluster(_Brokers(coordinator=coordinator), attested=True)
    others = [each for each in found.problems if "permissions on the cluster" not in each]
    assert [problem in each for each in others] == ([True] if problem else [])


@pytest.mark.parametrize("partitions", [1, 3, 16, 24, 50, 100, 200])
def test_samples_cover_each_partition(partitions: int) -> None:
    """For each common number of partitions."""
    assert len(sample_ids()) == SAMPLES
    assert {partition_of(name, partitions) for name in sample_ids()} == set(range(partitions))


def test_a_coordinator_that_is_loading_leaves_the_list_incomplete() -> None:
    """Before the list and after it, without a question about the hidden topic."""
    brokers = _Brokers(loading=frozenset({1}))
    client: Any = brokers
    cluster = _cluster(brokers, attested=True)
    brokers.sent.clear()
    for found in (not_loaded_before(client, cluster, Deadline(0.1)), not_loaded_since(client, cluster, Deadline(0.1))):
        assert {broker: fault.code for broker, fault in found.items()} == {1: "COORDINATOR_LOAD_IN_PROGRESS"}
    assert set(brokers.sent) == {"DescribeGroups"}
    brokers.loading = frozenset()
    assert not_loaded_before(client, cluster, Deadline(1)) == {}
    assert not_loaded_since(client, cluster, Deadline(1)) == {}


@pytest.mark.parametrize("log", [{}, {0: LogPlace(5, 1)}])
def test_uses_between_scans_are_not_known_where_the_log_is_hidden(log: dict[int, LogPlace]) -> None:
    """So a policy must say that it trusts its scans, as where READ on the log is denied."""
    cluster = Cluster("c", {1: "kafka:9092"}, {}, samples={"a": 1})
    strict, trusting = delete(), delete({"unprotect": ["UnreadableOffsetsLog"]})
    contents = Contents()
    contents.apply([Watch(policy_uid="uid-1", digest="d", watched=1.0, since=NOW, at=NOW, complete_at=NOW)])
    contents.apply([ScanClock(connection_uid="c", seconds=1.0, log=log)])
    journal, connection = Row(contents=contents), Row(uid="c")
    context: Any = Row(client=_Brokers(), journal=journal, memory=Row(tail=None), connection=connection)
    found = {}
    for policy in (strict, trusting):
        plan: Any = Row(policy=policy, actions=("g",))
        found[policy] = Uses(context, plan, cluster).read_on(Deadline(1))
    assert found[strict]["g"].reason == reasons.EVIDENCE_UNREADABLE
    assert "UnreadableOffsetsLog" in found[strict]["g"].message
    assert found[trusting] == {}


def test_a_deletion_by_name_is_refused_where_the_log_is_hidden() -> None:
    """Its message speaks of the command's own question, and of the option that skips it."""
    cluster = Cluster("c", {1: "kafka:9092"}, {}, samples={"a": 1})
    context: Any = Row(client=_Brokers(), journal=Row(contents=Contents()))
    plan: Any = Row(policy=delete(), actions=("g",))
    refusal = Uses(context, plan, cluster, since=Since({}, {})).read_on(Deadline(1))["g"]
    assert refusal.reason == reasons.EVIDENCE_UNREADABLE
    assert refusal.message.startswith("whether it was used lately: brokers hide")
    assert "--force" in refusal.message
