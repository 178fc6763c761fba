"""A warehouse in an S3 store: Spark's connector and delta-rs write it, and the operator's reader reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from group_hygiene.evidence.reader import Reading, Tables
from group_hygiene.process.egress import parse_egress
from group_hygiene.spec.connection import ActivitySpec, SecretName
from group_hygiene.spec.storage import read_store
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.s3 import Bucket, S3Store
from testing.sandbox.spark.jars import jars_of_the_image
from tests import stored
from tests.kafka.makers import Maker, at
from tests.leaks import leaks

SECONDS = 600
WRITERS = 12


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """A bucket of a store of this module's own."""
    with S3Store(["kafka-hygiene"]) as store:
        yield store.bucket("kafka-hygiene")


def pipeline(kafka: KafkaCluster, job: str, warehouse: str, log: Path, variables: dict[str, str]) -> None:
    """One of the pipeline's commands, with the jars of its image, in an environment that says nothing else of AWS."""
    command = [sys.executable, "-m", "group_hygiene.cli", "pipeline", job, "--warehouse", warehouse]
    command += ["--jars", str(jars_of_the_image()), "--memory", "1g", "--log-file", str(log)]
    if job != "maintain":
        command += ["--bootstrap-server", kafka.bootstrap_servers]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(command, env=clean | variables, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr


def test_tables_in_a_bucket_are_those_of_a_folder(
    kafka: KafkaCluster, make: Maker, bucket: Bucket, warehouse: str, tmp_path: Path
) -> None:
    """Row by row, after a first run, and after a second one, which goes on; neither key is in Spark's log.

    Spark has no other settings of the store than the variables that delta-rs reads.
    """
    uri, log = f"s3a://{bucket.name}/main", tmp_path / "spark.log"
    topic = make.topic(records=3)
    make.abandoned(make.name("abandoned"), topic)
    simple = make.simple(make.name("simple"), at(topic, 1))
    for offset in (2, 3):
        pipeline(kafka, "run", uri, log, bucket.variables)
        pipeline(kafka, "run", warehouse, log, {})
        written = stored.rows(uri, bucket.variables)
        assert written == stored.rows(warehouse)
        make.simple(simple, at(topic, offset))
    assert any(simple in row for row in written["activity"])
    assert leaks([bucket.access_key, bucket.secret_key], [log.read_text()]) == set()


def test_maintenance_removes_files_from_a_bucket(
    kafka: KafkaCluster, make: Maker, bucket: Bucket, tmp_path: Path
) -> None:
    """It compacts the tables, and what is in them stays."""
    uri = f"s3a://{bucket.name}/maintained"
    make.simple(make.name("simple"), at(make.topic(records=3), 1))
    pipeline(kafka, "ingest", uri, tmp_path / "spark.log", bucket.variables)
    written = DeltaTable(f"{uri}/commits", storage_options=bucket.variables)
    rows = pa.table(QueryBuilder().register("t", written).execute("SELECT * FROM t"))
    # Few files are not compacted.
    for _ in range(8):
        write_deltalake(written, rows, mode="append")
    before = stored.rows(uri, bucket.variables, ("commits",))
    files = DeltaTable(f"{uri}/commits", storage_options=bucket.variables).file_uris()
    pipeline(kafka, "maintain", uri, tmp_path / "spark.log", bucket.variables)
    assert stored.rows(uri, bucket.variables, ("commits",)) == before
    assert len(DeltaTable(f"{uri}/commits", storage_options=bucket.variables).file_uris()) < len(files)


def test_the_operator_reads_tables_that_spark_wrote_in_a_bucket(
    kafka: KafkaCluster, make: Maker, bucket: Bucket, tmp_path: Path
) -> None:
    """By a Secret with the variables that the pipeline has, at an address that is allowed."""
    simple = make.simple(make.name("simple"), at(make.topic(records=1), 1))
    pipeline(kafka, "run", f"s3a://{bucket.name}/read", tmp_path / "spark.log", bucket.variables)
    uri = f"s3://{bucket.name}/read"
    store = read_store(uri, "hygiene-bucket", bucket.variables)
    found = Tables(
        ActivitySpec(uri, secret_ref=SecretName("hygiene-bucket")), store, parse_egress(["127.0.0.0/8"])
    ).read([simple], 60)
    assert isinstance(found, Reading), found
    assert found.groups.keys() == {simple}


def test_writers_at_once_lose_nothing(bucket: Bucket) -> None:
    """delta-rs makes a version only where none has its number: each of its writers finds one of its own."""
    uri, options = f"s3://{bucket.name}/written-at-once", bucket.variables
    write_deltalake(uri, pa.table({"writer": pa.array([], pa.int64())}), storage_options=options)

    def append(writer: int) -> None:
        write_deltalake(uri, pa.table({"writer": [writer]}), mode="append", storage_options=options)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(append, range(WRITERS)))
    table = DeltaTable(uri, storage_options=options)
    assert table.version() == WRITERS
    assert len(table.file_uris()) == WRITERS
