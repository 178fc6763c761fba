"""Suggests policies for the name patterns with the most groups, after trying each on the past."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.backtest.lives import extent
from group_hygiene.pipeline.backtest.run import Backtest, Terms, Tried, backtest
from group_hygiene.pipeline.backtest.tally import Regret
from group_hygiene.pipeline.backtest.trial import MATCH
from group_hygiene.pipeline.name_patterns import too_general
from group_hygiene.pipeline.tables import ACTIVITY
from group_hygiene.report.findings import Findings, RegrettedGroup, Suggestion, Unit
from group_hygiene.spec.crds import API_VERSION
from group_hygiene.spec.fields import format_duration
from group_hygiene.spec.policy import parse_policy

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


def with_suggestions(
    spark: SparkSession, warehouse: str, findings: Findings, report: Callable[[str], None] = lambda line: None
) -> Findings:
    """The findings of `survey` with `began` and `suggestions`, or with a note if the history is too short."""
    try:
        reach = extent(warehouse)
    except PipelineError as error:
        return replace(findings, notes=[*findings.notes, f"No policy could be tried on the past: {error}."])
    findings = replace(findings, began=reach.began)
    worth = [pattern for pattern in _patterns(findings.units) if _worth(pattern)][:_MOST]
    history = reach.read_at - reach.began
    if history < _ENOUGH:
        # May be negative: one partition's first read may be after another's last read.
        so_far = format_duration(max(timedelta(), history) // timedelta(minutes=1) * timedelta(minutes=1))
        note = (
            f"The history in the tables is {so_far} long: policies are suggested here once the pipeline has run for "
            f"{_ENOUGH.days} days."
        )
        return replace(findings, notes=[*findings.notes, note])
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


def _worth(pattern: Unit) -> bool:
    """Only generated names: the services `svc-billing`, `svc-shipping` and so on have a pattern `svc-*`, too.

    No pattern that begins with a star: names like `*-consumer` are often services.
    """
    narrow = pattern.made and not pattern.pattern.startswith(("*", "{")) and not too_general(pattern.pattern)
    return narrow and pattern.idle >= _LEAST_IDLE and len(pattern.pattern) <= _PATTERN_LENGTH


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
        why_not = (
            "Each idleFor that was tried would have deleted groups that were used again, or none at all, or is longer "
            f"than Kafka's own retention ({format_duration(retention)})."
        )
        return replace(made, why_not=why_not if tried.deleted else _why_nothing(tried))
    spec = {**obj["spec"], "when": {"idleFor": format_duration(best.period)}}
    days = max(1, (found.steps.end - found.steps.start) // timedelta(days=1))
    result = f"In the last {days} days: {best.deleted:,} groups deleted, none of them used again. This is a dry run."
    adapt = "Replace namespace and connectionRef: they are placeholders."
    # Invisible and bidirectional characters are written as escapes.
    plain = pattern.pattern.isprintable()
    text = f"# {result}\n# {adapt}\n{yaml.safe_dump({**obj, 'spec': spec}, sort_keys=False, allow_unicode=plain)}"
    return replace(made, policy=text, idle_for=best.period, deleted=best.deleted, regret=best.regret)


def _why_nothing(tried: Tried) -> str:
    refused = {reason: many for reason, many in tried.reasons.items() if reason != MATCH}
    if not refused:
        return "A policy would have deleted nothing: the groups are used again, or expire, before."
    most = max(refused, key=lambda reason: refused[reason])
    return f"A policy would have deleted nothing: checks refuse these groups, most of them as {most}."
