"""confluent-kafka: list all groups, then the offsets of each, one group a call as the library wants it."""

import argparse
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from testing.bench.clients.stdio import Counts, serve

_SECONDS = 300.0
# Calls under way at a time: more of them only wait inside the library, and run into its timeouts there.
_WINDOW = 1_000


def full(admin: AdminClient) -> Counts:
    """All groups and all their offsets, with many calls under way at a time."""
    listing = admin.list_consumer_groups(request_timeout=_SECONDS).result()
    if listing.errors:
        raise SystemExit(f"a list failed: {listing.errors[0]}")
    names = [group.group_id for group in listing.valid]
    groups = partitions = 0
    left = iter(names)
    under_way: set[Future[Any]] = set()
    while True:
        while len(under_way) < _WINDOW and (name := next(left, None)) is not None:
            asked = [ConsumerGroupTopicPartitions(name)]
            under_way |= set(admin.list_consumer_group_offsets(asked, request_timeout=_SECONDS).values())
        if not under_way:
            return Counts(len(names), groups, partitions)
        done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
        groups += len(done)
        partitions += sum(len(answer.result().topic_partitions) for answer in done)


def main() -> None:
    parser = argparse.ArgumentParser("python -m testing.bench.clients.confluent", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    options = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": options.bootstrap, "log_level": 0})
    admin.list_topics(timeout=30)
    serve(lambda: full(admin))


if __name__ == "__main__":
    main()
