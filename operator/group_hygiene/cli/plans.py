"""`plan` and `explain`: the effect of unapplied policies, by the operator's own scan and checks.

`explain` shows the result of each check for one group, in the order of `checks.judge`. Imports no code that deletes.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from group_hygiene.cli.commands import PlanOptions
from group_hygiene.cli.manifests import Scan, scan_clusters, validated
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Column, Document, Report, Table, printable
from group_hygiene.engine import checks
from group_hygiene.engine.checks import offsets, used
from group_hygiene.engine.checks.lag import skipped_by_latest
from group_hygiene.engine.plan import Plan, RunConditions, Verdicts, make_plan, max_deletions
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Need, Verdict
from group_hygiene.model.groups import Group, Snapshot
from group_hygiene.model.naming import truncated_list
from group_hygiene.observe.of_objects import lag_entry, warns_late
from group_hygiene.spec.connection import ActivitySpec
from group_hygiene.spec.fields import format_duration, timestamp
from group_hygiene.spec.patterns import Patterns, likely_program
from group_hygiene.spec.policy import Action, Limits, Match, Mode, Policy

_PER_RUN_MAX = 10_000
# More matches are also counted by pattern and owner.
_MANY = 20
# Deleted topics of a match.
_TOPICS = 10
# As of `terraform plan`.
_WOULD_ACT = 2
_COLUMNS = (
    Column("GROUP"),
    Column("STATE", coloured=True),
    Column("TYPE"),
    Column("PROTOCOL-TYPE", cell=lambda d: d["protocolType"] or None, wide=True),
    Column("VERDICT", coloured=True),
    Column("REASON", cell=lambda d: d.get("reason")),
    Column("OWNER", cell=lambda d: d.get("owner"), wide=True),
    Column("LAST-USE", "lastUse", wide=True),
    Column("MESSAGE", cell=lambda d: d.get("message") if "reason" in d else d["found"]),
)
_SHOWN = {"Passed": "passed", "NotReached": "not reached", "Skips": "skips"}


@dataclass(frozen=True, slots=True)
class _Planned:
    """A policy, and its plan in mode Enforce after the grace period. first: the groups of the first such run.

    patterns, owners: see `by_pattern` and `by_owner`. begun: see `Scan`.
    """

    policy: Policy
    made: Plan
    first: Sequence[str]
    snapshot: Snapshot
    conditions: RunConditions
    patterns: Sequence[Mapping[str, Any]]
    owners: Sequence[Mapping[str, Any]]
    begun: datetime


def plan(chosen: PlanOptions) -> Report:
    """The effect that each policy in the files would have now."""
    if chosen.validate_only:
        return validated(chosen.target, chosen.files)
    scans = scan_clusters(chosen.target, chosen.files, chosen.activity)
    every = [_plan_one(scan, policy) for scan in scans.every for policy in scan.policies]
    every.sort(key=lambda planned: planned.policy.key)
    shown = [_document(planned, chosen.summary) for planned in every]
    document = {"policies": shown, "notes": scans.notes, "errors": scans.errors}
    matched = sorted({name for planned in every for name in planned.made.matched})
    tables = [_table(planned, each) for planned, each in zip(every, shown, strict=True)]
    exit_code = _WOULD_ACT if matched and chosen.detailed_exitcode else 0
    return Report(document, matched, tables, scans.notes, scans.errors, exit_code)


def _plan_one(scan: Scan, policy: Policy) -> _Planned:
    found = scan.observation.verdicts[policy.key]
    verdicts = Verdicts.of(found[name] for name in sorted(found))
    conditions = scan.observation.conditions
    # In a dry run, each match is due, as if the grace period had elapsed.
    dry = structs.replace(policy, mode=Mode.DRY_RUN)
    made = make_plan(dry, verdicts, {}, conditions, datetime.now(UTC))
    first = made.due[: max_deletions(dry.limits, conditions)] if made.refusal is None else ()
    patterns = by_pattern(made, scan.snapshot.taken_at)
    return _Planned(policy, made, first, scan.snapshot, conditions, patterns, by_owner(made), scan.begun)


def _would(planned: _Planned) -> str:
    """A one-line summary of what a run of the policy would do."""
    policy, made = planned.policy, planned.made
    text = f"{len(made.matched)} of {len(made.verdicts)} groups match"
    if not made.matched:
        return f"{text}: it would do nothing"
    if policy.action is Action.ALERT:
        return f"{text}: it would report them"
    them = policy.action.describe_targets("them")
    if made.refusal is not None:
        why = f"{made.refusal.reason}: {made.refusal.message}"
        return f"{text}: it would report them, and delete nothing: {why}"
    pace = f", {len(planned.first)} in the first run" if len(planned.first) < len(made.due) else ""
    windows = f" ({'; '.join(map(str, policy.windows))})" if policy.windows else ""
    later = f"and delete {them} after {format_duration(policy.grace_period)}{windows}{pace}"
    if policy.mode is Mode.DRY_RUN:
        return f"{text}: it would report them; mode Enforce would mark them {later}"
    return f"{text}: it would mark them {later}"


def _table(planned: _Planned, document: Document) -> Table:
    """document: of the same plan; without groups it is a summary."""
    policy, made, now, summary = planned.policy, planned.made, planned.snapshot.taken_at, "groups" not in document
    heading = [f"GroupPolicy {policy.key} ({policy.action}, {policy.mode})", f"  {_would(planned)}"]
    if summary or len(made.matched) > _MANY:
        heading += [f"  {pattern_line(found)}" for found in planned.patterns]
        heading += [f"  {owner_line(found)}" for found in planned.owners]
    heading += [f"  {line}" for line in first_clean_up(made, planned.conditions)]
    lags = [f"  {text}"] if (text := skipped_by_latest(made.verdicts[name] for name in made.matched)) else []
    if policy.action is Action.DELETE:
        heading += lags
    if programs := programs_line(made.matched):
        heading.append(f"  {programs}")
    assumed = assumption(policy)
    if assumed is not None and made.verdicts:
        heading.append(f"  {assumed}")
    late = warns_late(made, planned.snapshot)
    if late is not None:
        heading.append(f"  {late}")
    if summary:
        return Table((), (), heading, unwatched=lags)
    verdicts = made.verdicts.values()
    # Not a list: a plan may have a million groups.
    rows = (
        group
        | {
            "lastUse": last_use(verdict, now),
            "found": matched_because(verdict, planned.begun) if verdict.matches else None,
        }
        for group, verdict in zip(document["groups"], verdicts, strict=True)
    )
    table = Table.of(rows, _COLUMNS, heading)
    return replace(table, watched=[_watched(verdict) for verdict in verdicts], unwatched=lags)


def assumption(policy: Policy) -> str | None:
    """A one-line text on what the plan assumes."""
    if policy.when.unchanged_for is None:
        return None
    wanted = format_duration(policy.when.unchanged_for)
    return f"assumed: every group that is Empty now was seen unchanged for {wanted}"


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


def _watched(verdict: Verdict) -> tuple[object, ...]:
    """All that a row shows but lag, and how long ago something was."""
    activity = verdict.evidence.activity
    last_use = activity.idle_since if isinstance(activity, Activity) else None
    reason = None if verdict.refusal is None else verdict.refusal.reason
    return verdict.group.state, verdict.group.type, reason, verdict.topics, verdict.evidence.owner, last_use


def matched_because(verdict: Verdict, begun: datetime) -> str:
    """Why a group matches, as far as it is known: topics, since when it is unused, lag, range, expiry, its client."""
    evidence, found = verdict.evidence, lag_entry(verdict)
    activity = evidence.activity if isinstance(evidence.activity, Activity) else None
    if verdict.topics:
        used = {topic: activity.used_last(topic) if activity else None for topic in sorted(verdict.topics)}
        shown = (f"{topic} (last commit at {timestamp(at)})" if at else topic for topic, at in used.items())
        return f"offsets of {', '.join(shown)}"
    idle, since = activity.idle_since if activity else None, unchanged_since(verdict, begun)
    commits = activity.committed_last if activity and verdict.group.in_use else None
    outside, missing = found.get("outOfRangePartitions"), evidence.missing_topics
    parts = [
        f"idle since {timestamp(idle)}" if idle else None,
        f"seen unchanged since {timestamp(since)}" if since else None,
        f"its last commit was at {timestamp(commits)}" if commits and verdict.expires is None else None,
        f"{found['lag']} records wait for it" if found else None,
        f"{outside} of its offsets are out of range" if outside else None,
        f"it has offsets of deleted topics: {truncated_list(sorted(missing), _TOPICS)}"
        if missing and isinstance(missing, frozenset)
        else None,
        "it has no committed offsets" if evidence.offsets == {} else None,
        expiry(verdict),
        _last_member(verdict),
    ]
    return "; ".join(filter(None, parts)) or f"its state is {verdict.group.state}, and match selects it"


def _last_member(verdict: Verdict) -> str | None:
    """By the pipeline's tables, else by the ledger, which has the members of Connect and Streams; None = not known."""
    activity, used_by = verdict.evidence.activity, verdict.evidence.used_by
    if isinstance(activity, Activity) and activity.last_client is not None:
        return f"its last member was {activity.last_client}"
    if used_by is None:
        return None
    return f"its last member was client {used_by.client_id!r} at {timestamp(used_by.at)} ({used_by.program})"


def unchanged_since(verdict: Verdict, begun: datetime) -> datetime | None:
    """Since when the operator's scans have seen it unchanged, by the ledger; None = not known.

    begun: of the scan of this command, which shows nothing about the time before.
    """
    seen = verdict.evidence.unchanged
    return None if seen is None or seen.since >= begun else seen.since


def expiry(verdict: Verdict) -> str | None:
    """A text on when the first of the group's offsets expire."""
    at = verdict.expires
    return None if at is None else f"the first of its offsets expire at {timestamp(at)}"


def last_use(verdict: Verdict, now: datetime) -> str | None:
    """When the group was last used, and its client, in words; None = the pipeline's tables do not say."""
    activity = verdict.evidence.activity
    return activity.last_use(now) if isinstance(activity, Activity) else None


def _last_client(verdict: Verdict) -> Mapping[str, Any]:
    """The fields of its last client that are known."""
    activity = verdict.evidence.activity
    client = activity.last_client if isinstance(activity, Activity) else None
    if client is None:
        return {}
    known = {"host": client.host, "instanceID": client.instance_id, "rackID": client.rack_id}
    fields = {name: text for name, text in known.items() if text}
    return {"lastClient": {"clientID": client.client_id, **fields, "others": client.others, "at": timestamp(client.at)}}


def _document(planned: _Planned, summary: bool) -> dict[str, Any]:
    policy, made = planned.policy, planned.made
    unchanged_for, refusal = policy.when.unchanged_for, made.refusal
    return {
        "namespace": policy.namespace,
        "name": policy.name,
        "action": str(policy.action),
        "mode": str(policy.mode),
        "clusterID": planned.snapshot.cluster.id,
        "takenAt": timestamp(planned.snapshot.taken_at),
        "assumed": {} if unchanged_for is None else {"unchangedFor": format_duration(unchanged_for)},
        "would": _would(planned),
        "judged": len(made.verdicts),
        "matched": len(made.matched),
        "patterns": list(planned.patterns),
        "owners": list(planned.owners),
        **({} if summary else {"due": list(made.due), "firstRun": list(planned.first)}),
        "nextExpiryTime": None if made.next_expiry is None else timestamp(made.next_expiry),
        "refusal": None if refusal is None else {"reason": refusal.reason, "message": refusal.message},
        **({} if summary else {"groups": [judged(*each, planned.begun) for each in made.verdicts.items()]}),
    }


def judged(name: str, verdict: Verdict, begun: datetime) -> dict[str, Any]:
    """One verdict as JSON; reason and message only if the group is skipped, lag only if the policy uses it, and owner,
    likelyProgram, idleSince, unchangedSince, expiresTime and lastClient only if they are known. begun: see `Scan`.
    """
    refusal, activity = verdict.refusal, verdict.evidence.activity
    idle = activity.idle_since if isinstance(activity, Activity) else None
    since = unchanged_since(verdict, begun)
    why: Mapping[str, Any] = {} if refusal is None else {"reason": refusal.reason, "message": refusal.message}
    group = verdict.group
    return {
        "group": name,
        "state": str(group.state),
        "type": str(group.type),
        "protocolType": group.protocol_type,
        "verdict": "Match" if verdict.matches else "Skip",
        **({"owner": verdict.evidence.owner} if verdict.evidence.owner else {}),
        **({"likelyProgram": entry.program} if (entry := likely_program(name)) is not None else {}),
        **({"topics": sorted(verdict.topics)} if verdict.topics else {}),
        **why,
        **({} if idle is None else {"idleSince": timestamp(idle)}),
        **({} if since is None else {"unchangedSince": timestamp(since)}),
        **lag_entry(verdict),
        **({} if verdict.expires is None else {"expiresTime": timestamp(verdict.expires)}),
        **_last_client(verdict),
    }


@dataclass(frozen=True, slots=True)
class _Step:
    """One check, as in JSON: its name, purpose and result. reason: of the refusal, if the result is Skips."""

    check: str
    why: str
    result: str
    reason: str | None = None
    message: str | None = None


_CHECKS = (
    Column("CHECK"),
    Column("RESULT", cell=lambda d: _SHOWN[d["result"]] + (f" ({d['reason']})" if d["reason"] else "")),
    Column("MESSAGE", wide=True),
    Column("WHY"),
)


@dataclass(frozen=True, slots=True)
class _Explained:
    """last_use: in words, None = not known. begun: of the scan."""

    policy: Policy
    group: Group
    verdict: Verdict | None
    steps: Sequence[_Step]
    last_use: str | None
    begun: datetime


def explain(target: ChosenCluster, name: str, files: Sequence[str], activity: ActivitySpec | None = None) -> Report:
    """The result of each check of each policy in the files for one group; with --verbose, tables have all of them."""

    def only(policy: Policy) -> Policy:
        # So that no data of other groups is read.
        groups = Patterns.of_names([name] if policy.match.groups.matches(name) else [])
        return structs.replace(policy, match=structs.replace(policy.match, groups=groups))

    scans = scan_clusters(target, files, activity, only, full=True)
    notes, errors = list(scans.notes), list(scans.errors)
    there = [scan for scan in scans.every if name in scan.snapshot.groups]
    if scans.every and not there:
        errors.append(f"there is no group {printable(name)}: group-hygiene list shows all")
    elif there:
        elsewhere = [scan.connection for scan in scans.every if scan not in there]
        notes += [f"there is no group {printable(name)} in the cluster of KafkaConnection {key}" for key in elsewhere]
    every = [_explain_one(scan, policy, name) for scan in there for policy in scan.policies]
    every.sort(key=lambda explained: explained.policy.key)
    shown = [
        {
            "namespace": one.policy.namespace,
            "name": one.policy.name,
            "group": None if one.verdict is None else judged(name, one.verdict, one.begun),
            "checks": [asdict(step) for step in one.steps],
        }
        for one in every
    ]
    matches = [name] if any(one.verdict is not None and one.verdict.matches for one in every) else []
    tables = [_explained_table(one, target.verbose) for one in every]
    return Report({"policies": shown, "notes": notes, "errors": errors}, matches, tables, notes, errors)


def _explain_one(scan: Scan, policy: Policy, name: str) -> _Explained:
    group = scan.snapshot.groups[name]
    verdict = scan.observation.verdicts[policy.key].get(name)
    unselected = None if policy.match.selects(group) else _unselected(policy.match, group)
    message = unselected and f"the policy does not select it: {unselected}"
    steps = [_Step("match", _why(Match.selects), "Skips" if unselected else "Passed", message=message)]
    decided = verdict is None
    for check in checks.chain(policy):
        what = (check.__name__, _why(check))
        if decided or verdict is None:
            steps.append(_Step(*what, "NotReached"))
            continue
        answer = check(policy, group, verdict.evidence, scan.snapshot.taken_at)
        refusal = answer.refusal if isinstance(answer, Need) else answer
        decided = refusal is not None
        if refusal is not None:
            steps.append(_Step(*what, "Skips", refusal.reason, refusal.message))
            continue
        found = None
        if check is used.unchanged:
            found = assumption(policy)
        elif check is offsets.expires and policy.when.expires_within is not None:
            found = expiry(verdict)
        steps.append(_Step(*what, "Passed", message=found))
    used_last = None if verdict is None else last_use(verdict, scan.snapshot.taken_at)
    return _Explained(policy, group, verdict, steps, used_last, scan.begun)


def _unselected(match: Match, group: Group) -> str:
    if not match.groups.matches(group.id):
        return "its id matches none of match.groups"
    excluded = match.exclude.matching(group.id)
    if excluded is not None:
        return f"match.exclude has {excluded!r}"
    if group.state not in match.states:
        return f"its state is {group.state}, and match.states is {', '.join(sorted(match.states))}"
    if group.type not in match.types:
        return f"its type is {group.type}, and match.types is {', '.join(sorted(match.types))}"
    return "spec.access of the KafkaConnection does not grant it to the policy's namespace"


def _why(check: Any) -> str:
    """The docstring of a check: a sentence on its purpose."""
    return " ".join((inspect.getdoc(check) or "").split())


def _explained_table(explained: _Explained, verbose: bool) -> Table:
    policy, group = explained.policy, explained.group
    protocol = f"protocol type {group.protocol_type}" if group.protocol_type else "a simple group"
    # The check that decided; None = the group matches.
    skip = next((step for step in explained.steps if step.result == "Skips"), None)
    outcome = "Match" if skip is None else f"Skip: {skip.message}"
    if skip is not None and skip.reason is not None:
        outcome = f"Skip: {skip.reason}: {skip.message}"
    heading = [
        f"GroupPolicy {policy.key} ({policy.action}, {policy.mode}): {outcome}",
        f"  {group.id}: {group.state}, {group.type}, {protocol}",
    ]
    if (entry := likely_program(group.id)) is not None:
        heading.append(f"  by its id it looks like {entry.program}. Empty and needed: {entry.needed}")
    if explained.last_use is not None:
        heading.append(f"  {explained.last_use}")
    heading += [f"  {step.message}" for step in explained.steps if step.result == "Passed" and step.message]
    if verbose:
        return Table.of(map(asdict, explained.steps), _CHECKS, heading)
    passed = sum(step.result == "Passed" for step in explained.steps)
    decided = f"{passed} checks passed" if skip is None else f"decided by {skip.check}: {skip.why}"
    return Table((), (), [*heading, f"  {decided}"])
