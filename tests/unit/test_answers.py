"""What is read from the bytes of an answer is what the library reads from them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaProtocolError
from kafka.protocol.admin import ListGroupsResponse
from kafka.protocol.consumer import OffsetFetchResponse

from group_hygiene.kafka.answers import committed, listed
from group_hygiene.kafka.bounds import Rows
from group_hygiene.kafka.client import fault_of_code
from group_hygiene.model.groups import CommittedOffset, Fault, GroupState, GroupType, Listed, Partition
from group_hygiene.process.memory import TooMuch

# Short, long (their length takes two bytes), and with what ends a row in it.
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.text("ab", min_size=120, max_size=300),
    st.just("\x01\x06Empty\x08Classic\x00"),
)
NUMBERS = st.sampled_from([0, 1, 5, 300, 2**31 - 1])
OFFSETS = st.sampled_from([-1, 0, 7, 2**63 - 1])
EPOCHS = st.sampled_from([-1, 0, 2**31 - 1])
METADATA = st.one_of(st.just(""), st.none(), TEXTS)
# No error, NOT_COORDINATOR, GROUP_AUTHORIZATION_FAILED, UNKNOWN_SERVER_ERROR.
ERRORS = st.sampled_from([0, 0, 0, 16, 30, -1])

ListedGroup = ListGroupsResponse.ListedGroup
FetchedGroup = OffsetFetchResponse.OffsetFetchResponseGroup
FetchedTopic = FetchedGroup.OffsetFetchResponseTopics
FetchedPartition = FetchedTopic.OffsetFetchResponsePartitions

ROWS = st.lists(
    st.builds(
        ListedGroup,
        group_id=TEXTS,
        protocol_type=st.one_of(st.sampled_from(["", "consumer"]), TEXTS),
        group_state=st.sampled_from(["Empty", "Stable", "stable", "NewState"]),
        group_type=st.sampled_from(["Classic", "consumer", "Share", "NewType"]),
    ),
    max_size=20,
    unique_by=lambda row: row.group_id,
)
PARTITIONS = st.lists(
    st.builds(
        FetchedPartition,
        partition_index=NUMBERS,
        committed_offset=OFFSETS,
        committed_leader_epoch=EPOCHS,
        metadata=METADATA,
        error_code=ERRORS,
    ),
    unique_by=lambda entry: entry.partition_index,
    max_size=4,
)
TOPICS = st.lists(
    st.builds(FetchedTopic, name=TEXTS, partitions=PARTITIONS), unique_by=lambda topic: topic.name, max_size=4
)
GROUPS = st.lists(
    st.builds(FetchedGroup, group_id=TEXTS, topics=TOPICS, error_code=ERRORS),
    unique_by=lambda group: group.group_id,
    max_size=4,
)


def encoded(response: Any, version: int) -> bytes:
    return bytes(response.encode(version=version))


@given(ROWS, st.sampled_from([3, 4, 5]))
def test_groups_are_what_was_listed(rows: list[Any], version: int) -> None:
    """Every row is read, whatever its neighbours are like; a version's missing fields are Unknown and Classic."""
    types = {"Classic": GroupType.CLASSIC, "consumer": GroupType.CONSUMER, "Share": GroupType.SHARE}
    states = {"Empty": GroupState.EMPTY, "Stable": GroupState.STABLE, "stable": GroupState.STABLE}
    body = encoded(ListGroupsResponse(throttle_time_ms=1, error_code=0, groups=rows), version)
    assert listed(body, version, 7, Rows()) == {
        row.group_id: Listed(
            types.get(row.group_type, GroupType.UNKNOWN) if version >= 5 else GroupType.CLASSIC,
            row.protocol_type,
            states.get(row.group_state, GroupState.UNKNOWN) if version >= 4 else GroupState.UNKNOWN,
            7,
        )
        for row in rows
    }


@pytest.mark.parametrize(
    ("states", "read"),
    [
        pytest.param(("Empty", "Empty"), GroupState.EMPTY, id="the-same-row"),
        pytest.param(("Dead", "Empty"), GroupState.UNKNOWN, id="empty-and-dead"),
        pytest.param(("Empty", "Stable"), GroupState.STABLE, id="in-use-in-the-second"),
        pytest.param(("Stable", "Empty"), GroupState.STABLE, id="in-use-in-the-first"),
        pytest.param(("Empty", "Dead", "Empty"), GroupState.UNKNOWN, id="three-times"),
    ],
)
def test_different_rows_of_a_group_are_not_empty(states: tuple[str, ...], read: GroupState) -> None:
    """A coordinator that loaded it from two partitions of the log lists both: one of them is out of date."""
    rows = [ListedGroup(group_id="g", protocol_type="", group_state=s, group_type="Classic") for s in states]
    body = encoded(ListGroupsResponse(throttle_time_ms=1, error_code=0, groups=rows), 5)
    assert listed(body, 5, 7, Rows()) == {"g": Listed(GroupType.CLASSIC, "", read, 7)}


def test_a_group_that_two_brokers_list_is_not_empty() -> None:
    """One of them does not coordinate it any more, or computes its partition from another number of partitions."""
    row = Listed(GroupType.CLASSIC, "consumer", GroupState.EMPTY, 1)
    assert row.beside(row._replace(coordinator=2)).state is GroupState.UNKNOWN


def test_a_refused_list_is_a_fault() -> None:
    """An error of the whole answer is not an empty list."""
    body = encoded(ListGroupsResponse(throttle_time_ms=0, error_code=15, groups=[]), 5)
    assert listed(body, 5, 7, Rows()) == fault_of_code(15)


@given(GROUPS)
def test_offsets_are_what_was_committed(groups: list[Any]) -> None:
    """Each partition with an offset, and for a group with an error, its own or the first partition's, the Fault."""
    body = encoded(OffsetFetchResponse(throttle_time_ms=1, groups=groups), 8)
    assert committed(body, Rows()) == {group.group_id: expected(group) for group in groups}


def expected(group: Any) -> dict[Partition, CommittedOffset] | Fault:
    if group.error_code:
        return fault_of_code(group.error_code)
    offsets = {}
    for topic in group.topics:
        for entry in topic.partitions:
            if entry.error_code:
                fault = fault_of_code(entry.error_code)
                return Fault(fault.code, f"{topic.name}-{entry.partition_index}: {fault.message}", fault.retriable)
            if entry.committed_offset >= 0:
                offsets[Partition(topic.name, entry.partition_index)] = CommittedOffset(
                    entry.committed_offset, entry.committed_leader_epoch, entry.metadata or ""
                )
    return offsets


def test_topics_without_offsets_are_counted() -> None:
    """Each takes memory; one that several groups name takes it once."""
    named = [FetchedTopic(name=f"t{index}", partitions=[]) for index in range(10)]
    groups = [FetchedGroup(group_id=f"g{index}", topics=named, error_code=0) for index in range(2)]
    body = encoded(OffsetFetchResponse(throttle_time_ms=0, groups=groups), 8)
    assert committed(body, Rows(12)) == {"g0": {}, "g1": {}}
    with pytest.raises(TooMuch):
        committed(body, Rows(11))


@given(ROWS.filter(bool), GROUPS.filter(bool), st.data())
def test_an_answer_cut_short_is_no_answer(rows: list[Any], groups: list[Any], data: st.DataObject) -> None:
    """Never a shorter list: what is not whole raises."""
    lists = encoded(ListGroupsResponse(throttle_time_ms=0, error_code=0, groups=rows), 5)
    fetched = encoded(OffsetFetchResponse(throttle_time_ms=0, groups=groups), 8)
    with pytest.raises(KafkaProtocolError):
        listed(lists[: data.draw(st.integers(0, len(lists) - 1))], 5, 7, Rows())
    with pytest.raises(KafkaProtocolError):
        committed(fetched[: data.draw(st.integers(0, len(fetched) - 1))], Rows())


@given(st.binary(max_size=200))
def test_nonsense_raises_nothing_else(body: bytes) -> None:
    """Whatever comes: records, a Fault or KafkaProtocolError, which the client turns into a Fault."""
    for read in (lambda: listed(body, 5, 7, Rows()), lambda: committed(body, Rows())):
        with contextlib.suppress(KafkaProtocolError):
            read()


def test_partitions_without_an_offset_are_not_counted() -> None:
    """Each request about pending commits names all partitions of the cluster, for groups that use a few of them."""
    places = [
        FetchedPartition(partition_index=n, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=0)
        for n in range(50)
    ]
    groups = [FetchedGroup(group_id="g", topics=[FetchedTopic(name="t", partitions=places)], error_code=0)]
    body = encoded(OffsetFetchResponse(throttle_time_ms=1, groups=groups), 8)
    rows = Rows(60)
    for _ in range(3):
        assert committed(body, rows) == {"g": {}}
