"""Which groups MirrorMaker 2 mirrors, from records as it writes them, on a real broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from group_hygiene.engine.context import read_protections
from group_hygiene.engine.recovery import LedgerNeed
from group_hygiene.kafka import mirror
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.mirror import Checkpoints, checkpoint_topics, is_checkpoints
from group_hygiene.kafka.partition import Batch, PartitionLeader, fetch
from group_hygiene.model.evidence import Claims
from group_hygiene.model.groups import Cluster, Fault
from group_hygiene.spec.connection import parse_connection
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, checkpoint_key, soon
from tests.kafka.scene import Scene

SUFFIX = ".checkpoints.internal"

Topic = Callable[[], str]


@pytest.fixture
def new_topic(make: Maker) -> Topic:
    """Makes a checkpoints topic."""
    return lambda: make.topic(make.name("source") + SUFFIX, partitions=2)


def test_the_key_is_laid_out_as_mirror_maker_does() -> None:
    """Kafka's STRING is a length of two bytes and UTF-8, its INT32 four bytes."""
    assert checkpoint_key("gé", "t", 258) == b"\x00\x03g\xc3\xa9\x00\x01t\x00\x00\x01\x02"


def test_exactly_the_groups_of_the_checkpoints_are_mirrored(client: Client, make: Maker, new_topic: Topic) -> None:
    """From all partitions of all checkpoint topics, each group once."""
    one, two = new_topic(), new_topic()
    make.checkpoints(one, ["orders", "orders", "größe", "a b\nc"])
    make.checkpoints(one, ["in-partition-1"], partition=1)
    make.checkpoints(two, ["orders", "second-source"])
    mirrored = Checkpoints().read(client, [one, two], soon())
    assert mirrored == frozenset({"orders", "größe", "a b\nc", "in-partition-1", "second-source"})


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        pytest.param("primary.checkpoints.internal", True, id="dot"),
        pytest.param("a.b.checkpoints.internal", True, id="dot-in-the-alias"),
        pytest.param("primary_checkpoints_internal", True, id="one-character"),
        pytest.param("primary__checkpoints__internal", True, id="two-characters"),
        pytest.param("primary-to-checkpoints-to-internal", True, id="letters"),
        pytest.param("primarycheckpointsinternal", True, id="none"),
        pytest.param("primary.checkpoints_internal", False, id="two-separators"),
        pytest.param("primary_checkpoints__internal", False, id="a-longer-separator"),
        pytest.param("primary.checkpoints.internal.not", False, id="not-at-the-end"),
        pytest.param("mm2-offset-syncs.primary.internal", False, id="another-internal-topic"),
    ],
)
def test_a_checkpoints_topic_is_known_by_its_name(topic: str, expected: bool) -> None:
    """DefaultReplicationPolicy puts the same separator, of any length, before both words."""
    assert is_checkpoints(topic) is expected


def test_no_checkpoints_topic_means_no_mirror(client: Client, kafka: KafkaCluster) -> None:
    """Then nobody is asked."""
    mark = kafka.mark()
    topics = checkpoint_topics(["orders", f"x{SUFFIX}.not"], None)
    assert Checkpoints().read(client, topics, soon()) == frozenset()
    assert kafka.count_requests("METADATA", client_id="group-hygiene", since=mark) == {1: 0}


def test_an_empty_topic_names_no_group(client: Client, new_topic: Topic) -> None:
    """Read to its end, which is where it begins."""
    assert Checkpoints().read(client, [new_topic()], soon()) == frozenset()


def test_tombstones_and_foreign_records_do_not_matter(client: Client, make: Maker, new_topic: Topic) -> None:
    """A tombstone still names its group; a record without a key, or with one cut short, names nobody."""
    topic = new_topic()
    key = checkpoint_key("orders", "t", 0)
    make.produce(topic, [(key, None), (None, b"x"), (b"", b"x"), (b"\x00", b"x"), (b"\x00\x09abc", b"x")])
    assert Checkpoints().read(client, [topic], soon()) == frozenset({"orders"})


def test_a_second_look_reads_only_what_is_new(
    client: Client, make: Maker, new_topic: Topic, kafka: KafkaCluster
) -> None:
    """New groups are added, known ones stay, and without news only the last batch is fetched."""
    topic, checkpoints = new_topic(), Checkpoints()
    make.checkpoints(topic, ["first"])
    assert checkpoints.read(client, [topic], soon()) == frozenset({"first"})
    mark = kafka.mark()
    assert checkpoints.read(client, [topic], soon()) == frozenset({"first"})
    assert kafka.count_requests("FETCH", client_id="group-hygiene", since=mark) == {1: 1}
    make.checkpoints(topic, ["second"])
    assert checkpoints.read(client, [topic], soon()) == frozenset({"first", "second"})


@pytest.mark.parametrize(
    "recreated",
    [
        pytest.param(["new"], id="shorter"),
        pytest.param(["new", "old-1", "old-2"], id="as-long"),
        pytest.param(["new", "old-1", "old-2", "old-3", "old-4"], id="longer"),
    ],
)
def test_a_recreated_topic_is_read_from_its_start(
    client: Client, make: Maker, new_topic: Topic, recreated: list[str]
) -> None:
    """However long it is by now: nothing in it was read before."""
    topic, checkpoints = new_topic(), Checkpoints()
    make.checkpoints(topic, ["old-1", "old-2", "old-3"])
    checkpoints.read(client, [topic], soon())
    make.delete_topic(topic)
    make.topic(topic, partitions=2)
    make.checkpoints(topic, recreated)
    assert checkpoints.read(client, [topic], soon()) == frozenset({"new", "old-1", "old-2", "old-3", *recreated})


def test_a_topic_that_is_gone_is_a_fault(client: Client, make: Maker) -> None:
    """What was not read can't be said to name nobody."""
    fault = Checkpoints().read(client, [make.name("gone") + SUFFIX], soon())
    assert isinstance(fault, Fault)
    assert fault.code == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_read_that_takes_too_long_is_a_fault(client: Client, make: Maker, new_topic: Topic) -> None:
    """Half of the checkpoints is no answer, and the next look makes up for it."""
    topic, checkpoints = new_topic(), Checkpoints()
    make.checkpoints(topic, ["orders"])
    assert isinstance(checkpoints.read(client, [topic], Deadline(0)), Fault)
    assert checkpoints.read(client, [topic], soon()) == frozenset({"orders"})


def test_a_large_topic_is_read_on_by_the_next_read(
    client: Client, make: Maker, new_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the time runs out, each read begins where the one before ended, and names the place."""
    topic, checkpoints = new_topic(), Checkpoints()
    names = [f"orders-{number}".ljust(400, "x") for number in range(30_000)]
    make.checkpoints(topic, names)
    positions = []

    def fetch_once(leader: PartitionLeader, position: int, deadline: Deadline, known: Batch | None) -> Any:
        positions.append(position)
        late = len(positions) % 2 == 0
        return Fault("REQUEST_TIMED_OUT", "no answer in time") if late else fetch(leader, position, deadline, known)

    monkeypatch.setattr(mirror, "fetch", fetch_once)
    faults = list(itertools.takewhile(lambda found: isinstance(found, Fault), _reads(checkpoints, client, topic)))
    assert faults
    assert f"partition 0 of {topic} is read to offset {positions[1]} of {len(names)}" in str(faults[0])
    assert (checkpoints.problem, positions[:3]) == (None, [0, positions[1], positions[1]])
    monkeypatch.undo()
    assert checkpoints.read(client, [topic], soon()) == frozenset(names)


def test_only_topics_that_are_asked_for_count(client: Client, make: Maker, new_topic: Topic) -> None:
    """Others are forgotten: if a client invents ids, a user names the real topics, and no restart is needed."""
    forged, real, checkpoints = new_topic(), new_topic(), Checkpoints(most_bytes=1_000)
    make.checkpoints(forged, [f"made-up-{number}" for number in range(20)])
    make.checkpoints(real, ["orders"])
    assert isinstance(checkpoints.read(client, [forged, real], soon()), Fault)
    assert checkpoints.read(client, [real], soon()) == frozenset({"orders"})
    assert checkpoints.read(client, [], soon()) == frozenset()


def _reads(checkpoints: Checkpoints, client: Client, topic: str) -> Iterator[frozenset[str] | Fault]:
    while True:
        yield checkpoints.read(client, [topic], soon())


def test_more_ids_than_there_is_room_for_are_a_fault(client: Client, make: Maker, new_topic: Topic) -> None:
    """Made-up ids fill no memory, now or later: nobody knows then which groups are mirrored."""
    topic, checkpoints = new_topic(), Checkpoints(most_bytes=1_000)
    make.checkpoints(topic, [f"made-up-{number}" for number in range(20)])
    for _ in range(2):
        fault = checkpoints.read(client, [topic], soon())
        assert isinstance(fault, Fault)
        assert fault.code == "ANSWERS_TOO_LARGE"


@pytest.mark.parametrize(
    ("named", "mirrored"),
    [
        pytest.param(["{one}"], {"orders"}, id="one"),
        pytest.param([], set(), id="none"),
        pytest.param(["{one}", "{plain}"], {"orders", "of-another-name"}, id="whatever-it-is-called"),
        pytest.param(["{one}", "no-such-topic"], None, id="one-that-is-not-there"),
    ],
)
def test_only_topics_that_the_connection_names_count(
    client: Client, cluster: Cluster, make: Maker, new_topic: Topic, named: list[str], mirrored: set[str] | None
) -> None:
    """Whoever creates another one of MirrorMaker's name changes nothing. What is named and can't be read keeps all."""
    one, forged, plain = new_topic(), new_topic(), make.topic()
    make.checkpoints(one, ["orders"])
    make.checkpoints(forged, ["made-up"])
    make.checkpoints(plain, ["of-another-name"])
    topics = [name.format(one=one, plain=plain) for name in named]
    spec = {"bootstrapServers": ["a:1"], "mirrorMaker": {"checkpointTopics": topics}}
    context = Scene(client, need=LedgerNeed.READ).context
    context = replace(context, connection=parse_connection({"spec": spec}))
    found = read_protections(context, cluster, {}, {one: 2, forged: 2, plain: 1}, soon(), Claims).mirrored
    assert found == (None if mirrored is None else frozenset(mirrored))
