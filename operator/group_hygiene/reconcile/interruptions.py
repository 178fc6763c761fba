"""Groups whose deletion was interrupted: their backups, the offsets they lost, and whether they have been used since.

An interrupted deletion may have deleted some of a group's offsets, which only its backup has then. So the next backup
includes them, and replaces the one before it: deletions that fail at every run must not fill the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.ledger.codec import group_of
from group_hygiene.model import reasons
from group_hygiene.model.backups import Backup, whole
from group_hygiene.model.entries import Intent, Key
from group_hygiene.model.groups import CommittedOffset, Fault, GroupState, Offsets, Partition
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.verdicts import Outcome, OutcomeKind
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.delete_requests import type_of
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


def interrupted_outcome(context: Context, intent: Intent) -> Outcome | None:
    """The outcome of an interrupted deletion whose group still exists; None = its offsets can't be read now.

    A deletion by several requests may have deleted a part. If the group has been used or restored since, it counts as
    deleted and reappeared.
    """
    name = intent.group
    untouched = Outcome(name, OutcomeKind.NOT_DELETED, reasons.INTERRUPTED, "not deleted: its deletion was interrupted")
    if not intent.partitions:
        return untouched
    backups = _backups(context, [name])
    client, coordinators = context.client, {name: None}
    types = {name: type_of(intent.type)}
    described = kafka_groups.describe_groups(client, types, coordinators, context.deadline())[name]
    committed = kafka_offsets.committed_offsets(client, coordinators, context.deadline())[name]
    if isinstance(backups, Refusal) or isinstance(described, Fault) or isinstance(committed, Fault):
        return None
    backup = _of_deletion(backups, name, intent.id)
    left = len(committed)
    part = "not deleted as a whole: its deletion was interrupted, and "
    if name in context.journal.contents.restored:
        return Outcome(
            name, OutcomeKind.NOT_DELETED, reasons.REAPPEARED, f"{part}the deleted offsets were restored since"
        )
    if backup is not None and _rows(backup).keys() <= committed.keys():
        return untouched
    part += f"{left} of its {intent.partitions} committed offsets are left"
    used = described.group.state is not GroupState.EMPTY or (backup is not None and is_used_since(backup, committed))
    if used:
        return Outcome(
            name, OutcomeKind.NOT_DELETED, reasons.REAPPEARED, f"{part}; it is used again; its backup has all of them"
        )
    return Outcome(name, OutcomeKind.NOT_DELETED, reasons.INTERRUPTED, f"{part}; its backup has all of them")
