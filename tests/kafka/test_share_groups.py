"""Share groups on a real broker: deleted where asked for, saved whole or not at all, and brought back as such."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from group_hygiene.cli import main
from group_hygiene.engine.context import read_offsets
from group_hygiene.engine.executor import Executor
from group_hygiene.engine.restorable import GroupResult, RestoreRequest, ResultKind
from group_hygiene.engine.restoration import restore
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka.changes import set_share_offsets
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.cluster import look_up
from group_hygiene.kafka.groups import list_groups
from group_hygiene.kafka.offsets import ShareOffsets, end_offsets, share_offsets
from group_hygiene.ledger.contents import group_of
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, OutcomeType
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.groups import Cluster, CommittedOffset, Fault, GroupType, Partition
from group_hygiene.observe.of_objects import build_status
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.connection import ActivitySpec
from group_hygiene.spec.policy import Policy
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.conftest import QUICK
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.members import ShareMember, SilentShareMember
from tests.kafka.scene import Guard, Scene, policy, verdicts
from tests.kafka.tables import Pipeline
from tests.warehouse import idle

MATCH = "Match"
UNREAD = ["first", "second", "third"]
SHARE_TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")]


@dataclass(frozen=True)
class Used:
    """A share group that Kafka's own consumer was in and left.

    Of `topic`, it has come to `start` in partition 0, where UNREAD are the last records. Partition 1 never held any.
    """

    group: str
    topic: str
    start: int

    @property
    def offsets(self) -> dict[Partition, int]:
        return {Partition(self.topic, 0): self.start}


def use(kafka: KafkaCluster, client: Client, make: Maker, group: str, topic: str, partitions: int = 2) -> Used:
    """Consume a record of the topic in a share group, leave it, and write what it has not read."""
    with ShareMember(kafka, make, group, topic):
        wait_for(lambda: len(places(client, group)) == partitions)
    wait_for(lambda: Partition(topic, 0) in start_offsets(kafka, group))
    make.produce(topic, [(None, text.encode()) for text in UNREAD])
    return Used(group, topic, start_offsets(kafka, group)[Partition(topic, 0)])


@pytest.fixture
def used(kafka: KafkaCluster, client: Client, cluster: Cluster, make: Maker) -> Used:
    """Of a topic and a name of its own, and Empty."""
    made = use(kafka, client, make, make.name("share"), make.topic(partitions=2))
    wait_for(lambda: kind(client, cluster, made.group) == "Share Empty")
    return made


def places(client: Client, group: str) -> set[Partition]:
    """The partitions that are the group's, with a start offset or without."""
    answer = share_offsets(client, {group: None}, soon())[group]
    return set() if isinstance(answer, Fault) else {*answer.started, *answer.unset}


def start_offsets(kafka: KafkaCluster, group: str) -> dict[Partition, int]:
    """The start offsets of a share group, by Kafka's own tool."""
    where = ("--bootstrap-server", kafka.bootstrap_servers, "--describe", "--group", group, "--offsets")
    rows = [line.split() for line in kafka.tool(SHARE_TOOL, *where).stdout.splitlines() if line.startswith(group)]
    return {Partition(topic, int(index)): int(start) for _, topic, index, start, *_ in rows if start != "-"}


def consumed(kafka: KafkaCluster, used: Used, count: int) -> list[str]:
    """What Kafka's own consumer gets in the group."""
    limits = ("--max-messages", str(count), "--timeout-ms", "120000")
    where = ("--bootstrap-server", kafka.bootstrap_servers, "--topic", used.topic, "--group", used.group)
    return [line for line in kafka.tool(CONSUMER, *where, *limits).stdout.splitlines() if line]


def kind(client: Client, cluster: Cluster, group: str) -> str | None:
    """Type and state of the group, as it is listed; None = there is none of that id, of any type."""
    every = list_groups(client, cluster, soon())
    assert not every.faults
    found = every.groups.get(group)
    return None if found is None else f"{found.type} {found.state}"


def shares(*groups: str, unprotect: bool = True, **when: Any) -> Policy:
    """Delete share groups, as one that means to, or does not say so."""
    return policy(*groups, match={"types": ["Classic", "Share"], "unprotect": ["Share"] if unprotect else []}, **when)


def backups(scene: Scene, group: str) -> list[Backup]:
    assert scene.memory.ledger is not None
    kept = scene.memory.ledger.entries(lambda key: group_of(key) == group, soon())
    return [entry for entry in kept if isinstance(entry, Backup)]


def restored(scene: Scene, group: str, preview: bool = False, name: str = "restore-1") -> GroupResult:
    assert scene.memory.ledger is not None
    restorer = Executor(scene.context, Guard())
    (result,) = restore(restorer, RestoreRequest(id=name, groups=(group,)), preview)
    return result


def deleted(scene: Scene, wanted: Policy, guard: Guard | None = None) -> list[Outcome]:
    """All scans of a policy up to what it deletes."""
    observation, plan = scene.plan(wanted)
    return scene.apply(plan, observation, guard)


def said(outcomes: list[Outcome]) -> list[tuple[OutcomeType, str]]:
    return [(outcome.kind, outcome.reason) for outcome in outcomes]


def test_a_share_group_is_deleted_and_goes_on_where_it_was(
    kafka: KafkaCluster, client: Client, cluster: Cluster, scene: Scene, make: Maker, used: Used
) -> None:
    """Marked, saved, deleted and brought back: Kafka's own tool and consumer find it as it was, and of its type."""
    tidy = shares(used.group)
    observation, plan = scene.plan(tidy)
    assert verdicts(observation, tidy) == {used.group: MATCH}
    assert said(scene.apply(plan, observation)) == [(OutcomeType.DELETED, reasons.DELETED)]
    assert kind(client, cluster, used.group) is None
    assert start_offsets(kafka, used.group) == {}
    (backup,) = backups(scene, used.group)
    assert (backup.type, set(backup.topic_ids)) == ("Share", {used.topic})
    (row,) = backup.offsets[used.topic]
    end = end_offsets(client, used.offsets, soon())[Partition(used.topic, 0)]
    assert isinstance(end, int)
    assert (row.partition, row.offset, row.lag) == (0, used.start, end - used.start)

    assert restored(scene, used.group, preview=True).reason == reasons.WOULD_RESTORE
    assert kind(client, cluster, used.group) is None
    result = restored(scene, used.group)
    assert (result.kind, result.restored) == (ResultKind.RESTORED, 1)
    assert kind(client, cluster, used.group) == "Share Empty"
    assert start_offsets(kafka, used.group) == used.offsets
    got = consumed(kafka, used, end - used.start)
    assert got[-len(UNREAD) :] == UNREAD
    assert verdicts(scene.plan(tidy)[0], tidy) == {used.group: reasons.REAPPEARED}


def test_by_the_log_alone(
    kafka: KafkaCluster, client: Client, cluster: Cluster, make: Maker, used: Used, tmp_path: Path
) -> None:
    """`idleFor` counts from when its last member left: nobody consumes in a share group without being one."""
    long_ago: dict[str, Any] = {"type": "Share", "protocol_type": "share", "last_commit": None, "oldest_commit": None}
    other = use(kafka, client, make, make.name("share"), used.topic)
    wait_for(lambda: kind(client, cluster, other.group) == "Share Empty")
    make.simple(make.name("first"), at(used.topic))
    pipeline, scene = Pipeline(client, cluster, tmp_path / "warehouse"), Scene(client)
    scene.use(Tables(ActivitySpec(pipeline.uri)))
    pipeline.run([idle(used.group, **long_ago), idle(other.group, 0.1, **long_ago)])
    tidy = shares(used.group, other.group, unchangedFor=None, idleFor="72h")
    observation, plan = scene.plan(tidy)
    assert verdicts(observation, tidy) == {used.group: MATCH, other.group: reasons.TOO_RECENT}
    assert said(scene.apply(plan, observation)) == [(OutcomeType.DELETED, reasons.DELETED)]
    assert kind(client, cluster, used.group) is None
    assert start_offsets(kafka, other.group) == other.offsets


def test_share_groups_are_not_deleted_by_default(scene: Scene, client: Client, cluster: Cluster, used: Used) -> None:
    """The type says which groups are looked at, and `unprotect` that they are meant."""
    tidy, plain = shares(used.group, unprotect=False), policy(used.group)
    observation, plan = scene.plan(tidy)
    assert verdicts(observation, tidy) == {used.group: reasons.SHARE}
    assert plan.actions == ()
    assert verdicts(scene.plan(plain)[0], plain) == {}
    assert kind(client, cluster, used.group) == "Share Empty"


def test_a_partition_without_a_start_offset_keeps_its_group(
    kafka: KafkaCluster, scene: Scene, client: Client, cluster: Cluster, make: Maker, used: Used
) -> None:
    """Brokers show none where nobody consumed yet, and none where they could not read it: a backup might lack it."""
    make.produce(used.topic, [(None, b"unread")], partition=1)
    tidy = shares(used.group)
    observation, plan = scene.plan(tidy)
    assert verdicts(observation, tidy) == {used.group: reasons.NO_START_OFFSET}
    assert plan.actions == ()
    refusal = observation.verdicts[tidy.key][used.group].refusal
    assert refusal is not None
    assert f"{used.topic}-1 holds records and shows no start offset" in refusal.message
    assert kind(client, cluster, used.group) == "Share Empty"
    # Neither a fault of the policy nor an error of `plan`.
    status = build_status(tidy, {}, plan, [], observation.snapshot)
    assert {each["type"]: each["status"] for each in status["conditions"]}["Ready"] == "True"
    manifest = {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupPolicy",
        "metadata": {"name": "unused", "namespace": "kafka"},
        "spec": {
            "connectionRef": {"name": "main"},
            "match": {"groups": [used.group], "types": ["Share"], "unprotect": ["Share"]},
            "when": {"unchangedFor": "72h"},
            "action": "Delete",
        },
    }
    where = ["plan", "--bootstrap-server", kafka.bootstrap_servers, "-f", "-", "-o", "json"]
    planned = CliRunner().invoke(main, where, input=yaml.safe_dump(manifest))
    document = json.loads(planned.stdout)
    assert [each["reason"] for each in document["policies"][0]["groups"]] == [reasons.NO_START_OFFSET]
    assert (planned.exit_code, document["errors"]) == (0, [])


def test_a_group_that_read_nothing_is_deleted(
    kafka: KafkaCluster, scene: Scene, client: Client, cluster: Cluster, make: Maker, tmp_path: Path
) -> None:
    """Kafka's own console consumer begins at the end: its group had a member, and has no start offset.

    Under `unchangedFor` it goes; under `idleFor`, which asks only twice, it stays. Neither is a fault.
    """
    topic, group = make.topic(records=3), make.name("read-nothing")
    where = ("--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--group", group)

    def joined() -> bool:
        kafka.tool(CONSUMER, *where, "--timeout-ms", "5000")
        return places(client, group) == {Partition(topic, 0)}

    wait_for(joined)
    wait_for(lambda: kind(client, cluster, group) == "Share Empty")
    assert start_offsets(kafka, group) == {}
    make.simple(make.name("first"), at(topic))
    log = Pipeline(client, seen(client), tmp_path / "warehouse")
    scene.use(Tables(ActivitySpec(log.uri)))
    never: dict[str, Any] = {"type": "Share", "protocol_type": "share", "last_commit": None, "oldest_commit": None}
    log.run([idle(group, 100, **never)])
    tidy, by_log = shares(group), shares(group, unchangedFor=None, idleFor="72h")
    assert verdicts(scene.observe(by_log), by_log) == {group: reasons.NO_START_OFFSET}
    assert verdicts(scene.observe(tidy), tidy) == {group: reasons.TOO_RECENT}
    observation, plan = scene.plan(tidy)
    assert said(scene.apply(plan, observation)) == [(OutcomeType.DELETED, reasons.DELETED)]
    assert kind(client, cluster, group) is None
    assert [backup.offsets for backup in backups(scene, group)] == [{}]
    assert restored(scene, group).reason == reasons.NO_OFFSETS


def test_a_state_without_a_leader_is_no_proof_of_none() -> None:
    """Of all that the group needs, only the state's leader is gone: its offsets are not known then."""
    state = "share.coordinator.state.topic."
    alone = {f"{state}num.partitions": "1", f"{state}replication.factor": "1", f"{state}min.isr": "1"}
    with KafkaCluster(brokers=2, config=QUICK | alone) as kafka:
        maker, client = Maker(kafka.plaintext_bootstrap), connect(Settings(tuple(kafka.bootstrap_servers.split(","))))

        def leader(topic: str) -> int:
            return int(maker.admin.list_topics(topic).topics[topic].partitions[0].leader)

        first = maker.topic()
        use(kafka, client, maker, maker.name("share"), first, 1)
        lost = leader("__share_group_state")
        topic = next(name for name in iter(maker.topic, None) if leader(name) != lost)
        names = iter(maker.name, None)
        group = next(name for name in names if look_up(client, [name], soon())[name] != lost)
        used = use(kafka, client, maker, group, topic, 1)
        types, coordinators = {group: GroupType.SHARE}, {group: None}
        (before,) = read_offsets(client, types, coordinators, soon()).values()
        assert not isinstance(before, Fault)
        assert {place: row.offset for place, row in before.items()} == used.offsets
        kafka.kill_broker(lost)
        kafka.wait_forgotten(lost)

        (after,) = read_offsets(client, types, coordinators, soon()).values()
        assert isinstance(after, Fault), after
        client.close()
        maker.close()


def test_what_is_brought_back_outlives_the_broker() -> None:
    """And of a partition that surely nobody consumed of, though it holds records, there is nothing to bring back."""
    with KafkaCluster(config=QUICK) as kafka:
        maker, client = Maker(kafka.plaintext_bootstrap), connect(Settings((kafka.bootstrap_servers,)))
        topic = maker.topic(partitions=2)
        maker.produce(topic, [(None, b"long ago")], partition=1)
        # Leads in another epoch than the first from then on: what Kafka could not read it shows in none.
        kafka.stop_broker(1)
        kafka.start_broker(1)
        kafka.wait_ready()
        used, scene = use(kafka, client, maker, maker.name("share"), topic), Scene(client)
        shown = share_offsets(client, {used.group: None}, soon())[used.group]
        assert isinstance(shown, ShareOffsets)
        assert shown.unset == {Partition(topic, 1)}
        assert not shown.unsure
        assert said(deleted(scene, shares(used.group))) == [(OutcomeType.DELETED, reasons.DELETED)]
        assert restored(scene, used.group).kind is ResultKind.RESTORED
        scene.memory.close_ledger()
        kafka.stop_broker(1)
        kafka.start_broker(1)
        kafka.wait_ready()
        wait_for(lambda: start_offsets(kafka, used.group) == used.offsets)
        cluster = seen(client)
        assert kind(client, cluster, used.group) == "Share Empty"
        client.close()
        maker.close()


def test_what_changed_since_the_scan_is_kept(scene: Scene, client: Client, cluster: Cluster, used: Used) -> None:
    """A start offset that somebody moved, though nobody is in the group now."""
    observation, plan = scene.plan(shares(used.group))
    place = Partition(used.topic, 0)
    assert set_share_offsets(client, used.group, {place: CommittedOffset(used.start + 1)}, soon()) == {place: None}
    assert said(scene.apply(plan, observation)) == [(OutcomeType.NOT_DELETED, reasons.CHANGED)]
    assert kind(client, cluster, used.group) == "Share Empty"
    assert backups(scene, used.group) == []


def test_who_joins_in_between_keeps_its_group(kafka: KafkaCluster, scene: Scene, client: Client, used: Used) -> None:
    """After the scan: it is seen when the group is read again, and nothing is saved or sent."""
    observation, plan = scene.plan(shares(used.group))
    with SilentShareMember(client, used.group, used.topic):
        assert said(scene.apply(plan, observation)) == [(OutcomeType.NOT_DELETED, reasons.BECAME_ACTIVE)]
    assert backups(scene, used.group) == []
    assert start_offsets(kafka, used.group) == used.offsets


def test_who_joins_at_the_last_moment_keeps_its_group_and_its_backup(
    kafka: KafkaCluster, scene: Scene, client: Client, used: Used
) -> None:
    """After the last look: the broker refuses. It erases state before it looks, so what was saved stays."""
    observation, plan = scene.plan(shares(used.group))
    member = SilentShareMember(client, used.group, used.topic)
    guard = _Late(member.__enter__)
    try:
        assert said(scene.apply(plan, observation, guard)) == [(OutcomeType.NOT_DELETED, reasons.BECAME_ACTIVE)]
    finally:
        member.__exit__()
    assert start_offsets(kafka, used.group) == used.offsets
    assert [backup.offsets[used.topic][0].offset for backup in backups(scene, used.group)] == [used.start]


class _Late(Guard):
    """Lets something happen right before the request: a batch asks for its lease twice before the intents and after."""

    def __init__(self, happen: Callable[[], object]) -> None:
        super().__init__()
        self._happen, self._asked = happen, 0

    def seconds_left(self) -> float:
        self._asked += 1
        if self._asked == 4:
            self._happen()
        return self.left


def test_nothing_is_brought_back_over_what_is_there(
    kafka: KafkaCluster, scene: Scene, client: Client, cluster: Cluster, make: Maker, used: Used
) -> None:
    """Members wait, offsets stay, and an id that another type took is refused: nothing of that changes."""
    assert said(deleted(scene, shares(used.group))) == [(OutcomeType.DELETED, reasons.DELETED)]
    with SilentShareMember(client, used.group, used.topic):
        result = restored(scene, used.group)
        assert (result.kind, result.reason) == (ResultKind.WAITING, reasons.GROUP_ACTIVE)
    place = Partition(used.topic, 0)
    assert set_share_offsets(client, used.group, {place: CommittedOffset(0)}, soon()) == {place: None}
    result = restored(scene, used.group, name="restore-2")
    assert (result.kind, result.reason) == (ResultKind.REFUSED, reasons.ALREADY_COMMITTED)
    assert start_offsets(kafka, used.group)[place] == 0
    make.delete_group(used.group)
    make.simple(used.group, at(used.topic, 1))
    result = restored(scene, used.group, name="restore-3")
    assert (result.kind, result.reason) == (ResultKind.REFUSED, reasons.NOT_RESTORABLE)
    assert kind(client, cluster, used.group) == "Classic Empty"


def test_who_is_in_the_group_or_of_another_type_is_not_set_back(client: Client, make: Maker, used: Used) -> None:
    """The broker's own guards, which a restore hangs on."""
    place, classic = Partition(used.topic, 0), make.simple(make.name(), at(used.topic))
    with SilentShareMember(client, used.group, used.topic):
        (refused,) = set_share_offsets(client, used.group, {place: CommittedOffset(0)}, soon()).values()
    (other,) = set_share_offsets(client, classic, {place: CommittedOffset(0)}, soon()).values()
    assert (refused and refused.code, other and other.code) == ("NON_EMPTY_GROUP", "GROUP_ID_NOT_FOUND")
    (beyond,) = set_share_offsets(client, used.group, {Partition(used.topic, 7): CommittedOffset(0)}, soon()).values()
    assert beyond is not None
    assert beyond.code == "UNKNOWN_TOPIC_OR_PARTITION"
