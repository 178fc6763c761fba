"""All worlds, by families, and those of `make smoke`."""

from __future__ import annotations

from testing.worlds import (
    clocks,
    codecs,
    disks,
    ledger_topic,
    listeners,
    mirrors,
    offsets_topic,
    replicas,
    rights,
    sizes,
    transactions,
    versions,
)
from testing.worlds.world import World

WORLDS: tuple[World, ...] = (
    *codecs.WORLDS,
    *offsets_topic.WORLDS,
    *ledger_topic.WORLDS,
    *clocks.WORLDS,
    *sizes.WORLDS,
    *transactions.WORLDS,
    *replicas.WORLDS,
    *disks.WORLDS,
    *rights.WORLDS,
    *listeners.WORLDS,
    *mirrors.WORLDS,
    *versions.WORLDS,
)
# They share three clusters, and one has its own.
SMOKE = (
    "codec-zstd",
    "codec-lz4-later",
    "ledger-cleanup-delete",
    "ledger-compacted",
    "ledger-edited",
    "times-of-append",
    "offsets-grown",
    "offsets-batches-small",
    "without-read-offsets-log",
    "transactions-short",
)
