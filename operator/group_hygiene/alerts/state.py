"""The alerts of a policy from run to run, and the items that a receiver has not received yet. Pure.

A new group changes an alert. A group that stops matching changes nothing, unless it was the last one: that ends the
alert. An alert with a threshold (`groupsAtLeast`) changes when its groups have doubled since its latest change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from group_hygiene.alerts.situation import AlertType, Finding, Situation, cut, digest_of, named
from group_hygiene.model.entries import DeliveryState, Firing, Notice
from group_hygiene.spec.policy import Policy

# How many digests of one alert are compared: 100 KB. Of more digests, the smallest ones are compared.
_COMPARED = 20_000
_WIDTH = len(digest_of(""))
# An Alertmanager ends an alert that is not sent again.
_VALID_MIN, _VALID_INTERVALS = timedelta(hours=1), 4
# An Alertmanager waits some minutes before it notifies of an alert, and does not notify of one that ended meanwhile.
_NOTICE_VALID = timedelta(hours=1)
# The precision of times in an Alertmanager's labels.
_TICK = timedelta(seconds=1)


class Status(StrEnum):
    """REPLACED, for an Alertmanager only: the alert changed, so a newer alert replaces it."""

    FIRING = "firing"
    RESOLVED = "resolved"
    NOTICE = "notice"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Item:
    """One alert of a message. policy, connection: namespace/name.

    since: the time of its latest change. until: how long an Alertmanager shows it unless it is sent again. groups: at
    most 20 of `total`, new ones first. new: how many were new at the latest change. detail, first_due: see Finding.
    clients: of each of `groups` the last client in words, "" = not known; empty = none is known. owner: whose groups
    these are, "" = all groups of the policy. keep_link: `keepLink` of the connection.
    """

    status: Status
    type: AlertType
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
    clients: tuple[str, ...] = ()
    owner: str = ""
    keep_link: str = ""


def advance(before: Mapping[str, Firing], situation: Situation) -> dict[str, Firing]:
    """The alerts of a policy after a run, by type, given those before it."""
    after = {found.type: _advance(before.get(found.type), found, situation) for found in situation.findings}
    return {str(alert_type): firing for alert_type, firing in after.items() if firing is not None}


def _advance(before: Firing | None, finding: Finding, situation: Situation) -> Firing | None:
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
    groups = named([*first, *finding.groups.values()])
    if finding.named is not None:
        groups, total, count = named(finding.named), len(finding.named), 0
    digests = packed((*finding.groups, *held))
    return Firing(since, digests, total, reported, count, groups, detail, finding.first_due)


def pending(
    policy: Policy | None,
    connection: str,
    firing: Mapping[str, Firing],
    delivery: DeliveryState,
    now: datetime,
    renew: bool,
) -> list[Item]:
    """The alerts of a policy that a receiver has not received yet. renew: also firing alerts that it has received.

    policy: None = it is gone, suspended, or no longer notifies this receiver; then it has no firing alerts.
    connection: namespace/name.
    """

    def item(status: Status, alert_type: AlertType, since: datetime, **shown: Any) -> Item:
        action, mode = ("", "") if policy is None else (str(policy.action), str(policy.mode))
        return Item(status, alert_type, delivery.policy, connection, since, action=action, mode=mode, **shown)

    items: list[Item] = []
    for alert_type in AlertType:
        alert, since = firing.get(alert_type), delivery.since.get(alert_type)
        changed = alert is None or alert.since != since
        if since is not None and changed:
            items.append(item(Status.RESOLVED if alert is None else Status.REPLACED, alert_type, since))
        if alert is not None and (changed or renew):
            until, groups = now + validity(policy), tuple(alert.groups)
            shown = {"total": alert.total, "new": alert.new, "detail": alert.detail, "first_due": alert.first_due}
            items.append(item(Status.FIRING, alert_type, alert.since, until=until, groups=groups, **shown))
    if delivery.deleted is not None:
        # Also for a receiver that was unavailable for longer.
        at, total, groups = delivery.deleted.at, delivery.deleted.total, tuple(delivery.deleted.groups)
        until = max(now, at) + _NOTICE_VALID
        items.append(
            item(Status.NOTICE, AlertType.GROUPS_DELETED, at, until=until, groups=groups, total=total, new=total)
        )
    return items


def validity(policy: Policy | None) -> timedelta:
    """How long an Alertmanager shows an alert of this policy unless it is sent again."""
    return _VALID_MIN if policy is None else max(_VALID_MIN, policy.interval * _VALID_INTERVALS)


def added(pending: Notice | None, deleted: Notice | None) -> Notice | None:
    """The pending deletions, with those of another run."""
    if pending is None or deleted is None:
        return pending or deleted
    return Notice(deleted.at, pending.total + deleted.total, named([*pending.groups, *deleted.groups]))


def remaining(pending: Notice | None, sent: Notice | None) -> Notice | None:
    """The deletions that are still pending: those that were added while a message with the others was in flight."""
    if pending is None or sent is None:
        return pending
    left = pending.total - sent.total
    return Notice(pending.at, left, pending.groups[len(sent.groups) :]) if left > 0 else None


def packed(digests: Iterable[bytes]) -> bytes:
    """The digests that are compared."""
    return b"".join(sorted(digests)[:_COMPARED])


def unpacked(digests: bytes) -> frozenset[bytes]:
    """The digests that `packed` was given, 20,000 at most."""
    return frozenset(digests[at : at + _WIDTH] for at in range(0, len(digests), _WIDTH))
