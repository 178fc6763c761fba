"""DeleteOffsets against a real broker: offsets that nobody reads any more go, and the group that has them lives on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka.protocol.consumer import OffsetDeleteRequest
from msgspec import structs

from group_hygiene.engine import recovery
from group_hygiene.engine.executor import Executor, open_ledger
from group_hygiene.engine.restorable import RestoreRequest, ResultKind
from group_hygiene.engine.restoration import restore
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka.changes import delete_offsets
from group_hygiene.kafka.client import Client
from group_hygiene.kafka.offsets import committed_offsets
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.ledger.records import record
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, HistoryEntry, Intent, KeepRequest, OutcomeType
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import ActivitySpec
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.clients import Around, Died, die
from tests.kafka.makers import Maker, Protocol, at, fetches, requests, soon
from tests.kafka.scene import Guard, Scene, stale, verdicts
from tests.kafka.tables import Pipeline
from tests.warehouse import in_use

pytestmark = pytest.mark.slow

MATCH = "Match"


class Topics(NamedTuple):
    """One that members read, and one that they read no more."""

    read: str
    left: str


@pytest.fixture
def topics(make: Maker) -> Topics:
    """With records."""
    return Topics(make.topic(records=5), make.topic(records=5))


@pytest.fixture
def read(topics: Topics) -> str:
    return topics.read


@pytest.fixture
def left(topics: Topics) -> str:
    return topics.left


@pytest.fixture
def pipeline(client: Client, make: Maker, read: str, tmp_path: Path, request: pytest.FixtureRequest) -> Pipeline:
    """Nothing is written yet; the log is there, as somebody has committed."""
    make.simple(make.name("first"), at(read))
    return Pipeline(client, request.getfixturevalue("cluster"), tmp_path / "warehouse")


@pytest.fixture
def scene(client: Client, pipeline: Pipeline) -> Scene:
    """A connection that names the tables."""
    scene = Scene(client)
    scene.use(Tables(ActivitySpec(pipeline.uri)))
    return scene


@pytest.fixture
def live(make: Maker, read: str, left: str) -> str:
    """A group with a member that reads one of the two topics, with offsets of both."""
    group = make.name("live")
    make.join(group, read, commit=at(read, 3) | at(left, 4))
    return group


def living(group: str, hours: Mapping[str, float], **changes: Any) -> dict[str, Any]:
    """What the tables tell of a group with members that committed for each topic last so many hours ago."""
    return in_use(group, **hours) | changes


def offsets(client: Client, group: str) -> dict[Partition, int]:
    answer = committed_offsets(client, {group: None}, soon())[group]
    assert not isinstance(answer, Fault), answer
    return {place: commit.offset for place, commit in answer.items()}


def entries(scene: Scene, kind: type) -> list[Any]:
    settings = LedgerSettings(installation=None, writer="", topic=scene.ledger)
    ledger = open_ledger(scene.client, settings, soon(), create=False, claim=False)
    assert ledger is not None
    return [entry for entry in ledger.entries(lambda key: True, soon()) if isinstance(entry, kind)]


@pytest.mark.parametrize(("protocol", "kind"), [("classic", "Classic"), ("consumer", "Consumer")])
def test_offsets_of_a_topic_that_no_member_reads_go(
    client: Client, scene: Scene, pipeline: Pipeline, make: Maker, protocol: Protocol, kind: str
) -> None:
    """Saved before; those of the subscribed topic stay as they are, and so does the group."""
    read, left = make.topic(partitions=2, records=5), make.topic(partitions=2, records=5)
    group = make.name("live")
    make.join(group, read, protocol, at(read, 3) | at(left, 4) | at(left, 2, partition=1))
    pipeline.run([living(group, {read: 100, left: 100}, type=kind)])
    policy = stale(group)
    observation, plan = scene.due(policy)
    assert (plan.actions, plan.refusal) == ((group,), None)
    assert observation.verdicts[policy.key][group].topics == {left}
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.kind, outcome.reason, outcome.topics) == (OutcomeType.DELETED, reasons.OFFSETS_DELETED, (left,))
    assert offsets(client, group) == {Partition(read, 0): 3}
    assert make.groups()[group] == "STABLE"
    (saved,) = entries(scene, Backup)
    assert {topic: [row[:2] for row in rows] for topic, rows in saved.offsets.items()} == {left: [(0, 4), (1, 2)]}
    (recorded,) = entries(scene, HistoryEntry)
    assert (recorded.what, recorded.topics) == (OutcomeType.OFFSETS_DELETED, (left,))
    assert entries(scene, Intent) == []
    assert scene.context.journal.contents.marks[policy.uid] == {}
    make.leave(group)


def test_a_dry_run_deletes_nothing(client: Client, scene: Scene, pipeline: Pipeline, live: str, left: str) -> None:
    """What Enforce would take is due, and that is all."""
    pipeline.run([living(live, {left: 100})])
    _, plan = scene.due(stale(live, mode="DryRun"))
    assert (plan.due, plan.actions, plan.marking) == ((live,), (), frozenset())
    assert Partition(left, 0) in offsets(client, live)


def test_each_other_group_stays_for_its_own_reason(
    scene: Scene, pipeline: Pipeline, make: Maker, read: str, left: str
) -> None:
    """Members that read the topic or hide what they read, commits not long ago, and tables that do not tell."""
    both = at(read, 3) | at(left, 4)
    names = {reason: make.name(reason.lower()) for reason in (reasons.SUBSCRIBED, reasons.TOO_RECENT)}
    make.join(names[reasons.SUBSCRIBED], left, commit=at(left, 4))
    make.join(names[reasons.TOO_RECENT], read, commit=both)
    pattern, bare, unknown = make.name("pattern"), make.name("bare"), make.name("unknown")
    make.join(pattern, f"^{make.tag}nothing-but-{read}|{read}", "consumer", both)
    make.join(bare, read)
    make.join(unknown, read, commit=both)
    sink = f"connect-{make.name('sink')}"
    make.join(sink, read, commit=both)
    empty = make.abandoned(make.name("empty"), read, commit=both)
    pipeline.run(
        [
            living(names[reasons.SUBSCRIBED], {left: 100}),
            living(names[reasons.TOO_RECENT], {read: 100, left: 71}),
            living(pattern, {read: 0.1, left: 100}, type="Consumer"),
            living(bare, {read: 100}),
            living(unknown, {read: 0.1}),
            living(sink, {read: 0.1, left: 100}),
            living(empty, {read: 100, left: 100}, state="Empty"),
        ]
    )
    expected = {
        names[reasons.SUBSCRIBED]: reasons.SUBSCRIBED,
        names[reasons.TOO_RECENT]: reasons.SUBSCRIBED,
        pattern: reasons.SUBSCRIPTION_UNKNOWN,
        bare: reasons.NO_OFFSETS,
        unknown: reasons.TOO_RECENT,
        sink: reasons.CONNECT,
    }
    policy = stale("*", excludeTopics=["nobody-has-this"])
    assert verdicts(scene.observe(policy), policy, make.tag) == expected
    chosen = stale("*", name="chosen", topics=[left])
    wanted = expected | {names[reasons.TOO_RECENT]: reasons.TOO_RECENT}
    assert verdicts(scene.observe(chosen), chosen, make.tag) == wanted
    assert empty not in scene.observe(policy).verdicts[policy.key]
    none = stale("*", name="none", excludeTopics=["*"])
    unread = {unknown: reasons.TOO_RECENT}
    found = verdicts(scene.observe(none), none, make.tag)
    assert found == dict.fromkeys(found, reasons.NO_OFFSETS) | {sink: reasons.CONNECT} | unread


def _commits_again(client: Client, make: Maker, group: str, read: str, left: str) -> None:
    """The member commits what was committed already: nothing changes but the log."""
    make.commit(group, at(left, 4))


def _moves_on(client: Client, make: Maker, group: str, read: str, left: str) -> None:
    make.commit(group, at(left, 5))


def _reads_it(client: Client, make: Maker, group: str, read: str, left: str) -> None:
    make.subscribe(group, read, left)


def _leaves(client: Client, make: Maker, group: str, read: str, left: str) -> None:
    make.leave(group)


def _is_in_a_transaction(client: Client, make: Maker, group: str, read: str, left: str) -> Any:
    return make.pending(group, at(left, 5))


def _is_deleted_by_others(client: Client, make: Maker, group: str, read: str, left: str) -> None:
    assert set(delete_offsets(client, group, [Partition(left, 0)], soon()).values()) == {None}


@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [
        pytest.param(_commits_again, reasons.RECENTLY_ACTIVE, id="commits-the-same-again"),
        pytest.param(_moves_on, reasons.CHANGED, id="commits"),
        pytest.param(_reads_it, reasons.SUBSCRIBED, id="a-member-reads-it-now"),
        pytest.param(_leaves, reasons.NOT_STABLE, id="nobody-is-there-to-tell"),
        pytest.param(_is_in_a_transaction, reasons.PENDING_TRANSACTION, id="a-transaction-commits-for-it"),
        pytest.param(_is_deleted_by_others, reasons.CHANGED, id="somebody-else-deleted-them"),
    ],
)
def test_what_happens_between_scan_and_deletion_keeps_them(
    client: Client,
    scene: Scene,
    pipeline: Pipeline,
    make: Maker,
    meanwhile: Callable[[Client, Maker, str, str, str], Any],
    reason: str,
) -> None:
    """All that decides is read again right before, and nothing is deleted that somebody may need."""
    read, left, group = make.topic(records=5), make.topic(records=5), make.name("live")
    make.join(group, read, commit=at(read, 3) | at(left, 4))
    pipeline.run([living(group, {read: 0.1, left: 100})])
    observation, plan = scene.due(stale(group))
    assert plan.actions == (group,)
    producer = meanwhile(client, make, group, read, left)
    before = offsets(client, group)
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.kind, outcome.reason) == (OutcomeType.NOT_DELETED, reason), outcome.message
    assert offsets(client, group) == before
    assert entries(scene, Backup) == []
    if producer is not None:
        producer.abort_transaction(60)


def test_a_commit_for_a_topic_that_is_read_is_no_reason_to_wait(
    client: Client, scene: Scene, pipeline: Pipeline, make: Maker, live: str, topics: Topics
) -> None:
    """A group that lives commits all the time."""
    pipeline.run([living(live, {topics.read: 0.1, topics.left: 100})])
    observation, plan = scene.due(stale(live))
    make.commit(live, at(topics.read, 5))
    (outcome,) = scene.apply(plan, observation)
    assert outcome.reason == reasons.OFFSETS_DELETED
    assert offsets(client, live) == {Partition(topics.read, 0): 5}


def test_a_transaction_for_a_topic_that_is_read_is_no_reason_to_wait(
    client: Client, scene: Scene, pipeline: Pipeline, make: Maker, live: str, topics: Topics
) -> None:
    """A group that reads and writes exactly once has one open all the time."""
    pipeline.run([living(live, {topics.read: 0.1, topics.left: 100})])
    observation, plan = scene.due(stale(live))
    producer = make.pending(live, at(topics.read, 5))
    (outcome,) = scene.apply(plan, observation)
    assert outcome.reason == reasons.OFFSETS_DELETED, outcome.message
    producer.abort_transaction(60)
    assert offsets(client, live) == {Partition(topics.read, 0): 3}


def test_a_topic_left_later_waits_for_a_mark_of_its_own(
    client: Client, scene: Scene, pipeline: Pipeline, make: Maker, read: str, left: str
) -> None:
    """Whoever was warned of one topic was not warned of the other."""
    later, group = make.topic(records=5), make.name("live")
    make.join(group, read, commit=at(read, 3) | at(left, 4) | at(later, 1))
    pipeline.run([living(group, {read: 0.1, left: 100, later: 71})])
    policy = stale(group)
    scene.mark(policy, scene.observe(policy))
    scene.clock.moved += timedelta(seconds=2)
    pipeline.run([living(group, {read: 0.1, left: 100, later: 73})])
    observation = scene.observe(policy)
    assert observation.verdicts[policy.key][group].topics == {left, later}
    plan = scene.mark(policy, observation)
    assert plan.marking == {group}
    scene.clock.moved += timedelta(seconds=0.1)
    (outcome,) = scene.apply(replace(plan, actions=plan.due), observation)
    assert outcome.topics == (left,)
    assert offsets(client, group).keys() == {Partition(read, 0), Partition(later, 0)}
    # What was left later keeps its date.
    mark = scene.context.journal.contents.marks[policy.uid][group]
    assert set(mark.topics) == {later}
    scene.clock.moved += timedelta(seconds=2)
    again = scene.observe(policy)
    (outcome,) = scene.apply(scene.planned(again, policy), again)
    assert outcome.topics == (later,)
    assert offsets(client, group).keys() == {Partition(read, 0)}


def test_a_topic_that_was_read_again_waits_again(
    client: Client, scene: Scene, pipeline: Pipeline, make: Maker, read: str, left: str
) -> None:
    """A mark counts for what matched at every run since: a reader that came back for a while starts its time anew."""
    other, group = make.topic(records=5), make.name("live")
    make.join(group, read, commit=at(read, 3) | at(left, 4) | at(other, 1))
    pipeline.run([living(group, {read: 0.1, left: 100, other: 100})])
    policy = stale(group)
    scene.mark(policy, scene.observe(policy))
    first = scene.context.journal.contents.marks[policy.uid][group]
    scene.clock.moved += timedelta(seconds=2)
    make.subscribe(group, read, other)
    scene.mark(policy, scene.observe(policy))
    make.subscribe(group, read)
    plan = scene.mark(policy, scene.observe(policy))
    mark = scene.context.journal.contents.marks[policy.uid][group]
    assert mark.topics[left] == first.topics[left]
    assert mark.topics[other] > first.topics[other]
    assert plan.marking == {group}


@pytest.mark.parametrize("topics_too", [False, True], ids=["refused", "refused-in-part"])
def test_the_broker_has_the_last_word(
    client: Client, scene: Scene, pipeline: Pipeline, make: Maker, topics_too: bool
) -> None:
    """A member that subscribes after everything was read again keeps its offsets, and what went has its backup."""
    read, left, other, group = make.topic(records=5), make.topic(records=5), make.topic(records=5), make.name("live")
    make.join(group, read, commit=at(read, 3) | at(left, 4) | at(other, 1))
    pipeline.run([living(group, {read: 0.1, left: 100, other: 100})])
    observation, plan = scene.due(stale(group, topics=[left, other] if topics_too else [left]))
    asked: list[bool] = []

    class Late(Guard):
        def seconds_left(self) -> float:
            asked.append(True)
            # The intents are written: only the broker can say no now.
            if len(asked) == 4:
                make.subscribe(group, read, left)
            return self.left

    (outcome,) = scene.apply(plan, observation, Late())
    assert len(asked) == 4
    assert Partition(left, 0) in offsets(client, group)
    if topics_too:
        assert (outcome.kind, outcome.topics) == (OutcomeType.DELETED, (other,)), outcome.message
        assert Partition(other, 0) not in offsets(client, group)
        assert len(entries(scene, Backup)) == 1
    else:
        assert (outcome.kind, outcome.reason) == (OutcomeType.NOT_DELETED, reasons.SUBSCRIBED), outcome.message
        assert entries(scene, Backup) == []
    assert entries(scene, Intent) == []


def test_offsets_that_come_back_are_needed(
    scene: Scene, pipeline: Pipeline, make: Maker, live: str, read: str, left: str
) -> None:
    """Whoever committed again after the deletion keeps what it committed, however old it gets."""
    pipeline.run([living(live, {read: 0.1, left: 100})])
    policy = stale(live)
    observation, plan = scene.due(policy)
    scene.apply(plan, observation)
    make.commit(live, at(left, 4))
    verdict = scene.observe(policy).verdicts[policy.key][live]
    assert verdict.refusal is not None
    assert verdict.refusal.reason == reasons.TOO_RECENT
    chosen = structs.replace(policy, match=stale(live, topics=[left]).match)
    assert verdicts(scene.observe(chosen), chosen) == {live: reasons.REAPPEARED}


def test_a_restore_waits_until_the_group_is_empty(
    client: Client, scene: Scene, pipeline: Pipeline, make: Maker, live: str, topics: Topics
) -> None:
    """Nothing can be committed for a group with members; then all is as it was."""
    pipeline.run([living(live, {topics.read: 0.1, topics.left: 100})])
    observation, plan = scene.due(stale(live))
    scene.apply(plan, observation)
    assert scene.memory.ledger is not None
    restorer = Executor(scene.context, Guard())
    request = RestoreRequest(id="back", groups=(live,))
    (waiting,) = restore(restorer, request)
    assert (waiting.kind, waiting.reason) == (ResultKind.WAITING, reasons.GROUP_ACTIVE)
    make.leave(live)
    (result,) = restore(restorer, request)
    assert result.kind is ResultKind.RESTORED
    assert offsets(client, live) == {Partition(topics.read, 0): 3, Partition(topics.left, 0): 4}


def test_a_restore_brings_back_what_went_at_several_times(
    client: Client, scene: Scene, pipeline: Pipeline, make: Maker, live: str, topics: Topics
) -> None:
    """Each deletion has a backup of its own topics; all since the group itself was last deleted belong together."""
    other = make.topic(records=5)
    make.commit(live, at(other, 2))
    for hours in ({topics.left: 100.0, other: 1.0}, {topics.left: 100.0, other: 100.0}):
        pipeline.run([living(live, {topics.read: 0.1, **hours})])
        observation, plan = scene.due(stale(live))
        scene.apply(plan, observation)
    assert offsets(client, live) == {Partition(topics.read, 0): 3}
    make.leave(live)
    assert scene.memory.ledger is not None
    restorer = Executor(scene.context, Guard())
    (result,) = restore(restorer, RestoreRequest(id="back", groups=(live,)))
    assert result.kind is ResultKind.RESTORED
    assert offsets(client, live) == {Partition(t, 0): n for t, n in zip((*topics, other), (3, 4, 2), strict=True)}


def test_a_request_to_keep_the_group_keeps_its_offsets(
    client: Client, scene: Scene, pipeline: Pipeline, live: str, read: str, left: str
) -> None:
    """Whatever they are of."""
    pipeline.run([living(live, {read: 0.1, left: 100})])
    now = scene.clock.now()
    request = KeepRequest(group=live, until=now + timedelta(days=1), why="", by="ada", at=now)
    record(scene.context.journal, [request])
    policy = stale(live)
    assert verdicts(scene.observe(policy), policy) == {live: reasons.KEEP_REQUESTED}
    assert len(offsets(client, live)) == 2


@pytest.mark.parametrize("done", [pytest.param(True, id="carried-out"), pytest.param(False, id="never-sent")])
def test_what_was_interrupted_is_settled(
    client: Client, scene: Scene, pipeline: Pipeline, live: str, left: str, done: bool
) -> None:
    """By what is committed now: the group is there in either case."""
    pipeline.run([living(live, {left: 100})])
    policy = stale(live)
    intent = scene.intent(live, policy, topics=(left,))
    assert record(scene.context.journal, [intent]) is None
    if done:
        delete_offsets(client, live, [Partition(left, 0)], soon())
    scene.memory.intents = {intent.id: scene.clock.monotonic() - 60}
    assert recovery.recover_intents(scene.context) == ({policy.uid: 1} if done else {})
    (recorded,) = entries(scene, HistoryEntry)
    assert (recorded.what, recorded.topics) == (
        OutcomeType.OFFSETS_DELETED if done else OutcomeType.NOT_DELETED,
        (left,),
    )
    assert entries(scene, Intent) == []
    if not done:
        # A broker that hung carries it out now.
        delete_offsets(client, live, [Partition(left, 0)], soon())
        assert recovery.recover_intents(scene.context) == {policy.uid: 1}
        late = entries(scene, HistoryEntry)[-1]
        assert (late.what, late.reason, late.topics) == (OutcomeType.OFFSETS_DELETED, reasons.OFFSETS_DELETED, (left,))


def test_what_was_interrupted_in_part_is_settled_in_part(
    client: Client, scene: Scene, pipeline: Pipeline, live: str, read: str, left: str
) -> None:
    """What went counts as deleted, so that it is kept when it comes back; what stayed was not touched."""
    pipeline.run([living(live, {read: 100, left: 100})])
    policy = stale(live)
    intent = scene.intent(live, policy, topics=(left, read))
    assert record(scene.context.journal, [intent]) is None
    delete_offsets(client, live, [Partition(left, 0)], soon())
    scene.memory.intents = {intent.id: scene.clock.monotonic() - 60}
    assert recovery.recover_intents(scene.context) == {policy.uid: 1}
    (recorded,) = entries(scene, HistoryEntry)
    assert (recorded.what, recorded.topics) == (OutcomeType.OFFSETS_DELETED, (left,))
    assert set(scene.context.journal.contents.offset_deletions[live]) == {left}


def test_tries_that_fail_leave_two_backups(
    client: Client, pipeline: Pipeline, make: Maker, live: str, topics: Topics
) -> None:
    """However many tries there are, and whichever topic is left each time; the last backup has all of the others."""
    other = make.topic(records=5)
    make.commit(live, at(other, 2))
    dying = Around(client, OffsetDeleteRequest, before=die)
    scene = Scene(dying)  # type: ignore[arg-type]
    scene.use(Tables(ActivitySpec(pipeline.uri)))
    policy = stale(live)
    for number in range(4):
        hours = {topics.left if number % 2 else other: 100.0}
        pipeline.run([living(live, {topics.read: 0.1, topics.left: 0.1, other: 0.1} | hours)])
        observation, plan = scene.due(policy)
        with pytest.raises(Died):
            scene.apply(plan, observation)
        (intent,) = entries(scene, Intent)
        scene.memory.intents = {intent.id: scene.clock.monotonic() - 60}
        assert recovery.recover_intents(scene.context) == {}
    backups = sorted(entries(scene, Backup), key=lambda each: each.id)
    assert len(backups) == 2
    saved = {topic: [row.offset for row in rows] for topic, rows in backups[-1].offsets.items()}
    assert saved == {topics.left: [4], other: [2]}
    dying.before = lambda _: None
    observation, plan = scene.due(policy)
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.kind, outcome.topics) == (OutcomeType.DELETED, (topics.left,)), outcome.message
    assert scene.context.journal.contents.unfinished == {live: {}}


def test_a_commit_right_before_the_deletion_is_saved(
    client: Client, pipeline: Pipeline, make: Maker, live: str, topics: Topics
) -> None:
    """The request is under way: the backup has what the broker deletes, and of the deleted topic only."""

    def commits(_: int) -> None:
        make.commit(live, at(topics.left, 5) | at(topics.read, 5))

    scene = Scene(Around(client, OffsetDeleteRequest, before=commits))  # type: ignore[arg-type]
    scene.use(Tables(ActivitySpec(pipeline.uri)))
    pipeline.run([living(live, {topics.read: 0.1, topics.left: 100})])
    observation, plan = scene.due(stale(live))
    (outcome,) = scene.apply(plan, observation)
    assert outcome.reason == reasons.OFFSETS_DELETED, outcome.message
    assert "right before (1) are saved" in outcome.message
    assert offsets(client, live) == {Partition(topics.read, 0): 5}
    (saved,) = entries(scene, Backup)
    assert {topic: [row.offset for row in rows] for topic, rows in saved.offsets.items()} == {topics.left: [5]}


def test_tables_that_say_enough_cost_nothing(
    kafka: KafkaCluster, scene: Scene, pipeline: Pipeline, live: str, read: str, left: str
) -> None:
    """A living group of whose topics none was left for long is asked nothing: no offsets, and no members."""
    pipeline.run([living(live, {read: 0.1, left: 1})])
    policy, mark = stale(live), kafka.mark()
    assert verdicts(scene.observe(policy), policy) == {live: reasons.TOO_RECENT}
    assert fetches(kafka, mark) == []
    assert requests(kafka, "LIST_OFFSETS", mark) == []
    assert not [
        name for request in requests(kafka, "DESCRIBE_GROUPS", mark) for name in request["groups"] if name == live
    ]


def test_limits_and_guards_hold(scene: Scene, pipeline: Pipeline, client: Client, live: str, left: str) -> None:
    """More than maxPercent of all groups: none; and whoever stops the run stops this."""
    pipeline.run([living(live, {left: 100})])
    policy = stale(live)
    limited = policy.with_deletion(max_percent=1)
    observation, plan = scene.due(policy)
    one = replace(observation, conditions=replace(observation.conditions, total=10))
    assert scene.planned(one, limited).refusal is not None
    stop = Refusal(reasons.STOPPING, "the operator is stopping")
    (outcome,) = scene.apply(plan, observation, Guard(stop=lambda: stop))
    assert outcome.reason == reasons.STOPPING
    (outcome,) = scene.apply(plan, observation, Guard(left=0.5))
    assert outcome.reason == reasons.NOT_LEADER
    assert Partition(left, 0) in offsets(client, live)
