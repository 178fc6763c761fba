"""Policies for the patterns of names by which most groups came, each tried on the past before it is suggested."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import yaml
from pyspark.sql import SparkSession

from group_hygiene.durations import format_duration
from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.backtest import Backtest, Candidate, Terms, Tried, Variant, backtest
from group_hygiene.pipeline.history import extent
from group_hygiene.pipeline.patterns import too_general
from group_hygiene.policy import Policy, parse_policy
from group_hygiene.report.findings import Findings, Growth, Suggestion

# A pattern that has fewer idle groups is not worth a policy.
_LEAST_IDLE = 10
_MOST = 10
# The least that is suggested, whatever the past says; its multiples are tried too.
_IDLE_FOR = timedelta(hours=24)
_STEP = timedelta(days=1)
# In less, who comes back each week is seen to do so once at the most.
_ENOUGH = timedelta(days=14)
# As the policy is tried and written, whatever becomes a default later.
_INTERVAL, _GRACE = "10m", "24h"
# What the CRD takes as a pattern.
_PATTERN_LENGTH = 255


def with_suggestions(
    spark: SparkSession, warehouse: str, findings: Findings, tell: Callable[[str], None] = lambda line: None
) -> Findings:
    """The findings of `survey`, with `began` and `suggestions`; with a note instead where the past can tell nothing."""
    try:
        reach = extent(spark, warehouse)
    except PipelineError as error:
        return _noted(findings, f"No policy could be tried on the past: {error}.")
    findings = replace(findings, began=reach.began)
    worth = [pattern for pattern in findings.patterns if _worth(pattern)][:_MOST]
    held = reach.read_at - reach.began
    if held < _ENOUGH:
        return _noted(findings, _too_short(held))
    if not worth:
        return findings
    policies = _policies(worth)
    terms = Terms(step=_STEP, retention=findings.retention)
    found = backtest(spark, warehouse, [Candidate(policy) for _, policy in policies], terms, tell)
    made = [
        _suggestion(pattern, obj, tried, found, findings.retention)
        for pattern, (obj, _), tried in zip(worth, policies, found.tried, strict=True)
    ]
    return replace(findings, suggestions=made)


def _worth(pattern: Growth) -> bool:
    """Only what a program makes: of the services `svc-billing`, `svc-shipping` and so on, `svc-*` is a pattern too.

    And none that begins with a star: `*-consumer` is also what people call their services.
    """
    narrow = pattern.made and not pattern.pattern.startswith("*") and not too_general(pattern.pattern)
    return narrow and pattern.idle >= _LEAST_IDLE and len(pattern.pattern) <= _PATTERN_LENGTH


def _noted(findings: Findings, note: str) -> Findings:
    return replace(findings, notes=[*findings.notes, note])


def _too_short(held: timedelta) -> str:
    # A part of the log may have been read for the first time after another was read for the last one.
    so_far = format_duration(max(timedelta(), held) // timedelta(minutes=1) * timedelta(minutes=1))
    return (
        f"The history in the tables is {so_far} long: policies are suggested here once the pipeline has run for "
        f"{_ENOUGH.days} days."
    )


def _policies(patterns: Sequence[Growth]) -> list[tuple[dict[str, Any], Policy]]:
    made: dict[str, tuple[dict[str, Any], Policy]] = {}
    for number, pattern in enumerate(patterns, 1):
        name = re.sub(r"[^a-z0-9]+", "-", pattern.pattern.lower()).strip("-")[:40].strip("-")
        name = f"idle-{name}" if name else f"idle-{number}"
        while name in made:
            name = f"{name}-{number}"
        obj = {
            "apiVersion": "grouphygiene.io/v1alpha1",
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
        made[name] = obj, parse_policy(obj)
    return list(made.values())


def _suggestion(
    pattern: Growth, obj: Mapping[str, Any], tried: Tried, found: Backtest, retention: timedelta
) -> Suggestion:
    """With the least idleFor that would have hurt nobody, and none longer either, and that deletes anything."""
    policy = tried.policy
    others = [(variant.period, variant.deleted, variant.regret) for variant in tried.periods]
    made = Suggestion(pattern.pattern, pattern.there, "", None, tried.deleted, tried.regret, others)
    if not tried.deleted:
        return replace(made, why_not=_why_nothing(tried))
    # What takes longer than Kafka keeps offsets deletes nothing.
    most = retention - policy.grace_period - policy.interval
    hurt = max((index for index, variant in enumerate(tried.periods) if variant.regret), default=-1)
    rest: list[Variant] = [
        variant for variant in tried.periods[hurt + 1 :] if _IDLE_FOR <= variant.period <= most and variant.deleted
    ]
    if not rest:
        return replace(
            made,
            why_not="Each idleFor that was tried would have deleted groups that were used again, or none at all, or "
            f"comes after Kafka drops their offsets by itself ({format_duration(retention)}).",
        )
    best = rest[0]
    spec = {**obj["spec"], "when": {"idleFor": format_duration(best.period)}}
    days = max(1, (found.steps.end - found.steps.start) // timedelta(days=1))
    told = f"Of the last {days} days: {best.deleted:,} groups deleted, none of them used again. A dry run as it is."
    adapt = "Adapt namespace and connectionRef: they are made up."
    # What is invisible or turns the text around is written as escapes.
    plain = pattern.pattern.isprintable()
    text = f"# {told}\n# {adapt}\n{yaml.safe_dump({**obj, 'spec': spec}, sort_keys=False, allow_unicode=plain)}"
    return replace(made, policy=text, idle_for=best.period, deleted=best.deleted, regret=best.regret)


def _why_nothing(tried: Tried) -> str:
    kept = {reason: many for reason, many in tried.reasons.items() if reason != "Match"}
    if not kept:
        return "A policy would have deleted nothing: Kafka, or whoever uses these, is faster."
    most = max(kept, key=lambda reason: kept[reason])
    return f"A policy would have deleted nothing: these groups are kept, most of them as {most}."
