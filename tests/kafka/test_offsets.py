"""Offsets on a real broker: what groups committed, exactly, and where partitions end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from group_hygiene.kafka.client import Call, Client
from group_hygiene.kafka.offsets import committed_offsets, end_offsets
from group_hygiene.model.groups import CommittedOffset, Fault, Partition
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.clients import Wrapped
from tests.kafka.makers import Maker, at, soon


def test_committed_offsets_are_exact(client: Client, make: Maker) -> None:
    """Offset, leader epoch and metadata are what was committed; a partition without a commit is left out."""
    one, other = make.topic(partitions=3), make.topic()
    committed = {
        Partition(one, 0): CommittedOffset(7, 0, "from host-1, ünïcode"),
        Partition(one, 2): CommittedOffset(0),
        Partition(other, 0): CommittedOffset(2**40, 0),
    }
    group = make.simple(make.name("simple"), committed)
    assert committed_offsets(client, {group: None}, soon()) == {group: committed}


def test_only_the_partitions_that_are_named_are_answered(client: Client, make: Maker) -> None:
    """Of the named ones, too, those without a commit are left out, as are those of a topic that isn't there."""
    topic, absent = make.topic(partitions=3), make.name("no-topic")
    group = make.simple(make.name("simple"), at(topic, 5) | at(topic, 6, partition=1))
    named = [Partition(topic, 1), Partition(topic, 2), Partition(absent, 0)]
    assert committed_offsets(client, {group: None}, soon(), named) == {group: at(topic, 6, partition=1)}


def test_an_unknown_group_has_no_offsets(client: Client, make: Maker) -> None:
    """Kafka answers emptily for a group that isn't there, and that is no fault."""
    absent = make.name("absent")
    assert committed_offsets(client, {absent: None}, soon()) == {absent: {}}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_of_a_group_in_use_are_read(client: Client, make: Maker, protocol: str) -> None:
    """A Stable group's offsets are as readable as an Empty one's."""
    topic, group = make.topic(), make.name("live")
    make.join(group, topic, "consumer" if protocol == "consumer" else "classic", at(topic, 3))
    (offsets,) = committed_offsets(client, {group: None}, soon()).values()
    assert not isinstance(offsets, Fault)
    assert {place: commit.offset for place, commit in offsets.items()} == {Partition(topic, 0): 3}


def test_many_groups_are_read_in_a_few_requests(client: Client, make: Maker, kafka: KafkaCluster) -> None:
    """700 groups, some of them absent: each has its own offsets, in two requests."""
    topic = make.topic(partitions=2)
    commits = {make.name("many"): at(topic, number, partition=number % 2) for number in range(690)}
    make.simple_groups(commits)
    absent = {make.name("absent"): dict[Partition, CommittedOffset]() for _ in range(10)}
    mark = kafka.mark()
    answers = committed_offsets(client, dict.fromkeys([*commits, *absent], 1), soon())
    assert answers == commits | absent
    assert kafka.count_requests("OFFSET_FETCH", client_id="group-hygiene", since=mark) == {1: 2}


class _Noting(Wrapped):
    """A client that notes what it sends."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.requests: list[Any] = []

    def send_each(self, calls: Mapping[Any, Call], *arguments: Any) -> Any:
        self.requests += [call.request for call in calls.values()]
        return self._client.send_each(calls, *arguments)


def test_named_partitions_take_memory_once(client: Client) -> None:
    """And not in each request: those for pending commits name every partition of the cluster."""
    places = [Partition(f"topic-{number}", 0) for number in range(26_000)]
    noting = _Noting(client)
    answers = committed_offsets(cast("Client", noting), {"a": 1, "b": 1}, soon(), places, require_stable=True)
    assert answers == {"a": {}, "b": {}}
    first, second = (request.groups[0].topics for request in noting.requests)
    assert first is second


def test_a_wrong_coordinator_is_looked_up(client: Client, make: Maker) -> None:
    """A broker that is gone from the cluster does not make a group's offsets unknown."""
    topic = make.topic()
    group = make.simple(make.name("simple"), at(topic, 4))
    assert committed_offsets(client, {group: 77}, soon()) == {group: at(topic, 4)}


def test_a_topic_that_was_deleted_takes_its_offsets_along(client: Client, make: Maker) -> None:
    """The broker drops them: nothing is left that could be taken for an old commit."""
    kept, deleted = make.topic(), make.topic()
    group = make.simple(make.name("simple"), at(kept, 1) | at(deleted, 2))
    make.delete_topic(deleted)
    wait_for(lambda: committed_offsets(client, {group: None}, soon()) == {group: at(kept, 1)})


def test_ends_are_where_the_next_record_goes(client: Client, make: Maker) -> None:
    """Each partition's own end; 0 for an empty one."""
    topic, other = make.topic(partitions=3, records=5), make.topic()
    make.produce(topic, [(None, b"x")] * 2, partition=2)
    wanted = {Partition(topic, 0): 5, Partition(topic, 1): 0, Partition(topic, 2): 2, Partition(other, 0): 0}
    assert end_offsets(client, wanted, soon()) == wanted


def test_an_unknown_topic_or_partition_is_a_fault_of_its_own(client: Client, make: Maker) -> None:
    """What exists is answered all the same, and nothing waits for the deadline."""
    topic = make.topic(records=4)
    unknown = [Partition(make.name("no-topic"), 0), Partition(topic, 9)]
    deadline = soon()
    answers = end_offsets(client, [Partition(topic, 0), *unknown], deadline)
    assert deadline.left > 15
    assert answers.pop(Partition(topic, 0)) == 4
    assert set(answers) == set(unknown)
    assert {fault.code for fault in answers.values() if isinstance(fault, Fault)} == {"UNKNOWN_TOPIC_OR_PARTITION"}


def test_an_empty_request_is_not_sent(client: Client, kafka: KafkaCluster) -> None:
    """No groups and no partitions are no request."""
    mark = kafka.mark()
    assert committed_offsets(client, {}, soon()) == {}
    assert end_offsets(client, [], soon()) == {}
    counts = [kafka.count_requests(api, client_id="group-hygiene", since=mark) for api in ("OFFSET_FETCH", "METADATA")]
    assert counts == [{1: 0}, {1: 0}]


@pytest.mark.parametrize("earlier", [pytest.param(True, id="committed-before"), pytest.param(False, id="first-commit")])
def test_a_pending_transactional_commit_is_unstable(client: Client, make: Maker, earlier: bool) -> None:
    """By name it is told, with or without an earlier commit; without RequireStable the old offset is answered."""
    topic = make.topic(records=9)
    group, before = make.name("transactional"), at(topic, 2) if earlier else {}
    if earlier:
        make.simple(group, before)
    producer = make.pending(group, at(topic, 8))
    try:
        deadline = soon()
        answer = committed_offsets(client, {group: None}, deadline, [Partition(topic, 0)], require_stable=True)[group]
        assert isinstance(answer, Fault)
        assert answer.code == "UNSTABLE_OFFSET_COMMIT"
        assert f"{topic}-0" in answer.message
        # The producer may take as long as it likes: waiting for it is not a retry.
        assert deadline.left > 15
        assert committed_offsets(client, {group: None}, soon()) == {group: before}
    finally:
        producer.abort_transaction(60)
    named = [Partition(topic, 0)]
    wait_for(lambda: committed_offsets(client, {group: None}, soon(), named, require_stable=True) == {group: before})


def test_a_pending_commit_spoils_only_its_own_group(client: Client, make: Maker) -> None:
    """Groups asked in the same request are answered."""
    topic = make.topic()
    pending, other = make.name("transactional"), make.simple(make.name("simple"), at(topic, 1))
    producer = make.pending(pending, at(topic, 8))
    try:
        groups = dict.fromkeys([pending, other])
        answers = committed_offsets(client, groups, soon(), [Partition(topic, 0)], require_stable=True)
        assert isinstance(answers[pending], Fault)
        assert answers[other] == at(topic, 1)
    finally:
        producer.abort_transaction(60)
