"""Policies on trial over real tables: each step, each deletion that would have hurt, and the operator's own verdict."""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from group_hygiene.engine.checks import judge
from group_hygiene.engine.recovery import LedgerNeed
from group_hygiene.errors import PipelineError
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka.client import Client
from group_hygiene.pipeline.backtest import run
from group_hygiene.pipeline.backtest.replay import Trial
from group_hygiene.pipeline.backtest.run import Backtest, Terms, backtest
from group_hygiene.pipeline.backtest.tally import extent, histories, lives
from group_hygiene.pipeline.ingest.reading import ingest
from group_hygiene.spec.connection import ActivitySpec
from group_hygiene.spec.fields import format_duration
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Policy, parse_policy
from tests.kafka.makers import Maker, at
from tests.kafka.members import StreamsMember, part
from tests.kafka.scene import Clock, Scene
from tests.spark.histories import HOUR, START, moment

_RETENTION = timedelta(minutes=10080)


def policy(name: str = "idle", groups: str = "*", **spec: Any) -> Policy:
    """Delete after two hours without use and one of grace."""
    whole = {
        "connectionRef": {"name": "main"},
        "interval": "10m",
        "match": {"groups": [groups]},
        "when": {"idleFor": "2h"},
        "action": "Delete",
        "delete": {"gracePeriod": "1h"},
    } | spec
    whole = {name: field for name, field in whole.items() if field is not None}
    return parse_policy({"metadata": {"namespace": "kafka", "name": name, "uid": name}, "spec": whole})


def tried(spark: SparkSession, warehouse: str, *policies: Policy, **terms: Any) -> Backtest:
    given = Terms(**({"step": timedelta(hours=1)} | terms))
    return backtest(spark, warehouse, policies, given)


def test_every_step(spark: SparkSession, lived: str) -> None:
    """Who is there, matches, is marked and deleted at each step; and whom it hurts."""
    found = tried(spark, lived, policy())
    (one,) = found.tried
    assert (found.steps.start, found.steps.end, len(one.days)) == (START, START + timedelta(days=1), 25)
    counts = {
        round((day.at - START) / timedelta(hours=1)): (day.groups, day.matched, day.marked, day.deleted, day.regret)
        for day in one.days
    }
    assert counts[0] == (0, 0, 0, 0, 0)
    # There are: two console consumers, weekly, steady and expired.
    assert counts[2] == (5, 0, 0, 0, 0)
    # weekly and the first console consumer are idle since 0.25 and 0.75; expired was too, and is gone since 2.5.
    assert counts[3] == (5, 2, 3, 0, 0)
    # Both are deleted in that hour, and the second console consumer is marked.
    assert counts[4] == (5, 1, 1, 2, 1)
    assert counts[24] == (6, 0, 0, 0, 0)
    assert (one.deleted, one.regret) == (4, 1)
    (regret,) = one.regrets
    assert (regret.group, regret.by) == ("weekly", "Join")
    times = (regret.marked_at, regret.deleted_at, regret.back_at)
    # At looks ten minutes apart: idle for two hours at 2:15, and over its grace period an hour after it was marked.
    assert times == (moment(2 * HOUR + 1200), moment(3 * HOUR + 1200), moment(6.5 * HOUR + 1))


def test_other_periods(spark: SparkSession, lived: str) -> None:
    """What longer and shorter periods would have done, all together and by patterns of names."""
    (one,) = tried(spark, lived, policy()).tried
    by_hours = {variant.period / timedelta(hours=1): (variant.deleted, variant.regret) for variant in one.periods}
    # At an hour, `expired` too: Kafka was not faster.
    assert by_hours == {1: (5, 1), 2: (4, 1), 3: (4, 1), 4: (4, 1), 6: (4, 0), 8: (4, 0), 12: (4, 0), 16: (4, 0)}
    graces = {variant.period / timedelta(hours=1): (variant.deleted, variant.regret) for variant in one.graces}
    assert graces == {1: (4, 1), 2: (4, 1), 4: (4, 1), 7: (4, 0)}
    safe = {pattern.pattern: (pattern.own.deleted, pattern.own.regret, pattern.safe) for pattern in one.patterns}
    assert safe == {
        "console-consumer-*": (3, 0, timedelta(hours=1)),
        "weekly": (1, 1, timedelta(hours=6)),
        "expired": (0, 0, timedelta(hours=1)),
    }


def test_an_interrupted_backtest_does_not_wait(
    spark: SparkSession, lived: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come before Spark has a job to cancel."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_report_tasks", interrupted)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        tried(spark, lived, policy())
    (job,) = (thread for thread in threading.enumerate() if thread not in before)
    assert job.is_alive()
    job.join()


def test_several_policies(spark: SparkSession, lived: str) -> None:
    """Each of several is on trial by itself; what the connection protects is not deleted."""
    narrow = policy("narrow", "console-consumer-*")
    policies = [
        policy(),
        narrow,
        policy("protected", connectionRef={"name": "other"}),
        policy("alert", action="Alert", delete=None, match={"groups": ["*"], "states": ["Empty"]}),
    ]
    protect = {("kafka", "other"): Patterns(["weekly"]), ("elsewhere", "main"): Patterns(["*"])}
    found = backtest(spark, lived, policies, Terms(step=timedelta(hours=1), protect=protect))
    assert [(one.policy.name, one.deleted, one.regret) for one in found.tried] == [
        ("idle", 4, 1),
        ("narrow", 3, 0),
        ("protected", 3, 0),
        ("alert", 0, 0),
    ]
    assert found.tried[2].reasons == {"Match": 3, "Protected": 1, "TooRecent": 2}
    assert max(day.matched for day in found.tried[3].days) == 4


def test_an_alert_alone(spark: SparkSession, lived: str) -> None:
    """No other periods are tried, as nothing is deleted; it is known how many groups match."""
    (one,) = tried(
        spark, lived, policy("alert", action="Alert", delete=None, match={"groups": ["*"], "states": ["Empty"]})
    ).tried
    assert (one.deleted, max(day.matched for day in one.days)) == (0, 4)
    assert (one.periods, one.graces, one.patterns) == ([], [], [])
    assert one.reasons == {"Match": 4, "TooRecent": 2}


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        pytest.param({"end": moment(48 * HOUR)}, "is later than the log was read", id="future"),
        pytest.param({"end": moment(-60)}, "is before the history: the tables hold", id="early"),
        pytest.param({"start": moment(60), "end": moment(30)}, "that range is empty", id="empty"),
        pytest.param({"start": moment(0), "end": moment(60)}, "no step of 1h: take a shorter --step", id="step"),
        pytest.param({"step": timedelta(seconds=1)}, "86,401 steps of 1s are too many", id="many"),
    ],
)
def test_a_range_in_which_there_is_nothing(
    spark: SparkSession, lived: str, terms: dict[str, Any], message: str
) -> None:
    """A range that the tables can tell nothing of is refused, and it is said what they hold."""
    with pytest.raises(PipelineError, match=message):
        tried(spark, lived, policy(), **terms)


def test_history_is_too_short(spark: SparkSession, lived: str) -> None:
    """Without regret, since nobody could have come back: that would be no news."""
    with pytest.raises(
        PipelineError,
        match=r"is 24h long, shorter than its idleFor and gracePeriod of 121h: .* enough from 2026-11-25T13",
    ):
        tried(spark, lived, policy(when={"idleFor": "120h"}))


def test_the_last_look_is_at_the_end(spark: SparkSession, lived: str) -> None:
    """Whatever the start: what is said of the last step is said of the end. Before the history there is nothing."""
    for start, first in ((-10.0, 1.5), (2.25, 3.5)):
        terms = {"start": moment(start * HOUR), "end": moment(7.5 * HOUR), "step": timedelta(hours=2)}
        found = tried(spark, lived, policy(), **terms)
        assert (found.steps.start, found.steps.end) == (moment(first * HOUR), moment(7.5 * HOUR))


def test_one_that_is_too_long_stops_no_other(spark: SparkSession, lived: str) -> None:
    """It is said why it was not tried."""
    found = tried(spark, lived, policy("long", when={"idleFor": "120h"}), policy())
    assert [one.policy.name for one in found.tried] == ["idle"]
    (why,) = found.untried
    assert why.startswith("GroupPolicy kafka/long: the history from 2026-11-20T12:00:00Z on is 24h long, shorter than")


def test_no_tables(spark: SparkSession, warehouse: str) -> None:
    """Nothing to look back on: what to do."""
    with pytest.raises(PipelineError, match=r"no tables at .*: run `group-hygiene pipeline run` first"):
        tried(spark, warehouse, policy())


class Frozen(Clock):
    """It is always the same moment."""

    def __init__(self, moment: datetime) -> None:
        super().__init__()
        self._moment = moment

    def now(self) -> datetime:
        return self._moment


def random_policy(chance: random.Random, number: int, tag: str, longest: float) -> Policy:
    """Any policy whose conditions the tables tell, with times like those that groups of the test have.

    Not `unchangedFor`, which asks for looks that an operator of now has not taken.
    """

    def period(most: float) -> str:
        return format_duration(timedelta(seconds=chance.uniform(1, most)))

    names = [f"{tag}*", f"{tag}-simple*", f"*{tag}*-old", f"{tag}-c*", "*", f"{tag}*used*", f"connect-{tag}*"]
    action = chance.choice(["Delete", "Delete", "Alert"])
    match: dict[str, Any] = {"groups": chance.sample(names, chance.randint(1, 2))}
    when: dict[str, Any] = {}
    if chance.random() < 0.3:
        # None that leaves no group.
        starts = {name: name.rstrip("*") for name in names}
        some = [name for name in names if not all(group.startswith(starts[name]) for group in match["groups"])]
        match["exclude"] = chance.sample(some, 1)
    if chance.random() < 0.3:
        match["types"] = chance.choice([["Classic"], ["Consumer"], ["Classic", "Consumer", "Streams"]])
    if action == "Delete" and chance.random() < 0.3:
        match["unprotect"] = chance.sample(["Connect", "Streams", "MirrorMaker"], chance.randint(1, 3))
    if chance.random() < 0.3:
        match["states"] = chance.choice(
            [["Empty"], ["Empty", "Dead"]] if action == "Delete" else [["Stable"], ["Empty"]]
        )
    if action == "Delete" or chance.random() < 0.6:
        when["idleFor"] = period(longest)
    if chance.random() < 0.4:
        # Around the moment at which each group's offsets expire.
        when["expiresWithin"] = format_duration(_RETENTION - timedelta(seconds=chance.uniform(0, longest)))
    if chance.random() < 0.2 and "expiresWithin" not in when:
        when["committedOffsets"] = "Absent"
    spec = {"connectionRef": {"name": "main"}, "match": match, "action": action} | ({"when": when} if when else {})
    if action == "Delete":
        spec["delete"] = {"gracePeriod": "1s"}
    return parse_policy({"metadata": {"namespace": "kafka", "name": f"p{number}", "uid": f"u{number}"}, "spec": spec})


def test_today_is_what_the_operator_decides(spark: SparkSession, client: Client, make: Maker, warehouse: str) -> None:
    """The verdict of the last step on each group is the operator's own, reason by reason, for a thousand policies.

    A real cluster, the operator's own scan of it, and its tables as the pipeline made them. The clock stands still at
    the moment up to which the tables tell: what comes after, only the operator sees. So is what members subscribe to,
    which is taken from it.
    """

    def run() -> None:
        ingest(spark, client, warehouse, lambda line: None)

    tag, topic = make.name("today"), make.topic(records=9)
    make.simple(make.name("first"), at(topic))
    run()
    began = time.monotonic()
    for age in ("old", "new"):
        make.simple(f"{tag}-simple-{age}", at(topic, 2))
        make.abandoned(f"{tag}-classic-{age}", topic, commit=at(topic, 3))
        make.abandoned(f"{tag}-consumer-{age}", topic, "consumer", commit=at(topic, 3))
        make.abandoned(f"connect-{tag}-{age}", topic, commit=at(topic, 1))
        make.abandoned(f"{tag}-without-offsets-{age}", topic)
        make.join(f"{tag}-used-{age}", topic, "classic" if age == "old" else "consumer", at(topic, 4))
        # However quick all else is: so much older than others.
        time.sleep(3)
    reused = make.abandoned(f"{tag}-classic-reused", topic)
    make.simple(reused, at(topic, 5))
    gone = make.simple(f"{tag}-simple-gone", at(topic, 2))
    make.delete_group(gone)
    make.simple(f"{tag}-simple-again", at(topic, 2))
    make.simple(f"{tag}-simple-again", at(topic, 2))
    chance, protect = random.Random(20), [f"{tag}-consumer-new"]
    scene = Scene(client, protect, need=LedgerNeed.READ)
    with StreamsMember(client, f"{tag}-used-streams", [part("0", [topic])]):
        run()
        longest = time.monotonic() - began - 3
        reach = extent(warehouse)
        policies = [random_policy(chance, number, tag, longest) for number in range(1_000)]
        scene.clock = Frozen(reach.read_at.astimezone(UTC))
        scene.use(Tables(ActivitySpec(warehouse)))
        scene.context = scene.open()
        observation = scene.observe(*policies)
    protects = {("kafka", "main"): Patterns(protect)}
    step = timedelta(seconds=1)
    found = backtest(spark, warehouse, policies, Terms(step=step, retention=_RETENTION, protect=protects))
    assert found.steps.end == reach.read_at
    rows = lives(spark, warehouse, reach, found.steps).toArrow().to_batches()
    then = [history for _, history in histories(rows, reach, found.steps.start) if tag in history.name]

    shown: set[str] = set()
    for one in found.tried:
        refusals = {
            name: judge(
                one.policy, seen.group, structs.replace(seen.evidence, subscribed=None), scene.clock.now()
            ).refusal
            for name, seen in observation.verdicts[one.policy.key].items()
            if tag in name
        }
        wanted = {name: "Match" if refusal is None else refusal.reason for name, refusal in refusals.items()}
        trial = Trial(one.policy, found.steps.start, found.steps.end, Patterns(protect), _RETENTION)
        reasons = ((history.name, trial.reason(history)) for history in then)
        assert {name: reason for name, reason in reasons if reason is not None} == wanted, one.policy
        shown |= set(wanted.values())
    assert shown >= {"Match", "TooRecent", "ConnectGroup", "Protected", "NotEmpty", "HasOffsets", "ExpiresLater"}
