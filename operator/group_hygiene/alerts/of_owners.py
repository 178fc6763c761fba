"""Alerts for one owner: a policy and its plan, restricted to the groups of that owner. Pure.

An owner's alerts of a policy are those of a policy with a uid of its own, whose only receiver is the owner's. So they
change, end and survive restarts like the alerts of any policy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from group_hygiene.decide.plan import Plan
from group_hygiene.model.verdicts import Outcome
from group_hygiene.spec.owners import GroupOwner, Owners
from group_hygiene.spec.policy import Policy

# In no uid of Kubernetes, and in no owner's name.
_SEPARATOR = "/"


def of_owner(policy: Policy, owner: GroupOwner) -> Policy:
    """The policy as it alerts this owner, who has a receiver."""
    alert = structs.replace(policy.alert, receiver_names=(owner.receiver,))
    return replace(policy, uid=f"{policy.uid}{_SEPARATOR}{owner.name}", alert=alert)


def owner_in(uid: str) -> str:
    """The name of the owner in a uid of `of_owner`; "" = it is the uid of a policy."""
    return uid.partition(_SEPARATOR)[2]


def by_owner(plan: Plan, outcomes: Sequence[Outcome], owners: Owners) -> Iterator[tuple[Plan, list[Outcome]]]:
    """The plan and outcomes of each owner with a receiver, also if none of the groups is theirs: their alerts end.

    Without the refusal: an owner can't change what blocks deletions.
    """
    if not owners.notified:
        return
    found: dict[str, set[str]] = defaultdict(set)
    for group in {*plan.verdicts.names, *plan.marked, *(outcome.group for outcome in outcomes)}:
        found[owners.of(group)].add(group)
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
