"""How a deletion ends: one table of facts and outcomes. Pure.

`apply` calls `settle` with the answer to its request, `recover_intents` without one, for the operator and for commands.
Each combination of facts meets exactly one row. `docsite.proofs_page` prints the table in docs/safety-proofs.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, HistoryEntry, Intent, Key, Mark, OutcomeType, Removal
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.groups import GroupType
from group_hygiene.model.naming import truncated_list

_NAMES = 5
_SKIPPED = (
    "{waiting:,} records waited for it: consumers with auto.offset.reset=latest skip these, unless it is restored "
    "before they start"
)


class DeletionState(StrEnum):
    """The deletion in the ledger. The values of all facts are the texts of the printed table."""

    INTENT = "its intent"
    CONTESTED = "another process's intent, or none"
    IN_DOUBT = "in doubt"
    DOUBT_OVER = "in doubt for an hour"


class Target(StrEnum):
    """What was to be deleted."""

    GROUP = "group, by one request"
    LARGE = "group, by several requests"
    SHARE = "share group"
    TOPICS = "offsets of topics"


class RequestState(StrEnum):
    """What is known of the request, or of several requests."""

    NOT_SENT = "not sent"
    REFUSED = "refused, provably"
    PART = "carried out in part"
    CONFIRMED = "confirmed"
    UNCLEAR = "unclear"
    UNKNOWN = "sender ended"


# What Kafka has of the target then decides.
UNCLEAR = (RequestState.PART, RequestState.UNCLEAR)


class Presence(StrEnum):
    """What Kafka has of the target now. Restored: by the ledger, a restore brought back what had been deleted."""

    GONE = "gone"
    RESTORED = "gone, and restored since"
    SOME_TOPICS = "gone of some topics"
    PART = "a part is gone"
    PART_IN_USE = "a part is gone, and it was used since"
    PART_RESTORED = "a part was gone, and was restored since"
    THERE = "all there"
    UNKNOWN = "unreadable"


class Answer(NamedTuple):
    """What is known of the requests for one group. outcome: for the report, unless `settle` finds another one."""

    request: RequestState
    outcome: Outcome


class Remains(NamedTuple):
    """What Kafka has of a deletion's target. topics: those of the deletion without offsets now.

    left: how many committed offsets a large group has now.
    """

    found: Presence
    topics: frozenset[str] = frozenset()
    left: int = 0


@dataclass(frozen=True, slots=True)
class DeletionFacts:
    """All that decides how a deletion ends, and what its outcome quotes.

    deletion: its entry in the ledger; an Outcome if it is in doubt. answer: None = the sender of the request ended.
    backup: the keys of the deletion's backup, if this process wrote it. mark: of the group, by the same policy.
    """

    deletion: Intent | HistoryEntry
    state: DeletionState
    answer: Answer | None
    remains: Remains
    now: datetime
    backup: Sequence[Key] = ()
    mark: Mark | None = None

    @property
    def request(self) -> RequestState:
        return RequestState.UNKNOWN if self.answer is None else self.answer.request

    @property
    def target(self) -> Target:
        if self.deletion.topics:
            return Target.TOPICS
        if self.deletion.partitions:
            return Target.LARGE
        return Target.SHARE if self.deletion.type == GroupType.SHARE else Target.GROUP


class Done(NamedTuple):
    """The end of a deletion. outcome: for the run's report; entry: for the ledger, the first of the changes.

    changes: to write in one transaction.

    An outcome in doubt (`Contents.unresolved`) is followed by another one if the group disappears after all.
    """

    outcome: Outcome
    entry: HistoryEntry
    changes: tuple[Change, ...]

    def adding(self, text: str, changes: Sequence[Change] = ()) -> Done:
        """The same end, with a text at the end of the message and further changes."""
        message = f"{self.outcome.message}; {text}"
        entry = replace(self.entry, message=message)
        return Done(dataclass_replace(self.outcome, message=message), entry, (entry, *self.changes[1:], *changes))


class Open(NamedTuple):
    """Not known yet: nothing is written, and a later run finds out."""

    why: str


class End(NamedTuple):
    """The outcome that a row gives.

    kind: None = as the answer's, with its reason and message. reason: empty = that of the entry in doubt, with its
    message. message: may quote `{left}` and `{whole}`, numbers of offsets. removes_backup: it is useless. in_doubt: the
    request may still be carried out. keeps_time: the outcome gets the time of the entry in the ledger, so that it comes
    before a restore.
    """

    kind: OutcomeType | None
    reason: str = ""
    message: str = ""
    removes_backup: bool = False
    in_doubt: bool = False
    keeps_time: bool = False


class Row(NamedTuple):
    """The values of the facts that meet this row, and what then holds."""

    name: str
    states: Collection[DeletionState]
    targets: Collection[Target]
    requests: Collection[RequestState]
    found: Collection[Presence]
    then: End | Open

    def is_met(self, state: DeletionState, target: Target, request: RequestState, found: Presence) -> bool:
        return state in self.states and target in self.targets and request in self.requests and found in self.found


# The values of facts that several rows share.
_INTENT, _CONTESTED = (DeletionState.INTENT,), (DeletionState.CONTESTED,)
_ACTING, _DOUBT = (*_INTENT, *_CONTESTED), (DeletionState.IN_DOUBT, DeletionState.DOUBT_OVER)
_NOT_SENT, _REFUSED, _CONFIRMED = (RequestState.NOT_SENT,), (RequestState.REFUSED,), (RequestState.CONFIRMED,)
_ENDED, _MAYBE_SENT = (RequestState.UNKNOWN,), (*_CONFIRMED, *UNCLEAR, RequestState.UNKNOWN)
_TARGETS, _REQUESTS, _FOUND = tuple(Target), tuple(RequestState), tuple(Presence)
_SHARE, _NOT_SHARE = (Target.SHARE,), tuple(each for each in Target if each is not Target.SHARE)
_GONE, _GONE_OF_SOME, _RESTORED = (Presence.GONE,), (Presence.GONE, Presence.SOME_TOPICS), (Presence.RESTORED,)
_LEFT_OVER = (Presence.PART, Presence.PART_IN_USE, Presence.THERE)
_NOT_GONE = tuple(each for each in Presence if each not in (Presence.GONE, Presence.RESTORED))

_AS_ANSWERED = End(None)
_NOTHING_DELETED = End(None, removes_backup=True)
_DELETED = End(OutcomeType.DELETED, reasons.DELETED, "deleted; the process that did it was interrupted")
_LATE = _DELETED._replace(message="gone: deleted by a request without an answer, or by another client since")
_BEFORE_RESTORE = _DELETED._replace(
    message="deleted, and restored since; the process that deleted it was interrupted", keeps_time=True
)
_IN_DOUBT = End(
    OutcomeType.NOT_DELETED, reasons.INTERRUPTED, "not deleted: its deletion was interrupted", in_doubt=True
)
_PART = "not deleted as a whole: its deletion was interrupted, and "
_LEFT = _PART + "{left} of its {whole} committed offsets are left; "
_LOST_PART = _IN_DOUBT._replace(message=f"{_LEFT}its backup has all of them")
_USED = _IN_DOUBT._replace(reason=reasons.REAPPEARED, message=f"{_LEFT}it is used again; its backup has all of them")
_PART_RESTORED = _USED._replace(message=f"{_PART}the deleted offsets were restored since")
_LATE_PART_RESTORED = _PART_RESTORED._replace(in_doubt=False)
_OTHERS = Open("another process may delete it")
_NOT_YET = Open("its request may still be carried out")
_UNREAD = Open("what Kafka has of it could not be read")
_NOT_LATE = End(OutcomeType.NOT_DELETED, keeps_time=True)

ROWS = (
    # With the answer, right after the request.
    Row("not-sent", _INTENT, _TARGETS, _NOT_SENT, _FOUND, _NOTHING_DELETED),
    Row("not-sent-contested", _CONTESTED, _TARGETS, _NOT_SENT, _FOUND, _OTHERS),
    Row("refused", _INTENT, _NOT_SHARE, _REFUSED, _FOUND, _NOTHING_DELETED),
    # Brokers erase a share group's start offsets first, and may then find that a consumer joined it.
    Row("refused-share", _INTENT, _SHARE, _REFUSED, _FOUND, _AS_ANSWERED),
    # If the other process deletes the group, that may be recorded under the id of this deletion, with its backup.
    Row("refused-contested", _CONTESTED, _TARGETS, _REFUSED, _FOUND, _AS_ANSWERED),
    Row("confirmed", _ACTING, _TARGETS, _CONFIRMED, (Presence.GONE, *_NOT_GONE), _AS_ANSWERED),
    Row("unclear-gone", _ACTING, _TARGETS, UNCLEAR, _GONE, _DELETED._replace(message="deleted")),
    Row("unclear", _ACTING, _TARGETS, UNCLEAR, _NOT_GONE, _NOT_YET),
    Row("restored", _ACTING, _TARGETS, _MAYBE_SENT, _RESTORED, _BEFORE_RESTORE),
    # Without an answer, after the deadline of the intent. Offsets of the other topics were not deleted.
    Row("gone", _ACTING, _TARGETS, _ENDED, _GONE_OF_SOME, _DELETED),
    Row("part", _ACTING, _TARGETS, _ENDED, (Presence.PART,), _LOST_PART),
    Row("part-in-use", _ACTING, _TARGETS, _ENDED, (Presence.PART_IN_USE,), _USED),
    Row("part-restored", _ACTING, _TARGETS, _ENDED, (Presence.PART_RESTORED,), _PART_RESTORED),
    Row("there", _ACTING, _TARGETS, _ENDED, (Presence.THERE,), _IN_DOUBT),
    Row("unreadable", _ACTING, _TARGETS, _ENDED, (Presence.UNKNOWN,), _UNREAD),
    # Recorded as not deleted, but a broker that hung may still carry out the request.
    Row("late", _DOUBT, _TARGETS, _REQUESTS, _GONE_OF_SOME, _LATE),
    Row("late-restored", _DOUBT, _TARGETS, _REQUESTS, _RESTORED, _BEFORE_RESTORE),
    Row("late-part-restored", _DOUBT, _TARGETS, _REQUESTS, (Presence.PART_RESTORED,), _LATE_PART_RESTORED),
    Row("in-doubt", (DeletionState.IN_DOUBT,), _TARGETS, _REQUESTS, _LEFT_OVER, _NOT_YET),
    Row("doubt-over", (DeletionState.DOUBT_OVER,), _TARGETS, _REQUESTS, _LEFT_OVER, _NOT_LATE),
    Row("in-doubt-unreadable", _DOUBT, _TARGETS, _REQUESTS, (Presence.UNKNOWN,), _UNREAD),
)


def settle(facts: DeletionFacts) -> Done | Open:
    """The end of a deletion by the row that its facts meet."""
    case = facts.state, facts.target, facts.request, facts.remains.found
    then = next(row for row in ROWS if row.is_met(*case)).then
    if isinstance(then, Open):
        return then
    outcome = _outcome(facts, then)
    waiting = facts.deletion.waiting if isinstance(facts.deletion, Intent) else 0
    # Not after a restore: its consumers skip nothing.
    if waiting and outcome.kind is OutcomeType.DELETED and not then.keeps_time:
        message = f"{outcome.message}; {_SKIPPED.format(waiting=waiting)}"
        outcome = Outcome(outcome.group, outcome.kind, outcome.reason, message, outcome.topics)
    entry = _entry(facts, then, outcome)
    return Done(outcome, entry, (entry, *_endings(facts, then, outcome)))


def _outcome(facts: DeletionFacts, then: End) -> Outcome:
    deletion, answer = facts.deletion, facts.answer
    if then.kind is None:
        if answer is None:
            raise ValueError("the request was answered, but no answer is given")
        return answer.outcome
    if isinstance(deletion, HistoryEntry) and not then.reason:
        return Outcome(deletion.group, then.kind, deletion.reason, deletion.message)
    message = then.message.format(left=facts.remains.left, whole=deletion.partitions)
    if then.kind is not OutcomeType.DELETED or not deletion.topics:
        return Outcome(deletion.group, then.kind, then.reason, message)
    topics = sorted(facts.remains.topics)
    message = f"offsets of {truncated_list(topics, _NAMES)} {message}"
    return Outcome(deletion.group, then.kind, reasons.OFFSETS_DELETED, message, tuple(topics))


def _entry(facts: DeletionFacts, then: End, outcome: Outcome) -> HistoryEntry:
    deletion, deleted = facts.deletion, outcome.kind is OutcomeType.DELETED
    return HistoryEntry(
        group=deletion.group,
        id=deletion.id,
        at=deletion.at if then.keeps_time else facts.now,
        what=OutcomeType.OFFSETS_DELETED if deleted and deletion.topics else OutcomeType(outcome.kind),
        reason=outcome.reason,
        message=outcome.message,
        policy=deletion.policy,
        policy_uid=deletion.policy_uid,
        generation=deletion.generation,
        expires=deletion.expires,
        marked_since=deletion.marked_since,
        type=deletion.type if then.in_doubt else "",
        writer=deletion.writer if then.in_doubt else "",
        topics=outcome.topics if deleted else deletion.topics,
        partitions=deletion.partitions if then.in_doubt else 0,
        log_ends=deletion.log_ends if then.in_doubt else {},
    )


def _endings(facts: DeletionFacts, then: End, outcome: Outcome) -> list[Change]:
    """The end of the intent, if it is the only one; of the mark, or of its deleted topics, after a deletion; else of a
    useless backup.
    """
    deletion = facts.deletion
    ended: list[Change] = [Removal(("intent", deletion.group))] if facts.state is DeletionState.INTENT else []
    if outcome.kind is not OutcomeType.DELETED:
        return ended + [Removal(key) for key in facts.backup if then.removes_backup]
    mark, topics = facts.mark, outcome.topics
    left = {t: at for t, at in mark.topics.items() if t not in topics} if mark and topics else {}
    removal = Removal(("mark", deletion.policy_uid, deletion.group))
    return [*ended, mark.of_topics(left) if mark and left else removal]
