"""Worlds with quotas, limits of connections, few threads, and topics that are made or not deleted by themselves."""

from __future__ import annotations

from worlds.changes import brokers_configured
from worlds.world import Cluster, Moment, World, config

WORLDS = (
    World(
        "listeners",
        "connections-idle",
        "connections.max.idle.ms=1000: brokers close idle connections",
        Cluster(config=config(connections_max_idle_ms="1000")),
    ),
    World(
        "listeners",
        "connections-limited",
        "at most 60 connections of an address, and 20 new ones a second",
        change=brokers_configured(max_connections_per_ip="60", max_connection_creation_rate="20"),
        settings=("max.connections.per.ip", "max.connection.creation.rate", "max.connections"),
        moment=Moment.MARKED,
    ),
    World(
        "listeners",
        "threads-few",
        "one thread for the network, one for requests",
        Cluster(config=config(num_network_threads="1", num_io_threads="1", background_threads="1")),
    ),
    World(
        "listeners",
        "topics-made",
        "auto.create.topics.enable=true",
        Cluster(config=config(auto_create_topics_enable="true", num_partitions="3", default_replication_factor="1")),
    ),
    World(
        "listeners",
        "topics-not-deleted",
        "delete.topic.enable=false",
        Cluster(config=config(delete_topic_enable="false")),
    ),
    World(
        "listeners",
        "disks-in-two-folders",
        "log.dirs has two folders",
        Cluster(config=config(log_dir_failure_timeout_ms="5000")),
        settings=("log.dirs",),
    ),
)
