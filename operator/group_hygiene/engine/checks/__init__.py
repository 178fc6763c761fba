"""Judges one group by an ordered chain of pure functions `(policy, group, evidence, now) -> Answer`.

The first answer that is not None decides. Each action has a chain. It begins with protections, which Alert does not
ask: a group that must not be deleted is worth an alert. Then come use and the policy's conditions, those that cost
nothing before those that cost requests. Missing evidence refuses: a check without its evidence answers with a Need.
`scan.observe` reads only that evidence, only for these groups, and judges again.

    needed   groups that are protected, or for which being Empty is normal
    used     whether the group is in use: its state, the offsets log, and the operator's scans
    offsets  whether the committed offsets are known, when Kafka deletes them, and whether members read their topics
    lag      records after the committed offsets, and whether these are in range
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from group_hygiene.engine.checks import lag, needed, offsets, used
from group_hygiene.model.evidence import Evidence, Need, Verdict
from group_hygiene.model.groups import Group
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.policy import Action, Policy

Answer = Refusal | Need | None
Check = Callable[[Policy, Group, Evidence, datetime], Answer]


def judge(policy: Policy, group: Group, evidence: Evidence, now: datetime, passed: int = 0) -> Verdict:
    """The verdict on a group that `policy.match` selects: the first answer of the chain, or a match.

    passed: `Verdict.passed` of an earlier verdict in the same scan. Only if no activity was read since then, which is
    evidence for checks that don't need it. Checks that passed depend on no other evidence that is read later.
    """
    checks = chain(policy)
    for check in checks[passed:]:
        answer = check(policy, group, evidence, now)
        if answer is None:
            continue
        if isinstance(answer, Need):
            return Verdict(group, evidence, answer.refusal, need=answer, passed=checks.index(check))
        return Verdict(group, evidence, answer)
    topics = offsets.unread_topics(policy, evidence, now) if policy.action is Action.DELETE_OFFSETS else None
    return Verdict(group, evidence, None, topics if isinstance(topics, frozenset) else frozenset())


def chain(policy: Policy) -> tuple[Check, ...]:
    """The checks that judge the groups of this policy."""
    return CHAINS[policy.action]


_OURS: tuple[Check, ...] = (needed.own_group, needed.id_too_long)
_NEEDED: tuple[Check, ...] = (
    needed.protected,
    needed.failover_target,
    needed.keep_requested,
    needed.record_unreadable,
    needed.reappeared,
    needed.claimed,
    needed.connect,
    needed.streams,
)
_NOT_RESTORABLE: tuple[Check, ...] = (needed.streams_lost, needed.mirror_maker, needed.share)
PROTECTIONS: tuple[Check, ...] = (*_NEEDED, *_NOT_RESTORABLE)
# What is read last: each end is requested once.
_ENDS: tuple[Check, ...] = (lag.caught_up, lag.lag, lag.in_range)
CHAINS: Mapping[Action, tuple[Check, ...]] = {
    Action.DELETE: (
        *_OURS,
        *_NEEDED,
        needed.streams_state,
        *_NOT_RESTORABLE,
        used.dead,
        used.not_empty,
        used.simple,
        used.evidence_known,
        used.idle,
        offsets.expires,
        offsets.offsets_known,
        offsets.nothing_started,
        offsets.committed,
        offsets.topics_deleted,
        used.unchanged,
        *_ENDS,
    ),
    # The only condition that the CRD allows is idleFor.
    Action.DELETE_OFFSETS: (
        *_OURS,
        *PROTECTIONS,
        used.dead,
        offsets.lives,
        used.evidence_known,
        offsets.used_lately,
        offsets.offsets_known,
        offsets.nothing_started,
        offsets.unread,
    ),
    Action.ALERT: (
        *_OURS,
        used.in_use,
        used.simple,
        used.evidence_known,
        used.idle,
        offsets.expires,
        offsets.offsets_asked,
        offsets.committed,
        offsets.topics_deleted,
        used.unchanged,
        *_ENDS,
    ),
}
