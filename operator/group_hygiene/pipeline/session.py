"""The Spark session: where it runs, what it needs, where its noise goes. Knows nothing of connections or of tables.

Settings of a session are arguments of a process that everybody can list: no secret may become one.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.files import UNLIKE

# What pyspark 4.0.0 lacks; Spark downloads it from Maven Central where no jars are given.
PACKAGES = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0,io.delta:delta-spark_2.13:4.0.0"
# It logs what is raised as well, with a traceback.
logging.getLogger("py4j").setLevel(logging.CRITICAL)
_SECRETS = r"(?i)secret|password|passwd|token|credential|access[.]?key|jaas|keystore|truststore|kafka[.](sasl|ssl)"
# A run of half a minute on few cores is mostly a Java that warms up. It ends earlier by an eighth with a collector that
# has no threads beside the work, and a thorough compiler that leaves alone what won't run for long: its four
# thresholds are twelve times their defaults.
_COLLECTOR = "-XX:+UseParallelGC"
# Otherwise all of the heap is collected each time the classes outgrow what they may take: 21 MB, and so on.
_CLASSES = "-XX:MetaspaceSize=256m"
_COMPILER = (
    "-XX:Tier4InvocationThreshold=60000 -XX:Tier4MinInvocationThreshold=7200 "
    "-XX:Tier4CompileThreshold=180000 -XX:Tier4BackEdgeThreshold=480000"
)
# Each task writes a file of its own, and whoever reads the table opens all of them.
_SHUFFLED = 8
# No dictionaries for these, as where the workers write.
_UNLIKE = (*UNLIKE, "offsets.list.element.offset")
_WEB_IDENTITY = "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider"
_SETTINGS = {
    "spark.app.name": "group-hygiene",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.databricks.delta.snapshotPartitions": "1",
    # VACUUM lists each table by so many tasks, 10,000 by default: minutes for a folder without folders in it.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    "spark.databricks.delta.stats.collect.using.tableSchema": "true",
    # By default, of 12 bytes: slow to write and to read.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # What is kept is read twice, a moment later: not worth looking for what is alike in it.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.redaction.regex": _SECRETS,
    "spark.sql.redaction.options.regex": _SECRETS,
    # Also in texts that name no option, such as plans: all that follows, as a password may hold whatever would end it.
    # Looked for in every plan, again and again: it must not begin with anything that can be long.
    "spark.sql.redaction.string.regex": r"(?is)(jaas|keystore|truststore|password|secret).*",
    "spark.ui.showConsoleProgress": "false",
    # One of each partition of the log for each way of reading it; beyond that, they are made anew each time.
    "spark.kafka.consumer.cache.capacity": "256",
} | {f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _UNLIKE}


@dataclass(frozen=True, slots=True)
class Options:
    """master: where Spark runs; None = as spark-submit said, else on all cores of this machine.

    jars: a folder of jars that PySpark lacks; None = Spark downloads PACKAGES. memory: of the driver, and with that of
    all, where Spark runs on this machine. log: the file for all that Spark says, appended to. ui_port: of Spark's web
    page, which is for this machine alone where Spark runs on it; None = none. settings: further ones, which win; never
    a secret (see above).
    """

    master: str | None = None
    jars: Path | None = None
    memory: str = "2g"
    log: Path = Path("spark.log")
    ui_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def spark_session(options: Options) -> Iterator[SparkSession]:
    """A session of its own Java process, both gone at the end; under spark-submit, the session of that.

    Raises PipelineError with what to do: no Java, no jars, a master that is not there.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and shutil.which("java", path=_java_path()) is None:
        raise PipelineError(
            "Spark needs Java 17: install it (Debian: apt install default-jre-headless), or set JAVA_HOME"
        )
    conf = SparkConf(loadDefaults=False)
    for name, value in _settings(options, submitted).items():
        conf.set(name, value)
    # Workers otherwise start the first python3 of the PATH, which has other packages than this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if conf.get("spark.master", "").startswith("local"):
        # No setting says where Spark's web page listens: without this, at all addresses of this machine.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Java makes folders in the one where it is started: that must be neither the user's nor one that can't be written.
    with tempfile.TemporaryDirectory(prefix="group-hygiene-", ignore_cleanup_errors=True) as place:
        context, gateway = _start(options, conf, place)
        spark = SparkSession(context)
        try:
            yield spark
        finally:
            spark.stop()
            _end(gateway)


def _start(options: Options, conf: SparkConf, place: str) -> tuple[SparkContext, Any]:
    try:
        options.log.parent.mkdir(parents=True, exist_ok=True)
        opened = options.log.open("ab")
    except OSError as error:
        raise PipelineError(f"the log {options.log} can't be written: {error.strerror}; name another one") from error
    try:
        with opened as log, chdir(place):
            gateway: Any = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
            context = SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, OSError, RuntimeError) as error:
        raise _start_failed(options) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "py4j":
            raise
        raise _start_failed(options) from error
    context.setLogLevel("WARN")
    return context, gateway


def _settings(options: Options, submitted: bool) -> dict[str, str]:
    settings = _SETTINGS | s3a_settings(os.environ)
    if not submitted:
        master = options.master or "local[*]"
        settings["spark.master"] = master
        settings["spark.driver.memory"] = options.memory
        if options.jars is None:
            settings["spark.jars.packages"] = PACKAGES
        else:
            jars = sorted(str(jar.resolve()) for jar in options.jars.glob("*.jar"))
            if not jars:
                raise PipelineError(f"{options.jars} holds no jars: leave --jars out, or name a folder that holds them")
            settings["spark.jars"] = ",".join(jars)
        if master.startswith("local"):
            settings["spark.driver.host"] = "127.0.0.1"
            settings["spark.driver.bindAddress"] = "127.0.0.1"
            settings["spark.driver.defaultJavaOptions"] = _java_options()
            # What one machine shuffles: neither 200 tasks, nor a new plan after each step, are worth their time.
            settings["spark.sql.shuffle.partitions"] = str(min(_SHUFFLED, os.cpu_count() or 1))
            settings["spark.sql.adaptive.enabled"] = "false"
    elif options.master is not None:
        settings["spark.master"] = options.master
    if options.ui_port is None:
        settings["spark.ui.enabled"] = "false"
    else:
        settings |= {"spark.ui.enabled": "true", "spark.ui.port": str(options.ui_port)}
    return settings | dict(options.settings)


def s3a_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Settings for Hadoop's S3A, from the variables by which delta-rs finds S3 and a role in it; none of them a secret.

    S3A takes keys from AWS_ACCESS_KEY_ID and the like by itself. It looks for no place there and, in a pod of EKS, not
    for the role of its ServiceAccount (AWS_WEB_IDENTITY_TOKEN_FILE): it would use the node's identity.
    """
    settings: dict[str, str] = {}
    if endpoint := variables.get("AWS_ENDPOINT_URL"):
        virtual_hosted = variables.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1")
        settings |= {"endpoint": endpoint, "path.style.access": str(not virtual_hosted).lower()}
    if region := variables.get("AWS_REGION"):
        settings["endpoint.region"] = region
    if "AWS_WEB_IDENTITY_TOKEN_FILE" in variables and "AWS_ACCESS_KEY_ID" not in variables:
        settings["aws.credentials.provider"] = _WEB_IDENTITY
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}


def _java_options() -> str:
    """Java ends at once where two collectors are named: one that the environment names stays."""
    given = " ".join(os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
    options = f"{_CLASSES} {_COMPILER}"
    return options if re.search(r"Use\w+GC", given) else f"{_COLLECTOR} {options}"


def _java_path() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin")) if home else None


def _start_failed(options: Options) -> PipelineError:
    return PipelineError(f"Spark does not start: the end of {options.log} says why")


def _end(gateway: Any) -> None:
    """End the Java process too: it would stay until this process ends, and be used again by the next session."""
    if gateway.proc is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
