"""`idleFor` against a real broker: what the pipeline's tables decide, and each way in which they may not."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from group_hygiene.engine import marks
from group_hygiene.engine.context import Memory
from group_hygiene.engine.executor import Executor, open_ledger
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka.client import Client
from group_hygiene.kafka.cluster import PREFIX
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, LargestCoverage, OutcomeType
from group_hygiene.model.group_keep import GroupKeep
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import ActivitySpec
from group_hygiene.spec.policy import Policy
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, at, requests, soon
from tests.kafka.scene import Guard, Scene, alert, policy, verdicts
from tests.kafka.tables import Pipeline
from tests.warehouse import Warehouse, idle, in_use, now, simple

MATCH = "Match"
RECORDS = 5


@pytest.fixture
def topic(make: Maker) -> str:
    """A topic with records."""
    return make.topic(records=RECORDS)


@pytest.fixture
def pipeline(client: Client, make: Maker, topic: str, tmp_path: Path, request: pytest.FixtureRequest) -> Pipeline:
    """Nothing is written yet; the log is there, as somebody has committed."""
    make.simple(make.name("first"), at(topic))
    return Pipeline(client, request.getfixturevalue("cluster"), tmp_path / "warehouse")


@pytest.fixture
def scene(client: Client, pipeline: Pipeline) -> Scene:
    """A connection that names the tables."""
    scene = Scene(client)
    scene.use(Tables(ActivitySpec(pipeline.uri)))
    return scene


def _unused(*groups: str, **when: Any) -> Policy:
    """Delete what nobody has used for three days, by the log alone."""
    return policy(*groups, **{"unchangedFor": None, "idleFor": "72h", **when})


def _entries(scene: Scene) -> list[Any]:
    settings = LedgerSettings(installation=None, writer="", topic=scene.ledger)
    ledger = open_ledger(scene.client, settings, soon(), create=False, claim=False)
    assert ledger is not None
    return list(ledger.entries(lambda key: True, soon()))


def test_a_keep_tells_of_the_last_use(scene: Scene, pipeline: Pipeline, make: Maker, topic: str) -> None:
    """Whatever policies ask: of each group that a GroupKeep keeps, as the tables have it; not by tables of long ago."""
    old, unknown = make.abandoned(make.name("old"), topic), make.abandoned(make.name("unknown"), topic)
    back = make.name("back")
    make.join(back, topic, "classic", at(topic))
    row = idle(old, last_clients=[{"client_id": "billing-7", "host": None}], last_clients_at=now())
    pipeline.run([row, idle(back)])
    keep = GroupKeep("kafka", "k", "uid", (old, unknown, back), "needed", None)

    def found() -> dict[str, tuple[datetime | None, str]]:
        kept = marks.keep_groups(Executor(scene.context, Guard()), keep, False)
        assert not isinstance(kept, Refusal), kept
        return {each.group: (each.idle_since, each.client) for each in kept}

    # It has members again: these are shown, and no earlier time.
    nothing = found()
    assert nothing == {old: (None, ""), unknown: (None, ""), back: (None, nothing[back][1])}
    assert nothing[back][1].startswith("client ")
    scene.observe(full=True)
    used = nothing | {old: (row["empty_since"], "client 'billing-7'")}
    assert found() == used
    scene.observe()
    assert found() == used
    scene.use(None)
    scene.observe(full=True)
    assert found() == nothing


def test_the_idle_go_and_all_others_stay(scene: Scene, pipeline: Pipeline, make: Maker, topic: str) -> None:
    """Without any earlier look of the operator; each other group stays for its own reason."""
    old, new = make.abandoned(make.name("old"), topic), make.abandoned(make.name("new"), topic, "consumer")
    alone = make.simple(make.name("simple"), at(topic))
    caught_up = make.simple(make.name("caught-up"), at(topic, RECORDS))
    commits, left = make.simple(make.name("commits"), at(topic)), make.abandoned(make.name("left"), topic)
    reused = make.abandoned(make.name("reused"), topic, commit=at(topic, RECORDS))
    unknown = make.abandoned(make.name("unknown"), topic)
    unclear = make.abandoned(make.name("unclear"), topic, "consumer")
    live = make.name("live")
    make.join(live, topic, "classic", at(topic))
    pipeline.run(
        [
            idle(old),
            idle(new, type="Consumer"),
            simple(alone),
            simple(caught_up),
            simple(commits, 0.1),
            idle(left, 0.1),
            idle(reused, 200, last_commit=now() - timedelta(hours=100)),
            idle(unclear, type="Consumer", empty_since=None),
            idle(live),
        ]
    )
    expected = {
        old: MATCH,
        new: MATCH,
        alone: MATCH,
        caught_up: reasons.CAUGHT_UP,
        commits: reasons.TOO_RECENT,
        left: reasons.TOO_RECENT,
        reused: reasons.CAUGHT_UP,
        unknown: reasons.EVIDENCE_MISSING,
        unclear: reasons.EVIDENCE_MISSING,
    }
    wanted = _unused(*expected, live)
    observation, plan = scene.due(wanted)
    assert verdicts(observation, wanted) == expected
    outcomes = {outcome.group: outcome.reason for outcome in scene.apply(plan, observation)}
    assert outcomes == dict.fromkeys((old, new, alone), reasons.DELETED)
    there = make.groups().keys()
    assert there & {*expected, live} == {*expected, live} - {old, new, alone}
    contents = scene.context.journal.contents
    assert (contents.watches, contents.clocks, any(contents.seen.values())) == ({}, {}, False)
    backups = [entry for entry in _entries(scene) if isinstance(entry, Backup)]
    assert {backup.group for backup in backups} == {old, new, alone}
    assert all(backup.evidence.startswith("idle since ") for backup in backups)


def test_topics_that_members_no_longer_read_are_reported_before_they_expire(
    scene: Scene, pipeline: Pipeline, make: Maker, topic: str, client: Client
) -> None:
    """By what the brokers say of members now: whoever reads all, or can lose nothing so soon, is kept."""
    left, new, reads = (make.name(what) for what in ("left", "new", "reads"))
    fresh, pattern, joined = (make.name(what) for what in ("fresh", "pattern", "joined"))
    for group in (left, reads, fresh, joined):
        make.join(group, topic)
    make.join(new, topic, "consumer")
    make.join(pattern, "^" + topic, "consumer")
    empty = make.abandoned(make.name("empty"), topic)
    old = {topic: 200.0, "old": 166.0}
    pipeline.run(
        [
            in_use(left, **old),
            in_use(new, **old) | {"type": "Consumer"},
            in_use(reads, **{topic: 200.0}),
            in_use(fresh, **{topic: 1.0, "old": 100.0}),
            in_use(pattern, **old) | {"type": "Consumer"},
            idle(joined, 200),
            idle(empty, 167),
        ]
    )
    expected = {
        left: MATCH,
        new: MATCH,
        reads: reasons.EXPIRES_LATER,
        fresh: reasons.EXPIRES_LATER,
        pattern: reasons.SUBSCRIPTION_UNKNOWN,
        joined: reasons.EVIDENCE_MISSING,
        empty: MATCH,
    }
    wanted = alert(*expected, expiresWithin="48h")
    observation = scene.observe(wanted)
    assert verdicts(observation, wanted) == expected
    expiries = {name: verdict.expires for name, verdict in observation.verdicts[wanted.key].items() if verdict.matches}
    in_hours = {name: round((at - now()) / timedelta(hours=1)) for name, at in expiries.items() if at is not None}
    assert in_hours == {left: 2, new: 2, empty: 1}


def test_a_group_that_stopped_committing_is_reported_while_it_has_members(
    scene: Scene, pipeline: Pipeline, make: Maker, topic: str
) -> None:
    """By an alert, and by no policy that deletes."""
    stuck, works = make.name("stuck"), make.name("works")
    for group in (stuck, works):
        make.join(group, topic)
    stopped = in_use(stuck, **{topic: 49.0})
    pipeline.run([stopped | {"last_commit": stopped["oldest_commit"]}, in_use(works, **{topic: 49.0})])
    watching, deleting = alert(stuck, works, idleFor="2d"), _unused(stuck, works)
    observation = scene.observe(watching, deleting)
    assert verdicts(observation, watching) == {stuck: MATCH, works: reasons.TOO_RECENT}
    assert verdicts(observation, deleting) == {}


def test_only_groups_that_may_lose_something_are_described(
    scene: Scene, pipeline: Pipeline, make: Maker, topic: str, kafka: KafkaCluster
) -> None:
    """Whoever has committed lately costs no request."""
    aged, fresh = make.name("aged"), make.name("fresh")
    for group in (aged, fresh):
        make.join(group, topic)
    pipeline.run([in_use(aged, **{topic: 200.0}), in_use(fresh, **{topic: 100.0})])
    since = kafka.mark()
    scene.observe(alert(aged, fresh, expiresWithin="48h"))
    asked = [name for request in requests(kafka, "DESCRIBE_GROUPS", since) for name in request["groups"]]
    assert [name for name in asked if not name.startswith(PREFIX)] == [aged]


def _missing(pipeline: Pipeline, group: str) -> None:
    shutil.rmtree(pipeline.folder)


def _stale(pipeline: Pipeline, group: str) -> None:
    pipeline.run([idle(group)], read_at=now() - timedelta(hours=2))


def _other_cluster(pipeline: Pipeline, group: str) -> None:
    Warehouse(pipeline.folder, "somewhere-else", pipeline.topic_id, pipeline.partitions).write([idle(group)])


def _older_ones(pipeline: Pipeline, group: str) -> None:
    pipeline.cover(covered_to=0)


def _uncovered(pipeline: Pipeline, group: str) -> None:
    pipeline.cover(only=[pipeline.partitions])


def _broken(pipeline: Pipeline, group: str) -> None:
    for file in (pipeline.folder / "activity").glob("*.parquet"):
        file.unlink()


def _twice(pipeline: Pipeline, group: str) -> None:
    pipeline.run([idle(group), idle(group)])


def _cleaned(pipeline: Pipeline, group: str) -> None:
    for _ in range(3):
        pipeline.write_activity([idle(group)])
    DeltaTable(pipeline.folder / "activity").create_checkpoint()
    for file in sorted((pipeline.folder / "activity" / "_delta_log").glob("*.json"))[:-1]:
        file.unlink()


DEFECTS = [
    pytest.param(_missing, reasons.EVIDENCE_MISSING, id="missing"),
    pytest.param(_stale, reasons.EVIDENCE_STALE, id="stale"),
    pytest.param(_other_cluster, reasons.EVIDENCE_OF_ANOTHER_CLUSTER, id="of-another-cluster"),
    pytest.param(_older_ones, reasons.EVIDENCE_WENT_BACK, id="replaced-by-older-ones"),
    pytest.param(_uncovered, reasons.EVIDENCE_INCOMPLETE, id="uncovered"),
    pytest.param(_broken, reasons.EVIDENCE_UNREADABLE, id="broken"),
    pytest.param(_twice, reasons.EVIDENCE_UNREADABLE, id="by-two-pipelines-at-once"),
    pytest.param(_cleaned, reasons.EVIDENCE_UNREADABLE, id="version-cleaned-from-the-log"),
]


@pytest.mark.parametrize(("spoil", "reason"), DEFECTS)
def test_bad_tables_keep_everything(
    scene: Scene, pipeline: Pipeline, make: Maker, topic: str, spoil: Callable[[Pipeline, str], None], reason: str
) -> None:
    """A group that was due stays, with that reason; its mark waits, and it goes when the tables are good again."""
    group = make.abandoned(make.name(), topic)
    wanted = _unused(group)
    pipeline.run([idle(group)])
    scene.mark(wanted, scene.observe(wanted))
    scene.clock.moved += timedelta(seconds=2)
    spoil(pipeline, group)
    bad = scene.observe(wanted)
    assert verdicts(bad, wanted) == {group: reason}
    plan = scene.mark(wanted, bad)
    assert (plan.due, plan.marked) == ((), (group,))
    pipeline.run([idle(group)])
    good = scene.observe(wanted)
    assert good.snapshot.coverage is not None
    assert good.snapshot.coverage.problem is None
    outcomes = scene.apply(scene.planned(good, wanted), good)
    assert [(outcome.group, outcome.kind) for outcome in outcomes] == [(group, OutcomeType.DELETED)]


@pytest.mark.parametrize(("spoil", "reason"), DEFECTS)
def test_tables_are_read_again_before_a_deletion(
    scene: Scene, pipeline: Pipeline, make: Maker, topic: str, spoil: Callable[[Pipeline, str], None], reason: str
) -> None:
    """What went bad after the scan keeps the group, too."""
    group = make.abandoned(make.name(), topic)
    wanted = _unused(group)
    pipeline.run([idle(group)])
    observation, plan = scene.due(wanted)
    assert plan.actions == (group,)
    spoil(pipeline, group)
    outcomes = scene.apply(plan, observation)
    assert [(outcome.kind, outcome.reason) for outcome in outcomes] == [(OutcomeType.NOT_DELETED, reason)]
    assert group in make.groups()


def test_newer_tables_decide(scene: Scene, pipeline: Pipeline, make: Maker, topic: str) -> None:
    """A run of the pipeline between scan and deletion that found a commit keeps the group."""
    group = make.simple(make.name(), at(topic))
    wanted = _unused(group)
    pipeline.run([simple(group)])
    observation, plan = scene.due(wanted)
    pipeline.run([simple(group, 0.1)])
    assert [outcome.reason for outcome in scene.apply(plan, observation)] == [reasons.TOO_RECENT]


def test_a_commit_that_the_tables_have_not_seen(scene: Scene, pipeline: Pipeline, make: Maker, topic: str) -> None:
    """The same offset again changes nothing that a broker tells: only the end of the log shows it."""
    group = make.simple(make.name(), at(topic))
    wanted = _unused(group)
    pipeline.run([simple(group)])
    make.simple(group, at(topic))
    observation, plan = scene.due(wanted)
    assert plan.actions == (group,)
    assert [outcome.reason for outcome in scene.apply(plan, observation)] == [reasons.RECENTLY_ACTIVE]
    assert group in make.groups()


def test_a_mark_made_before_the_last_use_is_made_again(
    scene: Scene, pipeline: Pipeline, make: Maker, topic: str
) -> None:
    """Used after it was marked, and idle again when the tables are read: nobody was warned since. The same holds where
    only the tables that are read right before the deletion show it.
    """
    group = make.simple(make.name(), at(topic))
    wanted = _unused(group, idleFor="1s")

    def used() -> None:
        make.simple(group, at(topic))
        moment = now()
        time.sleep(1.5)
        pipeline.run([simple(group, last_commit=moment, oldest_commit=moment)])

    pipeline.run([simple(group)])
    scene.mark(wanted, scene.observe(wanted))
    used()
    observation = scene.observe(wanted)
    plan = scene.mark(wanted, observation)
    assert verdicts(observation, wanted) == {group: MATCH}
    assert (len(plan.due), set(plan.marking)) == (0, {group})
    time.sleep(1.5)
    observation = scene.observe(wanted)
    plan = scene.planned(observation, wanted)
    assert plan.actions == (group,)
    used()
    assert [outcome.reason for outcome in scene.apply(plan, observation)] == [reasons.RECENTLY_ACTIVE]
    assert group in make.groups()


def test_how_far_they_were_seen_outlives_the_process(scene: Scene, pipeline: Pipeline, make: Maker, topic: str) -> None:
    """The ledger remembers it: a process that never saw the newer tables tells the older ones from them."""
    group = make.abandoned(make.name(), topic)
    wanted = _unused(group)
    pipeline.run([idle(group)])
    scene.mark(wanted, scene.observe(wanted))
    (mark,) = [entry for entry in _entries(scene) if isinstance(entry, LargestCoverage)]
    assert (mark.connection_uid, len(mark.to)) == (scene.connection.uid, pipeline.partitions)
    scene.memory = Memory()
    scene.context = scene.open()
    _older_ones(pipeline, group)
    assert verdicts(scene.observe(wanted), wanted) == {group: reasons.EVIDENCE_WENT_BACK}


def test_without_tables(client: Client, make: Maker, topic: str) -> None:
    """A connection that names none keeps all that is asked about them, and says so."""
    group, scene = make.abandoned(make.name(), topic), Scene(client)
    delete, warn = _unused(group), alert(group, expiresWithin="1h")
    observation = scene.observe(delete, warn)
    for wanted in (delete, warn):
        assert verdicts(observation, wanted) == {group: reasons.EVIDENCE_NOT_CONFIGURED}
    coverage = observation.snapshot.coverage
    assert coverage is not None
    assert coverage.problem is not None
    assert coverage.problem.reason == reasons.EVIDENCE_NOT_CONFIGURED


def test_one_query_for_all_policies(
    scene: Scene, pipeline: Pipeline, make: Maker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are read once a scan, about all groups that some policy asks for; else only at a full look."""
    groups = {make.abandoned(make.name(), topic) for _ in range(2)}
    pipeline.run(map(idle, groups))
    asked: list[set[str]] = []
    read = Tables.read

    def noted(self: Tables, names: Any, seconds: float, older: Any = None) -> Any:
        asked.append(set(names))
        return read(self, names, seconds, older)

    monkeypatch.setattr(Tables, "read", noted)
    seen = policy(*groups, name="seen")
    scene.observe(_unused(*groups), alert(*groups, idleFor="1h"), seen)
    assert asked == [groups]
    scene.observe(seen)
    assert asked == [groups]
    full = scene.observe(full=True)
    assert asked == [groups, set()]
    assert full.snapshot.coverage is not None
    assert full.snapshot.coverage.problem is None


def test_ends_are_asked_after_all_offsets(
    scene: Scene, pipeline: Pipeline, make: Maker, topic: str, kafka: KafkaCluster
) -> None:
    """A policy that needs no tables waits for one that does: once for both, and no offset is newer than its end."""
    group = make.abandoned(make.name(), topic, commit=at(topic) | at(make.topic(records=1)))
    live = make.name("live")
    make.join(live, topic, commit=at(topic))
    pipeline.run([idle(group)])
    behind, unused = alert(live, lag={"atLeast": 1}), _unused(group, lag={"atLeast": 1})
    mark = kafka.mark()
    observation = scene.observe(behind, unused)
    assert verdicts(observation, behind) == {live: MATCH}
    assert verdicts(observation, unused) == {group: MATCH}
    asked = [named["name"] for body in requests(kafka, "LIST_OFFSETS", mark) for named in body["topics"]]
    assert [name for name in asked if name == topic] == [topic, topic], "where it begins and where it ends"


def test_what_kafka_will_drop(scene: Scene, pipeline: Pipeline, make: Maker, topic: str) -> None:
    """By the brokers' own retention, of a week: told before, and told where a policy would come too late."""
    first, later = make.abandoned(make.name("first"), topic), make.abandoned(make.name("later"), topic)
    pipeline.run([idle(first, 150), idle(later, 1)])
    warn, late = alert(first, later, expiresWithin="24h"), _unused(first, later, idleFor="168h")
    observation = scene.observe(warn, late)
    assert verdicts(observation, warn) == {first: MATCH, later: reasons.EXPIRES_LATER}
    assert verdicts(observation, late) == dict.fromkeys((first, later), reasons.EXPIRES_FIRST)
