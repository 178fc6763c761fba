"""Whatever codec a broker, a topic or another producer chooses: the ledger, checkpoints and the offsets log are read.

And a batch that can't be read hides what is in it, and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from kafka.protocol.consumer import JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse
from kafka.protocol.consumer.group import LeaveGroupRequest, LeaveGroupResponse

from group_hygiene.engine.uses import read_ends
from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.mirror import Checkpoints
from group_hygiene.kafka.offsets import end_offsets
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.kafka.offsets_topic import Found, Tail
from group_hygiene.kafka.partition import PartitionLeader, fetch_all, fetch_raw
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import reasons
from group_hygiene.model.entries import Entry, Key
from group_hygiene.model.groups import CommittedOffset, Fault, Partition
from group_hygiene.spec.client_settings import Settings
from testing.faults.groups import _Brokers
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.books import (
    EVERYTHING,
    backup,
    claimed,
    configured,
    foreign,
    fresh,
    keep,
    mark,
    opened,
    pair,
    refused,
    settings,
)
from tests.kafka.makers import CHECKPOINTS_SUFFIX, Maker, at, seen, soon
from tests.kafka.scene import Scene, policy

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
# What `compression.type` of a topic may be.
SETTINGS = ["producer", "uncompressed", *CODECS[1:]]
_HEADER, _CODEC_AT = 61, 21
_LARGE = bytes(20_000_000)


def codecs_in(client: Client, place: Partition, start: int = 0) -> set[str]:
    """The codecs of the batches in the log from an offset on, as many as one answer holds."""
    answer = fetch_raw(PartitionLeader(client, place), start, soon())
    assert not isinstance(answer, Fault)
    found, at_byte = set(), 0
    while at_byte + _HEADER <= len(answer.data):
        base, length = struct.unpack_from(">qi", answer.data, at_byte)
        (attributes,) = struct.unpack_from(">h", answer.data, at_byte + _CODEC_AT)
        if base >= start and not attributes & 0x20:
            found.add(CODECS[attributes & 7])
        at_byte += 12 + length
    return found


def saved(ledger: Ledger) -> dict[Key, Entry]:
    """All entries, backups too."""
    return of(*ledger.entries(lambda key: key != ("owner",), soon()))


def of(*entries: Entry) -> dict[Key, Entry]:
    return {entry.key: entry for entry in entries}


@pytest.mark.parametrize("codec", SETTINGS)
def test_a_ledger_that_brokers_compress_from_the_start(client: Client, make: Maker, codec: str) -> None:
    """Every entry is read again, by this process and by the next one."""
    topic = foreign(make, compression_type=codec)
    ledger = claimed(client, topic)
    ledger.write(EVERYTHING)
    ledger.read_on(soon())
    assert saved(ledger) == of(*EVERYTHING)
    assert fresh(client, topic) == ledger.contents
    chosen = {"producer": "gzip", "uncompressed": "none"}.get(codec, codec)
    # Batches that compression would not make smaller stay as they are.
    assert chosen in codecs_in(client, Partition(topic, 0))


@pytest.mark.parametrize("codec", SETTINGS)
def test_a_ledger_that_brokers_compress_later(client: Client, make: Maker, codec: str) -> None:
    """The entries before and after the change are read, also after it is taken back."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    ledger.write([backup("g-1"), mark("g-1")])
    configured(make, topic, {"compression.type": codec})
    ledger.write([backup("g-2"), keep("g-3")])
    assert ledger.sweep(keep("g-3").at, soon()) == 0
    configured(make, topic, {"compression.type": "producer"})
    ledger.write([backup("g-4")])
    assert saved(ledger) == of(backup("g-1"), mark("g-1"), backup("g-2"), keep("g-3"), backup("g-4"))
    assert fresh(client, topic) == ledger.contents


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_a_foreign_producer(client: Client, make: Maker, codec: str) -> None:
    """Fifty of them between ours: they are counted, and ours are read and written as before."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    ledger.write([backup("g-1"), keep("g-2")])
    make.produce(topic, [(b"key-%d" % number, b"value" * 100) for number in range(50)], codec=codec)
    ledger.read_on(soon())
    ledger.write([mark("g-9")])
    assert saved(ledger) == of(backup("g-1"), keep("g-2"), mark("g-9"))
    assert (ledger.contents.unreadable, ledger.contents.hidden) == (50, {})
    assert fresh(client, topic) == ledger.contents


@pytest.mark.parametrize("codec", CODECS)
def test_checkpoints_of_mirrormaker(client: Client, make: Maker, codec: str) -> None:
    """Exactly its groups are found, by whatever `compression.type` its producer has."""
    topic = make.topic(make.name("source") + CHECKPOINTS_SUFFIX)
    groups = [f"orders-{number}" for number in range(30)]
    make.checkpoints(topic, groups, codec=codec)
    assert codecs_in(client, Partition(topic, 0)) == {codec}
    assert Checkpoints().read(client, [topic], soon()) == frozenset(groups)


def test_large_batches_of_several_partitions(client: Client, make: Maker) -> None:
    """Those that are too large together are read one by one: none counts as damaged."""
    topic = make.topic(partitions=5)
    for index in range(5):
        make.produce(topic, [(b"key", bytes(12_000_000))], index, codec="zstd")
    found = fetch_all(client, topic, dict.fromkeys(range(5), 0), dict.fromkeys(range(5), (1, 0)), soon())
    together = {index: len(each.records) for index, each in found.items() if not isinstance(each, Fault)}
    assert sorted(together.values()) == [0, 0, 0, 1, 1]
    for index in (index for index, count in together.items() if not count):
        alone = fetch_all(client, topic, {index: 0}, {index: (1, 0)}, soon())[index]
        assert not isinstance(alone, Fault)
        assert len(alone.records) == 1


def _finds_commits(client: Client, make: Maker, codec: str) -> None:
    topic, group, other = make.topic(partitions=3), make.name(), make.name()
    cluster = seen(client)
    ends = read_ends(client, cluster, soon())
    assert not isinstance(ends, Fault)
    make.simple(group, {Partition(topic, index): CommittedOffset(index, -1, "m" * 200) for index in range(3)})
    partition = partition_of(group, len(ends))
    assert codecs_in(client, Partition(OFFSETS_TOPIC, partition), ends[partition]) == {codec}
    tail = Tail(client, cluster.leaders, ends)
    tail.read_on({group, other}.__contains__, soon())
    assert isinstance(tail.answer(group, ends), Found)
    assert tail.answer(other, ends) is None


@pytest.fixture(scope="module")
def own() -> Iterator[tuple[Client, Maker]]:
    """A broker of its own: other tests read their offsets log by a client that has not all codecs."""
    with KafkaCluster() as kafka:
        make = Maker(kafka.plaintext_bootstrap)
        make.simple(make.name(), at(make.topic()))
        yield connect(Settings((kafka.bootstrap_servers,))), make


@pytest.mark.parametrize("codec", CODECS[1:])
def test_the_tail_of_an_offsets_log_that_brokers_compress(own: tuple[Client, Maker], codec: str) -> None:
    """A commit is found, and without one there is none: the log is not unreadable."""
    client, make = own
    configured(make, OFFSETS_TOPIC, {"compression.type": codec})
    _finds_commits(client, make, codec)


@pytest.mark.parametrize(
    "codec", [pytest.param(n, id=name, marks=[] if n == 2 else pytest.mark.slow) for n, name in enumerate(CODECS)]
)
def test_evidence_by_the_codec_of_the_offsets_topic(codec: int) -> None:
    """`offsets.topic.compression.codec`: at the end of its grace period the unused group is deleted, others stay."""
    config = {"offsets.topic.num.partitions": "1", "offsets.topic.compression.codec": str(codec)}
    with KafkaCluster(config=config) as kafka:
        make, client = Maker(kafka.plaintext_bootstrap), connect(Settings((kafka.bootstrap_servers,)))
        topic = make.topic(records=5)
        unused, used, other = (make.abandoned(make.name(), topic) for _ in range(3))
        _finds_commits(client, make, CODECS[codec])
        scene, tidy = Scene(client), policy(unused, used)
        observation, plan = scene.plan(tidy)
        for number in range(3):
            # In the same partition of the log.
            make.simple(other, at(topic, number))
        make.simple(used, at(topic, 4))
        outcomes = {o.group: o.reason for o in scene.apply(plan, observation)}
        assert outcomes[unused] == reasons.DELETED
        assert outcomes[used] != reasons.DELETED
        assert set(make.groups()) >= {used, other}
        client.close()
        make.close()


def _join(bootstrap: str, group: str, size: int) -> None:
    """A member whose subscription has so many bytes joins, and leaves."""
    user_data = size.to_bytes(4, "big") + bytes(size)
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(6) + user_data)
    times = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000}
    named = {"group_id": group, "protocol_type": "consumer", "protocols": [protocol], "version": 3}
    with _Brokers(bootstrap) as brokers:
        joined = brokers.ask(group, JoinGroupRequest(member_id="", **times, **named), JoinGroupResponse)
        member = joined.member_id
        assigned = [SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=b"")]
        sync = SyncGroupRequest(
            group_id=group, generation_id=joined.generation_id, member_id=member, assignments=assigned, version=2
        )
        assert brokers.ask(group, sync, SyncGroupResponse).error_code == 0
        leave = LeaveGroupRequest(group_id=group, member_id=member, version=2)
        assert brokers.ask(group, leave, LeaveGroupResponse).error_code == 0


@pytest.mark.parametrize("codec", [pytest.param(n, id=name) for n, name in enumerate(CODECS) if n])
def test_a_large_record_of_a_group_is_a_use_of_that_group(codec: int) -> None:
    """Its metadata have 17 MB, which brokers compress. Another group of its partition is deleted, that one is not."""
    config = {
        "offsets.topic.num.partitions": "1",
        "offsets.topic.compression.codec": str(codec),
        "group.initial.rebalance.delay.ms": "0",
    }
    with KafkaCluster(config=config) as kafka:
        make, client = Maker(kafka.plaintext_bootstrap), connect(Settings((kafka.bootstrap_servers,)))
        topic = make.topic(records=5)
        unused, large = (make.abandoned(make.name(), topic, "classic") for _ in range(2))
        scene, tidy = Scene(client, timeout="20s"), policy(unused, large)
        observation, plan = scene.plan(tidy)
        assert set(plan.actions) == {unused, large}
        place = Partition(OFFSETS_TOPIC, 0)
        before = end_offsets(client, [place], soon())[place]
        assert isinstance(before, int)
        _join(kafka.plaintext_bootstrap, large, 17_000_000)
        tail = Tail(client, seen(client).leaders, {0: before})
        tail.read_on({large, unused}.__contains__, soon())
        use = tail.answer(large, {})
        assert isinstance(use, Found)
        assert tail.answer(unused, {}) is None
        outcomes = {o.group: o.reason for o in scene.apply(plan, observation)}
        assert outcomes[unused] == reasons.DELETED
        assert outcomes[large] == reasons.RECENTLY_ACTIVE
        assert large in make.groups()
        client.close()
        make.close()


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_batch_that_is_too_large_hides_only_itself(client: Client, make: Maker, codec: str) -> None:
    """20 MB in a small batch: everything before and behind it is read and written, and its place is known."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    ledger.write([backup("g-1"), keep("g-2")])
    place = Partition(topic, 0)
    before = end_offsets(client, [place], soon())[place]
    assert isinstance(before, int)
    make.produce(topic, [(b"large", _LARGE)], codec=codec)
    ledger.write([backup("g-3"), mark("g-3")])
    ledger.read_on(soon())
    for read in (ledger.contents, fresh(client, topic)):
        assert read.unreadable == 1
        # A transaction's marker may come between.
        assert [offset - before in (0, 1) for offset in read.hidden] == [True]
        assert "too large" in read.hidden_summary
        assert (set(read.keeps), set(read.marks["uid-1"])) == ({"g-2"}, {"g-3"})
    assert saved(ledger) == of(backup("g-1"), keep("g-2"), backup("g-3"), mark("g-3"))
    # It may be the same request, for longer.
    assert ledger.sweep(keep("g-2").until + timedelta(days=1), soon()) == 0
    assert set(fresh(client, topic).keeps) == {"g-2"}


def test_many_batches_that_are_too_large(client: Client, make: Maker) -> None:
    """Each is passed, and counted."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    for number in range(12):
        make.produce(topic, [(b"large-%d" % number, _LARGE)], codec="zstd")
        ledger.write([backup(f"g-{number}")])
    ledger.read_on(soon())
    assert ledger.contents.unreadable == 12
    assert saved(ledger) == of(*(backup(f"g-{number}") for number in range(12)))


def test_a_hidden_batch_keeps_every_group(client: Client, make: Maker) -> None:
    """It may be a request to keep any of them. Marks stay, and the reason is that of the whole run."""
    topic, group = make.topic(records=5), make.name()
    make.abandoned(group, topic)
    scene, tidy = Scene(client), policy(group)
    observation, plan = scene.plan(tidy)
    make.produce(scene.ledger, [(b"large", _LARGE)], codec="zstd")
    (outcome,) = scene.apply(plan, observation)
    assert outcome.reason == reasons.RECORD_UNREADABLE
    assert "too large" in outcome.message
    observation = scene.observe(tidy)
    assert [refusal.reason for refusal in observation.conditions.refusals] == [reasons.RECORD_UNREADABLE]
    blocked = scene.planned(observation, tidy)
    assert scene.apply(blocked, observation) == []
    assert group in scene.context.journal.contents.marks[tidy.uid]
    assert group in make.groups()


def _log_file(kafka: KafkaCluster, topic: str) -> Path:
    return kafka.log(1).parent / "data" / f"{topic}-0" / f"{0:020}.log"


def _damage(file: Path, batch_of: bytes) -> None:
    """Change a byte of the records' last batch with these bytes, on the disk of the broker."""
    data = bytearray(file.read_bytes())
    data[data.index(batch_of)] ^= 0xFF
    file.write_bytes(data)


@pytest.mark.parametrize("records", [1, 5], ids=["of-one-record", "of-five-records"])
@pytest.mark.parametrize("behind", [True, False], ids=["in-the-middle", "at-the-end"])
def test_a_batch_that_is_damaged_on_disk_hides_only_itself(
    client: Client, kafka: KafkaCluster, make: Maker, records: int, behind: bool
) -> None:
    """It fails its checksum: so its header is not believed either, and the next batch is found without it."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    ledger.write([backup("g-1"), keep("g-2")])
    place = Partition(topic, 0)
    before = end_offsets(client, [place], soon())[place]
    assert isinstance(before, int)
    make.produce(topic, [(b"damaged-%d" % number, b"value") for number in range(records)])
    expected: list[Entry] = [backup("g-1"), keep("g-2")]
    if behind:
        make.produce(topic, [pair(keep("g-3"))])
        expected.append(keep("g-3"))
    _damage(_log_file(kafka, topic), b"damaged-0")
    ledger.read_on(soon())
    for read in (ledger.contents, fresh(client, topic)):
        # A transaction's marker may come between.
        assert [offset - before in (0, 1) for offset in read.hidden] == [True]
        assert "checksum" in read.hidden_summary
    ledger.write([mark("g-9")])
    assert saved(ledger) == of(*expected, mark("g-9"))


def test_a_batch_that_can_be_read_later(client: Client, kafka: KafkaCluster, make: Maker) -> None:
    """As when another replica leads. All is read again, in order: an older entry does not replace a newer one."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    make.produce(topic, [pair(keep("damaged-0")), pair(mark("g-1", digest="old"))])
    _damage(_log_file(kafka, topic), b"damaged-0")
    ledger.write([mark("g-1", digest="new")])
    assert (len(ledger.contents.hidden), ledger.contents.keeps) == (1, {})
    _damage(_log_file(kafka, topic), b"\x9bamaged-0")
    # Readers that pass by don't end the doubt.
    assert set(saved(ledger)) == {keep("damaged-0").key, mark("g-1").key}
    assert len(ledger.contents.hidden) == 1
    assert "it is read again" in refused(lambda: ledger.read_on(soon()))
    assert ledger.contents.hidden == {}
    assert set(ledger.contents.keeps) == {"damaged-0"}
    assert ledger.contents.marks["uid-1"]["g-1"].digest == "new"
    ledger.read_on(soon())


def test_a_damaged_owner_is_not_guessed(client: Client, kafka: KafkaCluster, make: Maker) -> None:
    """Nothing is claimed, and the problem names the batch, not another ledger."""
    topic = make.name("ledger")
    claimed(client, topic).write([keep("g-1")])
    file = _log_file(kafka, topic)
    data = bytearray(file.read_bytes())
    data[_HEADER + 4] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(LedgerProblem, match=r"owner of the ledger.*offset 0.*checksum"):
        opened(client, settings(topic))


@pytest.mark.slow
def test_a_hidden_batch_ends_with_its_records() -> None:
    """A tombstone for each of its keys, and the brokers' cleaner: then the ledger is read without it."""
    with KafkaCluster(config={"log.cleaner.backoff.ms": "100"}) as kafka:
        make, client = Maker(kafka.plaintext_bootstrap), connect(Settings((kafka.bootstrap_servers,)))
        ledger = claimed(client, "ledger")
        ledger.write([keep("g-1")])
        make.produce("ledger", [(b"large", _LARGE)], codec="zstd")
        ledger.read_on(soon())
        assert len(ledger.contents.hidden) == 1
        soon_compacted = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "100"}
        configured(make, "ledger", soon_compacted)
        make.produce("ledger", [(b"large", None)])

        def is_gone() -> bool:
            # The open segment is not compacted: the next write closes it.
            make.produce("ledger", [pair(mark("g-2"))])
            with suppress(LedgerProblem):
                ledger.read_on(soon())
            return not ledger.contents.hidden

        wait_for(is_gone, "the batch is gone", 60, 0.5)
        assert set(ledger.contents.keeps) == {"g-1"}
        assert fresh(client, "ledger") == ledger.contents
        client.close()
        make.close()
