"""Marks: a group is warned of before it is deleted, and let go when it stops matching. Writes the ledger, no group."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from group_hygiene import reasons
from group_hygiene.entries import Change, Mark, Outcome, Removal, What
from group_hygiene.model import Keep
from group_hygiene.plan import Plan
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.deletion import new_id

# For outcomes of policies that are not there any more to say how long.
_RETENTION = timedelta(days=30)


def forget_policies(context: Context, existing: Collection[str]) -> None:
    """End what the ledger holds of policies that are not among the `existing` (uids of all there are, everywhere)."""
    contents, now = context.journal.contents, context.clock.now()
    gone = (contents.watches.keys() | contents.seen.keys() | contents.marks.keys()) - set(existing)
    changes: list[Change] = []
    for uid in gone:
        changes += (Removal(("seen", uid, name)) for name in contents.seen.pop(uid, {}))
        changes += [Removal(("watch", uid))]
        for mark in contents.marks.pop(uid, {}).values():
            changes += _unmarked(mark, Keep(reasons.POLICY_CHANGED, "the policy was deleted"), 0, now, now + _RETENTION)
        context.memory.looks.pop(uid, None)
    context.journal.note(changes)


def note_marks(context: Context, plan: Plan) -> Keep | None:
    """Write the plan's new marks and take away those that hold no longer; the reason why that could not be written.

    A mark's date is set here and never moved.
    """
    policy, now = plan.policy, plan.at
    marks = context.journal.contents.marks.get(policy.uid, {})
    changes: list[Change] = [mark for name, mark in plan.marks.items() if mark != marks.get(name)]
    changes += [
        Mark(
            policy_uid=policy.uid,
            group=name,
            policy=policy.key,
            digest=policy.digest,
            since=now,
            due=now + policy.grace_period,
            topics=dict.fromkeys(sorted(plan.verdicts[name].topics), now),
        )
        for name in sorted(plan.marking - plan.marks.keys())
    ]
    for name, why in plan.unmarking.items():
        changes += _unmarked(marks[name], why, policy.generation, now, now + policy.backup_retention)
    if not changes:
        return None
    problem = context.journal.record(changes)
    if problem is not None:
        # A mark that ended has ended, also where that can't be written now: its date must not count again.
        context.journal.note([change for change in changes if isinstance(change, Removal)])
    return problem


def _unmarked(mark: Mark, why: Keep, generation: int, now: datetime, expires: datetime) -> list[Change]:
    """The end of a mark, and what history tells of it. generation: of the policy, 0 where there is none any more."""
    outcome = Outcome(
        group=mark.group,
        id=new_id(now),
        at=now,
        what=What.UNMARKED,
        reason=why.reason,
        message=why.message,
        policy=mark.policy,
        policy_uid=mark.policy_uid,
        generation=generation,
        expires=expires,
        marked_since=mark.since,
    )
    return [Removal(mark.key), outcome]
