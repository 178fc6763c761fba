"""What is read from the bytes of answers about all topics is what the library would have decoded."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from kafka.errors import KafkaProtocolError
from kafka.protocol.admin import DescribeLogDirsResponse
from kafka.protocol.metadata import MetadataResponse

from group_hygiene.kafka.answers import Broker, LogDirs, Metadata, Topic, TopicPartition, log_dirs, metadata
from group_hygiene.kafka.bounds import BROKERS, Rows
from group_hygiene.process.memory import TooMuch

_ID = uuid.UUID(int=7)


def _metadata(version: int, replicas: Sequence[Sequence[int]] = ((1, 2), (1, 2))) -> bytes:
    broker, topic = MetadataResponse.MetadataResponseBroker, MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition

    def row(index: int, leader: int) -> Any:
        return partition(
            error_code=0,
            partition_index=index,
            leader_id=leader,
            leader_epoch=5,
            replica_nodes=list(replicas[index]),
            isr_nodes=[1],
            offline_replicas=[2],
        )

    answer = MetadataResponse(
        throttle_time_ms=0,
        brokers=[broker(node_id=1, host="one", port=9092, rack=None), broker(node_id=2, host="two", port=1, rack="r")],
        cluster_id="c",
        controller_id=1,
        topics=[
            topic(error_code=0, name="orders", topic_id=_ID, is_internal=False, partitions=[row(0, 1), row(1, -1)]),
            topic(error_code=3, name="größe", topic_id=uuid.UUID(int=0), is_internal=False, partitions=[]),
        ],
    )
    return bytes(answer.encode(version=version))


@pytest.mark.parametrize("version", range(5, 13))
def test_metadata_is_read_as_it_was_written(version: int) -> None:
    """Brokers, topics and partitions, whatever the version leaves out."""
    epoch = 5 if version >= 7 else -1
    partitions = (TopicPartition(0, 1, epoch), TopicPartition(1, -1, epoch))
    assert metadata(_metadata(version), version, Rows()) == Metadata(
        (Broker(1, "one", 9092), Broker(2, "two", 1)),
        "c",
        (
            Topic(0, "orders", _ID if version >= 10 else None, partitions),
            Topic(3, "größe", None, ()),
        ),
        frozenset({1, 2}),
    )


def _log_dirs(version: int, error: int = 0) -> bytes:
    result = DescribeLogDirsResponse.DescribeLogDirsResult
    topic = result.DescribeLogDirsTopic
    partition = topic.DescribeLogDirsPartition
    rows = [partition(partition_index=0, partition_size=10, offset_lag=0, is_future_key=False)]
    answer = DescribeLogDirsResponse(
        throttle_time_ms=0,
        error_code=0,
        results=[
            result(error_code=0, log_dir="/a", topics=[topic(name="orders", partitions=rows)]),
            result(error_code=error, log_dir="/b", topics=[topic(name="bills", partitions=rows * 3)]),
        ],
    )
    return bytes(answer.encode(version=version))


@pytest.mark.parametrize("error", [0, 56])
@pytest.mark.parametrize("version", range(1, 6))
def test_directories_are_read_as_they_were_written(version: int, error: int) -> None:
    """The topics of all directories, and the error of one of them."""
    assert log_dirs(_log_dirs(version, error), version, Rows()) == LogDirs(error, frozenset({"orders", "bills"}))


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_what_is_cut_off_is_an_error(cut: int) -> None:
    """No shorter list: missing topics would look as if they did not exist."""
    for read, body in ((metadata, _metadata(12)), (log_dirs, _log_dirs(4))):
        with pytest.raises(KafkaProtocolError):
            read(body[:-cut], 12 if read is metadata else 4, Rows())


def test_rows_are_counted_before_they_are_read() -> None:
    """Topics and partitions together."""
    with pytest.raises(TooMuch):
        metadata(_metadata(12), 12, Rows(3))
    with pytest.raises(TooMuch):
        log_dirs(_log_dirs(4), 4, Rows(3))


@pytest.mark.parametrize(
    "replicas",
    [
        pytest.param((range(BROKERS + 1), [1]), id="of-one-partition"),
        pytest.param((range(600), range(600, 1200)), id="of-all-together"),
    ],
)
def test_replicas_are_on_no_more_brokers_than_there_may_be(replicas: Sequence[Sequence[int]]) -> None:
    """Four bytes of an answer would become a hundred in memory; a partition has one replica on a broker."""
    with pytest.raises(TooMuch, match="brokers have replicas"):
        metadata(_metadata(12, replicas), 12, Rows())


def test_replicas_of_many_partitions_on_the_same_brokers_are_one_set() -> None:
    """Of a cluster as large as may be."""
    found = metadata(_metadata(12, (range(BROKERS), range(BROKERS))), 12, Rows())
    assert found.replica_nodes == frozenset(range(BROKERS))
