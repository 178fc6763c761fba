"""The pipeline on a Spark standalone cluster: workers of other processes than the driver read, decode and write."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.faults.ingest_tables import covered_by, differences
from testing.faults.offsets_log import ends
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.s3 import S3Store
from testing.sandbox.spark.cluster import SparkCluster
from testing.sandbox.spark.event_log import SETTINGS, tasks_by_executor
from testing.sandbox.spark.jars import jars, jars_of_the_image
from tests import stored
from tests.kafka.makers import Maker, at
from tests.spark.conftest import FEW_PARTITIONS

SECONDS = 1200


def test_two_workers_make_the_same_tables_as_one_machine(kafka: KafkaCluster, make: Maker, tmp_path: Path) -> None:
    """Row by row, in a store that driver and workers reach. So small a log is one task, of an executor."""
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
    assert tasks_by_executor(events, "reading.py").total() == 1


# A log that keeps eight cores busy would take minutes to write: each task takes one partition.
_MANY_TASKS = """
import sys
from group_hygiene.kafka.client import connect
from group_hygiene.pipeline.ingest import reading
from group_hygiene.pipeline.ingest.reading import ingest
from group_hygiene.pipeline.jobs import Options, spark_session
from group_hygiene.spec.client_settings import Settings
from pathlib import Path
servers, jars, folder, warehouse = sys.argv[1:]
reading._TASK_OFFSETS, reading._SMALL = 1, 0
client = connect(Settings((servers,)))
settings = {"spark.eventLog.dir": Path(folder, "events").as_uri(), "spark.scheduler.minRegisteredResourcesRatio": "1"}
settings |= dict(line.split() for line in Path(folder, "settings").read_text().splitlines())
options = Options("local-cluster[4,2,1024]", Path(jars), "1g", Path(folder, "spark.log"), settings=settings)
with spark_session(options) as spark:
    ingest(spark, client, warehouse, print)
client.close()
"""


@pytest.fixture
def many() -> Iterator[KafkaCluster]:
    """A broker whose log has more partitions than there are executors' cores."""
    with KafkaCluster(config=FEW_PARTITIONS | {"offsets.topic.num.partitions": "20"}) as cluster:
        yield cluster


def test_every_executor_reads_the_log(many: KafkaCluster, tmp_path: Path) -> None:
    """As many tasks as the log has partitions with records; the tables are those of one process."""
    make, kafka, events = Maker(many.bootstrap_servers), many, tmp_path / "events"
    topic = make.topic(records=3)
    for _ in range(40):
        make.simple(make.name("simple"), at(topic, 1))
    make.abandoned(make.name("abandoned"), topic)
    make.close()
    events.mkdir()
    (tmp_path / "settings").write_text("".join(f"{name} {value}\n" for name, value in SETTINGS.items()))
    arguments = [kafka.bootstrap_servers, str(jars()), str(tmp_path), str(tmp_path / "warehouse")]
    command = [sys.executable, "-c", _MANY_TASKS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{(tmp_path / 'spark.log').read_text()[-3000:]}"
    tasks = tasks_by_executor(events, "reading.py")
    assert len(tasks) == 4, tasks
    assert min(tasks.values()) > 1, tasks
    assert differences(kafka.bootstrap_servers, tmp_path / "warehouse") == []
    assert covered_by(tmp_path / "warehouse" / "coverage", "batch")[0] == ends(kafka.bootstrap_servers)


def _run(kafka: KafkaCluster, folder: Path, environment: dict[str, str], *options: str) -> None:
    command = [sys.executable, "-m", "group_hygiene.cli", "pipeline", "run", *options, "--memory", "1g"]
    command += ["--bootstrap-server", kafka.bootstrap_servers, "--jars", str(jars_of_the_image())]
    command += ["--log-file", str(folder / "spark.log")]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stderr}\n{(folder / 'spark.log').read_text()[-3000:]}"
