"""Worlds in which brokers compress records: those of the ledger, and those of the offsets log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from testing.worlds.changes import LEDGER, brokers_configured, configured
from testing.worlds.life import Life
from testing.worlds.world import Cluster, Moment, World, config

_CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
# CompressionType of org.apache.kafka.common.record.
_OF_OFFSETS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_FOREIGN = 50


@contextmanager
def _foreign_records(life: Life) -> Iterator[None]:
    """Another program writes compressed records into the ledger's topic."""
    for codec in ("lz4", "zstd", "snappy"):
        settings = {"bootstrap.servers": life.groups.bootstrap, "compression.type": codec, "linger.ms": 50}
        producer = Producer(settings | {"log_level": 0})
        for number in range(_FOREIGN):
            producer.produce(life.run.ledger_topic, key=f"foreign-{codec}-{number}", value=b"x" * 200, partition=0)
        producer.flush(30)
    yield


WORLDS = (
    *(
        World(
            "codecs",
            f"codec-{codec}",
            f"compression.type={codec} of all brokers, before there are groups and a ledger",
            change=brokers_configured(compression_type=codec),
            moment=Moment.FIRST,
            settings=("compression.type",),
        )
        for codec in ("producer", *_CODECS)
    ),
    *(
        World(
            "codecs",
            f"codec-{codec}-later",
            f"compression.type={codec} of the ledger's topic, set {moment.value}",
            change=configured(LEDGER, compression_type=codec),
            moment=moment,
            settings=("compression.type",),
        )
        for codec, moment in (("zstd", Moment.DELETED), ("lz4", Moment.MARKED), ("snappy", Moment.MARKED))
    ),
    *(
        World(
            "codecs",
            f"codec-of-offsets-{name}",
            f"offsets.topic.compression.codec={number}, which is {name}",
            Cluster(config=config(offsets_topic_compression_codec=str(number))),
        )
        for number, name in _OF_OFFSETS.items()
    ),
    World(
        "codecs",
        "codec-levels",
        "compression.zstd.level and the others at an end of their range, with zstd",
        change=brokers_configured(
            compression_type="zstd",
            compression_zstd_level="19",
            compression_gzip_level="9",
            compression_lz4_level="17",
        ),
        moment=Moment.FIRST,
        settings=("compression.zstd.level", "compression.gzip.level", "compression.lz4.level"),
    ),
    World(
        "codecs",
        "codec-foreign-records",
        "another program writes records with other codecs into the ledger's topic",
        change=_foreign_records,
        moment=Moment.MARKED,
    ),
)
