"""Groups whose deletion was interrupted: what they had then, what they lost, and whether somebody uses them since.

An interrupted deletion may have taken a part of a group's offsets, which then only its backup has. So the next backup
has them too, and takes the place of the one before it: deletions that fail at every run must not fill the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from group_hygiene import reasons
from group_hygiene.entries import Backup, Intent, Key, group_of, whole
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.model import (
    CommittedOffset,
    Fault,
    Group,
    GroupState,
    Keep,
    Offsets,
    Outcome,
    OutcomeKind,
    Partition,
)
from group_hygiene.policy import Policy
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.sending import type_of


class Earlier(NamedTuple):
    """What an interrupted deletion of a group left in the ledger, whose group was there afterwards.

    backup: all that the group had then. superseded: the keys of a still older backup, which `backup` has all of.
    """

    backup: Backup
    superseded: tuple[Key, ...]


def interrupted_before(context: Context, policy: Policy, names: Iterable[str]) -> dict[str, Earlier | Keep]:
    """What an interrupted deletion left of each group that has one; a Keep where that can't be read.

    Of the deletions of offsets of topics, only those of the same policy count.
    """
    unfinished, now = context.journal.contents.unfinished, context.clock.now()
    found = {name: unfinished.get(name, {}).get(policy.uid if policy.by_topic else "") for name in names}
    ids = {name: outcome.id for name, outcome in found.items() if outcome is not None and outcome.expires > now}
    backups = _backups(context, ids)
    if isinstance(backups, Keep):
        return dict.fromkeys(ids, backups)
    results: dict[str, Earlier | Keep] = {}
    for name, id_ in ids.items():
        backup = _of_deletion(backups, name, id_)
        if backup is None:
            results[name] = Keep(reasons.INTERRUPTED, "the backup of an interrupted deletion of it can't be read")
            continue
        older = _of_deletion(backups, name, backup.continues)
        over = older is not None and has_all_of(backup, older)
        keys = [part.key for part in backups if over and (part.group, part.id) == (name, backup.continues)]
        results[name] = Earlier(backup, tuple(keys))
    return results


def _backups(context: Context, groups: Iterable[str]) -> list[Backup] | Keep:
    """The parts of all backups of the groups. Reads the whole ledger."""
    wanted = frozenset(groups)
    if not wanted:
        return []
    found = context.journal.entries(lambda key: key[0] == "backup" and group_of(key) in wanted, context.deadline())
    return found if isinstance(found, Keep) else [entry for entry in found if isinstance(entry, Backup)]


def _of_deletion(parts: Iterable[Backup], group: str, id_: str) -> Backup | None:
    return whole([part for part in parts if (part.group, part.id) == (group, id_)])


def has_all_of(newer: Backup, older: Backup) -> bool:
    """Whether whatever the older backup can bring back, the newer one can too, and for as long. Pure."""
    rows = _rows(newer).items()
    return (
        newer.expires >= older.expires
        and _rows(older).items() <= rows
        and all(newer.topic_ids.get(topic) == older.topic_ids.get(topic) for topic in older.offsets)
        and older.internal_topics.items() <= newer.internal_topics.items()
    )


def is_used_since(backup: Backup, offsets: Offsets) -> bool:
    """Whether a group that lost a part of what its backup has got other offsets since. Pure.

    offsets: what it has committed now.
    """
    saved = _rows(backup)
    return bool(saved.keys() - offsets.keys()) and not offsets.items() <= saved.items()


def _rows(backup: Backup) -> dict[Partition, CommittedOffset]:
    return {
        Partition(topic, row.partition): CommittedOffset(row.offset, row.leader_epoch, row.metadata)
        for topic, rows in backup.offsets.items()
        for row in rows
    }


def what_is_left(context: Context, intent: Intent) -> Outcome | None:
    """The outcome of an interrupted deletion whose group is there; None = what it left can't be read now.

    Of a group that was deleted by several requests, a part may be gone. If somebody uses it since, or had it restored,
    it is one that was deleted and is there again.
    """
    name = intent.group
    untouched = Outcome(name, OutcomeKind.KEPT, reasons.INTERRUPTED, "not deleted: its deletion was interrupted")
    if not intent.partitions:
        return untouched
    backups = _backups(context, [name])
    group = Group(name, type_of(intent.type), "", GroupState.UNKNOWN, -1)
    described = kafka_groups.describe_groups(context.client, [group], context.deadline())[name]
    committed = kafka_offsets.committed_offsets(context.client, {name: None}, context.deadline())[name]
    if isinstance(backups, Keep) or isinstance(described, Fault) or isinstance(committed, Fault):
        return None
    backup = _of_deletion(backups, name, intent.id)
    left = len(committed)
    part = "not deleted as a whole: its deletion was interrupted, and "
    if name in context.journal.contents.restored:
        return Outcome(name, OutcomeKind.KEPT, reasons.REAPPEARED, f"{part}what it took was restored since")
    if backup is not None and _rows(backup).keys() <= committed.keys():
        return untouched
    part += f"{left} of its {intent.partitions} committed offsets are left"
    used = described.group.state is not GroupState.EMPTY or (backup is not None and is_used_since(backup, committed))
    if used:
        return Outcome(
            name, OutcomeKind.KEPT, reasons.REAPPEARED, f"{part}; it is used again; its backup has all of them"
        )
    return Outcome(name, OutcomeKind.KEPT, reasons.INTERRUPTED, f"{part}; its backup has all of them")
