"""`plan`: the effect of unapplied policies, by the operator's own scan and checks. Imports no code that deletes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from group_hygiene.cli.commands import PlanOptions
from group_hygiene.cli.manifests import Manifests, read_manifests
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Column, Document, Report, Table, printable, working
from group_hygiene.cli.target import Session, names_cluster, open_session, open_tables
from group_hygiene.decide.lag import skipped_by_latest
from group_hygiene.decide.pattern_notes import note_lines, pattern_notes
from group_hygiene.decide.plan import FAILURES, Plan, RunConditions, Verdicts, make_plan, max_deletions
from group_hygiene.errors import HygieneError, SpecError, UsageError
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.ledger.settings import LedgerSettings
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Protections
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Snapshot
from group_hygiene.model.verdicts import Verdict
from group_hygiene.reconcile import Context, LedgerNeed, Memory, Observation, observe, open_journal
from group_hygiene.spec.access import Grant
from group_hygiene.spec.catalogue import likely_program
from group_hygiene.spec.connection import ActivitySpec, Connection, admit, grant
from group_hygiene.spec.crds import API_VERSION, PLURALS
from group_hygiene.spec.durations import format_duration, timestamp
from group_hygiene.spec.policy import Action, Limits, Mode, Policy
from group_hygiene.status.of_policies import lag_entry, warns_late

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


@dataclass(frozen=True, slots=True)
class Scan:
    """Policies of one connection, and the observation of one scan of its cluster, which began then."""

    connection: str
    policies: Sequence[Policy]
    observation: Observation
    begun: datetime

    @property
    def snapshot(self) -> Snapshot:
        return self.observation.snapshot


@dataclass(frozen=True, slots=True)
class Scans:
    """One scan for each connection whose cluster could be read; and notes and errors on all of them."""

    every: Sequence[Scan]
    notes: list[str]
    errors: list[str]


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
        return _validated(chosen.target, chosen.files)
    scans = scan_clusters(chosen.target, chosen.files, chosen.activity)
    every = [_plan_one(scan, policy) for scan in scans.every for policy in scan.policies]
    every.sort(key=lambda planned: planned.policy.key)
    shown = [_document(planned, chosen.summary) for planned in every]
    document = {"policies": shown, "notes": scans.notes, "errors": scans.errors}
    matched = sorted({name for planned in every for name in planned.made.matched})
    tables = [_table(planned, each) for planned, each in zip(every, shown, strict=True)]
    exit_code = _WOULD_ACT if matched and chosen.detailed_exitcode else 0
    return Report(document, matched, tables, scans.notes, scans.errors, exit_code)


def _validated(target: ChosenCluster, files: Sequence[str]) -> Report:
    """The objects of the files. Raises UsageError if one is not valid, or if there is none."""
    manifests = read_manifests(files, target.namespace, policy_needed=False)
    if not manifests.titles:
        raise UsageError(f"there is no object of {API_VERSION} in the files")
    if misnamed := _misnamed(manifests):
        raise UsageError("\n".join(["the files are not valid:", *misnamed.values()]))
    keys = sorted(manifests.named - set(manifests.connections))
    notes = [f"KafkaConnection {'/'.join(key)} is in none of the files: it is not validated" for key in keys]
    notes += manifests.notes
    notes += [f"{kind}: ignored, not of {API_VERSION}" for kind in sorted(manifests.skipped - set(PLURALS))]
    document = {"valid": manifests.titles, "notes": notes, "errors": []}
    count = len(manifests.titles)
    text = "1 object is valid" if count == 1 else f"{count:,} objects are valid"
    return Report(document, manifests.titles, [Table((), (), [text])], notes)


def _plan_one(scan: Scan, policy: Policy) -> _Planned:
    found = scan.observation.verdicts[policy.key]
    verdicts = Verdicts.of(found[name] for name in sorted(found))
    conditions = scan.observation.conditions
    # In a dry run, each match is due, as if the grace period had elapsed.
    dry = replace(policy, mode=Mode.DRY_RUN)
    made = make_plan(dry, verdicts, {}, conditions, datetime.now(UTC))
    first = made.due[: max_deletions(dry.limits, conditions)] if made.refusal is None else ()
    patterns = by_pattern(made, scan.snapshot.taken_at)
    return _Planned(policy, made, first, scan.snapshot, conditions, patterns, by_owner(made), scan.begun)


def scan_clusters(
    target: ChosenCluster,
    files: Sequence[str],
    activity: ActivitySpec | None = None,
    narrowed: Callable[[Policy], Policy] = lambda policy: policy,
    full: bool = False,
) -> Scans:
    """Scan the cluster of each connection once, without earlier scans, and assume that `unchangedFor` is over.

    If a cluster can't be reached, that is an error for its policies; the others are scanned. `narrowed`: returns the
    policy to check in place of each.
    """
    manifests = read_manifests(files, target.namespace)
    unplannable = _unplannable(target, manifests)
    chosen = _by_connection(target, manifests, unplannable)
    notes, errors = _first_notes(target, manifests), list(unplannable.values())
    every: list[Scan] = []
    for key, policies in chosen.items():
        document = manifests.connections.get(key)
        if target.connection is None and document is None:
            where = f"KafkaConnection {'/'.join(key)} is in none of the files"
            notes.append(f"{where}: its protect and limits are not known here")
        try:
            with open_session(target, document, claims=True) as session, working("reading groups"):
                admitted, refused = _admitted(session.connection, policies)
                errors += refused
                notes += [f"GroupPolicy {policy.key}: {text}" for policy in admitted if (text := policy.stricter_note)]
                memory = Memory(cluster_id=session.cluster_id)
                ledger = LedgerSettings(installation=None, writer="", topic=session.connection.ledger.topic)
                journal = open_journal(memory, session.client, ledger, LedgerNeed.SHOW, (), session.deadline())
                if journal.problem is not None:
                    notes.append(f"requests to keep a group are not known here: {journal.problem.message}")
                    # A plan is about the policies: the operator may have permissions that this user does not have.
                    journal.problem = None
                context = Context(
                    client=session.client,
                    connection=session.connection,
                    memory=memory,
                    clock=session.clock,
                    journal=journal,
                    claims=session.claims,
                    tables=open_tables(session, activity),
                    assume_unchanged=True,
                )
                begun = session.clock.now()
                observation = observe(context, [narrowed(policy) for policy in admitted], full, whole=True)
                pattern_lines = [] if full else _pattern_notes(session, admitted, observation)
        except HygieneError as error:
            errors.append(f"GroupPolicy {', '.join(policy.key for policy in policies)}: {error}")
            continue
        scan = Scan("/".join(key), admitted, observation, begun)
        notes += _scan_notes(scan, session.api is not None)
        notes += pattern_lines
        errors += _scan_errors(scan)
        every.append(scan)
    return Scans(every, list(dict.fromkeys(notes)), errors)


def _admitted(connection: Connection, policies: Sequence[Policy]) -> tuple[list[Policy], list[str]]:
    """The policies that the connection admits, and errors for the others."""
    admitted: list[Policy] = []
    errors: list[str] = []
    for policy in policies:
        try:
            # Labels of namespaces are not known here: access by labels counts as refused.
            given = grant(connection, policy.namespace, None) if policy.crosses_namespace else Grant(None)
            admitted.append(admit(connection, policy, given))
        except SpecError as error:
            errors.append(f"GroupPolicy {policy.key}: {error.reason}: {error}")
    return admitted, errors


def _unplannable(target: ChosenCluster, manifests: Manifests) -> dict[str, str]:
    """Errors by policy: its KafkaConnection, or the spec.access of one in another namespace, is not known here."""
    errors = _misnamed(manifests) if target.connection is None else {}
    asked, advice = (target.namespace, target.connection), "add the KafkaConnection to the files, or give --connection"
    for policy in manifests.policies:
        if policy.crosses_namespace and _reference(policy) not in (asked, *manifests.connections):
            access = f"spec.access of KafkaConnection {policy.connection_key} is not known here: {advice}"
            errors[policy.key] = f"GroupPolicy {policy.key}: {reasons.CROSS_NAMESPACE}: {access}"
    return errors


def _by_connection(
    target: ChosenCluster, manifests: Manifests, unplannable: Collection[str]
) -> dict[tuple[str, str], list[Policy]]:
    """The policies that would run, by their KafkaConnection; with --connection, only those of that connection.

    Raises UsageError if the policies refer to several connections but the options specify one cluster, which would be
    the wrong one for some of them.
    """
    chosen: dict[tuple[str, str], list[Policy]] = {}
    for policy in manifests.policies:
        if not policy.suspend and policy.key not in unplannable:
            chosen.setdefault(_reference(policy), []).append(policy)
    named = ", ".join("/".join(key) for key in sorted(chosen))
    if target.connection is not None:
        asked = target.namespace, target.connection
        if chosen and asked not in chosen:
            raise UsageError(
                f"no GroupPolicy in the files refers to KafkaConnection {'/'.join(asked)}, only to {named}"
            )
        return {key: policies for key, policies in chosen.items() if key == asked}
    if len(chosen) > 1 and names_cluster(target):
        raise UsageError(
            f"the files contain GroupPolicies of {len(chosen)} KafkaConnections ({named}), but the options specify one "
            "cluster (--bootstrap-server, GROUP_HYGIENE_BOOTSTRAP_SERVER, or bootstrap.servers of --command-config): "
            "give the policies of one connection with -f, or choose one with --connection"
        )
    return chosen


def _reference(policy: Policy) -> tuple[str, str]:
    return policy.connection_namespace, policy.connection_name


def _misnamed(manifests: Manifests) -> dict[str, str]:
    """Errors by policy: the files have KafkaConnections, but not the one of its namespace to which it refers."""
    known = ", ".join("/".join(each) for each in sorted(manifests.connections))
    return {
        policy.key: f"GroupPolicy {policy.key}: spec.connectionRef: KafkaConnection {policy.connection_key} "
        f"is in none of the files, which have {known}"
        for policy in manifests.policies
        if known and not policy.crosses_namespace and _reference(policy) not in manifests.connections
    }


def _first_notes(target: ChosenCluster, manifests: Manifests) -> list[str]:
    """Notes that need no scan of a cluster."""
    notes = [f"{kind}: ignored, not a GroupPolicy or KafkaConnection" for kind in sorted(manifests.skipped)]
    for policy in manifests.policies:
        if policy.suspend:
            notes.append(f"GroupPolicy {policy.key} is suspended: it would do nothing")
        elif target.connection is not None and _reference(policy) != (target.namespace, target.connection):
            notes.append(f"GroupPolicy {policy.key}: ignored, refers to KafkaConnection {policy.connection_key}")
    return notes


def _scan_notes(scan: Scan, in_kubernetes: bool) -> list[str]:
    """Notes on matches that are uncertain, and on slow reads of old brokers."""
    notes = list(scan.snapshot.notes)
    matched = any(verdict.matches for verdicts in scan.observation.verdicts.values() for verdict in verdicts.values())
    if matched and not in_kubernetes:
        notes.append("groups that a ScaledObject or KafkaConnector names are not known here: --connection reads them")
    if scan.observation.topics is not None and scan.observation.topics.reason == reasons.TOPICS_ATTESTED:
        notes.append(scan.observation.topics.message)
    return notes


def _pattern_notes(session: Session, policies: Sequence[Policy], observation: Observation) -> list[str]:
    """Notes on patterns that select no group, or fewer than they seem to; none if not all groups are known."""
    groups: Collection[str] | None = observation.all_groups
    if groups is None:
        listing = kafka_groups.list_groups(session.client, observation.snapshot.cluster, session.deadline())
        groups = None if kafka_groups.unanswered(listing) else listing.groups
    if groups is None or not observation.snapshot.complete:
        return []
    return note_lines(pattern_notes(session.connection, policies, groups))


def _scan_errors(scan: Scan) -> list[str]:
    """Errors on missing groups, on protection sources that could not be read, and on groups without a verdict."""
    errors = [f"groups may be missing: {problem}" for problem in scan.snapshot.incomplete]
    everything = scan.observation.verdicts.values()
    skipped = {verdict.refusal.reason for verdicts in everything for verdict in verdicts.values() if verdict.refusal}
    errors += protection_errors(scan.observation.protections, skipped)
    coverage = scan.snapshot.coverage
    if coverage is not None and coverage.problem is not None and coverage.problem.reason in skipped:
        problem = coverage.problem
        errors.append(f"groups are skipped for lack of evidence: {problem.reason}: {problem.message}")
    for key, verdicts in scan.observation.verdicts.items():
        for name, verdict in sorted(verdicts.items()):
            if verdict.refusal is not None and verdict.refusal.reason in FAILURES:
                errors.append(
                    f"GroupPolicy {key}: group {printable(name)}: {verdict.refusal.reason}: {verdict.refusal.message}"
                )
    return errors


def protection_errors(protections: Protections, skipped: Collection[str]) -> list[str]:
    """Errors on protection sources that could not be read, which therefore protect groups that may be unused.

    skipped: the reasons of all groups that are skipped.
    """
    errors = []
    if isinstance(protections.claimed, Refusal) and reasons.CLAIMED in skipped:
        errors.append(
            "every group is skipped, as not all objects that may name groups could be read: "
            f"{protections.claimed.message}"
        )
    if protections.streams is None and reasons.STREAMS in skipped:
        errors.append("every group that may be a Kafka Streams application is skipped: topics could not be listed")
    if protections.mirrored is None and reasons.MIRROR_MAKER in skipped:
        errors.append(
            "every group that MirrorMaker 2 may write is skipped: its checkpoints could not be read: "
            "needs READ on each topic *.checkpoints.internal, and time for large ones (mirrorMaker.checkpointTopics)"
        )
    return errors


def assumption(policy: Policy) -> str | None:
    """A one-line text on what the plan assumes."""
    if policy.when.unchanged_for is None:
        return None
    wanted = format_duration(policy.when.unchanged_for)
    return f"assumed: every group that is Empty now was seen unchanged for {wanted}"


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
