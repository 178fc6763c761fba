"""Restores on real brokers: offsets come back as they were saved, or stay away with the reason."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer

from group_hygiene.engine import restoration
from group_hygiene.engine.executor import open_ledger
from group_hygiene.engine.restorable import GroupResult, OutOfRange, RestoreRequest, ResultKind
from group_hygiene.engine.restoration import restore
from group_hygiene.errors import LedgerFenced
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Client, connect
from group_hygiene.ledger.contents import LedgerSettings, encode_key
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, HistoryEntry, OutcomeType, Removal, SavedOffset, in_parts
from group_hygiene.model.groups import CommittedOffset, Offsets, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.backups import backup
from tests.kafka.books import restorer
from tests.kafka.makers import Maker, at, soon
from tests.kafka.scene import Clock, Guard

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")


STOPPED = Refusal(reasons.STOPPING, "the operator is stopping")


@pytest.fixture
def ledger(client: Client, make: Maker) -> Ledger:
    """An empty ledger that is ours, in a topic of its own."""
    topic = make.name("ledger")
    return claimed(client, topic)


def claimed(client: Client, topic: str) -> Ledger:
    """The ledger in a topic, by a process that takes over from whoever wrote it before."""
    made = open_ledger(
        client, LedgerSettings(installation="ours", writer=f"w-{topic}", topic=topic), soon(), create=True
    )
    assert made is not None
    made.claim(soon())
    return made


def saved(client: Client, group: str, offsets: Offsets, **changes: Any) -> Backup:
    """A backup of these offsets, with the ids that the topics have now."""
    ids = kafka_cluster.topic_ids(client, {place.topic for place in offsets}, soon())
    rows: dict[str, list[SavedOffset]] = {}
    for place, commit in offsets.items():
        rows.setdefault(place.topic, []).append(SavedOffset(place.partition, *commit, None))
    topic_ids = {topic: answer for topic, answer in ids.items() if isinstance(answer, str) and answer}
    return backup(group, rows, **({"topic_ids": topic_ids} | changes))


def restored(client: Client, ledger: Ledger, group: str, preview: bool = False, **options: Any) -> GroupResult:
    """The result of a restore of one group. options: of the request, or else `guard` and `clock`."""
    guard, clock = options.pop("guard", Guard()), options.pop("clock", Clock())
    request = RestoreRequest(**({"id": "restore-1", "groups": (group,)} | options))
    (result,) = restore(restorer(client, ledger, clock, guard), request, preview)
    return result


def test_an_object_that_is_created_again_restores_nothing(client: Client, ledger: Ledger, make: Maker) -> None:
    """By the outcome of the one before it, also what was deleted since; a group without an outcome is not tried."""
    topic, group, other = make.topic(), make.name(), make.name()
    make.produce(topic, [(None, b"a"), (None, b"b")])
    place = {Partition(topic, 0): CommittedOffset(1)}
    ledger.write([saved(client, group, place)])
    assert restored(client, ledger, group, id="o.1", origin="o.").reason == reasons.RESTORED
    make.delete_group(group)
    ledger.write([saved(client, group, place, id="later", at=NOW), saved(client, other, place, at=NOW)])
    again = RestoreRequest(id="o.2", origin="o.", groups=(group, other))
    results = restore(restorer(client, ledger, Clock(), Guard()), again)
    assert [(r.kind, r.reason) for r in results] == [
        (ResultKind.RESTORED, reasons.RAN_BEFORE),
        (ResultKind.REFUSED, reasons.RAN_BEFORE),
    ]
    of_policy = RestoreRequest(id="o.2", origin="o.", policy="kafka/unused", deleted_after=NOW - timedelta(days=9))
    assert [r.group for r in restore(restorer(client, ledger, Clock(), Guard()), of_policy)] == [group]
    assert committed(client, group) == committed(client, other) == {}
    assert restored(client, ledger, group, id="p.2", origin="p.").reason == reasons.RESTORED


@pytest.mark.parametrize(("valid", "proofs"), [(10.0, 1), (0.0, 2)], ids=["within-seconds", "a-long-command"])
def test_what_many_restores_rely_on_is_proved_again(
    client: Client, ledger: Ledger, make: Maker, monkeypatch: pytest.MonkeyPatch, valid: float, proofs: int
) -> None:
    """A command that restores for minutes relies on clocks and brokers as they are now, not as they were at first."""
    topic, groups, asked = make.topic(records=2), [make.name() for _ in range(2)], list[bool]()
    ledger.write([saved(client, group, {Partition(topic, 0): CommittedOffset(1)}) for group in groups])
    monkeypatch.setattr(restoration, "find_growth", lambda *_, **__: asked.append(True))
    monkeypatch.setattr(restoration, "_PROVED_S", valid)
    results = restore(restorer(client, ledger, Clock(), Guard()), RestoreRequest(id="r", groups=tuple(groups)))
    assert [each.kind for each in results] == [ResultKind.RESTORED] * 2
    assert len(asked) == proofs


def test_an_object_is_remembered_as_long_as_git_creates_it_again(client: Client, ledger: Ledger, make: Maker) -> None:
    """Longer than its backup, and longer again each time: the outcome of a backup that expires soon would be gone."""
    topic, group, days = make.topic(records=2), make.name(), timedelta(days=30)
    ledger.write([saved(client, group, {Partition(topic, 0): CommittedOffset(1)}, expires=NOW + timedelta(hours=1))])
    clock, ends = Clock(), []
    for number in range(3):
        restored(client, ledger, group, id=f"o.{number}", origin="o.", remembered=days, clock=clock)
        (outcome,) = outcomes(ledger)
        ends.append(outcome.expires - clock.now())
        clock.moved += timedelta(days=20)
    assert all(days - timedelta(minutes=1) < end <= days for end in ends)


def test_an_object_that_is_created_again_after_a_start_restores_nothing(
    client: Client, ledger: Ledger, make: Maker
) -> None:
    """Its predecessor's process died before the outcome, and may have committed; that object itself may go on."""
    topic, group = make.topic(records=3), make.name()
    ledger.write([saved(client, group, {Partition(topic, 0): CommittedOffset(1)})])

    class Dies(Guard):
        def refusal(self) -> Refusal | None:
            begun = [entry for entry in outcomes(ledger) if entry.what is OutcomeType.FAILED]
            if begun:
                raise KeyboardInterrupt
            return None

    with pytest.raises(KeyboardInterrupt):
        restored(client, ledger, group, id="o.1", origin="o.", guard=Dies())
    again = restored(client, ledger, group, id="o.2", origin="o.")
    assert (again.kind, again.reason) == (ResultKind.PARTLY, reasons.RAN_BEFORE)
    assert "began to restore it at" in again.message
    assert restored(client, ledger, group, id="o.1", origin="o.").reason == reasons.RESTORED


def committed(client: Client, group: str) -> Mapping[Partition, CommittedOffset]:
    answer = kafka_offsets.committed_offsets(client, {group: None}, soon())[group]
    assert isinstance(answer, Mapping)
    return answer


def outcomes(ledger: Ledger) -> list[HistoryEntry]:
    return [e for e in ledger.entries(lambda key: key[0] == "outcome", soon()) if isinstance(e, HistoryEntry)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_goes_on_where_it_was(
    kafka: KafkaCluster, client: Client, ledger: Ledger, make: Maker, protocol: Any
) -> None:
    """A group that was really deleted: Kafka's own tool shows the offset, and a consumer reads the next record."""
    topic = make.topic()
    make.produce(topic, [(None, f"record {number}".encode()) for number in range(5)])
    group = make.abandoned(make.name(), topic, protocol, at(topic, 3))
    before = committed(client, group)
    ledger.write([saved(client, group, before, type="Classic" if protocol == "classic" else "Consumer")])
    make.delete_group(group)
    result = restored(client, ledger, group)
    assert (result.kind, result.reason, result.restored) == (ResultKind.RESTORED, reasons.RESTORED, 1)
    assert committed(client, group) == before
    tool = kafka.tool(
        *("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server"),
        *(kafka.bootstrap_servers, "--describe", "--offsets", "--group", group),
    )
    assert [line.split()[1:6] for line in tool.stdout.splitlines() if line.startswith(group)] == [
        [topic, "0", "3", "5", "2"]
    ]
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    got: list[bytes | None] = []

    def has_read() -> bool:
        got.extend(message.value() for message in consumer.consume(1, 0.2) if not message.error())
        return bool(got)

    wait_for(has_read)
    consumer.close()
    assert got[0] == b"record 3"


def test_outcome_is_noted_and_request_runs_once(client: Client, ledger: Ledger, make: Maker) -> None:
    """The history says what was restored; the same request does nothing to that group any more, whatever it does."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])
    first = restored(client, ledger, group)
    (outcome,) = outcomes(ledger)
    assert (outcome.group, outcome.what, outcome.reason, outcome.id) == (
        group,
        OutcomeType.RESTORED,
        reasons.RESTORED,
        "restore-1",
    )
    make.delete_group(group)
    again = restored(client, ledger, group)
    assert (again.kind, again.message) == (first.kind, first.message)
    assert committed(client, group) == {}
    assert restored(client, ledger, group, id="restore-2").partitions[0].reason == reasons.VERIFIED


def test_metadata_and_leader_epoch_come_back(client: Client, ledger: Ledger, make: Maker) -> None:
    """All that a commit holds."""
    topic, group = make.topic(records=5), make.name()
    commit = {Partition(topic, 0): CommittedOffset(2, 0, "from host-1, ünïcode")}
    ledger.write([saved(client, group, commit)])
    assert restored(client, ledger, group).kind is ResultKind.RESTORED
    assert committed(client, group) == commit


def test_preview_changes_nothing(client: Client, ledger: Ledger, make: Maker) -> None:
    """It tells what would be done, and neither Kafka nor the ledger knows of it."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])
    result = restored(client, ledger, group, preview=True)
    assert [(p.reason, p.commit) for p in result.partitions] == [(reasons.WOULD_RESTORE, CommittedOffset(3))]
    assert committed(client, group) == {}
    assert group not in make.groups()
    assert outcomes(ledger) == []


def test_what_is_committed_amid_a_restore_stays(client: Client, ledger: Ledger, make: Maker) -> None:
    """Whoever goes on with a group while it is being restored is not set back: all is read again before the commit."""
    topic, group = make.topic(partitions=2, records=5), make.name()
    ledger.write([saved(client, group, at(topic, 1) | at(topic, 0, 1))])

    def goes_on() -> None:
        make.simple(group, at(topic, 4))

    result = restored(client, ledger, group, guard=Guard(stop=goes_on))
    assert (result.kind, [p.reason for p in result.partitions]) == (
        ResultKind.PARTLY,
        [reasons.ALREADY_COMMITTED, reasons.VERIFIED],
    )
    assert committed(client, group) == at(topic, 4) | at(topic, 0, 1)


def test_a_later_offset_is_replaced_only_on_request(client: Client, ledger: Ledger, make: Maker) -> None:
    """The preview shows what is replaced and changes nothing; earlier offsets, and the same ones, stay."""
    topic, group = make.topic(partitions=3, records=5), make.name()
    for partition in (1, 2):
        make.produce(topic, [(None, b"x")] * 5, partition)
    ledger.write([saved(client, group, at(topic, 2) | at(topic, 2, 1) | at(topic, 2, 2))])
    make.simple(group, at(topic, 4) | at(topic, 1, 1) | at(topic, 2, 2))
    present = committed(client, group)
    result = restored(client, ledger, group)
    assert (result.kind, result.reason) == (ResultKind.PARTLY, reasons.PARTLY_RESTORED)
    assert "--overwrite-later (overwriteLater of a GroupRestore) replaces later offsets" in result.message
    preview = restored(client, ledger, group, preview=True, id="restore-2", overwrite_later=True)
    assert [(p.reason, p.message) for p in preview.partitions] == [
        (reasons.WOULD_RESTORE, "in place of offset 4: records from 2 on are delivered again"),
        (reasons.ALREADY_COMMITTED, "offset 1 is committed now"),
        (reasons.ALREADY_THERE, ""),
    ]
    assert committed(client, group) == present
    done = restored(client, ledger, group, id="restore-2", overwrite_later=True)
    assert [p.reason for p in done.partitions] == [
        reasons.VERIFIED,
        reasons.ALREADY_COMMITTED,
        reasons.ALREADY_THERE,
    ]
    assert "1 in place of later offsets" in done.message
    assert committed(client, group) == at(topic, 2) | at(topic, 1, 1) | at(topic, 2, 2)
    # Again: the replaced offsets are no backup of a deletion. They come back by the time of that restore.
    again = restored(client, ledger, group, id="restore-3", overwrite_later=True)
    assert [p.reason for p in again.partitions] == [
        reasons.ALREADY_THERE,
        reasons.ALREADY_COMMITTED,
        reasons.ALREADY_THERE,
    ]
    time.sleep(1)
    undone = restored(client, ledger, group, id="restore-4", overwrite_later=True, at=datetime.now(UTC))
    assert [(p.partition.partition, p.reason) for p in undone.partitions] == [(0, reasons.VERIFIED)]
    assert committed(client, group) == present


@pytest.mark.parametrize("commits", [(4, 5), (None, 5)], ids=["another-one", "a-first-one"])
def test_what_is_committed_amid_an_overwrite_stays(
    client: Client, ledger: Ledger, make: Maker, commits: tuple[int | None, int]
) -> None:
    """Only offsets that were there when the restore began are replaced: a client that commits now is in use."""
    topic, group = make.topic(partitions=2, records=5), make.name()
    before, amid = commits
    ledger.write([saved(client, group, at(topic, 1) | at(topic, 0, 1))])
    if before is not None:
        make.simple(group, at(topic, before))

    def goes_on() -> None:
        make.simple(group, at(topic, amid))

    result = restored(client, ledger, group, guard=Guard(stop=goes_on), overwrite_later=True)
    assert [p.reason for p in result.partitions] == [reasons.ALREADY_COMMITTED, reasons.VERIFIED]
    assert committed(client, group) == at(topic, amid) | at(topic, 0, 1)


def test_what_is_committed_between_two_tries_of_an_overwrite_stays(
    client: Client, ledger: Ledger, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that waits for one partition is tried again. It replaces only what was there at its first try."""
    monkeypatch.setattr(restoration, "_COMMIT_CHUNK", 1)
    topic, group = make.topic(partitions=3, records=9), make.name()
    for partition in (1, 2):
        make.produce(topic, [(None, b"x")] * 9, partition)
    ledger.write([saved(client, group, at(topic, 1) | at(topic, 1, 1) | at(topic, 1, 2))])
    make.simple(group, at(topic, 4) | at(topic, 4, 1) | at(topic, 4, 2))

    def tried(chunks: int) -> list[tuple[int, str]]:
        """The offsets after a try that is stopped after so many partitions, and the results."""
        # The first one is for the entry of the start.
        answers = iter([None] * (chunks + 1))
        guard = Guard(stop=lambda: next(answers, STOPPED))
        result = restored(client, ledger, group, guard=guard, overwrite_later=True)
        return [(committed(client, group)[p.partition].offset, p.reason) for p in result.partitions]

    assert tried(1) == [(1, reasons.VERIFIED), (4, reasons.STOPPING), (4, reasons.STOPPING)]
    make.simple(group, at(topic, 7) | at(topic, 8, 2))
    assert tried(9) == [(7, reasons.ALREADY_COMMITTED), (1, reasons.VERIFIED), (8, reasons.ALREADY_COMMITTED)]


def dies() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("committed_first", [1, 0, None], ids=["waits-amid", "waits-before-the-first", "process-died"])
def test_what_is_committed_after_a_try_that_replaced_nothing_stays(
    client: Client, ledger: Ledger, make: Maker, monkeypatch: pytest.MonkeyPatch, committed_first: int | None
) -> None:
    """The group was gone at the first try, so no later one replaces anything, however the first one ended."""
    monkeypatch.setattr(restoration, "_COMMIT_CHUNK", 1)
    topic, group = make.topic(partitions=2, records=9), make.name()
    make.produce(topic, [(None, b"x")] * 9, 1)
    ledger.write([saved(client, group, at(topic, 1) | at(topic, 1, 1))])

    def tried(chunks: int) -> list[str]:
        answers = iter([None] * (chunks + 1))
        guard = Guard(stop=lambda: next(answers, STOPPED))
        return [p.reason for p in restored(client, ledger, group, guard=guard, overwrite_later=True).partitions]

    if committed_first is None:
        with pytest.raises(KeyboardInterrupt):
            restored(client, ledger, group, guard=Guard(at_lease=dies, nth=2), overwrite_later=True)
    else:
        tried(committed_first)
    make.simple(group, at(topic, 7))
    assert tried(0) == [reasons.ALREADY_COMMITTED, reasons.STOPPING]
    make.simple(group, at(topic, 8, 1))
    assert tried(9) == [reasons.ALREADY_COMMITTED, reasons.ALREADY_COMMITTED]
    assert committed(client, group) == at(topic, 7) | at(topic, 8, 1)


def test_what_is_committed_amid_the_first_try_stays_at_the_next(client: Client, ledger: Ledger, make: Maker) -> None:
    """A refused group is tried again as long as another group of its request waits."""
    topic, group = make.topic(records=9), make.name()
    ledger.write([saved(client, group, at(topic, 1))])

    def goes_on() -> None:
        make.simple(group, at(topic, 7))

    for guard in (Guard(stop=goes_on), Guard()):
        result = restored(client, ledger, group, guard=guard, overwrite_later=True)
        assert (result.kind, result.reason) == (ResultKind.REFUSED, reasons.ALREADY_COMMITTED)
    assert committed(client, group) == at(topic, 7)


def test_a_try_that_changed_nothing_prevents_no_later_object(client: Client, ledger: Ledger, make: Maker) -> None:
    """The entry of its start stays for its next try, with the reason, and ends with the request."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])
    for number in (1, 2):
        answers = iter([None])
        guard = Guard(stop=lambda answers=answers: next(answers, STOPPED))  # type: ignore[misc]
        result = restored(client, ledger, group, guard=guard, overwrite_later=True, id=f"o.{number}", origin="o.")
        assert (result.kind, result.reason) == (ResultKind.WAITING, reasons.STOPPING)
    assert [(o.id, o.what, o.reason) for o in outcomes(ledger)] == [
        ("o.1", OutcomeType.FAILED, reasons.STOPPING),
        ("o.2", OutcomeType.FAILED, reasons.STOPPING),
    ]
    assert restored(client, ledger, group, overwrite_later=True, id="o.2", origin="o.").reason == reasons.RESTORED
    assert [(o.id, o.what) for o in outcomes(ledger)] == [("o.1", OutcomeType.FAILED), ("o.2", OutcomeType.RESTORED)]


def test_only_offsets_of_the_last_deletion_replace_later_ones(client: Client, ledger: Ledger, make: Maker) -> None:
    """The group went on with a topic whose offsets an earlier deletion took."""
    early, last, group = make.topic(records=9), make.topic(records=9), make.name()
    old = saved(client, group, at(early, 1), id="id-0", at=NOW - timedelta(days=1), partial=True)
    ledger.write([old, saved(client, group, at(last, 1), partial=True)])
    make.simple(group, at(early, 7) | at(last, 8))
    result = restored(client, ledger, group, overwrite_later=True)
    assert {p.partition.topic: p.reason for p in result.partitions} == {
        early: reasons.ALREADY_COMMITTED,
        last: reasons.VERIFIED,
    }
    assert committed(client, group) == at(early, 7) | at(last, 1)


def test_a_later_try_does_not_undo_the_first(
    client: Client, ledger: Ledger, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets that the first try replaced are newer than the backup, and not newer than `at`."""
    monkeypatch.setattr(restoration, "_COMMIT_CHUNK", 1)
    topic, group = make.topic(partitions=2, records=9), make.name()
    make.produce(topic, [(None, b"x")] * 9, 1)
    ledger.write([saved(client, group, at(topic, 1) | at(topic, 1, 1))])
    make.simple(group, at(topic, 4) | at(topic, 4, 1))
    options: dict[str, Any] = {"overwrite_later": True, "at": datetime.now(UTC) + timedelta(hours=1)}
    answers = iter([None] * 2)
    first = restored(client, ledger, group, guard=Guard(stop=lambda: next(answers, STOPPED)), **options)
    assert [p.reason for p in first.partitions] == [reasons.VERIFIED, reasons.STOPPING]
    second = restored(client, ledger, group, **options)
    assert [p.reason for p in second.partitions] == [reasons.ALREADY_THERE, reasons.VERIFIED]
    assert committed(client, group) == at(topic, 1) | at(topic, 1, 1)


def test_a_wrong_clock_loses_no_replaced_offset(client: Client, ledger: Ledger, make: Maker) -> None:
    """Its backup would expire at once, or never."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 2))])
    make.simple(group, at(topic, 4))
    for hours in (-2, 2):
        clock = Clock()
        clock.moved = timedelta(hours=hours)
        result = restored(client, ledger, group, clock=clock, overwrite_later=True)
        assert (result.kind, result.reason) == (ResultKind.WAITING, reasons.CLOCK_SKEW)
    assert committed(client, group) == at(topic, 4)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param({"guard": Guard(left=0.5)}, reasons.NOT_LEADER, id="lease-nearly-over"),
        pytest.param({"guard": Guard(stop=lambda: STOPPED)}, reasons.STOPPING, id="stopping"),
        pytest.param({"clock": Clock(step=3.0)}, reasons.OFFSETS_UNKNOWN, id="stood-still-after-the-look"),
    ],
)
def test_nothing_is_committed_too_late(
    client: Client, ledger: Ledger, make: Maker, options: dict[str, Any], reason: str
) -> None:
    """Who may not lead any more, or looked too long ago, leaves the group alone, and may try again."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])
    result = restored(client, ledger, group, **options)
    assert (result.kind, result.reason) == (ResultKind.WAITING, reason)
    assert group not in make.groups()
    assert outcomes(ledger) == []
    assert restored(client, ledger, group).kind is ResultKind.RESTORED


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(
            Refusal(reasons.POLICY_CHANGED, "GroupRestore r was edited or deleted during the run"), id="edited"
        ),
        pytest.param(Refusal(reasons.API_SERVER_ERROR, "GroupRestore r could not be read again: x"), id="not-readable"),
        pytest.param(STOPPED, id="stopping"),
    ],
)
@pytest.mark.parametrize("done", [pytest.param(0, id="before-the-first"), pytest.param(2, id="before-the-second")])
def test_the_guard_is_asked_before_each_commit_request(
    client: Client,
    ledger: Ledger,
    make: Maker,
    monkeypatch: pytest.MonkeyPatch,
    stop: Refusal,
    done: int,
) -> None:
    """After an edit, a stop or the end of a grant no further offset is committed; what is left may be tried again."""
    monkeypatch.setattr(restoration, "_COMMIT_CHUNK", 2)
    topic, group = make.topic(partitions=6, records=5), make.name()
    offsets = {place: commit for number in range(6) for place, commit in at(topic, 0, number).items()}
    ledger.write([saved(client, group, offsets)])
    # It agrees before the restore begins, then before each request for two partitions.
    answers = itertools.chain([None] * (1 + done // 2), itertools.repeat(stop))
    result = restored(client, ledger, group, guard=Guard(stop=lambda: next(answers)))
    assert len(committed(client, group)) == done
    assert (result.kind, result.reason, result.restored) == (ResultKind.WAITING, stop.reason, done)
    assert restored(client, ledger, group).kind is ResultKind.RESTORED
    assert len(committed(client, group)) == 6


def test_who_was_replaced_restores_nothing(client: Client, ledger: Ledger, make: Maker) -> None:
    """Another process writes the ledger now: the former one learns it before it commits anything, and must end."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])

    def taken_over() -> None:
        claimed(client, ledger.writer.removeprefix("w-"))

    with pytest.raises(LedgerFenced):
        restored(client, ledger, group, guard=Guard(stop=taken_over))
    assert group not in make.groups()


def test_an_interrupted_restore_is_reported_and_runs_again(client: Client, ledger: Ledger, make: Maker) -> None:
    """Who dies amid a restore leaves word that it began; the same request is not done, and ends that."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])
    with pytest.raises(KeyboardInterrupt):
        restored(client, ledger, group, guard=Guard(at_lease=dies, nth=2))
    assert [(o.what, o.reason) for o in outcomes(ledger)] == [(OutcomeType.FAILED, reasons.INTERRUPTED)]
    assert restored(client, ledger, group).kind is ResultKind.RESTORED
    assert [(o.what, o.reason) for o in outcomes(ledger)] == [(OutcomeType.RESTORED, reasons.RESTORED)]


def test_group_with_members_waits(client: Client, ledger: Ledger, make: Maker) -> None:
    """Nothing is committed for it, and once they left the same request restores it."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])
    make.join(group, topic)
    result = restored(client, ledger, group)
    assert (result.kind, result.reason) == (ResultKind.WAITING, reasons.GROUP_ACTIVE)
    assert result.message == "its state is Stable: stop its members first"
    assert committed(client, group) == {}
    make.leave(group)
    assert restored(client, ledger, group).kind is ResultKind.RESTORED


def test_group_with_pending_transaction_waits(client: Client, ledger: Ledger, make: Maker) -> None:
    """What a transaction is about to commit must not be lost behind a restore."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])
    producer = make.pending(group, at(topic, 4))
    result = restored(client, ledger, group)
    assert (result.kind, result.reason) == (ResultKind.WAITING, reasons.PENDING_TRANSACTION)
    producer.commit_transaction(60)
    wait_for(lambda: bool(committed(client, group)))
    assert restored(client, ledger, group).partitions[0].reason == reasons.ALREADY_COMMITTED


def test_each_partition_is_decided(client: Client, ledger: Ledger, make: Maker) -> None:
    """Those that may are restored, and each of the others says why it is not; what is committed stays."""
    good, gone, again = make.topic(partitions=4, records=5), make.topic(), make.topic(records=5)
    group = make.name()
    offsets = {
        **at(good, 3),
        **at(good, 0, 1),
        **at(good, 7, 2),
        **at(good, 0, 3),
        **at(gone, 0),
        **at(again, 1),
    }
    ledger.write([saved(client, group, offsets)])
    make.simple(group, {**at(good, 0, 1)})
    make.produce(good, [(None, b"x")] * 2, 3)
    make.simple(group, {**at(good, 2, 3)})
    make.delete_topic(gone)
    make.delete_topic(again)
    make.topic(again, records=5)
    result = restored(client, ledger, group)
    assert result.kind is ResultKind.PARTLY
    assert {p.partition: p.reason for p in result.partitions} == {
        Partition(good, 0): reasons.VERIFIED,
        Partition(good, 1): reasons.ALREADY_THERE,
        Partition(good, 2): reasons.OUT_OF_RANGE,
        Partition(good, 3): reasons.ALREADY_COMMITTED,
        Partition(gone, 0): reasons.TOPIC_MISSING,
        Partition(again, 0): reasons.TOPIC_RECREATED,
    }
    assert committed(client, group) == {**at(good, 3), **at(good, 0, 1), **at(good, 2, 3)}


@pytest.mark.parametrize("offset", [3, 4], ids=["the-same-offset", "a-later-offset"])
def test_an_offset_of_a_recreated_topic_is_not_the_saved_one(
    client: Client, ledger: Ledger, make: Maker, offset: int
) -> None:
    """Of another topic, the same number means another record: it is neither there already nor replaced."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])
    make.delete_topic(topic)
    make.topic(topic, records=5)
    make.simple(group, at(topic, offset))
    result = restored(client, ledger, group, overwrite_later=True)
    assert (result.kind, result.reason, result.restored) == (ResultKind.REFUSED, reasons.TOPIC_RECREATED, 0)
    assert committed(client, group) == at(topic, offset)


def test_a_topic_that_is_recreated_right_before_the_commit(client: Client, ledger: Ledger, make: Maker) -> None:
    """The broker itself refuses an offset of another topic of that name; the other topics' offsets come back."""
    good, again, group = make.topic(records=5), make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(good, 3) | at(again, 1))])

    def recreated() -> None:
        make.delete_topic(again)
        make.topic(again, records=5)

    result = restored(client, ledger, group, guard=Guard(at_lease=recreated, nth=3))
    # What was read of it no longer holds, so it is tried again, on what the topic is by then.
    assert {p.partition: p.reason for p in result.partitions} == {
        Partition(good, 0): reasons.VERIFIED,
        Partition(again, 0): reasons.COMMIT_FAILED,
    }
    assert (result.kind, result.reason) == (ResultKind.WAITING, reasons.COMMIT_FAILED)
    assert "the topic was deleted or recreated" in result.message
    assert committed(client, group) == at(good, 3)
    result = restored(client, ledger, group)
    assert {p.partition: p.reason for p in result.partitions} == {
        Partition(good, 0): reasons.ALREADY_THERE,
        Partition(again, 0): reasons.TOPIC_RECREATED,
    }


def test_an_offset_of_another_topic_of_that_name_proves_nothing(client: Client, ledger: Ledger, make: Maker) -> None:
    """A commit counts as done only if the offset that is read again belongs to the topic that was backed up."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])

    def recreated() -> None:
        make.delete_topic(topic)
        make.topic(topic, records=5)
        make.simple(group, at(topic, 3))

    result = restored(client, ledger, group, guard=Guard(at_lease=recreated, nth=3))
    assert (result.kind, result.reason, result.restored) == (ResultKind.WAITING, reasons.COMMIT_FAILED, 0)


def test_clamp_takes_the_nearest(client: Client, ledger: Ledger, make: Maker) -> None:
    """An offset behind the end becomes the end, without the leader epoch of a record that is not there."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, {Partition(topic, 0): CommittedOffset(9, 0, "m")})])
    assert restored(client, ledger, group).reason == reasons.OUT_OF_RANGE
    assert restored(client, ledger, group, out_of_range=OutOfRange.CLAMP).kind is ResultKind.RESTORED
    assert committed(client, group) == {Partition(topic, 0): CommittedOffset(5, -1, "m")}


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        pytest.param({"type": "Unknown"}, {}, reasons.NOT_RESTORABLE, id="of-an-unknown-type"),
        pytest.param({"offsets": {}}, {}, reasons.NO_OFFSETS, id="no-offsets"),
        pytest.param({"parts": 2}, {}, reasons.BACKUP_INCOMPLETE, id="incomplete"),
        pytest.param({}, {"at": NOW - timedelta(seconds=1)}, reasons.NO_BACKUP, id="newer"),
        pytest.param({"topic_ids": {}}, {}, reasons.TOPIC_IDENTITY_UNKNOWN, id="identity"),
    ],
)
def test_group_is_refused(
    client: Client,
    ledger: Ledger,
    make: Maker,
    changes: dict[str, Any],
    options: dict[str, Any],
    reason: str,
) -> None:
    """Whole groups of which nothing is restored, and no group is made."""
    topic, group = make.topic(records=5), make.name()
    backup = saved(client, group, at(topic, 3))
    ledger.write([msgspec.structs.replace(backup, **changes)])
    result = restored(client, ledger, group, **options)
    assert (result.kind, result.reason) == (ResultKind.REFUSED, reason)
    assert group not in make.groups()


def test_group_that_is_not_granted_is_not_looked_at(client: Client, ledger: Ledger, make: Maker) -> None:
    """Neither by its name nor by a policy: that it has a backup stays untold."""
    topic, group = make.topic(records=5), make.name()
    ledger.write([saved(client, group, at(topic, 3))])
    ours, asked = restorer(client, ledger, Clock(), Guard()), RestoreRequest(id="r", granted=lambda name: name != group)
    named, by_policy = replace(asked, groups=(group,)), replace(asked, policy="kafka/unused")
    (result,) = restore(ours, named)
    assert (result.reason, result.saved_at) == (reasons.ACTION_NOT_GRANTED, None)
    assert restore(ours, by_policy) == []


def test_newest_that_fits_and_all_of_a_policy(client: Client, ledger: Ledger, make: Maker) -> None:
    """Of several backups the newest that is asked for; of a policy those since a time."""
    topic, old, new = make.topic(records=5), make.name("old"), make.name("new")
    day = timedelta(days=1)
    ledger.write(
        [
            saved(client, old, at(topic, 1), id="id-1", at=NOW - day),
            saved(client, old, at(topic, 2), id="id-2"),
            saved(client, new, at(topic, 3)),
            saved(client, make.name("foreign"), at(topic, 3), policy="kafka/other"),
        ]
    )
    assert restored(client, ledger, old, preview=True).partitions[0].saved.offset == 2
    assert restored(client, ledger, old, preview=True, at=NOW - day).partitions[0].saved.offset == 1
    ours = restorer(client, ledger, Clock(), Guard())
    request = RestoreRequest(id="r", policy="kafka/unused", deleted_after=NOW)
    assert [result.group for result in restore(ours, request, preview=True)] == sorted([new, old])
    late = replace(request, deleted_after=NOW + day)
    assert restore(ours, late, preview=True) == []


@pytest.mark.parametrize("parts", [pytest.param(1, id="whole"), pytest.param(2, id="one-of-two-parts")])
def test_older_backup_never_stands_in_for_a_damaged_one(
    kafka: KafkaCluster, client: Client, ledger: Ledger, make: Maker, parts: int
) -> None:
    """Who restores takes the newest or is told that it can't be read, by name as by policy; `at` asks for another."""
    topic, group = make.topic(records=5), make.name()
    old = saved(client, group, at(topic, 1), id="20260228T120000-aaaaaaaa", at=NOW - timedelta(days=1))
    new = saved(client, group, at(topic, 2), id="20260301T120000-bbbbbbbb", parts=parts)
    ledger.write([old, new])
    damaged = msgspec.structs.replace(new, part=parts - 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    producer.produce(ledger.writer.removeprefix("w-"), key=encode_key(damaged.key), value=b"garbage", partition=0)
    assert producer.flush(60) == 0
    by_name = restored(client, ledger, group)
    by_policy = restored(client, ledger, group, groups=(), policy="kafka/unused", deleted_after=NOW)
    for result in (by_name, by_policy):
        assert (result.kind, result.reason, result.saved_at) == (ResultKind.REFUSED, reasons.BACKUP_INCOMPLETE, NOW)
    assert group not in make.groups()
    asked = restored(client, ledger, group, id="restore-2", at=NOW - timedelta(hours=1))
    assert (asked.kind, committed(client, group)) == (ResultKind.RESTORED, at(topic, 1))


@pytest.mark.slow
def test_twenty_thousand_partitions(client: Client, ledger: Ledger, make: Maker) -> None:
    """A backup in parts is restored as one; with a part missing nothing is."""
    topic, group = make.topic(partitions=2_000), make.name()
    offsets = {Partition(topic, number): CommittedOffset(0) for number in range(2_000)}
    # Most of its partitions are in topics that are gone, as nobody wants to wait for 20,000 of them to be made.
    offsets |= {Partition(f"gone-{number % 9}", number): CommittedOffset(number) for number in range(18_000)}
    whole = saved(client, group, offsets)
    parts = in_parts(whole, 100_000)
    assert len(parts) > 5
    ledger.write([*parts, Removal(parts[2].key)])
    result = restored(client, ledger, group)
    assert (result.kind, result.reason) == (ResultKind.REFUSED, reasons.BACKUP_INCOMPLETE)
    assert group not in make.groups()
    ledger.write([parts[2]])
    result = restored(client, ledger, group)
    assert (result.kind, len(result.partitions), result.restored) == (ResultKind.PARTLY, 20_000, 2_000)
    assert len(committed(client, group)) == 2_000


@pytest.mark.slow
def test_brokers_without_topic_ids() -> None:
    """On 2.5 nobody knows whether a topic is still the same: refused, but for whoever says that it is."""
    with KafkaCluster("2.5.1") as kafka:
        old = Maker(kafka.bootstrap_servers)
        client = connect(Settings((kafka.bootstrap_servers,)))
        try:
            ledger = claimed(client, "ledger")
            topic, group = old.topic(records=5), old.name()
            ledger.write([saved(client, group, at(topic, 3))])
            result = restored(client, ledger, group)
            assert (result.kind, result.reason) == (ResultKind.REFUSED, reasons.TOPIC_IDENTITY_UNKNOWN)
            assert committed(client, group) == {}
            assert restored(client, ledger, group, allow_unknown_topic_identity=True).kind is ResultKind.RESTORED
            assert committed(client, group) == at(topic, 3)
        finally:
            client.close()
            old.close()
