"""How the alerts of a policy go on from run to run, and what a receiver still has to get of them. Pure.

Another group is a change of an alert; one that stops matching while others remain is none; the last one ends it. An
alert with a threshold (`groupsAtLeast`) changes when it has twice the groups that it had at its latest change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from group_hygiene.alerts.situation import Finding, News, Situation, cut, digest_of, named
from group_hygiene.model.entries import Firing, Got, Notice
from group_hygiene.spec.policy import Policy

# Of one alert, how many digests are compared: 100 KB. Beyond that the smallest ones stand for all.
_COMPARED = 20_000
_WIDTH = len(digest_of(""))
# An Alertmanager ends an alert that is not sent again.
_VALID_MIN, _VALID_INTERVALS = timedelta(hours=1), 4
# An Alertmanager waits some minutes before it notifies of an alert, and does not notify of one that ended meanwhile.
_NOTICE_VALID = timedelta(hours=1)
# How precisely an Alertmanager's labels show a time.
_TICK = timedelta(seconds=1)


class Status(StrEnum):
    """REPLACED, for an Alertmanager only: the alert changed, and so a newer one takes its place."""

    FIRING = "firing"
    RESOLVED = "resolved"
    NOTICE = "notice"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Item:
    """One alert of a message. policy, connection: namespace/name.

    since: when its latest change was found. until: how long an Alertmanager shows it unless it is sent again. groups:
    20 at most, new ones first, of `total`. new: how many were new at the latest change. detail, first_due: see Finding.
    """

    status: Status
    news: News
    policy: str
    connection: str
    since: datetime
    until: datetime | None = None
    groups: tuple[str, ...] = ()
    total: int = 0
    new: int = 0
    detail: str = ""
    first_due: datetime | None = None
    action: str = ""
    mode: str = ""


def advance(before: Mapping[str, Firing], situation: Situation) -> dict[str, Firing]:
    """The alerts of a policy after a run, by kind, given those before it."""
    after = {found.news: _advance(before.get(found.news), found, situation) for found in situation.findings}
    return {str(news): firing for news, firing in after.items() if firing is not None}


def _advance(before: Firing | None, finding: Finding, situation: Situation) -> Firing | None:
    known = frozenset() if before is None else unpacked(before.digests)
    held: list[bytes] = []
    if finding.news is News.GROUPS_MATCHED:
        held = [digest for digest in known if digest not in finding.groups and situation.may_match(digest)]
    total = len(finding.groups) + len(held)
    if not total or total < finding.at_least:
        return None
    # Of more groups than are compared, those with larger digests are not known.
    largest = max(known) if len(known) >= _COMPARED else None
    new = {d: name for d, name in finding.groups.items() if d not in known and (largest is None or d < largest)}
    threshold = finding.at_least > 1
    since, reported, count, first = situation.at, total, len(new), list(new.values())
    if before is not None and (total >= 2 * before.reported if threshold else new):
        # Also if a clock was set back: an Alertmanager distinguishes the two alerts by this time.
        since = max(since, before.since + _TICK)
        count = total - before.reported if threshold else count
    elif before is not None:
        present = {cut(name) for name in finding.groups.values()}
        since, reported, count = before.since, before.reported, min(before.new, total)
        first = [name for name in before.groups if name in present]
    groups = named([*first, *finding.groups.values()])
    if finding.named is not None:
        groups, total, count = named(finding.named), len(finding.named), 0
    digests = packed((*finding.groups, *held))
    return Firing(since, digests, total, reported, count, groups, finding.detail, finding.first_due)


def pending(
    policy: Policy | None, connection: str, firing: Mapping[str, Firing], got: Got, now: datetime, renew: bool
) -> list[Item]:
    """What a receiver still has to get of a policy's alerts. renew: also what it has got and what still fires.

    policy: None = it is gone, suspended, or does not notify this receiver any more; then nothing of it fires.
    connection: namespace/name.
    """

    def item(status: Status, news: News, since: datetime, **shown: Any) -> Item:
        action, mode = ("", "") if policy is None else (str(policy.action), str(policy.mode))
        return Item(status, news, got.policy, connection, since, action=action, mode=mode, **shown)

    items: list[Item] = []
    for news in News:
        alert, since = firing.get(news), got.since.get(news)
        changed = alert is None or alert.since != since
        if since is not None and changed:
            items.append(item(Status.RESOLVED if alert is None else Status.REPLACED, news, since))
        if alert is not None and (changed or renew):
            until, groups = now + validity(policy), tuple(alert.groups)
            shown = {"total": alert.total, "new": alert.new, "detail": alert.detail, "first_due": alert.first_due}
            items.append(item(Status.FIRING, news, alert.since, until=until, groups=groups, **shown))
    if got.deleted is not None:
        # For a receiver that was away for longer, too.
        at, total, groups = got.deleted.at, got.deleted.total, tuple(got.deleted.groups)
        until = max(now, at) + _NOTICE_VALID
        items.append(item(Status.NOTICE, News.GROUPS_DELETED, at, until=until, groups=groups, total=total, new=total))
    return items


def validity(policy: Policy | None) -> timedelta:
    """How long an Alertmanager shows an alert of this policy unless it is sent again."""
    return _VALID_MIN if policy is None else max(_VALID_MIN, policy.interval * _VALID_INTERVALS)


def added(pending: Notice | None, deleted: Notice | None) -> Notice | None:
    """Deletions that are to be sent, with those of another run."""
    if pending is None or deleted is None:
        return pending or deleted
    return Notice(deleted.at, pending.total + deleted.total, named([*pending.groups, *deleted.groups]))


def remaining(pending: Notice | None, sent: Notice | None) -> Notice | None:
    """Deletions that are still to be sent: those that were added while a message with the others was in flight."""
    if pending is None or sent is None:
        return pending
    left = pending.total - sent.total
    return Notice(pending.at, left, pending.groups[len(sent.groups) :]) if left > 0 else None


def packed(digests: Iterable[bytes]) -> bytes:
    """Those that are compared."""
    return b"".join(sorted(digests)[:_COMPARED])


def unpacked(digests: bytes) -> frozenset[bytes]:
    """The digests that `packed` was given, 20,000 at most."""
    return frozenset(digests[at : at + _WIDTH] for at in range(0, len(digests), _WIDTH))
