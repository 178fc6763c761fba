"""Worlds with quotas, limits of connections, few threads, and topics that are created automatically."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka.protocol.admin import AlterClientQuotasRequest

from group_hygiene.kafka.client import Call, Deadline, connect
from group_hygiene.model.groups import Fault
from group_hygiene.spec.client_settings import Settings
from testing.faults.errors import FaultsError
from testing.worlds.changes import brokers_configured
from testing.worlds.life import Life
from testing.worlds.world import Change, Cluster, Moment, World, config


def _quota(**quotas: float) -> Change:
    """Quotas of all clients."""

    @contextmanager
    def change(life: Life) -> Iterator[None]:
        _alter_quotas(life, quotas, remove=False)
        yield
        _alter_quotas(life, quotas, remove=True)

    return change


def _alter_quotas(life: Life, quotas: dict[str, float], remove: bool) -> None:
    entry = AlterClientQuotasRequest.EntryData
    entity = entry.EntityData(entity_type="client-id", entity_name=None)
    ops = [entry.OpData(key=key, value=value, remove=remove) for key, value in quotas.items()]
    client = connect(Settings(tuple(life.groups.bootstrap.split(","))))
    try:
        rows = [entry(entity=[entity], ops=ops)]
        answer = client.send(Call(None, AlterClientQuotasRequest(entries=rows, validate_only=False)), Deadline(30))
    finally:
        client.close()
    if isinstance(answer, Fault) or any(row.error_code for row in answer.entries):
        raise FaultsError(f"quotas could not be set: {answer}")


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
    *(
        World(
            "listeners",
            f"quota-of-{name}",
            f"a quota of all clients: {', '.join(f'{key}={value:.0f}' for key, value in quotas.items())}",
            change=_quota(**quotas),
            moment=Moment.MARKED,
        )
        for name, quotas in (
            ("produced-bytes", {"producer_byte_rate": 5_000.0}),
            ("consumed-bytes", {"consumer_byte_rate": 20_000.0}),
            ("requests", {"request_percentage": 5.0}),
        )
    ),
)
