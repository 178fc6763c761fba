"""The alerts of a policy: what a run found, how they change from run to run, and what a receiver has yet to get. Pure.

A new group changes an alert. A group that stops matching changes nothing, unless it was the last one: that ends the
alert. An alert with a threshold (`groupsAtLeast`) changes when its groups have doubled since its latest change.

An owner's alerts of a policy are those of a policy with a uid of its own, whose only receiver is the owner's. So they
change, end and survive restarts like the alerts of any policy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

from msgspec import structs

from group_hygiene.engine.checks.lag import skipped_by_latest
from group_hygiene.engine.plan import Plan
from group_hygiene.model import reasons
from group_hygiene.model.entries import Delivered, Firing, Notice, OutcomeType
from group_hygiene.model.evidence import Activity, Outcome
from group_hygiene.model.groups import Snapshot
from group_hygiene.spec.connection import GroupOwner, Owners
from group_hygiene.spec.patterns import NO_PATTERNS, Patterns
from group_hygiene.spec.policy import Action, Mode, Policy

# How many groups of an alert a message names.
NAMED_MAX = 20
# Characters of a name, which Kafka limits to 32,767 bytes, and of a detail, which may quote a broker.
NAME_MAX, DETAIL_MAX = 200, 1_000
# In no uid of Kubernetes, and in no owner's name.
_SEPARATOR = "/"
# How many digests of one alert are compared: 100 KB. Of more digests, the smallest ones are compared.
_COMPARED = 20_000
_WIDTH = 5
# An Alertmanager ends an alert that is not sent again.
_VALID_MIN, _VALID_INTERVALS = timedelta(hours=1), 4
# An Alertmanager waits some minutes before it notifies of an alert, and does not notify of one that ended meanwhile.
_NOTICE_VALID = timedelta(hours=1)
# The precision of times in an Alertmanager's labels.
_TICK = timedelta(seconds=1)


class AlertType(StrEnum):
    """The type of an alert. The last two are sent once; the others fire as long as their condition is true."""

    GROUPS_MATCHED = reasons.GROUPS_MATCHED
    GROUPS_MARKED = reasons.GROUPS_MARKED
    DELETION_BLOCKED = "DeletionBlocked"
    GROUPS_DELETED = reasons.GROUPS_DELETED
    TEST = "Test"


@dataclass(frozen=True, slots=True)
class AlertFinding:
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
    findings: tuple[AlertFinding, ...]
    deleted: Notice | None = None
    unknown: frozenset[bytes] = frozenset()
    judged: frozenset[bytes] | None = None
    client_of: Callable[[str], str] = field(default=lambda group: "", compare=False, repr=False)

    @property
    def is_partial(self) -> bool:
        """Whether some groups could not be judged."""
        return bool(self.unknown) or self.judged is not None

    def may_match(self, digest: bytes) -> bool:
        """Whether a group that does not match could not be judged."""
        return digest in self.unknown or (self.judged is not None and digest not in self.judged)


def digest_of(*texts: str) -> bytes:
    """`_WIDTH` bytes: a new group collides with one of 20,000 others with a probability of one in fifty million."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=_WIDTH).digest()


def assess(plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot) -> Situation:
    """The result of a run: groups that match (in an alert or a dry run), marked groups, and blocked deletions."""

    def client_of(group: str) -> str:
        verdict = plan.verdicts.get(group)
        activity = None if verdict is None else verdict.evidence.activity
        return str(activity.last_client or "") if isinstance(activity, Activity) else ""

    policy = plan.policy
    deleted = tuple(outcome.group for outcome in outcomes if outcome.kind is OutcomeType.DELETED)
    findings: list[AlertFinding] = []
    if policy.action is Action.ALERT or policy.mode is not Mode.ENFORCE:
        matched = {digest_of(group): group for group in plan.due or plan.matched}
        findings.append(AlertFinding(AlertType.GROUPS_MATCHED, matched, at_least=policy.alert.groups_at_least))
    gone = set(deleted)
    waiting = {group: plan.due_time(group) for group in plan.marked if group not in gone}
    dates = {group: due for group, due in waiting.items() if due is not None}
    # With its date: a group that is marked again has another date, which no message showed yet.
    newest = {group: plan.newest_due(group) or due for group, due in dates.items()}
    marked = {digest_of(group, due.isoformat()): group for group, due in newest.items()}
    skipped = skipped_by_latest(plan.verdicts[group] for group in dates if group in plan.verdicts)
    first_due = min(dates.values(), default=None)
    findings.append(AlertFinding(AlertType.GROUPS_MARKED, marked, detail=skipped, first_due=first_due))
    if plan.blocked is not None:
        # Another reason changes the alert; another number in its message does not.
        why = {digest_of(plan.blocked.reason): plan.blocked.reason}
        detail = f"{plan.blocked.reason}: {plan.blocked.message}"[: DETAIL_MAX + 1]
        findings.append(AlertFinding(AlertType.DELETION_BLOCKED, why, named=plan.due, detail=detail))
    return Situation(
        policy.uid,
        snapshot.taken_at,
        tuple(findings),
        deleted=Notice(snapshot.taken_at, len(deleted), named(deleted, client_of)) if deleted else None,
        unknown=frozenset(map(digest_of, plan.verdicts.unknown)),
        judged=None if snapshot.complete else frozenset(map(digest_of, plan.verdicts.names)),
        client_of=client_of,
    )


def named(groups: Iterable[str], client_of: Callable[[str], str]) -> dict[str, str]:
    """The groups that a message names, truncated, each with its last client."""
    found: dict[str, str] = {}
    for group in groups:
        if len(found) == NAMED_MAX:
            break
        found[cut(group)] = cut(client_of(group))
    return found


def cut(text: str) -> str:
    """The stored form: one character more than a message shows, so that the message shows that it is truncated."""
    return text[: NAME_MAX + 1]


def of_owner(policy: Policy, owner: GroupOwner) -> Policy:
    """The policy as it alerts this owner, who has a receiver."""
    alert = structs.replace(policy.alert, receiver_names=(owner.receiver,))
    return structs.replace(policy, uid=f"{policy.uid}{_SEPARATOR}{owner.name}", alert=alert)


def owner_in(uid: str) -> str:
    """The name of the owner in a uid of `of_owner`; "" = it is the uid of a policy."""
    return uid.partition(_SEPARATOR)[2]


def by_owner(plan: Plan, outcomes: Sequence[Outcome], owners: Owners) -> Iterator[tuple[Plan, list[Outcome]]]:
    """The plan and outcomes of each owner with a receiver, also if none of the groups is theirs: their alerts end.

    Without the refusal: an owner can't change what blocks deletions.
    """
    if not owners.notified:
        return
    found: dict[str, set[str]] = {owner.name: set() for owner in owners.notified}
    for group in {*plan.verdicts.names, *plan.marked, *(outcome.group for outcome in outcomes)}:
        found.get(owners.of(group), set()).add(group)
    for owner in owners.notified:
        groups = found[owner.name]
        own = replace(
            plan,
            policy=of_owner(plan.policy, owner),
            verdicts=plan.verdicts.changed(lambda verdict: verdict, groups),
            due=tuple(group for group in plan.due if group in groups),
            refusal=None,
            marking=plan.marking & groups,
            marks={group: mark for group, mark in plan.marks.items() if group in groups},
        )
        yield own, [outcome for outcome in outcomes if outcome.group in groups]


class Status(StrEnum):
    """A notice is sent once."""

    FIRING = "firing"
    RESOLVED = "resolved"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Item:
    """One alert of a message. policy, connection: namespace/name. uid: of the policy, or of `of_owner`.

    since: the time of its latest change. replaces: that of the alert before, which an Alertmanager must end. until: how
    long an Alertmanager shows it unless it is sent again. groups: at most 20 of `total`, new ones first, each with its
    last client in words, "" = not known. new: how many were new at the latest change. detail, first_due: see Finding.
    owner: whose groups these are, "" = all groups of the policy. keep_link: `keepLink` of the connection. keepable: the
    groups for which it grants Keep to a namespace.
    """

    status: Status
    type: AlertType
    policy: str
    connection: str
    since: datetime
    replaces: datetime | None = None
    until: datetime | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    total: int = 0
    new: int = 0
    detail: str = ""
    first_due: datetime | None = None
    action: str = ""
    mode: str = ""
    owner: str = ""
    keep_link: str = ""
    keepable: Patterns = field(default=NO_PATTERNS, compare=False)
    uid: str = ""


def advance(before: Mapping[str, Firing], situation: Situation) -> dict[str, Firing]:
    """The alerts of a policy after a run, by type, given those before it."""
    after = {found.type: _advance(before.get(found.type), found, situation) for found in situation.findings}
    return {str(alert_type): firing for alert_type, firing in after.items() if firing is not None}


def _advance(before: Firing | None, finding: AlertFinding, situation: Situation) -> Firing | None:
    known = frozenset() if before is None else unpacked(before.digests)
    held: list[bytes] = []
    if finding.type is AlertType.GROUPS_MATCHED:
        held = [digest for digest in known if digest not in finding.groups and situation.may_match(digest)]
    total = len(finding.groups) + len(held)
    if not total or total < finding.at_least:
        return None
    # If there are more groups than are compared, those with larger digests are not known.
    largest = max(known) if len(known) >= _COMPARED else None
    new = {d: name for d, name in finding.groups.items() if d not in known and (largest is None or d < largest)}
    threshold = finding.at_least > 1
    since, reported, count, first, detail = situation.at, total, len(new), list(new.values()), finding.detail
    if before is not None and (total >= 2 * before.reported if threshold else new):
        # Also if a clock was set back: an Alertmanager distinguishes the two alerts by this time.
        since = max(since, before.since + _TICK)
        count = total - before.reported if threshold else count
    elif before is not None:
        present = {cut(name) for name in finding.groups.values()}
        since, reported, count = before.since, before.reported, min(before.new, total)
        first = [name for name in before.groups if name in present]
        if finding.type is AlertType.GROUPS_MARKED:
            # As it was announced: topics that grow would change the entry at every run.
            detail = before.detail
    shown = [*first, *finding.groups.values()]
    if finding.named is not None:
        shown, total, count = list(finding.named), len(finding.named), 0
    groups = named(shown, situation.client_of)
    if before is not None:
        # A client that is not known now was known before.
        groups = {name: client or before.groups.get(name, "") for name, client in groups.items()}
    digests = packed((*finding.groups, *held))
    return Firing(since, digests, total, reported, count, groups, detail, finding.first_due)


def pending(
    policy: Policy | None,
    blank: partial[Item],
    firing: Mapping[str, Firing],
    delivered: Delivered,
    now: datetime,
    renew: Callable[[str], bool] = lambda alert_type: False,
) -> Iterator[Item]:
    """The alerts of a policy that a receiver has not received yet.

    policy: None = it is gone, suspended, or no longer notifies this receiver; then it has no firing alerts. blank:
    an item's fields that do not depend on the alert. renew: whether to send an alert of this type again.
    """
    for alert_type in AlertType:
        alert, since = firing.get(alert_type), delivered.since.get(alert_type)
        if alert is not None and (alert.since != since or renew(alert_type)):
            yield blank(
                status=Status.FIRING,
                type=alert_type,
                since=alert.since,
                replaces=since if since != alert.since else None,
                until=now + validity(policy),
                groups=alert.groups,
                total=alert.total,
                new=alert.new,
                detail=alert.detail,
                first_due=alert.first_due,
            )
        elif alert is None and since is not None:
            yield blank(status=Status.RESOLVED, type=alert_type, since=since)
    if delivered.deleted is not None:
        at, total, groups = delivered.deleted
        # Also for a receiver that was unavailable for longer.
        yield blank(
            status=Status.NOTICE,
            type=AlertType.GROUPS_DELETED,
            since=at,
            until=max(now, at) + _NOTICE_VALID,
            groups=groups,
            total=total,
            new=total,
        )


def received(before: Delivered, item: Item) -> Delivered:
    """What a receiver has after it received an item. Deletions that were added meanwhile stay pending."""
    if item.status is Status.NOTICE:
        deleted = before.deleted
        left = 0 if deleted is None else deleted.total - item.total
        groups = {} if deleted is None else {g: c for g, c in deleted.groups.items() if g not in item.groups}
        return before._replace(deleted=Notice(deleted.at, left, groups) if deleted and left > 0 else None)
    since = {alert_type: time for alert_type, time in before.since.items() if alert_type != item.type}
    return before._replace(since=since | ({item.type: item.since} if item.status is Status.FIRING else {}))


def validity(policy: Policy | None) -> timedelta:
    """How long an Alertmanager shows an alert of this policy unless it is sent again."""
    return _VALID_MIN if policy is None else max(_VALID_MIN, policy.interval * _VALID_INTERVALS)


def added(pending: Notice | None, deleted: Notice) -> Notice:
    """The pending deletions, with those of another run."""
    if pending is None:
        return deleted
    groups = dict([*pending.groups.items(), *deleted.groups.items()][:NAMED_MAX])
    return Notice(deleted.at, pending.total + deleted.total, groups)


def packed(digests: Iterable[bytes]) -> bytes:
    """The digests that are compared."""
    return b"".join(sorted(digests)[:_COMPARED])


def unpacked(digests: bytes) -> frozenset[bytes]:
    """The digests that `packed` was given, 20,000 at most."""
    return frozenset(digests[at : at + _WIDTH] for at in range(0, len(digests), _WIDTH))
