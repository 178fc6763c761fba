"""`plan` in short: the matches by pattern, and limits for a first clean-up. Sends no requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from group_hygiene.decide.plan import Plan
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity
from group_hygiene.model.verdicts import Verdict
from group_hygiene.spec.durations import timestamp

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


def first_limits(made: Plan, total: int | None, now: datetime) -> str | None:
    """`delete.temporaryLimits` with which the first run after the grace period deletes all that match, as YAML.

    Not stricter than the policy's usual limits. total: groups of the cluster. None = these limits permit it, or it is
    not known.
    """
    if made.refusal is None or made.refusal.reason != reasons.LIMIT_EXCEEDED or not total:
        return None
    begins = now + made.policy.grace_period
    times = f'from: "{timestamp(begins)}", until: "{timestamp(begins + timedelta(days=1))}"'
    usual = made.policy.limits
    percent = max(usual.max_percent, -(-len(made.due) * 100 // total))
    per_run = max(usual.max_per_run, min(len(made.due), _PER_RUN_MAX))
    return f"{{{times}, maxPerRun: {per_run}, maxPercent: {percent}}}"
