"""Tries policies on the past of a cluster: each one's deletions at every step, and those of groups used again later.

`with_suggestions` tries policies for the name patterns with the most groups. Reads the pipeline's tables, writes
nothing and does not connect to Kafka. Python in Spark's workers replays each group once, and returns counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from group_hygiene.errors import PipelineError
from group_hygiene.observe.findings import Findings, RegrettedGroup, Suggestion, Unit, duration, period
from group_hygiene.pipeline.backtest.replay import MATCH, Steps, Trial
from group_hygiene.pipeline.backtest.tally import (
    ALL,
    SCHEMA,
    Extent,
    OnTrial,
    Regret,
    Sums,
    counted,
    extent,
    lives,
    tally,
)
from group_hygiene.pipeline.name_patterns import too_general
from group_hygiene.pipeline.tables import ACTIVITY
from group_hygiene.spec.crds import API_VERSION
from group_hygiene.spec.fields import format_duration, timestamp, whole_seconds
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Action, Policy, parse_policy

_MOST_STEPS = 2_000
_REPORT_EVERY_S = 5.0
# Multiples of the policy's own periods that are tried, too.
_PERIODS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_GRACES = (1.0, 2.0, 4.0, 7.0)
# Instead of a row of `tally.counted`, if there is none.
_NO_GROUP = {"deleted": repeat(0), "regretted": repeat(0)}
# Adaptive plans make as many tasks as there are data. Small ones: their Python takes far longer than reading them, so
# cores don't wait long for the last ones.
_SETTINGS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "400",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "4m",
}
# Patterns with fewer idle groups get no policy.
_LEAST_IDLE = 10
_MOST, _LIVES = 10, 3
# The least that is suggested; its multiples are tried, too.
_IDLE_FOR = timedelta(hours=24)
_STEP = timedelta(days=1)
# In a shorter history, weekly use occurs at most once.
_ENOUGH = timedelta(days=14)
# Explicit in the policy, independent of defaults.
_INTERVAL, _GRACE = "10m", "24h"
# The CRD's limit.
_PATTERN_LENGTH = 255


@dataclass(frozen=True, slots=True)
class Terms:
    """The range of a backtest. start: a time, or a duration before the end. None = all that the tables hold.

    step: of the result; scans follow the policies' intervals. retention: offsets.retention.minutes, None = unknown.
    protect: of connections, by their namespace and name.
    """

    start: datetime | timedelta | None = None
    end: datetime | None = None
    step: timedelta = timedelta(days=1)
    retention: timedelta | None = None
    protect: Mapping[tuple[str, str], Patterns] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Day:
    """One step. groups: all existing ones. matched: those that match. marked, deleted: at this step. regret: of the
    deleted, those that were used again later."""

    at: datetime
    groups: int
    matched: int
    marked: int
    deleted: int
    regret: int


class Variant(NamedTuple):
    """The result of the policy with another period, in numbers of groups."""

    period: timedelta
    deleted: int
    regret: int

    @property
    def safe(self) -> bool:
        """Whether it deletes groups, and neither it nor a longer period, which deletes no others, causes a regret."""
        return self.deleted > 0 and not self.regret


@dataclass(frozen=True, slots=True)
class OfPattern:
    """The groups of one name pattern. own: with the policy's own period. variants: see Tried.periods."""

    pattern: str
    own: Variant
    variants: Sequence[Variant]

    @property
    def safe(self) -> timedelta | None:
        """The least period that deletes groups, and from which on none causes a regret; None = there is none."""
        return next((variant.period for variant in self.variants if variant.safe), None)


@dataclass(frozen=True, slots=True)
class Tried:
    """The results of one policy.

    unwatched: deletions so late that the tables end before the group would be idle for as long again.
    periods: with another idleFor, or unchangedFor if the policy has only that. graces: with another gracePeriod.
    regrets: the first `tally.REGRETS`. patterns: the `tally.PATTERNS` with the most deletions under any of the periods.
    reasons: of the selected groups at the end, by their real state: Match, or the reason of the refusal -> groups.
    """

    policy: Policy
    days: Sequence[Day]
    regrets: Sequence[Regret]
    unwatched: int
    periods: Sequence[Variant]
    graces: Sequence[Variant]
    patterns: Sequence[OfPattern]
    reasons: Mapping[str, int]

    @property
    def deleted(self) -> int:
        return sum(day.deleted for day in self.days)

    @property
    def regret(self) -> int:
        return sum(day.regret for day in self.days)


@dataclass(frozen=True, slots=True)
class Backtest:
    """The results of all policies over the same steps. reach: the tables' range. untried: why others were not tried."""

    reach: Extent
    steps: Steps
    tried: Sequence[Tried]
    untried: Sequence[str] = ()


def steps_of(terms: Terms, reach: Extent) -> Steps:
    """The steps of the result: the last one is the end, and the first is not before the start, nor the history.

    Raises PipelineError, with the tables' range, for a range without steps.
    """
    held = f"the tables hold the history from {timestamp(reach.began)} to {timestamp(reach.read_at)}"
    end = terms.end or reach.read_at
    asked = end - terms.start if isinstance(terms.start, timedelta) else terms.start
    for option, moment in (("--to", end), ("--from", asked)):
        if moment is not None and moment > reach.read_at:
            raise PipelineError(f"{option} {timestamp(moment)} is later than the log was read: {held}")
    if asked is not None and asked > end:
        raise PipelineError(f"--from {timestamp(asked)} is after --to {timestamp(end)}: that range is empty; {held}")
    start = max(asked or reach.began, reach.began)
    if start > end:
        raise PipelineError(f"--to {timestamp(end)} is before the history: {held}")
    count = (end - start) // terms.step
    steps = Steps(end - count * terms.step, terms.step, count + 1)
    if steps.count < 2:
        raise PipelineError(
            f"between {timestamp(start)} and {timestamp(end)} there is no step of {format_duration(terms.step)}: take "
            f"a shorter --step, or a longer range; {held}"
        )
    if steps.count > _MOST_STEPS:
        raise PipelineError(
            f"{steps.count:,} steps of {format_duration(terms.step)} are too many: take a longer --step, or a shorter "
            f"range, for {_MOST_STEPS:,} at most"
        )
    return steps


def too_short(trial: Trial, reach: Extent) -> str | None:
    """Why a range is too short for a policy: no group could have been used again after a deletion. None = it is not."""
    policy, needed = trial.policy, trial.waits
    field = "idleFor" if policy.when.idle_for else "unchangedFor"
    if policy.action is Action.DELETE:
        field, needed = f"{field} and gracePeriod", needed + policy.grace_period
    held = reach.read_at - trial.start
    if held >= needed:
        return None
    length = format_duration(whole_seconds(held))
    return (
        f"GroupPolicy {policy.key}: the history from {timestamp(trial.start)} on is {length} long, shorter than "
        f"its {field} of {format_duration(needed)}: regrets would be unknown. The tables go back to "
        f"{timestamp(reach.began)}, which is enough from {timestamp(reach.began + needed)} on"
    )


def backtest(
    spark: SparkSession,
    warehouse: str,
    policies: Sequence[Policy],
    terms: Terms,
    report: Callable[[str], None] = lambda line: None,
) -> Backtest:
    """Try these policies. report: gets lines of progress.

    Raises PipelineError if the tables don't cover the range, or if it is too short for all policies.
    """
    reach = extent(warehouse)
    steps = steps_of(terms, reach)

    def trial_of(policy: Policy) -> Trial:
        protect = terms.protect.get((policy.connection_namespace, policy.connection_name))
        return Trial(policy, steps.start, steps.end, protect, terms.retention)

    judged = [(trial, too_short(trial, reach)) for trial in map(trial_of, policies)]
    untried = [why for _, why in judged if why is not None]
    if len(untried) == len(policies):
        raise PipelineError("; ".join(untried))
    bench = [_on_trial(trial, steps) for trial, why in judged if why is None]
    report(
        f"backtest: {steps.count:,} steps from {timestamp(steps.start)} to {timestamp(steps.end)}, "
        f"{len(bench)} policies"
    )
    # A session of its own, for its settings.
    spark = spark.newSession()
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    records = lives(spark, warehouse, reach, _slices(bench, steps))
    counts = partial(tally, bench=bench, steps=steps, reach=reach)
    rows = records.mapInArrow(counts, from_arrow_schema(SCHEMA))
    pool = ThreadPoolExecutor(1)
    try:
        job = pool.submit(counted, rows, bench)
        _report_tasks(spark, job, report)
    finally:
        # After an interruption, the end of the session ends the job.
        pool.shutdown(wait=False)
    sums = job.result()
    return Backtest(reach, steps, [_tried(number, one, sums, steps) for number, one in enumerate(bench)], untried)


def _report_tasks(spark: SparkSession, job: Future[Any], report: Callable[[str], None]) -> None:
    """Until the job is done, report every few seconds the tasks of the newest stage, on changes."""
    last, tracker = (0, 0), spark.sparkContext.statusTracker()
    while wait([job], _REPORT_EVERY_S).not_done:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        found = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
        now = found[-1] if found else (0, 0)
        if now != last and now[0]:
            report(f"backtest: {now[0]} of {now[1]} parts")
        last = now


def _on_trial(trial: Trial, steps: Steps) -> OnTrial:
    policy = trial.policy
    if policy.action is not Action.DELETE:
        return OnTrial(trial, (), ())

    def others(factors: Iterable[float], own: timedelta, other: Callable[[timedelta], Trial]) -> list[Trial]:
        """With periods in whole seconds, ascending, always with the policy's own."""
        second, longest = timedelta(seconds=1), steps.every * steps.count
        tried = (max(second, factor * own // second * second) for factor in factors if factor != 1)
        periods = {own, *(period for period in tried if period <= longest)}
        return [trial if period == own else other(period) for period in sorted(periods)]

    graces = others(_GRACES, policy.grace_period, trial.with_grace)
    return OnTrial(trial, others(_PERIODS, trial.waits, trial.with_idle_for), graces)


def _slices(bench: Sequence[OnTrial], steps: Steps) -> Steps:
    """Slices of the steps' length, or shorter, so that no group can be deleted and used again within one."""
    waits = [one.periods[0].waits + one.graces[0].policy.grace_period for one in bench if one.periods]
    parts = -(-steps.every // min([*waits, steps.every]))
    while steps.every / parts * parts != steps.every:
        parts += 1
    return Steps(steps.start, steps.every / parts, (steps.count - 1) * parts + 1)


def _tried(number: int, one: OnTrial, rows: Sums, steps: Steps) -> Tried:
    def by_step(policy: int, what: str) -> list[int]:
        found = {row["step"]: row["many"] for row in rows[policy, what]}
        return [found.get(step, 0) for step in range(steps.count)]

    states = (accumulate(by_step(*key)) for key in ((ALL, "there"), (number, "matched")))
    changes = (by_step(number, what) for what in ("marked", "deleted", "regretted"))
    periods = [trial.waits for trial in one.periods]
    graces = [trial.policy.grace_period for trial in one.graces]
    patterns = ((row["text"], _variants(periods, row)) for row in rows[number, "pattern"])
    return Tried(
        policy=one.trial.policy,
        days=[Day(steps.at(step), *many) for step, many in enumerate(zip(*states, *changes, strict=True))],
        regrets=[Regret(**row["regret"]) for row in rows[number, "regret"]],
        unwatched=sum(row["many"] for row in rows[number, "unwatched"]),
        periods=_variants(periods, *rows[number, "period"]),
        graces=_variants(graces, *rows[number, "grace"]),
        patterns=[OfPattern(name, variants[one.own], variants) for name, variants in patterns],
        reasons={row["text"]: row["many"] for row in rows[number, "reason"]},
    )


def _variants(periods: Sequence[timedelta], row: Mapping[str, Any] = _NO_GROUP) -> list[Variant]:
    # Another policy may have more periods.
    return [Variant(*each) for each in zip(periods, row["deleted"], row["regretted"], strict=False)]


def with_suggestions(
    spark: SparkSession, warehouse: str, findings: Findings, report: Callable[[str], None] = lambda line: None
) -> Findings:
    """The findings of `survey` with `began` and `suggestions`, or with a note if the history is too short."""
    try:
        reach = extent(warehouse)
    except PipelineError as error:
        return replace(findings, notes=[*findings.notes, f"No policy could be tried on the past: {error}."])
    patterns = _patterns(findings.units)
    untried = {unit.pattern: why for unit in patterns if (why := _why_untried(unit))}
    worth = [unit for unit in patterns if unit.pattern not in untried]
    limit = f"not tried: limit of {_MOST} patterns"
    findings = replace(findings, began=reach.began, untried=untried | {unit.pattern: limit for unit in worth[_MOST:]})
    worth = worth[:_MOST]
    history = reach.read_at - reach.began
    if history < _ENOUGH:
        # May be negative: one partition's first read may be after another's last read.
        note = (
            f"The history in the tables is {duration(history)} long: policies are suggested here once the pipeline has "
            f"run for {_ENOUGH.days} days."
        )
        short = {unit.pattern: "not tried: the history is too short" for unit in patterns}
        return replace(findings, notes=[*findings.notes, note], untried=short | untried)
    if not worth:
        return findings
    policies = _policies(worth)
    terms = Terms(step=_STEP, retention=findings.retention)
    found = backtest(spark, warehouse, list(map(parse_policy, policies)), terms, report)
    # The days of commits are known of the last ones only.
    regrets = [sorted(tried.regrets, key=lambda one: one.deleted_at)[-_LIVES:] for tried in found.tried]
    lives = _lives(spark, warehouse, [regret for some in regrets for regret in some])
    made = [
        replace(_suggestion(pattern, obj, tried, found, findings.retention), lives=[lives[one.group] for one in some])
        for pattern, obj, tried, some in zip(worth, policies, found.tried, regrets, strict=True)
    ]
    return replace(findings, suggestions=made)


def _lives(spark: SparkSession, warehouse: str, regrets: Sequence[Regret]) -> dict[str, RegrettedGroup]:
    wanted = spark.createDataFrame(pa.table({"group": pa.array({one.group for one in regrets}, pa.string())}))
    rows = ACTIVITY.read(spark, warehouse).join(F.broadcast(wanted), "group", "left_semi")
    days = rows.select("group", F.map_keys("commits_by_day").alias("days")).toArrow().to_pylist()
    used = {row["group"]: sorted(row["days"]) for row in days}
    return {
        one.group: RegrettedGroup(one.group, used.get(one.group, []), one.deleted_at, one.back_at) for one in regrets
    }


def _patterns(units: Sequence[Unit]) -> list[Unit]:
    """Units of the same pattern as one, most idle groups first: a policy selects them all."""
    found: dict[str, Unit] = {}
    for unit in units:
        one = found.get(unit.pattern)
        found[unit.pattern] = (
            unit
            if one is None
            else replace(one, groups=one.groups + unit.groups, idle=one.idle + unit.idle, made=one.made and unit.made)
        )
    return sorted(found.values(), key=lambda unit: (-unit.idle, unit.pattern))


def _why_untried(unit: Unit) -> str:
    """Why no policy is tried on a pattern; "" = one is.

    Only generated names get one: the services `svc-billing`, `svc-shipping` and so on have a pattern `svc-*`, too. A
    pattern that begins with a star gets none: names like `*-consumer` are often services.
    """
    pattern, first = unit.pattern, re.match(r"\*|\{[a-z]+\}", unit.pattern)
    reasons = {
        "single names": not pattern,
        f"begins with {first and first[0]}": first,
        f"fewer than {_LEAST_IDLE} idle groups": unit.idle < _LEAST_IDLE,
        "names look chosen by people": not unit.made,
        "may match unrelated groups": too_general(pattern),
        f"longer than {_PATTERN_LENGTH} characters": len(pattern) > _PATTERN_LENGTH,
    }
    return next((why for why, is_so in reasons.items() if is_so), "")


def _policies(patterns: Sequence[Unit]) -> list[dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for number, pattern in enumerate(patterns, 1):
        name = re.sub(r"[^a-z0-9]+", "-", pattern.pattern.lower()).strip("-")[:40].strip("-")
        name = f"idle-{name}" if name else f"idle-{number}"
        while name in made:
            name = f"{name}-{number}"
        made[name] = {
            "apiVersion": API_VERSION,
            "kind": "GroupPolicy",
            "metadata": {"name": name, "namespace": "kafka"},
            "spec": {
                "connectionRef": {"name": "main"},
                "mode": "DryRun",
                "match": {"groups": [pattern.pattern]},
                "when": {"idleFor": format_duration(_IDLE_FOR)},
                "action": "Delete",
                "delete": {"gracePeriod": _GRACE},
                "interval": _INTERVAL,
            },
        }
    return list(made.values())


def _suggestion(
    pattern: Unit, obj: Mapping[str, Any], tried: Tried, found: Backtest, retention: timedelta
) -> Suggestion:
    """A suggestion with the least idleFor that deletes groups, and from which on no idleFor causes a regret."""
    policy = tried.policy
    name = obj["metadata"]["name"]
    made = Suggestion(pattern.pattern, pattern.groups, name, "", None, tried.deleted, tried.regret, tried.periods)
    # A policy that waits longer than Kafka's retention deletes nothing.
    most = retention - policy.grace_period - policy.interval
    best = next((one for one in tried.periods if one.safe and _IDLE_FOR <= one.period <= most), None)
    if best is None:
        return replace(made, why_not=_why_none(tried, retention))
    spec = {**obj["spec"], "when": {"idleFor": format_duration(best.period)}}
    days = max(1, (found.steps.end - found.steps.start) // timedelta(days=1))
    result = f"In the last {days} days: {best.deleted:,} groups deleted, none of them used again. This is a dry run."
    adapt = "Replace namespace and connectionRef: they are placeholders."
    # Invisible and bidirectional characters are written as escapes.
    plain = pattern.pattern.isprintable()
    text = f"# {result}\n# {adapt}\n{yaml.safe_dump({**obj, 'spec': spec}, sort_keys=False, allow_unicode=plain)}"
    return replace(made, policy=text, idle_for=best.period, deleted=best.deleted, regret=best.regret)


def _why_none(tried: Tried, retention: timedelta) -> str:
    """Why no idleFor that was tried is suggested. retention: offsets.retention.minutes."""
    refused = {reason: many for reason, many in tried.reasons.items() if reason != MATCH}
    if not tried.deleted:
        if not refused:
            return "no group is deleted: all are used again, or expire, before"
        most = max(refused, key=lambda reason: refused[reason])
        return f"no group is deleted: checks refuse these, most of them as {most}"
    if safe := [one.period for one in tried.periods if one.safe and one.period >= _IDLE_FOR]:
        least = f"the least idleFor without regret ({period(safe[0])})"
        return f"{least} and its grace period exceed Kafka's retention ({period(retention)})"
    used_again = [one.period for one in tried.periods if one.regret]
    if not used_again:
        return f"no group is deleted with an idleFor of {period(_IDLE_FOR)} or more"
    upto = "" if tried.periods[-1].deleted else f" up to {period(used_again[-1])}; a longer one deletes none"
    return f"groups were used again after each idleFor{upto}"
