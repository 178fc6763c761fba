"""The demo of DeleteOffsets: a group in use loses the offsets of a topic that it no longer reads."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import TopicPartition

from testing.sandbox.demo_checks import Story, same
from testing.sandbox.demo_clients import View, Work
from testing.sandbox.demo_kubernetes import STALE
from testing.sandbox.demo_screen import Check
from testing.sandbox.example_groups import Kind, Shop, read_and_commit

GROUP, READ, LEFT = "catalog", "stock", "prices"
_COMMITTED = 3


def moved_on(shop: Shop) -> Kind:
    """A running service that read prices, too, until its last release. Its offsets there look like growing lag, which
    triggers alerts every night; and the group can't be deleted."""

    def work() -> Work:
        consumer = shop.confluent(GROUP)
        consumer.subscribe([READ])
        left = [TopicPartition(LEFT, 0, _COMMITTED)]
        for count in read_and_commit(consumer):
            if count and left:
                consumer.commit(offsets=left, asynchronous=False)
                left = []
            yield count

    return Kind(GROUP, "reads stock, left prices", "NotEmpty", shop.employ(GROUP, work), stale=LEFT)


def is_done(objects: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the policy has deleted the stale offsets, and its status shows it."""
    return bool((objects[STALE].get("status") or {}).get("totals", {}).get("deleted", 0))


def check_stale(story: Story, view: View) -> list[Check]:
    """Check the remaining offsets in Kafka, and the backup."""
    before, now = story.baseline[GROUP], view.offsets([GROUP])[GROUP]
    return [
        same(
            f"{GROUP} has no offset for {LEFT} any more, which it does not read, and still those for {READ}",
            {topic for topic, _ in now},
            {READ},
        ),
        same(
            f"the ledger holds a backup of just what {GROUP} lost: {LEFT}-0 at {before.get((LEFT, 0))}",
            story.ledger.backups.get(GROUP),
            {(LEFT, 0): _COMMITTED},
        ),
    ]
