"""Marks announce a deletion, and end when the group stops matching. Writes the ledger and changes no group."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from group_hygiene.decide.plan import Plan
from group_hygiene.model import reasons
from group_hygiene.model.entries import REQUESTED, Change, HistoryEntry, Mark, OutcomeType, Removal
from group_hygiene.model.reasons import Refusal
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.executor import Executor
from group_hygiene.spec.policy import next_open

# For outcomes of policies that no longer exist.
_RETENTION = timedelta(days=30)
# Of the observations of a connection that is gone, in one round.
_REMOVALS = 10_000
# For this long a command that deletes may run.
_COMMAND = timedelta(hours=1)


def forget_policies(context: Context, existing: Collection[str], connections: Collection[str]) -> None:
    """Remove the entries of objects that no longer exist. existing, connections: uids of all policies, and of all
    connections.
    """
    contents, now = context.journal.contents, context.clock.now()
    gone = (contents.watches.keys() | contents.marks.keys()) - set(existing)
    why = Refusal(reasons.POLICY_CHANGED, "the policy was deleted")
    changes: list[Change] = []
    for uid in gone:
        marks = contents.marks.get(uid, {}).values()
        if uid.startswith(REQUESTED) and any(now - mark.since < _COMMAND for mark in marks):
            continue
        changes += [Removal(("watch", uid))]
        for mark in contents.marks.pop(uid, {}).values():
            changes += _unmarked(mark, why, 0, now, now + _RETENTION)
        context.memory.scan_histories.pop(uid, None)
    own = {context.connection.uid}
    counting = set(connections) | own if contents.watches.keys() - gone else set(connections) - own
    for uid in ({uid for uid, seen in contents.seen.items() if seen} | contents.clocks.keys()) - counting:
        names = list(contents.seen.get(uid, ()))
        changes += [Removal(("seen", uid, name)) for name in names[:_REMOVALS]]
        changes += [Removal(("scan-clock", uid))]
        if len(names) <= _REMOVALS:
            contents.seen.pop(uid, None)
    Executor(context).end(changes)


def note_marks(context: Context, plan: Plan) -> Refusal | None:
    """Write the plan's new marks and remove those that ended; the reason if they could not be written.

    The date of a mark is set here and never changes. One that is gone from the ledger since the plan was made stays
    gone.
    """
    policy, now = plan.policy, plan.at
    marking, over = plan.marking - plan.marks.keys(), None
    if marking and policy.crosses_namespace:
        over = context.memory.allowance.take(policy.namespace, len(marking), context.clock.monotonic())
    marks = context.journal.contents.marks.get(policy.uid, {})
    changes: list[Change] = [mark for name, mark in plan.marks.items() if name in marks and mark != marks[name]]
    changes += [
        Mark(
            policy_uid=policy.uid,
            group=name,
            policy=policy.key,
            digest=policy.digest,
            since=now,
            # In a window: an edit of the windows alone can't make it earlier.
            due=next_open(policy.windows, now + policy.grace_period),
            topics=dict.fromkeys(sorted(plan.verdicts[name].topics), now),
        )
        for name in sorted(marking if over is None else ())
    ]
    for name, why in plan.unmarking.items():
        if name not in marks:
            continue
        changes += _unmarked(marks[name], why, policy.generation, now, now + policy.backup_retention)
    if not changes:
        return over
    executor = Executor(context)
    problem = executor.record(changes)
    if problem is not None:
        # An ended mark must not count again, even if its end can't be written now.
        executor.end([change for change in changes if isinstance(change, Removal)])
    return problem or over


def _unmarked(mark: Mark, why: Refusal, generation: int, now: datetime, expires: datetime) -> list[Change]:
    """The changes that end a mark: its removal and its outcome. generation: of the policy; 0 = it no longer exists."""
    outcome = HistoryEntry(
        group=mark.group,
        # One for all policies of a namespace, which may mark a group as often as they like.
        id=f"unmarked-{mark.policy.partition('/')[0]}",
        at=now,
        what=OutcomeType.UNMARKED,
        reason=why.reason,
        message=why.message,
        policy=mark.policy,
        policy_uid=mark.policy_uid,
        generation=generation,
        expires=expires,
        marked_since=mark.since,
    )
    return [Removal(mark.key), outcome]
