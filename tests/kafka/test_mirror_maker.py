"""Groups that a real MirrorMaker 2 mirrors into a cluster, with each kind of separator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from group_hygiene.model import reasons
from group_hygiene.model.groups import CommittedOffset, Partition
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.programs import Programs, connect
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker
from tests.kafka.scene import Scene, policy, verdicts

MATCH = "Match"
# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")
_MIRROR = "org.apache.kafka.connect.mirror."
_IDENTITY = "IdentityReplicationPolicy"
_BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


@dataclass(frozen=True)
class Source:
    """A source cluster of MirrorMaker 2. checkpoints: the topic that it writes for this source."""

    alias: str
    separator: str
    checkpoints: str
    policy: str = "DefaultReplicationPolicy"

    @property
    def group(self) -> str:
        return f"{self.alias}-jobs"

    @property
    def topic(self) -> str:
        return f"{self.alias}-orders"

    @property
    def mirrored_topic(self) -> str:
        return self.topic if self.policy == _IDENTITY else f"{self.alias}{self.separator}{self.topic}"

    def connectors(self, source: str, target: str) -> dict[str, dict[str, str]]:
        """The two connectors of MirrorMaker 2 that groups need."""
        settings = {
            "source.cluster.alias": self.alias,
            # Names that differ in "." and "_" alone collide.
            "target.cluster.alias": f"{self.alias}-target",
            "source.cluster.bootstrap.servers": source,
            "target.cluster.bootstrap.servers": target,
            "replication.policy.class": f"{_MIRROR}{self.policy}",
            "replication.policy.separator": self.separator,
            "topics": self.topic,
            "groups": self.group,
            "replication.factor": "1",
            "checkpoints.topic.replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "emit.checkpoints.interval.seconds": "1",
            "key.converter": _BYTES,
            "value.converter": _BYTES,
        }
        return {
            f"{self.alias}-{what}": settings | {"connector.class": f"{_MIRROR}Mirror{what}Connector"}
            for what in ("Source", "Checkpoint")
        }


SOURCES = (
    Source("dot", ".", "dot.checkpoints.internal"),
    Source("one", "_", "one_checkpoints_internal"),
    Source("two", "__", "two__checkpoints__internal"),
    Source("none", "", "nonecheckpointsinternal"),
    Source("identity", "", "identitycheckpointsinternal", _IDENTITY),
)


@pytest.fixture(scope="module")
def mirrored(kafka: KafkaCluster) -> Iterator[Maker]:
    """Each source has a group that is behind, which MirrorMaker 2 has synced into the shared cluster."""
    target = Maker(kafka.plaintext_bootstrap)
    with KafkaCluster() as source:
        upstream = Maker(source.plaintext_bootstrap)
        # Groups have the same names in both clusters.
        upstream.tag = target.tag = ""
        connectors: dict[str, dict[str, str]] = {}
        for each in SOURCES:
            upstream.topic(each.topic, records=20)
            upstream.abandoned(each.group, each.topic, commit={Partition(each.topic, 0): CommittedOffset(5)})
            connectors |= each.connectors(source.plaintext_bootstrap, kafka.plaintext_bootstrap)
        upstream.close()
        with Programs(kafka.plaintext_bootstrap, [connect(connectors)]) as worker:

            def synced() -> bool:
                worker.check()
                return target.groups().keys() >= {each.group for each in SOURCES}

            wait_for(synced)
    yield target
    topics = set(target.admin.list_topics().topics)
    for each in SOURCES:
        target.delete_group(each.group)
        for topic in {each.checkpoints, each.mirrored_topic} & topics:
            target.delete_topic(topic)
    target.close()


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(each, id=each.separator or each.alias, marks=() if each.separator == "__" else pytest.mark.slow)
        for each in SOURCES
    ],
)
def test_a_synced_group_is_kept_after_a_drill(mirrored: Maker, scene: Scene, source: Source) -> None:
    """A consumer joined it here, committed and left, as in a failover drill; MirrorMaker 2 has ended since.

    Only the checkpoints distinguish it from an abandoned group then.
    """
    assert {source.checkpoints, source.mirrored_topic} <= set(mirrored.admin.list_topics().topics)
    here = {Partition(source.mirrored_topic, 0): CommittedOffset(6)}
    mirrored.join(source.group, source.mirrored_topic, commit=here)
    mirrored.leave(source.group)
    kept, meant = policy(source.group), policy(source.group, name="meant", match={"unprotect": ["MirrorMaker"]})
    scene.observe(kept, meant)
    observation = scene.observe(kept, meant, after=60)
    assert verdicts(observation, kept) == {source.group: reasons.MIRROR_MAKER}
    assert verdicts(observation, meant) == {source.group: MATCH}
