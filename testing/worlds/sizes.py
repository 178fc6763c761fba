"""Worlds with small limits of bytes."""

from __future__ import annotations

from testing.worlds.changes import OFFSETS, brokers_configured, configured
from testing.worlds.world import Cluster, Moment, World, config

WORLDS = (
    World(
        "sizes",
        "requests-small",
        "socket.request.max.bytes=20000, and few requests wait",
        Cluster(config=config(socket_request_max_bytes="20000", queued_max_requests="2")),
    ),
    World(
        "sizes",
        "fetches-small",
        "fetch.max.bytes=1024: each fetch answers one batch",
        Cluster(config=config(fetch_max_bytes="1024", max_incremental_fetch_session_cache_slots="1")),
    ),
    World(
        "sizes",
        "replica-fetches-small",
        "replicas fetch at most one small batch at a time",
        Cluster(brokers=3, config=config(replica_fetch_max_bytes="1024", replica_fetch_response_max_bytes="1024")),
    ),
    World(
        "sizes",
        "offsets-batches-small",
        "max.message.bytes=1500 of __consumer_offsets",
        change=configured(OFFSETS, max_message_bytes="1500"),
        moment=Moment.MARKED,
        settings=("max.message.bytes",),
    ),
    World(
        "sizes",
        "messages-small",
        "message.max.bytes=200000 of all brokers",
        change=brokers_configured(message_max_bytes="200000"),
        moment=Moment.FIRST,
        settings=("message.max.bytes",),
    ),
    World(
        "sizes",
        "metadata-small",
        "offsets.metadata.max.bytes=200",
        Cluster(config=config(offset_metadata_max_bytes="200")),
    ),
    World(
        "sizes",
        "logs-small",
        "segments, indexes and their intervals of all topics at their least",
        Cluster(
            config=config(log_segment_bytes="1048576", log_index_size_max_bytes="4096", log_index_interval_bytes="1")
        ),
    ),
)
