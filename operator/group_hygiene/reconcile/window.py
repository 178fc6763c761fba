"""The time between the read of a group's offsets and their deletion: what was committed then is added to the backup.

The broker's check for members is the last one, and a commit without joining passes it. Reads only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta

from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka.client import Deadline, retrying_one
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets_log import Commit, StateRecord
from group_hygiene.kafka.offsets_topic import LateCommits
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, HistoryEntry, Intent, in_parts, with_late_offsets
from group_hygiene.model.groups import TOPIC_DENIED, Cluster, Fault, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.settle import Done
from group_hygiene.reconcile.uses import earliest, read_ends
from group_hygiene.spec.fields import timestamp

# How long to wait for brokers to show a deletion: their followers have it within replica.fetch.wait.max.ms, 500 by
# default.
_SHOWN_S, _AGAIN_S = 10.0, 0.1
_HIDDEN = f"brokers hide {OFFSETS_TOPIC}"


class DeletionWindow:
    """The windows of some deletions, one of a group, from their `log_ends` on. For one batch, or one recovery."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster | Fault,
        deletions: Iterable[Intent | HistoryEntry],
        wait: timedelta | None = None,
    ) -> None:
        """Of offsets of topics, only commits for these topics count. wait: how long a group must be unused to match."""
        of = {each.group: each for each in deletions}

        def matters(record: Commit | StateRecord) -> bool:
            topics = of[record.group].topics
            return not topics or (isinstance(record, Commit) and record.topic in topics)

        self._context, self._wait = context, wait
        self._hidden = {name for name, each in of.items() if not each.log_ends}
        self._unshown: Collection[str] = ()
        self._denied, self._unread = False, str(cluster) if isinstance(cluster, Fault) else ""
        starts = {name: each.log_ends for name, each in of.items() if name not in self._hidden}
        leaders = {} if isinstance(cluster, Fault) else cluster.leaders
        self._log = LateCommits(context.client, leaders, starts, matters)

    def read_on(self, names: Collection[str], deadline: Deadline) -> dict[str, Refusal]:
        """The groups that must not be deleted: used since the start, or not known. A hidden log refuses none."""
        self._note(self._log.read_on(deadline))
        if self._denied:
            # `Uses` refuses them, unless the policy trusts its scans.
            return {}
        if self._unread:
            why = Refusal(reasons.EVIDENCE_UNREADABLE, f"whether it was used just now: {self._unread}")
            return {name: why for name in names if name not in self._hidden}
        now = self._context.clock.now()
        message = f"it was used while it was saved, at {timestamp(now)}{earliest('it matches again', now, self._wait)}"
        used = Refusal(reasons.RECENTLY_ACTIVE, message)
        return {name: used for name in names if self._log.first(name) is not None}

    def close(self, deadline: Deadline, deleted: Mapping[str, Collection[Partition]] | None = None) -> None:
        """Read to the end of the log, after the offsets were deleted; again if leaders moved or a fault may pass.

        deleted: group -> the places whose offsets were just deleted, none = not known, or it had none. Brokers before
        4.0 answer before their followers have that, and until then it can't be read
        (GroupMetadataManager.cleanupGroupMetadata).
        """
        if self._unread:
            return
        left = {name: places for name, places in (deleted or {}).items() if name not in self._hidden}
        shown = Deadline(min(deadline.left, _SHOWN_S))
        self._read_to_end(deadline)
        while left := {name: places for name, places in left.items() if not self._log.shows(name, places)}:
            if self._unread or shown.left <= 0:
                break
            time.sleep(_AGAIN_S)
            self._read_to_end(deadline)
        self._unshown = left.keys()

    def _read_to_end(self, deadline: Deadline) -> None:

        def attempt() -> Fault | None:
            fault = self._log.read_on(deadline)
            if fault is not None:
                now = kafka_cluster.read_cluster(self._context.client, deadline)
                if not isinstance(now, Fault) and now.leaders.keys() == self._log.leaders.keys():
                    self._log.leaders = now.leaders
            return fault

        self._note(retrying_one(attempt, deadline))

    def _note(self, fault: Fault | None) -> None:
        self._unread = "" if fault is None else str(fault)
        self._denied = fault is not None and fault.code == TOPIC_DENIED

    def completed(self, done: Done, saved: Callable[[], Backup | None]) -> Done:
        """The end of a deletion, with what was committed in the window, in the backup and in words.

        saved: the backup of this deletion; None = it can't be read.
        """
        name = done.entry.group
        unread = _HIDDEN if name in self._hidden else self._unread
        if not unread and name in self._unshown:
            unread = f"{OFFSETS_TOPIC} does not show the deletion yet"
        if unread:
            return done.adding(f"whether it committed right before is not known: {unread}")
        late = self._log.late(name)
        if late.open:
            done = done.adding(f"{late.open} transaction(s) were open, whose offsets are not saved")
        backup = saved() if late.offsets else None
        if not late.offsets:
            return done
        if backup is None:
            return done.adding("it committed right before, and its backup can't be read")
        topics = {place.topic for place in late.offsets} - backup.offsets.keys()
        found = kafka_cluster.topic_ids(self._context.client, topics, self._context.deadline())
        ids = {topic: id_ for topic, id_ in found.items() if id_ and not isinstance(id_, Fault)}
        whole = with_late_offsets(backup, late.offsets, ids)
        if whole is None:
            return done
        return done.adding(f"offsets that it committed right before ({len(late.offsets)}) are saved", in_parts(whole))


def read_start(context: Context, cluster: Cluster, deadline: Deadline) -> dict[int, int] | Refusal:
    """The ends of the log now, where a window begins; empty if brokers hide it. A Refusal if they can't be read."""
    if cluster.samples:
        return {}
    ends = read_ends(context.client, cluster, deadline)
    if not isinstance(ends, Fault):
        return ends
    if ends.code == TOPIC_DENIED:
        return {}
    return Refusal(reasons.EVIDENCE_UNREADABLE, f"the end of {OFFSETS_TOPIC}: {ends}")
