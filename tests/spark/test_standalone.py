"""The pipeline on a Spark standalone cluster: workers of other processes than the driver read, decode and write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sandbox.kafka import KafkaCluster
from sandbox.s3 import S3Store
from sandbox.spark.cluster import SparkCluster
from sandbox.spark.jars import jars_of_the_image
from tests import stored
from tests.event_log import SETTINGS, tasks_by_executor
from tests.kafka.makers import Maker, at

SECONDS = 1200


def test_two_workers_make_the_same_tables_as_one_machine(kafka: KafkaCluster, make: Maker, tmp_path: Path) -> None:
    """Row by row, in a store that driver and workers reach; each worker's executor does tasks."""
    topic, events = make.topic(records=3), tmp_path / "events"
    for _ in range(20):
        make.simple(make.name("simple"), at(topic, 1))
    make.abandoned(make.name("abandoned"), topic)
    settings, local = tmp_path / "settings", tmp_path / "local"
    settings.mkdir()
    events.mkdir()
    lines = SETTINGS | {"spark.eventLog.dir": events.as_uri()}
    (settings / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    with S3Store(["kafka-hygiene"]) as store:
        bucket = store.bucket("kafka-hygiene")
        uri = f"s3a://{bucket.name}/main"
        with SparkCluster(workers=2, variables=bucket.variables) as cluster:
            environment = bucket.variables | cluster.client | {"SPARK_CONF_DIR": str(settings)}
            _run(kafka, tmp_path, environment, "--warehouse", uri, "--master", cluster.url)
        _run(kafka, tmp_path, {}, "--warehouse", str(local))
        tables = stored.rows(uri, bucket.variables)
        assert all(tables.values()), {name: len(rows) for name, rows in tables.items()}
        assert tables == stored.rows(str(local))
    tasks = tasks_by_executor(events)
    assert len(tasks) == 2, tasks
    assert all(tasks.values()), tasks


def _run(kafka: KafkaCluster, folder: Path, environment: dict[str, str], *options: str) -> None:
    command = [sys.executable, "-m", "group_hygiene.cli", "pipeline", "run", *options, "--memory", "1g"]
    command += ["--bootstrap-server", kafka.bootstrap_servers, "--jars", str(jars_of_the_image())]
    command += ["--log-file", str(folder / "spark.log")]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stderr}\n{(folder / 'spark.log').read_text()[-3000:]}"
