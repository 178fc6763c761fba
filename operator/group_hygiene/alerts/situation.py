"""The result of one run of a policy, as far as alerts depend on it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from group_hygiene.decide.lag import skipped_by_latest
from group_hygiene.decide.plan import Plan
from group_hygiene.model import reasons
from group_hygiene.model.entries import Notice
from group_hygiene.model.evidence import Activity
from group_hygiene.model.snapshot import Snapshot
from group_hygiene.model.verdicts import Outcome, OutcomeKind
from group_hygiene.spec.policy import Action, Mode

# How many groups of an alert a message names.
NAMED_MAX = 20
# Characters of a name, which Kafka limits to 32,767 bytes, and of a detail, which may quote a broker.
NAME_MAX, DETAIL_MAX = 200, 1_000


class AlertType(StrEnum):
    """The type of an alert. The last two are sent once; the others fire as long as their condition is true."""

    GROUPS_MATCHED = reasons.GROUPS_MATCHED
    GROUPS_MARKED = reasons.GROUPS_MARKED
    DELETION_BLOCKED = "DeletionBlocked"
    GROUPS_DELETED = reasons.GROUPS_DELETED
    TEST = "Test"


@dataclass(frozen=True, slots=True)
class Finding:
    """The current groups for one type of alert.

    groups: digest -> name; a new digest changes the alert. named: the groups that a message shows instead, if they
    differ. at_least: fewer groups are no alert. detail: the reason, or what a deletion costs consumers. first_due: when
    the first group may be deleted.
    """

    type: AlertType
    groups: Mapping[bytes, str]
    named: Sequence[str] | None = None
    at_least: int = 1
    detail: str = ""
    first_due: datetime | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """One policy after a run. deleted: the groups that this run deleted.

    unknown: digests of groups that could not be judged now: if they matched before, they may still match. judged:
    digests of all judged groups, if the brokers' responses may lack others; None = no group is missing. client_of:
    returns the last client of a group in words, "" = not known.
    """

    uid: str
    at: datetime
    findings: tuple[Finding, ...]
    deleted: Notice | None = None
    unknown: frozenset[bytes] = frozenset()
    judged: frozenset[bytes] | None = None
    client_of: Callable[[str], str] = field(default=lambda group: "", compare=False, repr=False)

    @property
    def is_complete(self) -> bool:
        """Whether every group could be judged."""
        return not self.unknown and self.judged is None

    def may_match(self, digest: bytes) -> bool:
        """Whether a group that does not match could not be judged."""
        return digest in self.unknown or (self.judged is not None and digest not in self.judged)


def digest_of(*texts: str) -> bytes:
    """Five bytes: a new group collides with one of 20,000 others with a probability of one in fifty million."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=5).digest()


def assess(plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot) -> Situation:
    """The result of a run: groups that match (in an alert or a dry run), marked groups, and blocked deletions."""
    policy = plan.policy
    deleted = tuple(outcome.group for outcome in outcomes if outcome.kind is OutcomeKind.DELETED)
    findings: list[Finding] = []
    if policy.action is Action.ALERT or policy.mode is not Mode.ENFORCE:
        matched = plan.due or plan.matched
        findings.append(Finding(AlertType.GROUPS_MATCHED, _digests(matched), at_least=policy.alert.groups_at_least))
    gone = set(deleted)
    waiting = {group: plan.due_time(group) for group in plan.marked if group not in gone}
    dates = {group: due for group, due in waiting.items() if due is not None}
    # With its date: a group that is marked again has another date, which no message showed yet.
    newest = {group: plan.newest_due(group) or due for group, due in dates.items()}
    marked = {digest_of(group, due.isoformat()): group for group, due in newest.items()}
    skipped = skipped_by_latest(plan.verdicts[group] for group in dates if group in plan.verdicts)
    first_due = min(dates.values(), default=None)
    findings.append(Finding(AlertType.GROUPS_MARKED, marked, detail=skipped, first_due=first_due))
    if plan.refusal is not None:
        # Another reason changes the alert; another number in its message does not.
        why = {digest_of(plan.refusal.reason): plan.refusal.reason}
        detail = f"{plan.refusal.reason}: {plan.refusal.message}"[: DETAIL_MAX + 1]
        findings.append(Finding(AlertType.DELETION_BLOCKED, why, named=plan.due, detail=detail))
    return Situation(
        policy.uid,
        snapshot.taken_at,
        tuple(findings),
        deleted=Notice(snapshot.taken_at, len(deleted), named(deleted)) if deleted else None,
        unknown=frozenset(map(digest_of, plan.verdicts.unknown)),
        judged=None if snapshot.complete else frozenset(map(digest_of, plan.verdicts.names)),
        client_of=lambda group: _last_client(plan, group),
    )


def _last_client(plan: Plan, group: str) -> str:
    verdict = plan.verdicts.get(group)
    activity = None if verdict is None else verdict.evidence.activity
    return str(activity.last_client or "") if isinstance(activity, Activity) else ""


def named(groups: Iterable[str]) -> list[str]:
    """The groups that a message names, without duplicates."""
    return list(dict.fromkeys(map(cut, groups)))[:NAMED_MAX]


def cut(group: str) -> str:
    """The stored form: one character more than a message shows, so that the message shows that it is truncated."""
    return group[: NAME_MAX + 1]


def _digests(groups: Iterable[str]) -> dict[bytes, str]:
    return {digest_of(group): group for group in groups}
