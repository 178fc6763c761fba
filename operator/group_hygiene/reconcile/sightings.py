"""Notes which groups Kafka Connect and Kafka Streams use, while these have members. Changes no group.

A scan that reads the offsets log on (`uses.follow`) finds members that came and went since the last one; a description
finds those that were there before, and those of connections whose policies don't read the log.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import datetime

from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.groups import describe_groups
from group_hygiene.model.entries import Change, Removal, UsedBy
from group_hygiene.model.groups import ID_MAX, Fault, Group, GroupType, Sighting, program_of
from group_hygiene.model.naming import truncated
from group_hygiene.reconcile.context import Context, Observation

# Groups described at once, and the most time for that: the groups that are left wait for the next scan. Measured on one
# broker: 2,000 groups of one member take 0.15 s of CPU.
_GROUPS, _SECONDS, _WRITE_S = 5_000, 5.0, 2.0
_CLIENT_ID_MAX = 200


def note_programs(context: Context, observation: Observation) -> None:
    """Describe groups with members that were not described since they had none before, and note their programs.

    Only after a scan that listed all groups: one in ten minutes, and each one while groups match. A group is described
    once while it has members, so a scan costs the requests for at most _GROUPS new ones. They are chosen at random:
    those that can't be described don't keep the others waiting. A note ends when other clients use the group, or the
    group is gone.
    """
    groups, memory, noted = observation.all_groups, context.memory, context.journal.contents.used_by
    if groups is None:
        return
    living = {name: group for name, group in groups.items() if _shows_program(group)}
    memory.described &= living.keys()
    left = list(living.keys() - memory.described)
    chosen = {name: living[name] for name in random.sample(left, min(len(left), _GROUPS))}
    types = {name: group.type for name, group in chosen.items()}
    coordinators = {name: group.coordinator for name, group in chosen.items()}
    changes: list[Change] = []
    found: dict[str, Sighting] = {}
    for name, answer in describe_groups(context.client, types, coordinators, Deadline(_SECONDS)).items():
        if isinstance(answer, Fault) or not answer.members:
            continue
        memory.described.add(name)
        sighting = program_of((member.client_id for member in answer.members), answer.protocol)
        if sighting is not None:
            found[name] = sighting
        elif name in noted:
            changes.append(Removal(noted[name].key))
    changes += new_notes(noted, found, context.clock.now())
    if observation.snapshot.complete:
        changes += [Removal(noted[name].key) for name in noted.keys() - groups.keys()]
    if changes:
        context.journal.note(changes, Deadline(_WRITE_S))


def new_notes(noted: Mapping[str, UsedBy], found: Mapping[str, Sighting], now: datetime) -> list[Change]:
    """The notes of groups for which none names this program."""
    return [
        UsedBy(group=name, program=seen.program, client_id=truncated(seen.client_id, _CLIENT_ID_MAX), at=now)
        for name, seen in found.items()
        if name not in noted or noted[name].program is not seen.program
    ]


def _shows_program(group: Group) -> bool:
    """Whether its members may belong to one of the programs, and nothing else shows it."""
    consumers = group.type is GroupType.CONSUMER or (
        group.type is GroupType.CLASSIC and group.protocol_type == "consumer"
    )
    # Groups with longer ids are never deleted (`IdTooLong`).
    return group.in_use and consumers and len(group.id) <= ID_MAX
