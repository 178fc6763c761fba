"""Groups whose deletion was interrupted: what is left of them, their backups, and whether they were used since.

An interrupted deletion may have deleted some of a group's offsets, which only its backup has then. So the next backup
includes them, and replaces the one before it: deletions that fail at every run must not fill the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.codec import group_of
from group_hygiene.model import reasons
from group_hygiene.model.backups import Backup, whole
from group_hygiene.model.entries import Intent, Key, Outcome
from group_hygiene.model.groups import CommittedOffset, Fault, GroupState, Offsets, Partition
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Description
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.settle import Found
from group_hygiene.spec.policy import Policy


class Earlier(NamedTuple):
    """The backup of an interrupted deletion after which the group still existed.

    backup: all offsets of the group then. superseded: the keys of an older backup that `backup` includes.
    """

    backup: Backup
    superseded: tuple[Key, ...]

    def is_used_since(self, offsets: Offsets) -> bool:
        """Whether the group was used after the interruption; never for topics' offsets, whose groups are in use."""
        return not self.backup.partial and is_used_since(self.backup, offsets)


def interrupted_before(context: Context, policy: Policy, names: Iterable[str]) -> dict[str, Earlier | Refusal]:
    """The backup of each group's interrupted deletion, if it has one; a Refusal if it can't be read.

    For DeleteOffsets, only deletions of the same policy count.
    """
    unfinished, now = context.journal.contents.unfinished, context.clock.now()
    found = {name: unfinished.get(name, {}).get(policy.uid if policy.by_topic else "") for name in names}
    ids = {name: outcome.id for name, outcome in found.items() if outcome is not None and outcome.expires > now}
    backups = _backups(context, ids)
    if isinstance(backups, Refusal):
        return dict.fromkeys(ids, backups)
    results: dict[str, Earlier | Refusal] = {}
    for name, id_ in ids.items():
        backup = _of_deletion(backups, name, id_)
        if backup is None:
            results[name] = Refusal(reasons.INTERRUPTED, "the backup of an interrupted deletion of it can't be read")
            continue
        older = _of_deletion(backups, name, backup.continues)
        over = older is not None and has_all_of(backup, older)
        keys = [part.key for part in backups if over and (part.group, part.id) == (name, backup.continues)]
        results[name] = Earlier(backup, tuple(keys))
    return results


def _backups(context: Context, groups: Iterable[str]) -> list[Backup] | Refusal:
    """The parts of all backups of the groups. Reads the whole ledger."""
    wanted = frozenset(groups)
    if not wanted:
        return []
    found = context.journal.entries(lambda key: key[0] == "backup" and group_of(key) in wanted, context.deadline())
    return found if isinstance(found, Refusal) else [entry for entry in found if isinstance(entry, Backup)]


def backup_of(context: Context, deletion: Intent | Outcome) -> Backup | None:
    """The backup of a deletion; None if it can't be read. Reads the whole ledger."""
    found = _backups(context, [deletion.group])
    return None if isinstance(found, Refusal) else _of_deletion(found, deletion.group, deletion.id)


def _of_deletion(parts: Iterable[Backup], group: str, id_: str) -> Backup | None:
    return whole([part for part in parts if (part.group, part.id) == (group, id_)])


def has_all_of(newer: Backup, older: Backup) -> bool:
    """Whether the newer backup can restore all that the older one can, and for as long. Pure."""
    rows = _rows(newer).items()
    return (
        newer.expires >= older.expires
        and _rows(older).items() <= rows
        and all(newer.topic_ids.get(topic) == older.topic_ids.get(topic) for topic in older.offsets)
        and older.internal_topics.items() <= newer.internal_topics.items()
    )


def is_used_since(backup: Backup, offsets: Offsets) -> bool:
    """Whether a group that lost some offsets of its backup has committed others since. Pure.

    offsets: its committed offsets now.
    """
    saved = _rows(backup)
    return bool(saved.keys() - offsets.keys()) and not offsets.items() <= saved.items()


def _rows(backup: Backup) -> dict[Partition, CommittedOffset]:
    return {
        Partition(topic, row.partition): CommittedOffset(row.offset, row.leader_epoch, row.metadata)
        for topic, rows in backup.offsets.items()
        for row in rows
    }


class Remains(NamedTuple):
    """What Kafka has of a deletion's target. topics, left: see `Facts`."""

    found: Found
    topics: frozenset[str] = frozenset()
    left: int = 0


def read_remains(
    context: Context, deletions: Collection[Intent | Outcome], deadline: Deadline, parts: bool = False
) -> dict[str, Remains]:
    """What is left of the target of each deletion, by group; of one deletion per group.

    A group that exists may have come back with another type. parts: find out whether a large group lost a part, which
    reads the whole ledger.
    """
    topics = {each.group: frozenset(each.topics) for each in deletions if each.topics}
    groups = [each for each in deletions if not each.topics]
    existing = kafka_groups.find_groups(context.client, [each.group for each in groups], deadline)
    committed = kafka_offsets.committed_offsets(context.client, dict.fromkeys(topics), deadline)
    remains = {name: _of_group(answer) for name, answer in existing.items()}
    remains |= {name: _of_topics(topics[name], answer) for name, answer in committed.items()}
    large = [each for each in groups if parts and each.partitions and remains[each.group].found is Found.THERE]
    return remains | {each.group: _of_large_group(context, each, existing[each.group]) for each in large}


def _of_group(answer: Description | Fault | None) -> Remains:
    if answer is None:
        return Remains(Found.GONE)
    return Remains(Found.UNKNOWN if isinstance(answer, Fault) else Found.THERE)


def _of_topics(topics: frozenset[str], offsets: Offsets | Fault) -> Remains:
    if isinstance(offsets, Fault):
        return Remains(Found.UNKNOWN)
    gone = topics.difference(place.topic for place in offsets)
    if not gone:
        return Remains(Found.THERE)
    return Remains(Found.GONE if gone == topics else Found.SOME_TOPICS, gone)


def _of_large_group(context: Context, deletion: Intent | Outcome, described: Description | Fault | None) -> Remains:
    """Of a group that exists: whether all offsets of its backup are there, and whether it was used since."""
    name, deadline = deletion.group, context.deadline()
    backups = _backups(context, [name])
    committed = kafka_offsets.committed_offsets(context.client, {name: None}, deadline)[name]
    if not isinstance(described, Description) or isinstance(backups, Refusal) or isinstance(committed, Fault):
        return Remains(Found.UNKNOWN)
    backup = _of_deletion(backups, name, deletion.id)
    if backup is not None and _rows(backup).keys() <= committed.keys():
        return Remains(Found.THERE)
    used = described.group.state is not GroupState.EMPTY or (backup is not None and is_used_since(backup, committed))
    return Remains(Found.PART_IN_USE if used else Found.PART, left=len(committed))
