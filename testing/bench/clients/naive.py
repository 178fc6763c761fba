"""kafka-python as its documentation shows it: list all groups, then ask for the offsets of all of them."""

import argparse
import logging

from kafka import KafkaAdminClient

from testing.bench.clients.stdio import Counts, serve


def full(admin: KafkaAdminClient) -> Counts:
    """All groups and all their offsets, by the library's two calls."""
    names = [group["group_id"] for group in admin.list_groups()]
    offsets = admin.list_group_offsets(names)
    return Counts(len(names), len(offsets), sum(len(answer) for answer in offsets.values()))


def main() -> None:
    parser = argparse.ArgumentParser("python -m testing.bench.clients.naive", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    options = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.ERROR)
    # One answer holds all offsets of a broker's groups: it must fit, and come in time.
    admin = KafkaAdminClient(
        bootstrap_servers=options.bootstrap.split(","),
        receive_message_max_bytes=500_000_000,
        request_timeout_ms=300_000,
    )
    serve(lambda: full(admin))
    admin.close()


if __name__ == "__main__":
    main()
