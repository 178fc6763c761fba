"""What is written into the ledger before a deletion: marks announce it, and requests to keep a group forbid it.

Changes no group. A mark ends when its group stops matching. For the requests of GroupKeeps an order decides: who
deletes writes an intent and reads it back with all requests; who keeps a group writes the request and reads it back
with all intents. So at least one of both sees the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType

from group_hygiene.engine.context import Context
from group_hygiene.engine.executor import Executor, Moment
from group_hygiene.engine.plan import Plan
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.offsets import committed_offsets
from group_hygiene.ledger.contents import Contents
from group_hygiene.model import reasons
from group_hygiene.model.entries import REQUESTED, Change, HistoryEntry, KeepRequest, Mark, OutcomeType, Removal, UsedBy
from group_hygiene.model.evidence import LastClient
from group_hygiene.model.group_keep import DueReason, GroupKeep, KeptGroup
from group_hygiene.model.groups import Description, Fault, GroupState
from group_hygiene.model.naming import PLAIN
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import Right, missing_entry
from group_hygiene.spec.crds import API_VERSION
from group_hygiene.spec.fields import timestamp
from group_hygiene.spec.patterns import Patterns, is_like_a_pattern
from group_hygiene.spec.policy import Policy, next_open

# For outcomes of policies that no longer exist.
_RETENTION = timedelta(days=30)
# Of the observations of a connection that is gone, in one round.
_REMOVALS = 10_000
# For this long a command that deletes may run.
_COMMAND = timedelta(hours=1)

# A request without an end is written this far ahead, and again when less than that is left.
_AHEAD, _RENEWED_AT = timedelta(days=7), timedelta(days=6)
# Requests of the GroupKeeps of one namespace in one ledger, whose entries stay in memory.
REQUESTS_MAX = 1_000
_LOST = "it or some of its offsets were deleted"
# Of a GroupRestore in a message, which has at most 1,000 bytes.
_OBJECT_MAX = 600


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


def keep_groups(
    executor: Executor,
    keep: GroupKeep,
    at_most_ahead: bool,
    policies: Mapping[str, Policy] = MappingProxyType({}),
) -> list[KeptGroup] | Refusal:
    """Write the requests of a GroupKeep that are missing or end soon, read them back, and find out how its groups are.

    at_most_ahead: no request is written further ahead than one without an end. policies: those that run, by uid.
    A Refusal: nothing was written.
    """
    context = executor.context
    contents, now = context.journal.contents, context.clock.now()
    if keep.until is not None and keep.until <= now:
        return _end_requests(executor, keep, now) or Refusal(
            reasons.KEEP_ENDED, f"until is over: {timestamp(keep.until)}"
        )
    granted = [name for name in keep.groups if keep.granted(name)]
    deadline = context.deadline()
    requests = _due_requests(context, keep, granted, at_most_ahead, deadline)
    new = [name for name in requests if keep.source not in contents.object_keeps.get(name, {})]
    sources = [source for by_source in contents.object_keeps.values() for source in by_source]
    of_namespace = sum(source.startswith(f"{keep.namespace}/") for source in sources)
    too_many = new[max(0, REQUESTS_MAX - of_namespace) :]
    for name in too_many:
        del requests[name]
    if requests and keep.namespace != context.connection.namespace:
        exceeded = context.memory.allowance.take(keep.namespace, len(requests), context.clock.monotonic())
        if exceeded is not None:
            return exceeded
    if requests:
        problem = executor.refusal(deadline, Moment.REQUEST) or executor.record(list(requests.values()), deadline)
        problem = problem or context.journal.skew(context.clock.now())
    else:
        # The rounds in between have not read what commands wrote.
        problem = context.journal.read_on(deadline) if context.journal.exists else context.journal.problem
    if problem is not None:
        return problem
    contents = context.journal.contents
    # After the requests were read back: from now on no deletion begins.
    asked = [name for name in granted if name not in too_many]
    found = kafka_groups.find_groups(context.client, asked, Deadline(context.connection.timeout.total_seconds()))
    over = f"the GroupKeeps of a namespace may keep {REQUESTS_MAX} groups of a connection"
    refused = {name: KeptGroup(name, False, reasons.TOO_MANY_KEEPS, over) for name in too_many}
    for name in set(keep.groups).difference(granted):
        refused[name] = KeptGroup(
            name,
            False,
            reasons.ACTION_NOT_GRANTED,
            "the connection does not grant Keep for it",
            remedy=f"To get it, {_missing(keep, Right.KEEP, name)}",
        )
    seen = contents.seen.get(context.connection.uid, {})

    def result(name: str) -> KeptGroup:
        found_now = _protected(context, keep, name, found[name], policies)
        client = _client(contents.used_by.get(name), found[name], now)
        activity = context.memory.of_keeps.get(name)
        if activity is not None and not client:
            client = str(activity.last_client or "")
        if found_now.state != GroupState.EMPTY:
            # What scans and tables saw of it was before its members.
            return replace(found_now, client=client)
        since = seen[name].since if name in seen else None
        idle = None if activity is None else activity.idle_since
        return replace(found_now, unchanged_since=since, idle_since=idle, client=client)

    return [refused.get(name) or result(name) for name in keep.groups]


def _due_requests(
    context: Context, keep: GroupKeep, groups: Iterable[str], at_most_ahead: bool, deadline: Deadline
) -> dict[str, KeepRequest]:
    """The requests for these groups that the ledger lacks, or that end soon there."""
    contents, now = context.journal.contents, context.clock.now()
    known = {name: contents.object_keeps.get(name, {}).get(keep.source) for name in groups}
    deletions = {name: contents.last_deletion(name) for name, request in known.items() if request is None}
    # Brokers that don't answer leave time for the request.
    there = _exist(context, [name for name, at in deletions.items() if at is not None], Deadline(deadline.left / 3))
    requests = {}
    for name, earlier in known.items():
        request = KeepRequest(
            group=name,
            until=_until(keep, earlier, now, at_most_ahead),
            why=keep.reason,
            by=f"GroupKeep {keep.namespace}/{keep.name}",
            at=now if earlier is None else earlier.at,
            source=keep.source,
            # Later deletions concern the request, also one that had begun before.
            after=earlier.after if earlier is not None else deletions[name] if name in there else None,
        )
        if request != earlier:
            requests[name] = request
    return requests


def _exist(context: Context, deleted: Collection[str], deadline: Deadline) -> Collection[str]:
    """Which of these groups certainly exist again, and have no deletion that may yet be carried out."""
    contents = context.journal.contents
    asked = [name for name in deleted if name not in contents.intents and name not in contents.unresolved]
    if not asked:
        return ()
    found = kafka_groups.find_groups(context.client, asked, deadline)
    # For a moment, a new coordinator does not show a group whose last records it has not committed: here it says so.
    absent = dict.fromkeys(name for name, answer in found.items() if answer is None)
    left = committed_offsets(context.client, absent, deadline, require_stable=True) if absent else {}
    shown = {name for name, answer in found.items() if isinstance(answer, Description)}
    return shown | {name for name, offsets in left.items() if offsets and not isinstance(offsets, Fault)}


def _end_requests(executor: Executor, keep: GroupKeep, now: datetime) -> Refusal | None:
    """End the requests of a GroupKeep that is over, which last longer if its `until` was edited; why they stay.

    Only by a clock with which the broker's agrees.
    """
    journal = executor.context.journal
    of_keep = [by[keep.source] for by in journal.contents.object_keeps.values() if keep.source in by]
    ended = [Removal(request.key) for request in of_keep if request.until > now]
    if not ended:
        return None
    deadline = executor.context.deadline()
    problem = executor.refusal(deadline, Moment.REQUEST)
    if problem is None:
        time = executor.broker_time(deadline)
        problem = time if isinstance(time, Refusal) else journal.skew(now)
    return problem or executor.record(ended, deadline)


def withdraw(context: Context, wanted: Mapping[str, Collection[str] | None], knows: Callable[[str], bool]) -> None:
    """End the requests of GroupKeeps that no longer ask for them.

    wanted: uid of a GroupKeep -> its groups; None = not known, so its requests stay until they end.
    knows: whether a GroupKeep of this namespace that is missing there does not exist.
    """
    journal = context.journal
    if journal.problem is not None or not journal.exists:
        return
    ended: list[Removal] = []
    for name, by_source in journal.contents.object_keeps.items():
        for source, request in by_source.items():
            groups = wanted.get(_uid(source), () if knows(source.partition("/")[0]) else None)
            if groups is not None and name not in groups:
                ended.append(Removal(request.key))
    if ended:
        Executor(context).end(ended)


def keepers(contents: Contents) -> set[str]:
    """The uids of the GroupKeeps that have requests in the ledger."""
    return {_uid(source) for by_source in contents.object_keeps.values() for source in by_source}


def _uid(source: str) -> str:
    return source.rpartition("/")[2]


def _until(keep: GroupKeep, known: KeepRequest | None, now: datetime, at_most_ahead: bool) -> datetime:
    if keep.until is not None and (not at_most_ahead or keep.until <= now + _AHEAD):
        return keep.until
    return known.until if known is not None and now + _RENEWED_AT < known.until <= now + _AHEAD else now + _AHEAD


def _client(used_by: UsedBy | None, found: Description | Fault | None, now: datetime) -> str:
    """A member, without its host, which the pipeline shows only if asked to; else the last one that a scan noted."""
    if isinstance(found, Description) and found.members:
        first, *others = sorted(member.client_id for member in found.members)
        return str(LastClient(first, None, None, None, len(others), now))
    if used_by is None:
        return ""
    return f"{LastClient(used_by.client_id, None, None, None, 0, used_by.at)} at {timestamp(used_by.at)}"


def _missing(keep: GroupKeep, right: Right, name: str) -> str:
    entry = missing_entry(keep.namespace, [right], Patterns.of_names([name]).sources)
    return f"the connection's owner must add {entry} to spec.access"


def _how_to_restore(context: Context, keep: GroupKeep, name: str) -> str:
    """A GroupRestore that the team may create; else what it may ask for."""
    then = "this request protects it from then on"
    if not keep.restorable(name):
        return f"To restore it, {_missing(keep, Right.RESTORE, name)}, or restore it; {then}"
    reference = {"name": context.connection.name, "namespace": context.connection.namespace}
    made = {
        "apiVersion": API_VERSION,
        "kind": "GroupRestore",
        "metadata": {"generateName": "restore-"},
        "spec": {"connectionRef": reference, "groups": [name]},
    }
    text = json.dumps(made)
    if PLAIN.fullmatch(name):
        text = f"echo '{text}' | kubectl create -n {keep.namespace} -f -"
    if len(text) > _OBJECT_MAX:
        return f"To restore it, create a GroupRestore; {then}"
    return f"To restore it, create this GroupRestore in namespace {keep.namespace}; {then}: {text}"


def _due_reason(mark: Mark, policies: Mapping[str, Policy]) -> DueReason | None:
    """None = not known: another connection has the policy, or it was edited and will mark the group again."""
    if mark.policy_uid.startswith(REQUESTED):
        return DueReason.REQUESTED
    policy = policies.get(mark.policy_uid)
    if policy is None or policy.digest != mark.digest:
        return None
    if policy.by_topic:
        return DueReason.STALE_OFFSETS
    return DueReason.UNCHANGED if policy.when.idle_for is None else DueReason.IDLE


def _protected(
    context: Context,
    keep: GroupKeep,
    name: str,
    found: Description | Fault | None,
    policies: Mapping[str, Policy],
) -> KeptGroup:
    contents = context.journal.contents
    request = contents.object_keeps.get(name, {}).get(keep.source)
    if request is None:
        return KeptGroup(name, False, reasons.LEDGER_UNAVAILABLE, "its request was not read back")
    marks = [mark for of in contents.marks.values() for mark in [of.get(name)] if mark is not None]
    first = min(marks, key=lambda mark: mark.due, default=None)
    due, why = (None, None) if first is None else (first.due, _due_reason(first, policies))
    # The names of other namespaces' policies are not for this one.
    namespace, _, policy = ("" if first is None else first.policy).partition("/")
    state = None if isinstance(found, Fault) else str(found.group.state) if found is not None else ""

    def result(protected: bool, reason: str = "", message: str = "", remedy: str = "") -> KeptGroup:
        shown = policy if namespace == keep.namespace else ""
        return KeptGroup(name, protected, reason, message, state, request.until, due, why, shown, remedy=remedy)

    if name in contents.intents:
        return result(False, reasons.BEING_DELETED, "its deletion had begun before; it is asked for again soon")
    if name in contents.unresolved:
        text = "an earlier deletion was interrupted, and brokers may yet delete it; it is asked for again soon"
        return result(False, reasons.BEING_DELETED, text)
    lost, deleted = contents.lost(request), contents.deletions.get(name)
    if found is None and lost is not None and deleted is not None:
        when = f"was deleted at {timestamp(deleted.at)}, with a backup until {timestamp(deleted.until)}"
        return result(False, reasons.ALREADY_DELETED, when, _how_to_restore(context, keep, name))
    if found is None and is_like_a_pattern(name):
        return result(False, reasons.GROUP_UNKNOWN, "there is no such group: a GroupKeep has exact ids, no patterns")
    if found is None:
        return result(True, reasons.GROUP_UNKNOWN, "there is no such group; the request protects it if it appears")
    if lost is not None:
        of_part = any(each.at == lost for each in contents.unfinished.get(name, {}).values())
        what = "a deletion that may have deleted some of its offsets was interrupted" if of_part else _LOST
        text = f"{what} at {timestamp(lost)}, and no restore brought all of them back"
        return result(False, reasons.ALREADY_DELETED, text, _how_to_restore(context, keep, name))
    if isinstance(found, Fault):
        # Its message may have addresses of brokers.
        text = f"whether it exists could not be read ({found.code}); the request protects it"
        return result(True, reasons.GROUP_UNREADABLE, text)
    return result(True)
