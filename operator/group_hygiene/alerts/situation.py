"""What one run of a policy found that receivers may have to hear of. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from group_hygiene import reasons
from group_hygiene.model import Outcome, OutcomeKind
from group_hygiene.plan import Plan, not_known
from group_hygiene.policy import Action, Mode
from group_hygiene.snapshot import Snapshot


class News(StrEnum):
    """What an alert is about. All but the last two are firing for as long as they hold; those are told once."""

    GROUPS_MATCHED = reasons.GROUPS_MATCHED
    GROUPS_MARKED = reasons.GROUPS_MARKED
    DELETION_BLOCKED = "DeletionBlocked"
    GROUPS_DELETED = reasons.GROUPS_DELETED
    TEST = "Test"


@dataclass(frozen=True, slots=True)
class Finding:
    """What holds now, of one kind.

    groups: digest -> name, of what one more of which is news. named: whom a message shows instead, if that is other.
    at_least: fewer are no alert. detail: why, in words. first_due: when the first of the groups may be deleted.
    """

    news: News
    groups: Mapping[bytes, str]
    named: Sequence[str] | None = None
    at_least: int = 1
    detail: str = ""
    first_due: datetime | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """One policy after a run. connection: namespace/name. deleted: groups that this run deleted.

    unknown: digests of groups that could not be judged now: whoever matched before may match still. judged: of all
    groups that were judged, where others may be missing from the answers of the brokers; None = none is missing.
    """

    uid: str
    namespace: str
    name: str
    connection: str
    action: str
    mode: str
    interval: timedelta
    at: datetime
    findings: tuple[Finding, ...]
    deleted: tuple[str, ...] = ()
    unknown: frozenset[bytes] = frozenset()
    judged: frozenset[bytes] | None = None

    @property
    def sees_all(self) -> bool:
        """Whether no group is out of sight."""
        return not self.unknown and self.judged is None

    def held(self, before: Iterable[bytes]) -> frozenset[bytes]:
        """Of groups that matched before, those that may match still and are only out of sight."""
        matched = self.matched
        return frozenset(digest for digest in before if digest not in matched and self._out_of_sight(digest))

    @property
    def matched(self) -> Mapping[bytes, str]:
        """What an alert of matching groups is about now."""
        return next((found.groups for found in self.findings if found.news is News.GROUPS_MATCHED), {})

    def _out_of_sight(self, digest: bytes) -> bool:
        return digest in self.unknown or (self.judged is not None and digest not in self.judged)


def digest_of(*texts: str) -> bytes:
    """Five bytes: of 20,000 groups and a new one, two have the same once in fifty million times."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=5).digest()


def assess(plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot) -> Situation:
    """What a run of a policy found: what matches (while that only alerts or is a dry run), waits, or may not go."""
    policy = plan.policy
    deleted = tuple(outcome.group for outcome in outcomes if outcome.kind is OutcomeKind.DELETED)
    findings: list[Finding] = []
    if policy.action is Action.ALERT or policy.mode is not Mode.ENFORCE:
        matched = plan.due or plan.matched
        findings.append(Finding(News.GROUPS_MATCHED, _digests(matched), at_least=policy.alert.groups_at_least))
    gone = set(deleted)
    waiting = {group: plan.due_time(group) for group in plan.marked if group not in gone}
    dates = {group: due for group, due in waiting.items() if due is not None}
    # With its date: a group that is marked anew has another one, of which nobody knows yet.
    newest = {group: plan.newest_due(group) or due for group, due in dates.items()}
    marked = {digest_of(group, due.isoformat()): group for group, due in newest.items()}
    findings.append(Finding(News.GROUPS_MARKED, marked, first_due=min(dates.values(), default=None)))
    if plan.refusal is not None:
        # Another reason is news, and another number in its message is not.
        why = {digest_of(plan.refusal.reason): plan.refusal.reason}
        detail = f"{plan.refusal.reason}: {plan.refusal.message}"
        findings.append(Finding(News.DELETION_BLOCKED, why, named=plan.due, detail=detail))
    return Situation(
        uid=policy.uid,
        namespace=policy.namespace,
        name=policy.name,
        connection=f"{policy.connection_namespace}/{policy.connection_name}",
        action=str(policy.action),
        mode=str(policy.mode),
        interval=policy.interval,
        at=snapshot.taken_at,
        findings=tuple(findings),
        deleted=deleted,
        unknown=frozenset(digest_of(name) for name, verdict in plan.verdicts.items() if not_known(verdict)),
        judged=None if snapshot.complete else frozenset(map(digest_of, plan.verdicts)),
    )


def _digests(groups: Iterable[str]) -> dict[bytes, str]:
    return {digest_of(group): group for group in groups}
