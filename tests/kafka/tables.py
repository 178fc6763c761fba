"""A pipeline's tables of a real cluster, up to the end of its log; but what they tell of groups is the test's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from group_hygiene.kafka.client import Client
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, topic_ids
from group_hygiene.kafka.offsets import end_offsets
from group_hygiene.model.groups import Cluster, Partition
from tests.kafka.makers import soon
from tests.warehouse import Warehouse


class Pipeline(Warehouse):
    """Writes what a pipeline would find in the log of a real cluster, up to its end: but the times are the test's."""

    def __init__(self, client: Client, cluster: Cluster, folder: Path) -> None:
        topic_id = topic_ids(client, [OFFSETS_TOPIC], soon())[OFFSETS_TOPIC]
        assert isinstance(topic_id, str)
        super().__init__(folder, cluster.id, topic_id, len(cluster.leaders))
        self._client = client

    def run(self, rows: Iterable[Mapping[str, Any]], **coverage: Any) -> None:
        """The rows, and that the log ends where it does now."""
        ends = end_offsets(self._client, {Partition(OFFSETS_TOPIC, i) for i in range(self.partitions)}, soon())
        known = {place.partition: end for place, end in ends.items() if isinstance(end, int)}
        assert len(known) == self.partitions
        self.write(rows, ends=known, **coverage)
