"""`plan`: what unapplied policies would do, by the operator's own scan and checks. Deleting is not imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from group_hygiene import reasons
from group_hygiene.cli.manifests import Manifests, read_manifests
from group_hygiene.cli.options import Target
from group_hygiene.cli.output import Cell, Column, Report, Table, printable, working
from group_hygiene.cli.target import Session, open_session
from group_hygiene.connection import Connection
from group_hygiene.model import Snapshot, Unchanged, Verdict
from group_hygiene.plan import Plan, make_plan
from group_hygiene.policy import Action, Mode, Policy, format_duration
from group_hygiene.reconcile import Context, Memory, Observation, observe
from group_hygiene.status import FAILURES, timestamp

_WOULD_ACT = 2
_COLUMNS = (
    Column("GROUP"),
    Column("STATE", coloured=True),
    Column("TYPE"),
    Column("PROTOCOL-TYPE", wide=True),
    Column("VERDICT", coloured=True),
    Column("REASON"),
    Column("MESSAGE"),
)


class Patience(Memory):
    """Takes for granted what one look can't see: that a group which is Empty now was so, unchanged, for long enough."""

    def look(
        self, policy: Policy, before: Unchanged | None, print_: bytes, now: datetime, monotonic: float
    ) -> Unchanged:
        long_enough = policy.when.unchanged_for or policy.interval
        return Unchanged(print_, now - long_enough, long_enough, monotonic)


@dataclass(frozen=True, slots=True)
class Scan:
    """Policies of one connection, and what one scan of its cluster says of them."""

    session: Session
    policies: Sequence[Policy]
    observation: Observation

    @property
    def snapshot(self) -> Snapshot:
        return self.observation.snapshot


@dataclass(frozen=True, slots=True)
class _Planned:
    """One policy, and what it would do in mode Enforce: `enforced.actions` is its first run."""

    policy: Policy
    enforced: Plan
    snapshot: Snapshot


def plan(target: Target, files: Sequence[str]) -> Report:
    """What each policy in the files would do now."""
    manifests = read_manifests(files)
    every: list[_Planned] = []
    notes, errors = first_notes(target, manifests), first_errors(manifests)
    for connection, policies in by_connection(manifests):
        with open_session(target, connection, claims=True) as session, working("reading groups"):
            scan = look(session, policies)
        notes += scan_notes(scan)
        errors += scan_errors(scan)
        every += [_plan_one(scan, policy) for policy in policies]
    every.sort(key=lambda planned: planned.policy.key)
    notes = list(dict.fromkeys(notes))
    document = {"policies": [_document(planned) for planned in every], "notes": notes, "errors": errors}
    matched = sorted({name for planned in every for name in planned.enforced.matched})
    tables = [_table(planned) for planned in every]
    return Report(document, matched, tables, notes, errors, _WOULD_ACT if matched else 0)


def _plan_one(scan: Scan, policy: Policy) -> _Planned:
    verdicts = dict(sorted(scan.observation.verdicts[policy.key].items()))
    enforced = replace(policy, mode=Mode.ENFORCE)
    made = make_plan(enforced, len(scan.snapshot.groups), verdicts, scan.observation.conditions)
    return _Planned(policy, made, scan.snapshot)


def look(session: Session, policies: Sequence[Policy], full: bool = False) -> Scan:
    """One scan for these policies, which remembers nothing and takes `unchangedFor` for granted."""
    # A plan is about the policies: whether this or that operator may delete without backups is not known here.
    context = Context(session.client, session.connection, Patience(), session.clock, True, session.claimed)
    return Scan(session, policies, observe(context, policies, full))


def by_connection(manifests: Manifests) -> Iterator[tuple[Connection | None, list[Policy]]]:
    """The policies that would run, by the KafkaConnection of the files that they refer to; None = not there."""
    grouped: dict[tuple[str, str] | None, list[Policy]] = {}
    for policy in manifests.policies:
        if not policy.suspend and not policy.crosses_namespace:
            connection = manifests.connection_of(policy)
            key = None if connection is None else (connection.namespace, connection.name)
            grouped.setdefault(key, []).append(policy)
    for key, policies in grouped.items():
        yield None if key is None else manifests.connections[key], policies


def first_notes(target: Target, manifests: Manifests) -> list[str]:
    """What to know before any cluster was asked."""
    notes = [f"{kind}: not ours, left out" for kind in sorted(manifests.skipped)]
    for policy in manifests.policies:
        if policy.suspend:
            notes.append(f"GroupPolicy {policy.key} is suspended: it would do nothing")
        elif target.connection not in (None, policy.connection_name) or (
            target.connection is not None and target.namespace != policy.connection_namespace
        ):
            named = f"{policy.connection_namespace}/{policy.connection_name}"
            notes.append(f"GroupPolicy {policy.key} is for KafkaConnection {named}, which is not what was asked")
    return notes


def first_errors(manifests: Manifests) -> list[str]:
    """Policies that the API server would take, and the operator would refuse to run."""
    message = "spec.connectionRef.namespace must be the policy's own namespace"
    refused = [policy for policy in manifests.policies if policy.crosses_namespace]
    return [f"GroupPolicy {policy.key}: {reasons.CROSS_NAMESPACE}: {message}" for policy in refused]


def scan_notes(scan: Scan) -> list[str]:
    """What makes the answer doubtful, and what old brokers made slow."""
    notes = [*scan.snapshot.notes, *(f"groups may be missing: {problem}" for problem in scan.snapshot.incomplete)]
    matched = any(verdict.matches for verdicts in scan.observation.verdicts.values() for verdict in verdicts.values())
    if matched and not scan.session.in_kubernetes:
        notes.append(
            "which groups a ScaledObject or KafkaConnector names is not known here: --connection asks Kubernetes"
        )
    return notes


def scan_errors(scan: Scan) -> list[str]:
    """Brokers that gave no answer, and groups that could not be judged."""
    faults = scan.snapshot.broker_faults
    errors = [f"groups are missing: broker {broker}: {fault}" for broker, fault in sorted(faults.items())]
    for key, verdicts in scan.observation.verdicts.items():
        for name, verdict in sorted(verdicts.items()):
            if verdict.keep is not None and verdict.keep.reason in FAILURES:
                errors.append(
                    f"GroupPolicy {key}: group {printable(name)}: {verdict.keep.reason}: {verdict.keep.message}"
                )
    return errors


def granted(policy: Policy) -> str | None:
    """What was taken for granted, in one line."""
    if policy.when.unchanged_for is None:
        return None
    wanted = format_duration(policy.when.unchanged_for)
    return f"unchangedFor is taken for granted: what is Empty now would match once seen unchanged for {wanted}"


def _would(planned: _Planned) -> str:
    """What a run of the policy would do, in one line."""
    policy, made = planned.policy, planned.enforced
    text = f"{len(made.matched)} of {len(made.verdicts)} groups match"
    if not made.matched:
        return f"{text}: it would do nothing"
    if policy.action is Action.ALERT:
        return f"{text}: it would report them"
    if made.refusal is not None:
        return f"{text}: it would report them, and delete none: {made.refusal.reason}: {made.refusal.message}"
    first = f", {len(made.actions)} of them in the first run" if len(made.actions) < len(made.due) else ""
    if policy.mode is Mode.DRY_RUN:
        return f"{text}: it would report them; mode Enforce would delete them{first}"
    return f"{text}: it would delete them{first}"


def _table(planned: _Planned) -> Table:
    policy, made = planned.policy, planned.enforced
    heading = [f"GroupPolicy {policy.key} ({policy.action}, {policy.mode})", f"  {_would(planned)}"]
    taken = granted(policy)
    if taken is not None and made.verdicts:
        heading.append(f"  {taken}")
    return Table(_COLUMNS, [_row(name, verdict) for name, verdict in made.verdicts.items()], heading)


def _row(name: str, verdict: Verdict) -> tuple[Cell, ...]:
    group, keep = verdict.group, verdict.keep
    why = (None, None) if keep is None else (keep.reason, keep.message)
    return name, str(group.state), str(group.type), group.protocol_type or None, _word(verdict), *why


def _word(verdict: Verdict) -> str:
    return "Match" if verdict.matches else "Keep"


def _document(planned: _Planned) -> dict[str, Any]:
    policy, made = planned.policy, planned.enforced
    unchanged_for, refusal = policy.when.unchanged_for, made.refusal
    return {
        "namespace": policy.namespace,
        "name": policy.name,
        "action": str(policy.action),
        "mode": str(policy.mode),
        "clusterId": planned.snapshot.cluster.id,
        "takenAt": timestamp(planned.snapshot.taken_at),
        "takenForGranted": {} if unchanged_for is None else {"unchangedFor": format_duration(unchanged_for)},
        "would": _would(planned),
        "judged": len(made.verdicts),
        "matched": len(made.matched),
        "due": list(made.due),
        "firstRun": list(made.actions),
        "refusal": None if refusal is None else {"reason": refusal.reason, "message": refusal.message},
        "groups": [judged(name, verdict) for name, verdict in made.verdicts.items()],
    }


def judged(name: str, verdict: Verdict) -> dict[str, Any]:
    """One verdict as JSON; reason and message only where the group is kept."""
    keep = verdict.keep
    why: Mapping[str, Any] = {} if keep is None else {"reason": keep.reason, "message": keep.message}
    group = verdict.group
    return {
        "group": name,
        "state": str(group.state),
        "type": str(group.type),
        "protocolType": group.protocol_type,
        "verdict": _word(verdict),
        **why,
    }
