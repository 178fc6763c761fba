"""Worlds in which a real MirrorMaker 2 syncs groups into the cluster, with each kind of separator.

A synced group was then joined once, as in a failover drill, and MirrorMaker 2 has ended: checkpoints alone distinguish
it from an abandoned group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from testing.faults.groups import Groups
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.programs import Programs, connect
from testing.sandbox.waiting import wait_for
from testing.worlds.life import Life
from testing.worlds.members import visit
from testing.worlds.world import Change, Moment, World

_MIRROR = "org.apache.kafka.connect.mirror."
_BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


def _mirrored(separator: str, policy: str) -> Change:
    @contextmanager
    def change(life: Life) -> Iterator[None]:
        name = life.run.name
        group, topic = f"{name}-old-mirrored", f"{name}-orders"
        with KafkaCluster(life.kafka.version) as source:
            upstream = Groups(source.plaintext_bootstrap)
            upstream.topic(topic, partitions=1, records=20)
            upstream.abandon({group: {(topic, 0): 5}})
            settings = {
                "source.cluster.alias": name,
                "target.cluster.alias": f"{name}-target",
                "source.cluster.bootstrap.servers": source.plaintext_bootstrap,
                "target.cluster.bootstrap.servers": life.groups.bootstrap,
                "replication.policy.class": f"{_MIRROR}{policy}",
                "replication.policy.separator": separator,
                "topics": topic,
                "groups": group,
                "replication.factor": "1",
                "checkpoints.topic.replication.factor": "1",
                "offset-syncs.topic.replication.factor": "1",
                "sync.group.offsets.enabled": "true",
                "sync.group.offsets.interval.seconds": "1",
                "emit.checkpoints.interval.seconds": "1",
                "key.converter": _BYTES,
                "value.converter": _BYTES,
            }
            connectors = {
                f"{name}-{what}": settings | {"connector.class": f"{_MIRROR}Mirror{what}Connector"}
                for what in ("Source", "Checkpoint")
            }
            with Programs(life.kafka.plaintext_bootstrap, [connect(connectors)]):
                wait_for(lambda: group in life.groups.listed(), "MirrorMaker 2 syncs the group")
        visit(life.groups.bootstrap, group, life.run.topic)
        life.run.truth.stays([group], "MirrorMaker 2 mirrors it")
        yield

    return change


WORLDS = tuple(
    World(
        "mirrors",
        f"mirror-{name}",
        f"MirrorMaker 2 synced a group, with the separator {separator!r} and {policy}",
        change=_mirrored(separator, policy),
        moment=Moment.FIRST,
    )
    for name, separator, policy in (
        ("dot", ".", "DefaultReplicationPolicy"),
        ("one-character", "_", "DefaultReplicationPolicy"),
        ("two-characters", "__", "DefaultReplicationPolicy"),
        ("identity", "", "IdentityReplicationPolicy"),
    )
)
