"""`python -m testing.bench.spark_source SERVERS LOG`: Spark's own Kafka source reads the log, and nothing takes it in.

A first pass counts the records, and is cold: Java loads and compiles its classes. The second one is measured: its rows
go to Spark's `noop` sink. Both have the settings that read this topic fastest. LOG: a file for what Spark prints.
"""

import json
import os
import sys
import tempfile
import time
from contextlib import chdir
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession

from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from testing.sandbox.proc import cpu_seconds
from testing.sandbox.spark.jars import jars_with_kafka_source

_OPTIONS = {
    "assign": json.dumps({OFFSETS_TOPIC: list(range(50))}),
    "startingOffsets": "earliest",
    # Otherwise a poll at the end of each partition waits for half a second.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "100000",
}
_SETTINGS = {
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Its other reader of offsets leaves internal topics out.
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "true",
    # One consumer per partition and pass; beyond that, each is created again for each use.
    "spark.kafka.consumer.cache.capacity": "256",
}


def main(servers: str, log: str) -> None:
    """Prints one line of JSON: records, seconds, CPU seconds, and the seconds of the cold pass."""
    conf = SparkConf(loadDefaults=False)
    for name, value in _SETTINGS.items():
        conf.set(name, value)
    conf.set("spark.jars", ",".join(str(jar) for jar in sorted(jars_with_kafka_source().glob("*.jar"))))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryDirectory() as folder, open(log, "ab") as file, chdir(folder):
        gateway: Any = launch_gateway(conf, {"stdout": file, "stderr": file})  # type: ignore[no-untyped-call]
        spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
        started = time.monotonic()
        records = _read(spark, servers).count()
        cold = time.monotonic() - started
        started, used = time.monotonic(), cpu_seconds(gateway.proc.pid)
        _read(spark, servers).write.format("noop").mode("overwrite").save()
        seconds, cpu = time.monotonic() - started, cpu_seconds(gateway.proc.pid) - used
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
    print(json.dumps({"records": records, "seconds": seconds, "cpu": cpu, "cold_s": cold}))


def _read(spark: SparkSession, servers: str) -> DataFrame:
    return spark.read.format("kafka").options(**{"kafka.bootstrap.servers": servers}, **_OPTIONS).load()


if __name__ == "__main__":
    main(*sys.argv[1:])
