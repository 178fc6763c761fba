"""Scan, plan and delete against a real broker: what goes, what stays and why, and what a scan costs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from group_hygiene.engine import deletion, recovery
from group_hygiene.engine.context import Context, Memory
from group_hygiene.engine.executor import MARGIN_S, open_ledger
from group_hygiene.engine.uses import Uses
from group_hygiene.kafka.changes import commit_offsets
from group_hygiene.kafka.client import CLIENT_ID, Client, Deadline
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.kafka.offsets_topic import Tail
from group_hygiene.ledger.contents import LedgerSettings, group_of
from group_hygiene.ledger.records import record
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, HistoryEntry, KeepRequest, OutcomeType, Seen
from group_hygiene.model.evidence import Claims
from group_hygiene.model.groups import CommittedOffset, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import Role
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.cluster import Mark
from tests.kafka.makers import Maker, Protocol, at, fetches, requests
from tests.kafka.scene import Guard, Scene, alert, policy, verdicts

MATCH = "Match"
RECORDS = 5


@pytest.fixture
def topic(make: Maker) -> str:
    """A topic of two partitions with records in the first."""
    return make.topic(partitions=2, records=RECORDS)


def test_everything_is_tidied_and_nothing_that_is_needed(client: Client, make: Maker, topic: str) -> None:
    """A policy over all groups deletes the abandoned ones and keeps each other one for its own reason."""
    expected = {
        make.abandoned(make.name("old"), topic): MATCH,
        make.abandoned(make.name("new"), topic, "consumer"): MATCH,
        make.simple(make.name("simple"), at(topic)): reasons.SIMPLE,
        make.abandoned(make.name("caught-up"), topic, commit=at(topic, RECORDS)): reasons.CAUGHT_UP,
        make.abandoned(make.name("never-committed"), topic, commit={}): reasons.NO_OFFSETS,
        make.abandoned(f"connect-{make.name('sink')}", topic): reasons.CONNECT,
        make.abandoned(make.name("app-with-state"), topic): reasons.STREAMS,
        make.abandoned(make.name("app-with-joins"), topic): reasons.STREAMS,
        make.abandoned(make.name("mirrored"), topic): reasons.MIRROR_MAKER,
        make.abandoned(make.name("protected"), topic): reasons.PROTECTED,
        make.abandoned(make.name("claimed"), topic): reasons.CLAIMED,
        make.abandoned(f"__group_hygiene-{make.name('own')}", topic): reasons.OWN_GROUP,
    }
    of = {reason: name for name, reason in expected.items()}
    stateful, joining = [name for name, reason in expected.items() if reason == reasons.STREAMS]
    make.topic(f"{stateful}-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog")
    make.topic(f"{joining}-left-repartition")
    make.checkpoints(make.topic(make.name("source") + ".checkpoints.internal"), [of[reasons.MIRROR_MAKER]])
    live = [make.name("live"), make.name("live")]
    make.join(live[0], topic, "classic", at(topic))
    make.join(live[1], topic, "consumer", at(topic))
    scene = Scene(client, [f"{make.tag}prot*"], {of[reasons.CLAIMED]: "ScaledObject kafka/worker"})
    everything = policy("*")

    observation, plan = scene.plan(everything)
    assert verdicts(observation, everything, make.tag) == expected
    abandoned = {name for name, reason in expected.items() if reason == MATCH}
    assert plan.refusal is None
    assert {name for name in plan.actions if make.tag in name} == abandoned

    outcomes = scene.apply(plan, observation)
    assert {outcome.group for outcome in outcomes} == set(plan.actions)
    assert {outcome.kind for outcome in outcomes} == {OutcomeType.DELETED}
    kept = dict.fromkeys(expected.keys() - abandoned, "EMPTY") | dict.fromkeys(live, "STABLE")
    assert make.groups() == kept


def test_a_group_with_a_very_long_id_is_kept_unread(scene: Scene, make: Maker, topic: str) -> None:
    """Kafka lets ids have 32,767 bytes, and each may take six as JSON: none reaches the ledger or the tables."""
    long = make.simple(make.name("long") + "\x01" * 30_000, at(topic))
    everything = policy(make.abandoned(make.name("old"), topic), f"{make.tag}long*")
    observation, plan = scene.plan(everything)
    kept = observation.verdicts[everything.key][long]
    assert kept.refusal is not None
    assert kept.refusal.reason == reasons.ID_TOO_LONG
    assert kept.evidence.offsets is None
    assert long not in scene.memory.contents.seen[scene.connection.uid]
    assert len(plan.actions) == 1


def test_a_dry_run_plans_no_action(scene: Scene, make: Maker, topic: str) -> None:
    """What Enforce would delete is due, and that is all."""
    group = make.abandoned(make.name("old"), topic)
    _, plan = scene.plan(policy(group, mode="DryRun"))
    assert (plan.due, plan.actions, plan.refusal) == ((group,), (), None)


def test_without_a_ledger_nothing_is_marked_or_deleted(client: Client, make: Maker, topic: str) -> None:
    """A topic that is no ledger: what matches is reported, and why nothing follows."""
    scene = Scene(client, ledger=topic)
    _, plan = scene.plan(policy(make.abandoned(make.name("old"), topic)))
    assert (plan.marking, plan.actions) == (frozenset(), ())
    assert plan.refusal is not None
    assert plan.refusal.reason == reasons.LEDGER_UNAVAILABLE


def test_another_cluster_behind_the_address_stops_all_deletion(scene: Scene, make: Maker, topic: str) -> None:
    """What was learnt of one cluster says nothing about another."""
    tidy = policy(make.abandoned(make.name("old"), topic))
    scene.memory.cluster_id = "another-cluster"
    _, plan = scene.plan(tidy)
    assert plan.actions == ()
    assert plan.refusal is not None
    assert plan.refusal.reason == reasons.CLUSTER_CHANGED


# Looks at a group: only what was seen unchanged at every scan, and often enough, counts.


@pytest.mark.parametrize(
    ("minutes", "verdict"),
    [
        pytest.param([30, 29], reasons.TOO_RECENT, id="not-long-enough"),
        pytest.param([30, 30], MATCH, id="every-interval"),
        pytest.param([60], MATCH, id="one-scan-missed"),
        pytest.param([61], reasons.TOO_RECENT, id="two-scans-missed"),
        pytest.param([30, 61, 30], reasons.TOO_RECENT, id="starts-anew-after-a-gap"),
        pytest.param([30, 61, 30, 30], MATCH, id="and-gets-there"),
    ],
)
def test_only_time_between_scans_counts(
    scene: Scene, make: Maker, topic: str, minutes: list[float], verdict: str
) -> None:
    """Scans more than two intervals apart start anew: the group may have been used in between."""
    group = make.abandoned(make.name("old"), topic)
    tidy = policy(group)
    observation = scene.observe(tidy)
    for gap in minutes:
        observation = scene.observe(tidy, after=gap)
    assert verdicts(observation, tidy) == {group: verdict}


def test_policies_share_what_scans_saw(scene: Scene, make: Maker, topic: str) -> None:
    """One entry for all. A policy that misses scans, or is new, restarts its own count alone, also after a restart."""
    group = make.abandoned(make.name("old"), topic)
    steady, new = policy(group), policy(group, name="new")
    hasty = structs.replace(policy(group, name="hasty"), interval=timedelta(minutes=1))
    scene.observe(steady, hasty)
    scene.observe(steady, hasty, after=30)
    scene.memory = Memory()
    scene.context = scene.open()
    scene.observe(steady, hasty, after=30)
    scene.observe(hasty, new, after=1)
    observation = scene.observe(steady, hasty, new, after=29)
    assert verdicts(observation, steady) == {group: MATCH}
    assert {**verdicts(observation, hasty), **verdicts(observation, new)} == {group: reasons.TOO_RECENT}
    assert {uid: list(seen) for uid, seen in scene.memory.contents.seen.items()} == {scene.connection.uid: [group]}


def test_a_commit_between_two_scans_restarts_the_count(scene: Scene, make: Maker, topic: str) -> None:
    """Even one that leaves the group Empty, as an assign+commit consumer's does."""
    group = make.abandoned(make.name("old"), topic)
    tidy = policy(group)
    scene.observe(tidy)
    make.simple(group, at(topic, 1))
    assert verdicts(scene.observe(tidy, after=60), tidy) == {group: reasons.TOO_RECENT}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("seen_by", ["nobody-else", "a-full-list", "another-policy"])
def test_a_group_that_was_seen_in_use_restarts_the_count(
    scene: Scene, make: Maker, topic: str, seen_by: str, protocol: str
) -> None:
    """It may commit nothing and leave before the next scan: whoever's scan saw it Stable, that counts."""
    group = make.abandoned(make.name("old"), topic, "consumer" if protocol == "consumer" else "classic")
    tidy = policy(group)
    scene.observe(tidy)
    make.join(group, topic, "consumer" if protocol == "consumer" else "classic")
    others = [alert(group, committedOffsets="Absent")] if seen_by == "another-policy" else []
    scene.observe(tidy, *others, after=30, full=seen_by == "a-full-list")
    make.leave(group)
    assert verdicts(scene.observe(tidy, after=30), tidy) == {group: reasons.TOO_RECENT}


def died_in_between(make: Maker, group: str, topic: str, protocol: Protocol) -> None:
    """A consumer joins and dies before it commits, as one that crashes at its first record again and again."""
    make.join(group, topic, protocol)
    make.leave(group)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_that_was_joined_between_two_scans_is_kept(
    scene: Scene, make: Maker, topic: str, protocol: Protocol
) -> None:
    """Empty with the same offsets at every scan, and in use all the time: the offsets log shows the members."""
    group, other = make.abandoned(make.name("crashes"), topic, protocol), make.abandoned(make.name("old"), topic)
    tidy = policy(group, other)
    scene.observe(tidy)
    died_in_between(make, group, topic, protocol)
    assert verdicts(scene.observe(tidy, after=60), tidy) == {group: reasons.TOO_RECENT, other: "Match"}
    scene.mark(tidy, scene.observe(tidy, after=60))
    scene.clock.moved += timedelta(seconds=2)
    observation = scene.observe(tidy)
    died_in_between(make, group, topic, protocol)
    outcomes = scene.apply(scene.planned(observation, tidy), observation)
    assert {outcome.group: outcome.reason for outcome in outcomes} == {
        group: reasons.RECENTLY_ACTIVE,
        other: reasons.DELETED,
    }
    assert verdicts(scene.observe(tidy), tidy) == {group: reasons.TOO_RECENT}, "its time begins again"

    scene.mark(tidy, scene.observe(tidy, after=60))
    scene.clock.moved += timedelta(seconds=2)
    observation = scene.observe(tidy)
    outcomes = scene.apply(scene.planned(observation, tidy), observation)
    assert [outcome.reason for outcome in outcomes] == [reasons.DELETED], "nobody has joined it since"


class OneAnswer(Deadline):
    """Is over once the tail has read one answer of this partition."""

    def __init__(self, tail: Tail, partition: int) -> None:
        super().__init__(60)
        self._tail, self._partition, self._begun = tail, partition, tail.positions[partition]

    @property
    def left(self) -> float:
        return super().left if self._tail.positions[self._partition] == self._begun else 0.0


def test_a_log_that_is_long_is_read_in_several_runs(scene: Scene, make: Maker, topic: str) -> None:
    """The group is kept until all was read; each run goes on from where the last one came to, and none goes back."""
    group = make.abandoned(make.name("crashes"), topic)
    tidy = policy(group)
    observation, plan = scene.plan(tidy)
    assert plan.actions == (group,)
    cluster = observation.snapshot.cluster
    place = partition_of(group, len(cluster.leaders))
    others = (make.name("other") for _ in itertools.count())
    other = next(name for name in others if partition_of(name, len(cluster.leaders)) == place)
    # A broker's answer has a part of that.
    for number in range(300):
        commit_offsets(
            scene.client, other, {Partition(topic, 0): CommittedOffset(number, -1, "x" * 4_000)}, Deadline(60)
        )
    died_in_between(make, group, topic, "classic")
    tail = scene.context.memory.tail
    assert tail is not None
    reached = [tail.positions[place]]
    uses = Uses(scene.context, plan, cluster)
    while (refusal := uses.read_on(OneAnswer(tail, place))[group]).reason == reasons.EVIDENCE_UNREADABLE:
        assert tail.positions[place] > reached[-1]
        reached.append(tail.positions[place])
    assert refusal.reason == reasons.RECENTLY_ACTIVE
    assert ": it matches again at " in refusal.message
    assert len(reached) > 2, "one run was enough"
    # The next scan reads nothing again, and counts from then on.
    assert verdicts(scene.observe(tidy, after=1), tidy) == {group: reasons.TOO_RECENT}


# Between the scan and the deletion anything can happen.


def joined_classic(make: Maker, group: str, topic: str) -> None:
    make.join(group, topic)


def joined_new(make: Maker, group: str, topic: str) -> None:
    make.join(group, topic, "consumer")


def committed_earlier_partition(make: Maker, group: str, topic: str) -> None:
    make.simple(group, at(topic, 1))


def committed_other_partition(make: Maker, group: str, topic: str) -> None:
    make.simple(group, at(topic, 0, partition=1))


def deleted(make: Maker, group: str, topic: str) -> None:
    make.delete_group(group)


def replaced(make: Maker, group: str, topic: str) -> None:
    make.delete_group(group)
    make.simple(group, at(topic))


def topic_deleted(make: Maker, group: str, topic: str) -> None:
    make.delete_topic(topic)


@pytest.mark.parametrize(
    ("protocol", "happens", "reason"),
    [
        pytest.param("classic", joined_classic, reasons.BECAME_ACTIVE, id="joined"),
        pytest.param("consumer", joined_new, reasons.BECAME_ACTIVE, id="joined-kip-848"),
        pytest.param("classic", committed_earlier_partition, reasons.CHANGED, id="offsets-moved"),
        pytest.param("consumer", committed_other_partition, reasons.CHANGED, id="offsets-added"),
        pytest.param("classic", deleted, reasons.GONE, id="deleted"),
        pytest.param("consumer", deleted, reasons.GONE, id="deleted-kip-848"),
        pytest.param("classic", replaced, reasons.CHANGED, id="deleted-and-used-again"),
    ],
)
def test_what_changed_since_the_scan_is_kept(
    scene: Scene, make: Maker, topic: str, protocol: str, happens: Callable[[Maker, str, str], None], reason: str
) -> None:
    """The deletion re-reads each group, keeps it with the reason, and goes on with the others."""
    group = make.abandoned(make.name("changing"), topic, "consumer" if protocol == "consumer" else "classic")
    other = make.abandoned(make.name("old"), topic)
    observation, plan = scene.plan(policy(f"{make.tag}*"))
    assert set(plan.actions) == {group, other}
    happens(make, group, topic)
    before = make.groups()
    outcomes = {outcome.group: (outcome.kind, outcome.reason) for outcome in scene.apply(plan, observation)}
    assert outcomes == {group: (OutcomeType.NOT_DELETED, reason), other: (OutcomeType.DELETED, reasons.DELETED)}
    del before[other]
    assert make.groups() == before


@pytest.mark.parametrize(
    "partition", [pytest.param(0, id="committed-before"), pytest.param(1, id="first-commit-of-the-partition")]
)
def test_a_pending_transaction_keeps_its_group(scene: Scene, make: Maker, topic: str, partition: int) -> None:
    """The broker would delete the group and lose the commit."""
    group, other = make.abandoned(make.name("exactly-once"), topic), make.abandoned(make.name("old"), topic)
    observation, plan = scene.plan(policy(f"{make.tag}*"))
    assert set(plan.actions) == {group, other}
    producer = make.pending(group, at(topic, 3, partition))
    try:
        outcomes = {outcome.group: (outcome.kind, outcome.reason) for outcome in scene.apply(plan, observation)}
    finally:
        producer.abort_transaction(60)
    assert outcomes == {
        group: (OutcomeType.NOT_DELETED, reasons.PENDING_TRANSACTION),
        other: (OutcomeType.DELETED, reasons.DELETED),
    }
    assert make.groups() == {group: "EMPTY"}


def test_who_is_claimed_during_the_run_is_kept(scene: Scene, make: Maker, topic: str) -> None:
    """A KEDA or Strimzi object that was made since the scan names it: asked for anew with each look."""
    group, other = make.abandoned(make.name("scaled"), topic), make.abandoned(make.name("old"), topic)
    observation, plan = scene.plan(policy(f"{make.tag}*"))
    scene.claimed = {group: "ScaledObject kafka/orders"}
    outcomes = {outcome.group: outcome.reason for outcome in scene.apply(plan, observation)}
    assert outcomes == {group: reasons.CLAIMED, other: reasons.DELETED}


def in_role(context: Context, role: Role | None) -> Context:
    return replace(context, connection=structs.replace(context.connection, role=role))


def test_no_group_of_a_failover_target_is_deleted(scene: Scene, make: Maker, topic: str) -> None:
    """What a replicator syncs is Empty, as what is abandoned: only the connection's owner can tell them apart.

    The owner's word also holds for a plan that was made before it.
    """
    group = make.abandoned(make.name("synced"), topic)
    observation, plan = scene.plan(policy(group))
    assert plan.actions == (group,)
    scene.context = in_role(scene.context, Role.FAILOVER_TARGET)
    outcomes = [(outcome.group, outcome.reason) for outcome in scene.apply(plan, observation)]
    assert outcomes == [(group, reasons.FAILOVER_TARGET)]
    _, nothing = scene.plan(policy(group))
    refusal = nothing.verdicts[group].refusal
    assert refusal is not None
    assert (nothing.actions, refusal.reason) == ((), reasons.FAILOVER_TARGET)
    assert set(make.groups()) == {group}


def test_a_primary_is_no_target_of_shadow_links(scene: Scene, make: Maker, topic: str) -> None:
    """A ShadowLink does not say which cluster it writes; the connection's owner may say that it isn't this one."""
    group, link = make.abandoned(make.name("old"), topic), Claims(prefixes={"": "ShadowLink kafka/link"})
    for role, due in ((None, ()), (Role.PRIMARY, (group,))):
        scene.context = replace(in_role(scene.context, role), claims=lambda: link)
        _, plan = scene.plan(policy(group))
        assert plan.actions == due


def test_whoever_is_asked_can_stop_a_deletion(scene: Scene, make: Maker, topic: str) -> None:
    """When the policy is not wanted any more, nothing is deleted and each group says so."""
    groups = {make.abandoned(make.name("old"), topic) for _ in range(2)}
    observation, plan = scene.plan(policy(f"{make.tag}*"))
    assert set(plan.actions) == groups
    outcomes = scene.apply(plan, observation, Guard(lambda: Refusal(reasons.POLICY_CHANGED, "it was edited")))
    assert {(o.group, o.kind, o.reason, o.message) for o in outcomes} == {
        (group, OutcomeType.NOT_DELETED, reasons.POLICY_CHANGED, "it was edited") for group in groups
    }
    assert set(make.groups()) == groups


def test_the_policy_is_asked_for_again_right_before_the_request(scene: Scene, make: Maker, topic: str) -> None:
    """An edit while the groups are read again keeps them, and takes back what was written for their deletion."""
    group = make.abandoned(make.name("old"), topic)
    observation, plan = scene.plan(policy(group))
    answers = iter([None, Refusal(reasons.POLICY_CHANGED, "it was edited")])
    outcomes = scene.apply(plan, observation, Guard(lambda: next(answers)))
    assert [(outcome.kind, outcome.reason) for outcome in outcomes] == [
        (OutcomeType.NOT_DELETED, reasons.POLICY_CHANGED)
    ]
    assert set(make.groups()) == {group}
    assert scene.context.journal.contents.intents == {}


def test_a_process_that_does_not_lead_deletes_nothing(scene: Scene, make: Maker, topic: str) -> None:
    """Asked right before the request: another process may have taken over since the run began."""
    group = make.abandoned(make.name("old"), topic)
    observation, plan = scene.plan(policy(group))
    outcomes = scene.apply(plan, observation, Guard(left=0.5))
    assert [(outcome.kind, outcome.reason) for outcome in outcomes] == [(OutcomeType.NOT_DELETED, reasons.NOT_LEADER)]
    assert set(make.groups()) == {group}


@pytest.mark.parametrize("frozen", ["longer-than-what-was-read-is-good-for", "longer-than-its-intent"])
def test_a_process_that_freezes_after_its_last_check_sends_nothing(
    scene: Scene, make: Maker, topic: str, monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    """Somebody else may act by then: there is no least time that a request gets."""
    group = make.abandoned(make.name("old"), topic)
    observation, plan = scene.plan(policy(group))
    guard, check = Guard(), deletion._final_checks
    if frozen == "longer-than-its-intent":
        guard = Guard(left=MARGIN_S + 0.3)

    def freeze(*arguments: Any) -> dict[str, Refusal]:
        stops = check(*arguments)
        assert stops == {}
        if frozen == "longer-than-its-intent":
            time.sleep(0.5)
        else:
            scene.clock.pass_minutes(600)
        return stops

    monkeypatch.setattr(deletion, "_final_checks", freeze)
    outcomes = scene.apply(plan, observation, guard)
    assert [(outcome.kind, outcome.reason) for outcome in outcomes] == [(OutcomeType.FAILED, reasons.OFFSETS_UNKNOWN)]
    assert set(make.groups()) == {group}


def test_a_deletion_leaves_a_whole_backup_and_its_outcome(scene: Scene, make: Maker, topic: str) -> None:
    """Every committed offset as it was, under one id with what was done; neither mark nor intent stays."""
    commit = {
        Partition(topic, 0): CommittedOffset(2, 0, "checkpoint 7"),
        Partition(topic, 1): CommittedOffset(0),
    }
    group = make.abandoned(make.name("old"), topic)
    commit_offsets(scene.client, group, commit, Deadline(60))
    tidy = policy(group)
    observation, plan = scene.plan(tidy)
    assert [outcome.kind for outcome in scene.apply(plan, observation)] == [OutcomeType.DELETED]
    assert scene.memory.ledger is not None
    kept = list(scene.memory.ledger.entries(lambda key: group_of(key) == group, Deadline(60)))
    (backup,) = [entry for entry in kept if isinstance(entry, Backup)]
    (outcome,) = [entry for entry in kept if isinstance(entry, HistoryEntry)]
    # The next scan ends what was seen of it.
    assert [entry for entry in kept if entry not in (backup, outcome) and not isinstance(entry, Seen)] == []
    assert scene.memory.contents.seen[scene.connection.uid].keys() == {group}
    scene.observe(tidy)
    assert scene.memory.contents.seen[scene.connection.uid] == {}
    assert (outcome.what, outcome.id, outcome.policy) == (OutcomeType.DELETED, backup.id, tidy.key)
    assert outcome.marked_since is not None
    rows = {Partition(name, row.partition): row[1:4] for name, of in backup.offsets.items() for row in of}
    assert rows == {partition: tuple(offset) for partition, offset in commit.items()}
    assert backup.topic_ids.keys() == {topic}


def test_what_was_deleted_and_is_there_again_is_kept(scene: Scene, make: Maker, topic: str) -> None:
    """Somebody made it anew, or a broker brought it back: it is needed, or at least not litter like before."""
    group = make.abandoned(make.name("old"), topic)
    tidy = policy(group)
    observation, plan = scene.plan(tidy)
    scene.apply(plan, observation)
    make.abandoned(group, topic)
    assert verdicts(scene.plan(tidy)[0], tidy) == {group: reasons.REAPPEARED}


def test_a_request_to_keep_a_group_counts_up_to_the_last_moment(scene: Scene, make: Maker, topic: str) -> None:
    """Written by somebody else, after the plan was made."""
    group, other = make.abandoned(make.name("old"), topic), make.abandoned(make.name("old"), topic)
    observation, plan = scene.plan(policy(f"{make.tag}*"))
    assert set(plan.actions) == {group, other}
    now = scene.clock.now()
    request = KeepRequest(group=group, until=now + timedelta(days=1), why="wait", by="alice", at=now)
    settings = LedgerSettings(installation=None, writer=f"group-hygiene-cli-{make.tag}", topic=scene.ledger)
    other_writer = open_ledger(scene.client, settings, Deadline(60), create=False)
    assert other_writer is not None
    other_writer.claim()
    other_writer.write([request])
    outcomes = {outcome.group: outcome.reason for outcome in scene.apply(plan, observation)}
    assert outcomes == {group: reasons.KEEP_REQUESTED, other: reasons.DELETED}


@pytest.mark.parametrize("gone", [pytest.param(True, id="it-is-gone"), pytest.param(False, id="it-is-there")])
def test_a_deletion_that_came_to_no_end_is_settled(scene: Scene, make: Maker, topic: str, gone: bool) -> None:
    """What a process wrote before it died says that it may have deleted; what Kafka says now is what became of it."""
    group = make.abandoned(make.name("old"), topic)
    tidy = policy(group)
    intent = scene.intent(group, tidy)
    record(scene.context.journal, [intent])
    if gone:
        make.delete_group(group)
    # Known for long enough: nobody acts on it any more.
    scene.memory.intents[intent.id] = scene.clock.monotonic() - 60
    assert recovery.recover_intents(scene.context) == ({tidy.uid: 1} if gone else {})
    contents = scene.context.journal.contents
    assert contents.intents == {}
    assert (group in contents.deletions) is gone
    if not gone:
        # A broker that hung goes on, and carries out what everybody had given up.
        assert recovery.recover_intents(scene.context) == {}
        make.delete_group(group)
        assert recovery.recover_intents(scene.context) == {tidy.uid: 1}
        assert group in contents.deletions
    assert recovery.recover_intents(scene.context) == {}


# What a scan costs is what its policies ask for.


def test_only_groups_whose_verdict_hangs_on_it_are_read(
    client: Client, make: Maker, topic: str, kafka: KafkaCluster
) -> None:
    """Offsets of the others are not fetched, and where records wait is asked only of what would match else."""
    group = make.abandoned(make.name("old"), topic)
    make.abandoned(make.name("protected"), topic)
    make.simple(make.name("simple"), at(topic))
    make.join(make.name("live"), topic)
    scene, tidy = Scene(client, [f"{make.tag}prot*"]), policy(f"{make.tag}*")

    def ends_asked(since: Mark) -> list[str]:
        return [topic["name"] for body in requests(kafka, "LIST_OFFSETS", since) for topic in body["topics"]]

    log = "__consumer_offsets"
    mark = kafka.mark()
    scene.observe(tidy)
    (fetch,) = fetches(kafka, mark)
    assert [asked["groupId"] for asked in fetch["groups"]] == [group]
    assert ends_asked(mark) == [log, log], "the ends of all its partitions at once, and their latest times"

    mark = kafka.mark()
    scene.observe(tidy, after=30)
    assert ends_asked(mark) == [log], "whether records before its places were lost; then it is read on"

    mark = kafka.mark()
    scene.observe(tidy, after=30)
    assert ends_asked(mark) == [log, topic, topic], "where it begins and where it ends"


def test_a_scan_that_selects_nothing_lists_and_no_more(scene: Scene, make: Maker, kafka: KafkaCluster) -> None:
    """Neither offsets nor topics are asked for; each leader proves before and after that it leaves no group out."""
    asked = {"LIST_GROUPS": 1, "OFFSET_FETCH": 1, "DESCRIBE_GROUPS": 2, "OFFSET_FOR_LEADER_EPOCH": 2}
    mark = kafka.mark()
    scene.observe(policy(f"{make.tag}*"))
    counts = {
        api: sum(kafka.count_requests(api, client_id=CLIENT_ID, since=mark).values())
        for api in (*asked, "LIST_OFFSETS", "DESCRIBE_LOG_DIRS")
    }
    assert counts == dict.fromkeys(counts, 0) | asked
    assert fetches(kafka, mark) == []


def test_many_policies_cost_one_list(scene: Scene, make: Maker, topic: str, kafka: KafkaCluster) -> None:
    """200 policies share one list, filtered by the broker, and one fetch of the offsets they all ask about."""
    groups = [make.abandoned(make.name("old"), topic) for _ in range(2)]
    # Groups that no policy selects: they don't count, although a scan with 200 policies judges two groups at a time.
    make.simple_groups({make.name("other"): {Partition(topic, 0): CommittedOffset(0)} for _ in range(5)})
    scene.memory.slice = 42
    policies = [policy(f"{make.tag}old*", name=f"p-{number}") for number in range(200)]
    mark = kafka.mark()
    observation = scene.observe(*policies)
    (listed,) = requests(kafka, "LIST_GROUPS", mark)
    assert set(listed["statesFilter"]) == {"Empty", "Dead"}
    assert set(listed["typesFilter"]) == {"Classic", "Consumer"}
    assert len(fetches(kafka, mark)) == 1
    for each in policies:
        assert verdicts(observation, each) == dict.fromkeys(groups, reasons.TOO_RECENT)
        assert scene.planned(observation, each).actions == ()
