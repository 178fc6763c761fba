"""The consumer groups of the demo, with the reason each exists: left by real programs, or used by living clients.

Half of them are unused. The other half seem unused (they are Empty, too), but are needed.
"""

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PyTopicPartition

from testing.sandbox.demo_clients import QUIET, TIMEOUT, Client, Seen, View, Work
from testing.sandbox.errors import SandboxError
from testing.sandbox.kafka.programs import (
    FILE_SINK,
    Program,
    Programs,
    connect,
    console_consumer,
    end_to_end_latency,
    perf_test,
    word_count,
)
from testing.sandbox.waiting import wait_for

# Topic -> partitions.
TOPICS = {
    "orders": 1,
    "clicks": 2,
    "prices": 1,
    "payments": 1,
    "stock": 1,
    "invoices": 1,
    "fire-alarms": 1,
    "promo": 1,
    "promo-codes": 1,
    "latency": 1,
    "streams-plaintext-input": 1,
    "streams-wordcount-output": 1,
}
_BUSY = ("orders", "clicks", "prices", "payments", "stock")
_READ_ONCE = ("promo", "promo-codes", "latency", "streams-plaintext-input")
# What programs make up in an id.
_MADE_UP = {r"\{uuid\}": "[0-9a-f-]{36}", r"\{digits\}": "[0-9]+"}
_RECORDS = 12
_PAUSE = 0.3


@dataclass(frozen=True)
class Kind:
    """One kind of group. pattern: its id, with {uuid} or {digits} if the program makes it up; `found` has such ids.

    programs: what leaves its groups, one each; anonymous: the topics of those of Spring Cloud Stream. reason: the
    operator's reason to skip it; None = the group is unused. client: its running client. comes_back: it has none, but
    its consumer will continue from the committed offsets some day. by_log: only the offsets log shows whether it is
    used, so `idleFor` judges it. stale: a topic for which it has offsets, but that it no longer reads.
    """

    pattern: str
    what: str
    reason: str | None = None
    client: Client | None = None
    comes_back: bool = False
    by_log: bool = False
    stale: str | None = None
    programs: tuple[Program, ...] = ()
    anonymous: tuple[str, ...] = ()
    found: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        return self.found or (self.pattern,)

    @property
    def abandoned(self) -> bool:
        return self.reason is None

    @property
    def looks_abandoned(self) -> bool:
        """Whether `unchangedFor` has no evidence of its use."""
        return not self.by_log and self.reason in (None, "KeepRequested")

    @property
    def name(self) -> str:
        return self.pattern if len(self.groups) == 1 else f"{len(self.groups)} {self.pattern}"


@dataclass
class Shop:
    """The Kafka cluster of a small shop: its topics, a continuous producer, and the clients of its groups."""

    bootstrap: str
    clients: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._librdkafka = {"bootstrap.servers": self.bootstrap, **QUIET}
        self._admin: Any = AdminClient(self._librdkafka)

    def open(self) -> None:
        """Fill it, and start the producer."""
        self.fill()
        self.employ("producer", self._produce_on)

    def fill(self) -> None:
        """Make the topics, and produce some records into all but the silent ones."""
        topics = [NewTopic(name, partitions, 1) for name, partitions in TOPICS.items()]
        for made in self._admin.create_topics(topics).values():
            made.result(TIMEOUT)
        self.produce((*_BUSY, *_READ_ONCE, "invoices"), _RECORDS)

    def close(self) -> None:
        for client in self.clients:
            client.stop()
        deadline = time.monotonic() + 5
        for client in self.clients:
            client.join(max(0.0, deadline - time.monotonic()))

    def employ(self, name: str, work: Callable[[], Work]) -> Client:
        """Start a long-running client."""
        client = Client(name, work)
        self.clients.append(client)
        return client.start()

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(TIMEOUT)

    def produce(self, topics: Sequence[str], count: int) -> None:
        # Without it, a retry on a busy machine writes a record twice.
        producer = Producer(self._librdkafka | {"enable.idempotence": True})
        for topic in topics:
            for number in range(count):
                producer.produce(topic, f"{topic} {number}", partition=number % TOPICS[topic])
        if producer.flush(TIMEOUT):
            raise SandboxError("records could not be produced")

    def confluent(self, group: str, **settings: Any) -> Any:
        """A librdkafka consumer without automatic commits."""
        common = {
            "group.id": group,
            # `pipeline` records it, and `explain` and the report name it.
            "client.id": f"{group}-1",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        return Consumer(self._librdkafka | common | {name.replace("_", "."): value for name, value in settings.items()})

    def _produce_on(self) -> Work:
        producer = Producer(self._librdkafka)
        try:
            while True:
                for topic in _BUSY:
                    for partition in range(TOPICS[topic]):
                        producer.produce(topic, "more", partition=partition)
                if producer.flush(TIMEOUT):
                    raise SandboxError("records could not be produced")
                yield 1
                time.sleep(_PAUSE)
        finally:
            producer.flush(1)


def make_all(shop: Shop, kinds: Iterable[Callable[[Shop], Kind]]) -> list[Kind]:
    """Make every kind, several at once; returns them in that order."""
    with ThreadPoolExecutor(8) as pool:
        return [made.result() for made in [pool.submit(kind, shop) for kind in kinds]]


def leave(shop: Shop, kinds: Sequence[Kind]) -> list[Kind]:
    """Run the programs of these kinds until each group has offsets, and end them; then produce more records."""
    view = View(shop.bootstrap)
    programs = [program for kind in kinds for program in kind.programs]
    with Programs(shop.bootstrap, programs, [topic for kind in kinds for topic in kind.anonymous]) as running:

        def all_committed() -> bool:
            running.check()
            seen = view.groups()
            return all(len(_left(kind, seen)) == len(kind.programs + kind.anonymous) for kind in kinds)

        wait_for(all_committed, "each program has committed", 2 * TIMEOUT)
        running.end()
    made = [replace(kind, found=_left(kind, view.groups())) for kind in kinds]
    groups = {group for kind in made for group in kind.groups}
    wait_for(
        lambda: all(state == "Empty" for group, state in view.states().items() if group in groups),
        "the programs have left their groups",
        TIMEOUT,
    )
    shop.produce((*_BUSY, *_READ_ONCE), _RECORDS)
    return made


def _left(kind: Kind, seen: Mapping[str, Seen]) -> tuple[str, ...]:
    """Its groups in which something was committed."""
    expression = re.escape(kind.pattern)
    for placeholder, made_up in _MADE_UP.items():
        expression = expression.replace(placeholder, made_up)
    return tuple(sorted(name for name in seen if re.fullmatch(expression, name) and any(seen[name].offsets.values())))


def topic_deleted(shop: Shop) -> None:
    """Delete one of the two topics that summer-promo read: Kafka drops those offsets itself, at once, and no others."""
    shop.delete_topic("promo-codes")
    view = View(shop.bootstrap)
    group = SUMMER_PROMO.pattern
    wait_for(lambda: len(view.offsets([group])[group]) == 1, "Kafka drops the offsets of a deleted topic", TIMEOUT)


def perf_tests(count: int) -> Kind:
    """kafka-consumer-perf-test leaves a group at each call, until Kafka expires its offsets a week later."""
    return Kind("perf-consumer-{digits}", "performance tests", programs=(perf_test("orders"),) * count)


def anonymous(*topics: str) -> Kind:
    """Spring Cloud Stream without a group leaves one for each topic, at each start of the application."""
    return Kind("anonymous.{uuid}", "Spring Cloud Stream", anonymous=topics)


# A preview deployment of a pull request, whose id its pipeline makes up.
PREVIEW = Kind("pr-123-api", "a closed preview", programs=(console_consumer("pr-123-api", "orders", records=3),))
# A service that was switched off, and that will be started again at the end of the year. No program can know that: it
# looks unused, until a user reads that it will be deleted, and requests to keep it.
OLD_SERVICE = Kind(
    "old-billing",
    "a service, switched off",
    "KeepRequested",
    comes_back=True,
    programs=(console_consumer("old-billing", "orders", records=3),),
)
# A test run in CI, of the newer protocol (KIP-848): the broker lists it with another type.
CI_RUN = Kind(
    "test-{uuid}",
    "a CI run (KIP-848)",
    programs=(console_consumer(f"test-{uuid.uuid4()}", "orders", records=3, protocol="consumer"),),
)
SUMMER_PROMO = Kind(
    "summer-promo",
    "one of its 2 topics is gone",
    programs=(console_consumer("summer-promo", "promo", "promo-codes", records=3),),
)
# It has read everything. Its consumer may be gone, or have nothing to do: both look the same.
CAUGHT_UP = Kind(
    "invoice-archive",
    "has read all there is",
    "CaughtUp",
    comes_back=True,
    programs=(console_consumer("invoice-archive", "invoices", records=_RECORDS),),
)
# A sink connector that is stopped for maintenance. Without its offsets it would write every record again.
SINK = Kind(
    "connect-orders-sink",
    "a stopped sink connector",
    "ConnectGroup",
    comes_back=True,
    programs=(connect({"orders-sink": {"connector.class": FILE_SINK, "file": "/dev/null", "topics": "orders"}}),),
)
# A Kafka Streams application that is scaled down. Its changelog topic has the state that belongs to its offsets: losing
# one of both is data loss.
STREAMS = Kind("streams-wordcount", "a stopped Streams app", "StreamsGroup", comes_back=True, programs=(word_count(),))
# It seems completely abandoned, and the connection protects it by name.
PROTECTED = Kind(
    "payments-audit",
    "needed once a year",
    "Protected",
    comes_back=True,
    programs=(console_consumer("payments-audit", "payments", records=3),),
)
# It assigned its partitions and committed: only the time of its last commit shows that it is unused, and only the
# offsets log has it.
LATENCY_TEST = Kind("test-group-{digits}", "a latency test", by_log=True, programs=(end_to_end_latency("latency"),))

LEFT = (
    perf_tests(20),
    anonymous("orders", "payments", "stock"),
    *(PREVIEW, OLD_SERVICE, CI_RUN, SUMMER_PROMO, CAUGHT_UP, SINK, STREAMS, PROTECTED, LATENCY_TEST),
)


def joined(shop: Shop) -> Kind:
    """The usual group: its consumers are members, so it is Stable, and visibly in use."""

    def work() -> Work:
        consumer = shop.confluent("checkout")
        consumer.subscribe(["orders"])
        return read_and_commit(consumer)

    return Kind("checkout", "a running service", "NotEmpty", shop.employ("checkout", work))


def joined_848(shop: Shop) -> Kind:
    """A running group of the newer protocol (KIP-848): DescribeGroups returns Dead, only ListGroups its real state."""

    def work() -> Work:
        consumer = shop.confluent("search-index-v2", group_protocol="consumer")
        consumer.subscribe(["orders"])
        return read_and_commit(consumer)

    client = shop.employ("search-index-v2", work)
    return Kind("search-index-v2", "a running service (KIP-848)", "NotEmpty", client)


def assigned(shop: Shop) -> Kind:
    """A consumer that assigns its partitions itself and only commits, as Flink does: it never joins, so the group is
    always Empty. It needs its offset of a quiet partition as much as its recent ones."""
    client = shop.employ("fraud-check", lambda: assign_and_commit(shop, "fraud-check", advance=True))
    return Kind("fraud-check", "commits, never joins: Flink", "SimpleGroup", client)


def assigned_and_stuck(shop: Shop) -> Kind:
    """Such a consumer that commits the same offset repeatedly, as after each try of a failing job: the offsets never
    change, there are unread records, and it is in use."""
    client = shop.employ("nightly-export", lambda: assign_and_commit(shop, "nightly-export", advance=False))
    return Kind("nightly-export", "commits the same each time", "SimpleGroup", client)


def assigned_and_silent(shop: Shop) -> Kind:
    """Such a consumer of a topic without new records: it committed once, and will again for the next record.
    (librdkafka skips commits of unchanged offsets.)"""

    def work() -> Work:
        consumer = shop.confluent("fire-watch")
        consumer.assign([TopicPartition("fire-alarms", 0, 0)])
        consumer.commit(offsets=[TopicPartition("fire-alarms", 0, 0)], asynchronous=False)
        yield 1
        yield from read_and_commit(consumer)

    client = shop.employ("fire-watch", work)
    return Kind("fire-watch", "waits for a first record", "SimpleGroup", client)


def once_subscribed(shop: Shop) -> Kind:
    """A group that consumers joined once, and whose id an assign-and-commit consumer uses now. It still has its former
    protocol type, unlike the three above: only its moving offsets show that it is in use."""
    consumer = shop.confluent("price-sync")
    consumer.subscribe(["prices"])
    _next(consumer)
    consumer.close()
    client = shop.employ("price-sync", lambda: assign_and_commit(shop, "price-sync", advance=True, topic="prices"))
    return Kind("price-sync", "joined once, only commits", "TooRecent", client)


LIVING: tuple[Callable[[Shop], Kind], ...] = (
    joined,
    joined_848,
    assigned,
    assigned_and_stuck,
    assigned_and_silent,
    once_subscribed,
)


def come_back(shop: Shop, group: str, topic: str, committed: int) -> str | None:
    """Start the consumer of a stopped group again: None if it continues where it stopped, else the problem."""
    consumer = shop.confluent(group, auto_offset_reset="error")
    joined = threading.Event()
    consumer.subscribe([topic], on_assign=lambda *_: joined.set())
    try:
        deadline = time.monotonic() + TIMEOUT
        message = None
        while not joined.is_set() and time.monotonic() < deadline:
            message = consumer.poll(0.1)
        # Only after it has joined, so that a group without lag never has unread records while it is Empty.
        shop.produce([topic], 1)
        message = _good(message) if message is not None else _next(consumer)
        consumer.commit(message, asynchronous=False)
        return None if message.offset() == committed else f"came back at {message.offset()} and not at {committed}"
    except SandboxError as error:
        return f"could not come back: {error}"
    finally:
        consumer.close()


def assign_and_commit(shop: Shop, group: str, advance: bool, topic: str = "clicks") -> Work:
    """Read and commit without joining. Partitions after the first get one commit, at the start."""
    consumer = KafkaConsumer(bootstrap_servers=shop.bootstrap, group_id=group, enable_auto_commit=False)
    partitions = [PyTopicPartition(topic, number) for number in range(TOPICS[topic])]
    try:
        consumer.assign(partitions)
        consumer.commit({partition: OffsetAndMetadata(1, "", -1) for partition in partitions})
        position = 1
        while True:
            if advance:
                batch = consumer.poll(timeout_ms=100).get(partitions[0]) or []
                position = max([position, *(record.offset + 1 for record in batch)])
            consumer.commit({partitions[0]: OffsetAndMetadata(position, "", -1)})
            yield 1
            time.sleep(_PAUSE)
    finally:
        consumer.close(autocommit=False)


def read_and_commit(consumer: Any) -> Work:
    """Commit record by record, while the caller iterates."""
    try:
        while True:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                consumer.commit(message, asynchronous=False)
                yield 1
            else:
                yield 0
    finally:
        consumer.close()


def _next(consumer: Any) -> Any:
    """The next record that the consumer gets."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            return _good(message)
    raise SandboxError("no record came")


def _good(message: Any) -> Any:
    if message.error() is not None:
        raise SandboxError(message.error().str())
    return message
