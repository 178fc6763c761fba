"""`plan` in short: the matches by pattern and owner, and limits for a first clean-up. Sends no requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from group_hygiene.decide.plan import Plan, RunConditions, max_deletions
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Verdict
from group_hygiene.spec.fields import format_duration
from group_hygiene.spec.patterns import likely_program
from group_hygiene.spec.policy import Limits, Policy

_PER_RUN_MAX = 10_000


def by_pattern(made: Plan, now: datetime) -> list[dict[str, Any]]:
    """The patterns of the policy, each with the matches that no earlier one has; those with the most come first.

    unusedDays: on average, of the groups that the pipeline's tables know; None = of none.
    """
    found: dict[str, list[Verdict]] = {}
    for name in made.matched:
        found.setdefault(made.policy.match.groups.matching(name) or "", []).append(made.verdicts[name])
    return [
        {"pattern": pattern, "matched": len(verdicts), "unusedDays": _unused_days(verdicts, now)}
        for pattern, verdicts in sorted(found.items(), key=lambda item: -len(item[1]))
    ]


def _unused_days(verdicts: Sequence[Verdict], now: datetime) -> int | None:
    known = [verdict.evidence.activity for verdict in verdicts]
    ages = [now - each.idle_since for each in known if isinstance(each, Activity) and each.idle_since]
    return round(sum(ages, timedelta()) / len(ages) / timedelta(days=1)) if ages else None


def pattern_line(found: Mapping[str, Any]) -> str:
    """An entry of `by_pattern` in words."""
    unused = "" if found["unusedDays"] is None else f", unused for {found['unusedDays']:,} days on average"
    return f"{found['pattern']}: {found['matched']:,} match{unused}"


def by_owner(made: Plan) -> list[dict[str, Any]]:
    """The matches of each owner; those with the most come first. owner: "" = none. Empty if no match has an owner."""
    counts = Counter(made.verdicts[name].evidence.owner for name in made.matched)
    return [{"owner": owner, "matched": count} for owner, count in counts.most_common()] if any(counts) else []


def owner_line(found: Mapping[str, Any]) -> str:
    """An entry of `by_owner` in words."""
    owner = f"owner {found['owner']}" if found["owner"] else "no owner"
    return f"{owner}: {found['matched']:,} group{'s' if found['matched'] != 1 else ''}"


def programs_line(names: Iterable[str]) -> str:
    """The programs of the catalogue whose ids look like these, with numbers; those with the most come first."""
    counts = Counter(entry.program for name in names if (entry := likely_program(name)) is not None)
    found = ", ".join(f"{program} ({count:,})" for program, count in counts.most_common())
    return f"by their ids they look like: {found}" if found else ""


def first_clean_up(made: Plan, conditions: RunConditions) -> list[str]:
    """How long the deletion of all that match takes, and limits with which it takes as few runs as possible, as YAML.

    Not stricter than the usual limits. Empty if one run is enough, or if something else than limits prevents deletions.
    """
    policy, due, total = made.policy, len(made.due), conditions.total
    if not due or not total or (made.refusal is not None and made.refusal.reason != reasons.LIMIT_EXCEEDED):
        return []
    usual, wanted = policy.limits, Limits(min(due, _PER_RUN_MAX), -(-due * 100 // total))
    text = _raised(usual, wanted)
    proposed = [f"{policy.action.member}: {{{text}}}"] if text else []
    text = "" if conditions.limits is None else _raised(conditions.limits, wanted)
    if text:
        key = f"{policy.connection_namespace}/{policy.connection_name}"
        proposed.append(f"in KafkaConnection {key}: limits: {{{text}}}")
    lines = []
    if wanted.max_percent <= usual.stricter(conditions.limits).max_percent:
        per_run = max_deletions(usual, conditions)
        lines = [f"with these limits: {_duration(policy, due, per_run)}"] if due > per_run else []
    heading = f"if they are right, until they are deleted ({_duration(policy, due, wanted.max_per_run)})"
    return [*lines, *(f"{'and' if number else f'{heading}:'} {text}" for number, text in enumerate(proposed))]


def _raised(usual: Limits, wanted: Limits) -> str:
    """The fields of limits that permit what is wanted, as YAML; "" = the usual ones permit it."""
    if usual.max_per_run >= wanted.max_per_run and usual.max_percent >= wanted.max_percent:
        return ""
    per_run, percent = max(usual.max_per_run, wanted.max_per_run), max(usual.max_percent, wanted.max_percent)
    return f"maxPerRun: {per_run}, maxPercent: {percent}"


def _duration(policy: Policy, due: int, per_run: int) -> str:
    runs = -(-due // per_run)
    windows = " of open windows" if policy.windows else ""
    return f"{runs:,} run{'s' if runs != 1 else ''}, {format_duration(runs * policy.interval)}{windows}"
