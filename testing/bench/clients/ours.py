"""The operator's own calls: `steady` is a part of every scan, `full` reads all that the cluster holds."""

import argparse
from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.kafka.groups import list_groups
from group_hygiene.model.groups import Fault, GroupState, GroupType, Offsets
from group_hygiene.process.start import start
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.patterns import Patterns
from testing.bench.clients.stdio import Counts, serve

R = TypeVar("R")

_SECONDS = 300.0


def steady(client: Client, patterns: Patterns) -> Counts:
    """The lists with what no policy asks for filtered out at the broker, then the offsets of what matches.

    A scan also reads topics, ends and checkpoints.
    """
    deadline = Deadline(_SECONDS)
    cluster = _sound(read_cluster(client, deadline))
    states, types = [GroupState.EMPTY], [GroupType.CLASSIC, GroupType.CONSUMER]
    listing = list_groups(client, cluster, deadline, states, types)
    _no_faults(listing.faults)
    matching: dict[str, int | None] = {
        name: listing.groups[name].coordinator for name in listing.groups if patterns.matches(name)
    }
    offsets = kafka_offsets.committed_offsets(client, matching, deadline)
    return Counts(len(listing.groups), len(offsets), sum(_committed(answer) for answer in offsets.values()))


def full(client: Client, batch: int) -> Counts:
    """All groups and all their offsets, `batch` groups at a time: of each batch only the counts are kept."""
    deadline = Deadline(_SECONDS)
    cluster = _sound(read_cluster(client, deadline))
    listing = list_groups(client, cluster, deadline)
    _no_faults(listing.faults)
    groups = partitions = 0
    left = iter(listing.groups.values())
    while members := list(islice(left, batch)):
        coordinators: dict[str, int | None] = {group.id: group.coordinator for group in members}
        offsets = kafka_offsets.committed_offsets(client, coordinators, deadline)
        groups += len(offsets)
        partitions += sum(_committed(answer) for answer in offsets.values())
    return Counts(len(listing.groups), groups, partitions)


def _committed(answer: Offsets | Fault) -> int:
    return len(_sound(answer))


def _sound(answer: R | Fault) -> R:
    if isinstance(answer, Fault):
        raise SystemExit(f"a request failed: {answer}")
    return answer


def _no_faults(faults: Mapping[int, Fault]) -> None:
    for broker, fault in faults.items():
        raise SystemExit(f"broker {broker}: {fault}")


def main() -> None:
    parser = argparse.ArgumentParser("python -m testing.bench.clients.ours", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--job", choices=("steady", "full"), required=True)
    parser.add_argument("--pattern", default="*")
    parser.add_argument("--batch", type=int, default=2_000, help="groups whose offsets are held at a time")
    parser.add_argument("--chunk", type=int, help="groups per OffsetFetch request, instead of the product's own number")
    options = parser.parse_args()
    if options.chunk:
        kafka_offsets._FETCH_CHUNK = options.chunk
    start()
    client = connect(Settings(tuple(options.bootstrap.split(","))))
    patterns = Patterns([options.pattern])
    serve(lambda: steady(client, patterns) if options.job == "steady" else full(client, options.batch))
    client.close()


if __name__ == "__main__":
    main()
