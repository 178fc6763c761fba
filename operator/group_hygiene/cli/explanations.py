"""`explain`: the result of each check for one group, in the order of `checks.judge`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from msgspec import structs

from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Column, Report, Table, printable
from group_hygiene.cli.plans import Scan, assumption, expiry, judged, last_use, scan_clusters
from group_hygiene.decide import checks
from group_hygiene.decide.checks import offsets, used
from group_hygiene.model.groups import Group
from group_hygiene.model.verdicts import Need, Verdict
from group_hygiene.spec.catalogue import likely_program
from group_hygiene.spec.connection import ActivitySpec
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Match, Policy

_SHOWN = {"Passed": "passed", "NotReached": "not reached", "Skips": "skips"}


@dataclass(frozen=True, slots=True)
class _Step:
    """One check, as in JSON: its name, purpose and result. reason: of the refusal, if the result is Skips."""

    check: str
    why: str
    result: str
    reason: str | None = None
    message: str | None = None


_COLUMNS = (
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
        return replace(policy, match=structs.replace(policy.match, groups=groups))

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
    document = {"policies": [_document(explained) for explained in every], "notes": notes, "errors": errors}
    matches = [name] if any(one.verdict is not None and one.verdict.matches for one in every) else []
    return Report(document, matches, [_table(explained, target.verbose) for explained in every], notes, errors)


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


def _table(explained: _Explained, verbose: bool) -> Table:
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
        return Table.of(map(asdict, explained.steps), _COLUMNS, heading)
    passed = sum(step.result == "Passed" for step in explained.steps)
    decided = f"{passed} checks passed" if skip is None else f"decided by {skip.check}: {skip.why}"
    return Table((), (), [*heading, f"  {decided}"])


def _document(explained: _Explained) -> dict[str, Any]:
    policy, verdict = explained.policy, explained.verdict
    return {
        "namespace": policy.namespace,
        "name": policy.name,
        "group": None if verdict is None else judged(explained.group.id, verdict, explained.begun),
        "checks": [asdict(step) for step in explained.steps],
    }
