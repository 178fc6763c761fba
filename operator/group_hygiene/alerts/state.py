"""What a receiver must hear of a policy, given what it was told and what holds now. Pure.

A group that was not there before is news; one that went away while others remain is none; that none is left, is. Of a
swarm (an alert of so many groups at least) one more is none either: that it is twice what was told, is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import structs

from group_hygiene.alerts.situation import Finding, News, Situation, digest_of
from group_hygiene.entries import Firing, Notice, Told
from group_hygiene.receivers import Kind

NAMED_MAX = 20
# Of a name, as Kafka takes 32,767 bytes: what is shown, and what is remembered to be told.
NAME_MAX = 200
# What is remembered of one alert: 100 KB. Beyond that the groups with the smallest digests stand for all.
_REMEMBERED = 20_000
_WIDTH = len(digest_of(""))
_NOTICES_MAX = 4
# An Alertmanager takes an alert for resolved when it is not told again.
_VALID_MIN, _VALID_INTERVALS = timedelta(hours=1), 4
# An Alertmanager waits some minutes before it tells of an alert, and tells of none that ended meanwhile.
_NOTICE_STANDS = timedelta(hours=1)
_KEPT = timedelta(days=60)
# How precisely an Alertmanager's labels show a time.
_TICK = timedelta(seconds=1)


class Status(StrEnum):
    """REPLACED and RENEWED are for an Alertmanager only: a newer alert took its place; it still holds."""

    FIRING = "firing"
    RESOLVED = "resolved"
    NOTICE = "notice"
    REPLACED = "replaced"
    RENEWED = "renewed"


@dataclass(frozen=True, slots=True)
class Item:
    """One alert of a message. policy, connection: namespace/name.

    since: when it was found. until: how long it holds untold, for an Alertmanager. groups: 20 at most, new ones first,
    of `total`. new: how many of these nobody was told of before, of a swarm at least. detail, first_due: see Finding.
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


@dataclass(frozen=True, slots=True)
class Route:
    """From a policy to a receiver. receiver: see Told. connection: namespace/name."""

    policy_uid: str
    receiver: str
    kind: Kind
    digest: str
    connection_uid: str
    connection: str


@dataclass(frozen=True, slots=True)
class Step:
    """items: what to send; none = nothing. told: what the receiver was told then; None = nothing that holds."""

    items: tuple[Item, ...]
    told: Told | None


def step(told: Told | None, situation: Situation | None, route: Route, now: datetime) -> Step:
    """What the receiver must hear now. situation: None = the policy is gone, suspended, or tells it nothing more."""
    if told is not None and told.digest != route.digest:
        # It is somewhere else now, where nobody heard of anything.
        told = structs.replace(told, firing={})
    before: Mapping[str, Firing] = {} if told is None else told.firing
    owed = () if told is None else told.owed
    policy = told.policy if situation is None and told is not None else _key(situation)
    items: list[Item] = []
    firing: dict[str, Firing] = {}
    findings = {} if situation is None else {finding.news: finding for finding in situation.findings}
    for news in News:
        finding, known = findings.get(news), before.get(news)
        after = None
        if situation is not None and finding is not None:
            more, after = _of_finding(known, finding, situation, route, now)
            items += more
        if known is not None and after is None:
            items.append(_over(Status.RESOLVED, news, known, situation, (policy, route.connection)))
        if after is not None:
            firing[news] = after
    items += [_notice(notice, situation, (policy, route.connection), now) for notice in owed]
    if situation is None or not firing:
        return Step(tuple(items), None)
    new = Told(
        policy_uid=route.policy_uid,
        receiver=route.receiver,
        digest=route.digest,
        connection_uid=route.connection_uid,
        policy=policy,
        firing=firing,
        expires=_expires(told, now),
    )
    return Step(tuple(items), new)


def owing(told: Told | None, situation: Situation, route: Route) -> Told | None:
    """What was told, with what this run deleted as owed; as it was where it deleted nothing."""
    if not situation.deleted:
        return told
    notices = () if told is None else told.owed
    named = [group[:NAME_MAX] for group in situation.deleted[:NAMED_MAX]]
    notice = Notice(situation.at, len(situation.deleted), named)
    if len(notices) == _NOTICES_MAX:
        last = notices[-1]
        notice = Notice(notice.at, last.total + notice.total, [*last.groups, *notice.groups][:NAMED_MAX])
        notices = notices[:-1]
    if told is None:
        return Told(
            policy_uid=route.policy_uid,
            receiver=route.receiver,
            digest=route.digest,
            connection_uid=route.connection_uid,
            policy=_key(situation),
            firing={},
            expires=situation.at + _KEPT,
            owed=(notice,),
        )
    return structs.replace(told, owed=(*notices, notice))


def still_owing(after: Told | None, present: Told | None, sent: Told | None) -> Told | None:
    """What was told, once what was `sent` arrived, with the notices that came up meanwhile, as `present` has them."""
    delivered = {notice.at for notice in (() if sent is None else sent.owed)}
    left = () if present is None else tuple(notice for notice in present.owed if notice.at not in delivered)
    if not left or present is None:
        return after
    return structs.replace(present, firing={} if after is None else after.firing, owed=left)


def _of_finding(
    known: Firing | None, finding: Finding, situation: Situation, route: Route, now: datetime
) -> tuple[list[Item], Firing | None]:
    """What to tell of it, and what was told of it then; None = it does not hold (any more)."""
    told = frozenset() if known is None else unpacked(known.digests)
    held = situation.held(told) if finding.news is News.GROUPS_MATCHED else frozenset()
    total = len(finding.groups) + len(held)
    if not total or total < finding.at_least:
        return [], None
    new = [digest for digest in finding.groups if _is_new(digest, told)]
    digests = packed((*finding.groups, *held))
    valid = max(_VALID_MIN, situation.interval * _VALID_INTERVALS)
    until = now + valid if route.kind is Kind.ALERTMANAGER else None
    where = _key(situation), route.connection
    if known is None:
        firing = Firing(situation.at, digests, until, total)
        return [_item(Status.FIRING, finding, situation, firing, new)], firing
    swarm = finding.at_least > 1
    if total >= 2 * known.total if swarm else new:
        # By what the run saw, not by the time of this try: a message that is sent again is the same message.
        firing = Firing(max(situation.at, known.since + _TICK), digests, until, total)
        item = _item(Status.FIRING, finding, situation, firing, new)
        items = [replace(item, new=total - known.total) if swarm else item]
        if until is not None:
            items.insert(0, _over(Status.REPLACED, finding.news, known, situation, where))
        return items, firing
    if until is not None and (known.until is None or known.until - now < valid / 2):
        firing = known._replace(digests=digests, until=until)
        return [_item(Status.RENEWED, finding, situation, firing, [])], firing
    return [], known._replace(digests=digests)


def _item(status: Status, finding: Finding, situation: Situation, firing: Firing, new: list[bytes]) -> Item:
    fresh = set(new)
    if finding.named is None:
        names = [finding.groups[digest] for digest in new]
        names += [name for digest, name in finding.groups.items() if digest not in fresh]
        total = max(len(finding.groups), len(unpacked(firing.digests)))
    else:
        names, total, new = list(finding.named), len(finding.named), []
    return Item(
        status=status,
        news=finding.news,
        policy=_key(situation),
        connection=situation.connection,
        since=firing.since,
        until=firing.until,
        groups=tuple(names[:NAMED_MAX]),
        total=total,
        new=len(new),
        detail=finding.detail,
        first_due=finding.first_due,
        action=situation.action,
        mode=situation.mode,
    )


def _over(status: Status, news: News, known: Firing, situation: Situation | None, where: tuple[str, str]) -> Item:
    return Item(status, news, *where, since=known.since, action=_action(situation))


def _notice(notice: Notice, situation: Situation | None, where: tuple[str, str], now: datetime) -> Item:
    return Item(
        Status.NOTICE,
        News.GROUPS_DELETED,
        *where,
        since=notice.at,
        # Of a receiver that was away for longer: what is over when it arrives, nobody is told of.
        until=max(now, notice.at) + _NOTICE_STANDS,
        groups=tuple(notice.groups),
        total=notice.total,
        new=notice.total,
        action=_action(situation),
    )


def _action(situation: Situation | None) -> str:
    return "" if situation is None else situation.action


def _key(situation: Situation | None) -> str:
    return "" if situation is None else f"{situation.namespace}/{situation.name}"


def _expires(told: Told | None, now: datetime) -> datetime:
    """Written anew only when half of the time is over."""
    if told is not None and told.expires - now > _KEPT / 2:
        return told.expires
    return now + _KEPT


def _is_new(digest: bytes, told: frozenset[bytes]) -> bool:
    return digest not in told and (len(told) < _REMEMBERED or digest < max(told))


def packed(digests: Iterable[bytes]) -> bytes:
    """What is remembered of them."""
    return b"".join(sorted(digests)[:_REMEMBERED])


def unpacked(digests: bytes) -> frozenset[bytes]:
    """The digests that `packed` was given, 20,000 at most."""
    return frozenset(digests[at : at + _WIDTH] for at in range(0, len(digests), _WIDTH))
