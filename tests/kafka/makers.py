"""What lives in a Kafka cluster, made on demand: topics, records, and every kind of group, by real clients."""

from __future__ import annotations

import itertools
import json
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Literal

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kafka.structs import OffsetAndMetadata

from group_hygiene.kafka.client import CLIENT_ID, Client, Deadline
from group_hygiene.kafka.cluster import PREFIX, read_cluster
from group_hygiene.model.groups import Cluster, CommittedOffset, Offsets, Partition
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.cluster import Mark
from testing.sandbox.waiting import PATIENCE, wait_for

Protocol = Literal["classic", "consumer"]
CHECKPOINTS_SUFFIX = ".checkpoints.internal"


class Maker:
    """Makes things in one cluster, over a listener where it may do everything; `close` ends all clients it started."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._config = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        # Ends in a dash, so that no tag is the beginning of another one's names.
        self.tag = f"{uuid.uuid4().hex[:8]}-"
        self._numbers = itertools.count(1)
        self.admin: Any = AdminClient(self._config)
        self._live: dict[str, list[Any]] = {}
        self._checkpoints: set[str] = set()

    def name(self, what: str = "thing") -> str:
        """A name that nothing else has; all names of this maker begin with its `tag`."""
        return f"{self.tag}{what}-{next(self._numbers)}"

    def topic(self, name: str | None = None, partitions: int = 1, records: int = 0, replicas: int = 1) -> str:
        """A new topic with so many records in its partition 0; returns its name."""
        topic = name or self.name("topic")
        if topic.endswith(CHECKPOINTS_SUFFIX):
            self._checkpoints.add(topic)
        self.admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result()
        # The controller knows the topic at once; wait until every broker lists it with its leaders.
        wait_for(lambda: all(has_leaders(admin, topic, partitions) for admin in self._each_broker()))
        if records:
            self.produce(topic, [(None, b"x")] * records)
        return topic

    def _each_broker(self) -> Iterator[Any]:
        """A client for each broker in the cluster's metadata. Its first request goes to its only bootstrap server."""
        brokers = self.admin.list_topics(timeout=PATIENCE).brokers.values()
        for broker in brokers if len(brokers) > 1 else ():
            yield AdminClient(self._config | {"bootstrap.servers": f"{broker.host}:{broker.port}"})
        yield self.admin

    def produce(
        self, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], partition: int = 0, codec: str = "none"
    ) -> None:
        """Write (key, value) pairs to one partition and wait until they are there."""
        # Its limit is for records before they are compressed; a broker's is for compressed batches.
        producer = Producer(self._config | {"compression.type": codec, "message.max.bytes": 100_000_000})
        for key, value in records:
            producer.produce(topic, key=key, value=value, partition=partition)
        assert producer.flush(PATIENCE) == 0

    def checkpoints(self, topic: str, groups: Iterable[str], partition: int = 0, codec: str = "none") -> None:
        """Write to a checkpoints topic what MirrorMaker 2 writes there for each of these groups."""
        self.produce(topic, [(checkpoint_key(group, "orders", 3), bytes(20)) for group in groups], partition, codec)

    def delete_records(self, topic: str) -> None:
        """All of them, by a retention that a compacted topic has for a moment."""
        for policy in ("compact,delete", "compact"):
            entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
            self.admin.incremental_alter_configs([resource])[resource].result()
            if policy == "compact":
                continue
            # The controller knows the policy at once, the log later.
            wait_for(lambda: self._has_deleted_records(topic))

    def _has_deleted_records(self, topic: str) -> bool:
        partitions = self.admin.list_topics(topic).topics[topic].partitions
        # -1: to the end.
        for done in self.admin.delete_records([TopicPartition(topic, i, -1) for i in partitions]).values():
            try:
                done.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                    raise
                return False
        return True

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result()
        wait_for(lambda: topic not in self.admin.list_topics().topics)

    def join(self, group: str, topic: str, protocol: Protocol = "classic", commit: Offsets | None = None) -> None:
        """A new member that stays until `leave`: the group is Stable with an assignment when this returns."""
        consumer = Consumer(
            self._config
            | {"group.id": group, "group.protocol": protocol, "enable.auto.commit": False, "client.id": f"of-{group}"}
            # Nobody polls it once it has joined; and a topic that it was not told of at first it hears of soon.
            | {"max.poll.interval.ms": 86_400_000, "topic.metadata.refresh.interval.ms": 1_000}
        )
        self._live.setdefault(group, []).append(consumer)
        consumer.subscribe([topic])

        def joined() -> bool:
            consumer.poll(0.05)
            return bool(consumer.assignment())

        wait_for(joined)
        self.wait_state(group, "STABLE")
        if commit:
            consumer.commit(offsets=_positions(commit), asynchronous=False)

    def subscribe(self, group: str, *topics: str) -> None:
        """The only member of a group that `join` made reads these topics from now on."""
        (consumer,) = self._live[group]
        consumer.subscribe(list(topics))

        def assigned() -> bool:
            consumer.poll(0.05)
            return {place.topic for place in consumer.assignment()} == set(topics)

        wait_for(assigned)
        self.wait_state(group, "STABLE")

    def commit(self, group: str, commit: Offsets) -> None:
        """What the first member of a group that `join` made commits."""
        self._live[group][0].commit(offsets=_positions(commit), asynchronous=False)

    def leave(self, group: str) -> None:
        """All members that `join` made leave, and the group is Empty when this returns."""
        for consumer in self._live.pop(group):
            consumer.close()
        self.wait_state(group, "EMPTY")

    def abandoned(self, group: str, topic: str, protocol: Protocol = "classic", commit: Offsets | None = None) -> str:
        """A group that was joined, committed (default: offset 0 of the topic's partition 0) and was left."""
        self.join(group, topic, protocol, {Partition(topic, 0): CommittedOffset(0)} if commit is None else commit)
        self.leave(group)
        return group

    def simple(self, group: str, commit: Offsets) -> str:
        """Commit as an assign+commit consumer does. To a group that was joined before, too, if it is Empty."""
        consumer = KafkaConsumer(
            bootstrap_servers=self._config["bootstrap.servers"], group_id=group, enable_auto_commit=False
        )
        positions = {
            KafkaPartition(*place): OffsetAndMetadata(c.offset, c.metadata, c.leader_epoch)
            for place, c in commit.items()
        }
        # A consumer that is left open has a thread, which draws random numbers amid the tests that come next.
        with closing(consumer):
            consumer.assign(list(positions))
            consumer.commit(positions)
        return group

    def simple_groups(self, commits: Mapping[str, Offsets]) -> None:
        """Many simple groups at once."""
        left = dict(commits)

        def committed() -> bool:
            # A new topic, and a new coordinator, are not known to every broker at once.
            asked = [ConsumerGroupTopicPartitions(group, _positions(offsets)) for group, offsets in left.items()]
            futures = [self.admin.alter_consumer_group_offsets([each]) for each in asked]
            for answers in futures:
                for group, future in answers.items():
                    if not future.exception() and not any(place.error for place in future.result().topic_partitions):
                        del left[group]
            return not left

        wait_for(committed)

    def pending(self, group: str, offsets: Offsets) -> Any:
        """A transaction that has sent offsets for the group and is neither committed nor aborted: its producer."""
        transactional_id = self.name("transaction")
        producer = Producer(self._config | {"transactional.id": transactional_id, "transaction.timeout.ms": 600_000})
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        consumer = Consumer(self._config | {"group.id": group})
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(_positions(offsets), metadata, PATIENCE)
        consumer.close()
        return producer

    def transaction(
        self, topic: str, records: int, end: Literal["commit", "abort", "open"] = "commit", size: int = 1
    ) -> Any:
        """A transaction that writes so many records of that size to partition 0, and how it ends: its producer."""
        transactional_id = self.name("transaction")
        producer = Producer(self._config | {"transactional.id": transactional_id, "transaction.timeout.ms": 600_000})
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(topic, b"x" * size, partition=0)
        assert producer.flush(PATIENCE) == 0
        if end != "open":
            self.finish(producer, topic, end)
        return producer

    def finish(self, producer: Any, topic: str, end: Literal["commit", "abort"] = "commit") -> None:
        """End a transaction that wrote to the topic's partition 0, and wait for the mark of that: it comes later."""
        before = self._end(topic)
        if end == "commit":
            producer.commit_transaction(PATIENCE)
        else:
            producer.abort_transaction(PATIENCE)
        wait_for(lambda: self._end(topic) > before)

    def _end(self, topic: str) -> int:
        place = TopicPartition(topic, 0)
        return int(self.admin.list_offsets({place: OffsetSpec.latest()})[place].result().offset)

    def reads(self, group: str, topic: str, records: int) -> Any:
        """A consumer that was assigned partition 0 and lives on: it read so many committed records, and said so."""
        consumer = Consumer(
            self._config
            | {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
            | {"auto.offset.reset": "earliest"}
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        read: list[Any] = []

        def done() -> bool:
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                read.append(message)
            return len(read) >= records

        wait_for(done)
        consumer.commit(read[-1], asynchronous=False)
        self._live.setdefault(group, []).append(consumer)
        return consumer

    def delete_group(self, group: str) -> None:
        """As somebody else would, who is not us."""
        self.admin.delete_consumer_groups([group])[group].result()

    def groups(self) -> dict[str, str]:
        """Every group of this maker -> its state, as Kafka's own C client lists them, in capitals."""
        listed = self.admin.list_consumer_groups().result()
        states = {group.group_id: group.state.name for group in listed.valid if self.tag in group.group_id}
        # Brokers older than 2.6 list no states.
        unknown = [name for name, state in states.items() if state == "UNKNOWN"]
        described = self.admin.describe_consumer_groups(unknown) if unknown else {}
        return states | {name: future.result().state.name for name, future in described.items()}

    def wait_state(self, group: str, state: str) -> None:
        wait_for(lambda: self.groups().get(group) == state)

    def close(self) -> None:
        for consumers in self._live.values():
            for consumer in consumers:
                consumer.close()
        self._live.clear()
        # Each scan of this cluster would read them, also those of tests that count requests.
        if self._checkpoints:
            for topic in self._checkpoints & set(self.admin.list_topics().topics):
                self.delete_topic(topic)


def checkpoint_key(group: str, topic: str, partition: int) -> bytes:
    """org.apache.kafka.connect.mirror.Checkpoint.KEY_SCHEMA: STRING group, STRING topic, INT32 partition."""
    texts = [text.encode() for text in (group, topic)]
    return b"".join(struct.pack(">h", len(text)) + text for text in texts) + struct.pack(">i", partition)


def requests(kafka: KafkaCluster, api: str, since: Mark) -> list[dict[str, Any]]:
    """The bodies of the product's own requests of that kind which broker 1 has answered since the mark."""
    kafka.count_requests(api, since=since)  # waits until they are all in the log
    with kafka.log(1).open("rb") as log:
        log.seek(since[1])
        lines = [line.partition("Completed request:")[2] for line in log.read().decode().splitlines()]
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    return [
        line["request"]
        for line in logged
        if line["requestHeader"]["requestApiKeyName"] == api and line["requestHeader"]["clientId"] == CLIENT_ID
    ]


def fetches(kafka: KafkaCluster, since: Mark) -> list[dict[str, Any]]:
    """The bodies of those that ask what groups have committed, and not what the broker has loaded."""
    asked = requests(kafka, "OFFSET_FETCH", since)
    return [body for body in asked if not any(group["groupId"].startswith(PREFIX) for group in body.get("groups", ()))]


def soon(seconds: float = 60.0) -> Deadline:
    """The deadline of one call."""
    return Deadline(seconds)


def seen(client: Client) -> Cluster:
    """The cluster as the client reads it now."""
    cluster = read_cluster(client, soon())
    assert isinstance(cluster, Cluster)
    return cluster


def at(topic: str, offset: int = 0, partition: int = 0) -> dict[Partition, CommittedOffset]:
    """One committed offset."""
    return {Partition(topic, partition): CommittedOffset(offset)}


def has_leaders(admin: Any, topic: str, partitions: int) -> bool:
    """Whether this broker lists all partitions with leaders; False if it does not answer."""
    try:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
    except KafkaException:
        return False
    return len(found) == partitions and all(place.leader >= 0 and place.error is None for place in found)


def _positions(offsets: Offsets) -> list[Any]:
    return [_position(place, commit) for place, commit in offsets.items()]


def _position(place: Partition, commit: CommittedOffset) -> Any:
    # This client sends metadata with a zero byte behind it, even where there is none: leave that to `simple`.
    epoch = {} if commit.leader_epoch < 0 else {"leader_epoch": commit.leader_epoch}
    return TopicPartition(place.topic, place.partition, commit.offset, **epoch)
