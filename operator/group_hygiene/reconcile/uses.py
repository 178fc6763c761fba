"""Finds uses of groups in the offsets log that the operator's scans did not see. Reads only.

Scans are some minutes apart. A consumer that joins, reads and dies between two of them, and never commits, leaves its
group Empty with the same offsets at each scan. Brokers write each membership, and each commit, to `__consumer_offsets`.
Compaction retains the last records of a group, which is enough.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from group_hygiene.decide.plan import Plan
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.leader_epochs import epoch_ends
from group_hygiene.kafka.offsets import end_offsets
from group_hygiene.kafka.offsets_log import Commit, GroupState
from group_hygiene.kafka.tail import Found, Place, Tail
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, LogEnd, Removal, Seen
from group_hygiene.model.groups import NO_LEADER_EPOCH, TOPIC_DENIED, Fault, Partition
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Cluster
from group_hygiene.reconcile.context import Context
from group_hygiene.spec.policy import Unprotect

_HINT = " (match.unprotect: [UnreadableOffsetsLog] to trust scans alone)"
_RESTARTS_COUNT = frozenset({reasons.RECENTLY_ACTIVE, reasons.EVIDENCE_INCOMPLETE})


def read_log_ends(client: Client, cluster: Cluster, deadline: Deadline) -> list[LogEnd | None]:
    """The current end of each partition of the offsets log, by its number; None = no answer. Needs DESCRIBE on it."""
    places = [Partition(OFFSETS_TOPIC, index) for index in range(len(cluster.leaders))]
    answers = end_offsets(client, places, deadline)
    epochs = {index: epoch for index, (_, epoch) in cluster.leaders.items()}
    return [
        None if isinstance(end := answers[place], Fault) else LogEnd(place.partition, end, epochs[place.partition])
        for place in places
    ]


class Uses:
    """Uses of the groups that a policy with `unchangedFor` is about to delete, from their `Seen.log_end` on.

    For groups that a user names: from `since` on.

    Any record of a group counts. Records that no client causes (offsets expire, or their topic is deleted) also change
    the committed offsets, so that the count began again after them.
    """

    def __init__(
        self,
        context: Context,
        plan: Plan,
        cluster: Cluster,
        deadline: Deadline,
        since: Mapping[str, LogEnd | None] | None = None,
    ) -> None:
        """cluster: as in the scan. since: where to begin instead of at `Seen.log_end`."""
        policy = plan.policy
        self._epochs = {index: epoch for index, (_, epoch) in cluster.leaders.items()}
        self._trusts_scans = Unprotect.UNREADABLE_OFFSETS_LOG in policy.match.unprotect
        asks = policy.when.unchanged_for is not None
        seen = context.journal.contents.seen.get(policy.uid, {})
        self._seen: dict[str, Seen | None] = {name: seen.get(name) for name in plan.actions} if asks else {}
        self._starts = {name: None if each is None else each.log_end for name, each in self._seen.items()}
        self._period, self._unread, self._hint = "since it was first seen unchanged", "between scans", _HINT
        self._asked = since is not None
        if since is not None:
            self._starts = {name: since.get(name) for name in plan.actions}
            self._period = self._unread = "lately"
            self._hint = " (--force deletes without this check)"
        self._hidden = bool(cluster.samples)
        ends = {name: start for name, start in self._starts.items() if start is not None and not self._hidden}
        self._lost = _cut_off(context.client, ends, deadline)
        places = {name: Place(end.partition, end.offset) for name, end in ends.items()}
        leaders = {index: broker for index, (broker, _) in cluster.leaders.items()}

        def matters(record: Commit | GroupState) -> bool:
            # A group in use commits for other topics all the time; its members change only when it rebalances.
            return not (policy.by_topic and isinstance(record, Commit)) or policy.match.covers(record.topic)

        self._tail = Tail(context.client, places, leaders, matters)
        self._answers: Mapping[str, Found | Fault | None] = {}

    def read_on(self, deadline: Deadline) -> dict[str, Refusal]:
        """The groups that must not be deleted by the log up to now: used, or not known. Reads each partition once."""
        self._answers = self._tail.read_on(deadline)
        refusals = {name: self._refusal(name) for name in self._starts}
        return {name: refusal for name, refusal in refusals.items() if refusal is not None}

    def changes(self) -> list[Change]:
        """The changes to write after `read_on`: the count of a group that was used begins again with the next scan.

        If the log could not be read to its end in time, a later run continues from there.
        """
        changes: list[Change] = []
        for name, seen in self._seen.items():
            refusal, answer = self._refusal(name), self._answers.get(name)
            if seen is None or refusal is None:
                continue
            if refusal.reason in _RESTARTS_COUNT:
                changes.append(Removal(seen.key))
            elif seen.log_end is not None and isinstance(answer, Fault) and answer.retriable:
                index = seen.log_end.partition
                reached = LogEnd(index, self._tail.reached(index), self._epochs.get(index, NO_LEADER_EPOCH))
                if reached.offset > seen.log_end.offset:
                    changes.append(replace(seen, log_end=reached))
        return changes

    def _refusal(self, name: str) -> Refusal | None:
        start, answer = self._starts[name], self._answers.get(name)
        if self._hidden and (self._asked or self._seen.get(name) is not None):
            message = f"whether it was used {self._unread}: brokers hide {OFFSETS_TOPIC}{self._hint}"
            return None if self._trusts_scans else Refusal(reasons.EVIDENCE_UNREADABLE, message)
        if start is None:
            return Refusal(reasons.EVIDENCE_INCOMPLETE, "from which offset on the log shows its uses is not known")
        if isinstance(answer, Found):
            return Refusal(reasons.RECENTLY_ACTIVE, f"{describe(answer)}, {self._period}")
        fault = self._lost.get(name) or answer
        if fault is None or (fault.code == TOPIC_DENIED and self._trusts_scans):
            return None
        lost = fault.code == "OFFSET_OUT_OF_RANGE"
        hint = self._hint if fault.code == TOPIC_DENIED else ""
        return Refusal(
            reasons.EVIDENCE_INCOMPLETE if lost else reasons.EVIDENCE_UNREADABLE,
            f"whether it was used {self._unread}: {fault}{hint}",
        )


def describe(found: Found) -> str:
    """A record of the offsets log in words, with its place."""
    record, where = found.record, f"at offset {found.place.offset} of {OFFSETS_TOPIC}-{found.place.partition}"
    if not isinstance(record, Commit):
        return f"the log has a record of its members ({record.kind}), {where}"
    partition = Partition(record.topic, record.partition)
    return (f"its offset of {partition} was deleted" if record.gone else f"it committed for {partition}") + f", {where}"


def _cut_off(client: Client, ends: Mapping[str, LogEnd], deadline: Deadline) -> dict[str, Fault]:
    """Groups whose records may be lost by an unclean leader election (KIP-320)."""
    left = {(end.partition, end.leader_epoch) for end in ends.values() if end.offset}
    answers: dict[tuple[int, int], int | Fault] = {}
    while left:
        # One epoch of each partition at once.
        asked = dict(sorted(left))
        left -= set(asked.items())
        epochs = {Partition(OFFSETS_TOPIC, index): epoch for index, epoch in asked.items()}
        found = epoch_ends(client, epochs, deadline)
        answers |= {(place.partition, asked[place.partition]): answer for place, answer in found.items()}
    lost: dict[str, Fault] = {}
    for name, end in ends.items():
        answer = answers.get((end.partition, end.leader_epoch))
        if isinstance(answer, Fault):
            lost[name] = answer
        elif answer is not None and answer < end.offset:
            message = f"brokers lost records of {OFFSETS_TOPIC}-{end.partition} before offset {end.offset}"
            lost[name] = Fault("OFFSET_OUT_OF_RANGE", message)
    return lost
