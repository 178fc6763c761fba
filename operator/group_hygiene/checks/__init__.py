"""Whether one group stays: an ordered chain of pure functions `(policy, group, evidence, now) -> Keep or None`.

The chain runs from "somebody said hands off" over "it is not what the policy looks for" to "it may be in use", and the
first Keep decides. Missing evidence keeps. Some answers also say what to read next (those that end in NotRead):
`reconcile.observe` reads just that, for just these groups, and judges again, so that a scan costs what its policies ask
and nothing else. `needed`, `used`, `offsets`, `stale` and `unread` hold the checks by what they are about.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from group_hygiene.checks import needed, offsets, stale, unread, used
from group_hygiene.model import Evidence, Group, Keep, Verdict
from group_hygiene.policy import Action, Policy

Check = Callable[[Policy, Group, Evidence, datetime], Keep | None]


def judge(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Verdict:
    """The verdict on a group that `policy.match` selects: the first Keep of the chain, or a match."""
    for check in CHECKS:
        keep = check(policy, group, evidence, now)
        if keep is not None:
            return Verdict(group, evidence, keep)
    topics = stale.unread_topics(policy, evidence, now) if policy.action is Action.DELETE_OFFSETS else frozenset[str]()
    return Verdict(group, evidence, None, frozenset() if isinstance(topics, Keep) else topics)


CHECKS: tuple[Check, ...] = (
    needed.own_group,
    needed.id_too_long,
    needed.protected,
    needed.failover_target,
    needed.kept_on_request,
    needed.record_unreadable,
    needed.reappeared,
    needed.claimed,
    needed.connect,
    needed.streams,
    needed.streams_state,
    needed.streams_lost,
    needed.mirror_maker,
    needed.share,
    used.dead,
    used.not_empty,
    stale.lives,
    used.simple,
    used.evidence_known,
    used.idle,
    offsets.expires,
    stale.used_lately,
    offsets.offsets_known,
    offsets.committed,
    offsets.topics_deleted,
    used.unchanged,
    stale.unread,
    unread.caught_up,
    unread.lag,
    unread.in_range,
)
