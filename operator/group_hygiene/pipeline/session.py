"""The Spark session: its master, settings, jars and log. Independent of connections.

Settings of a session are arguments of a process, which all users of the machine can list: they must hold no secret.
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

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.table_file import NEARLY_UNIQUE

# The jar that pyspark 4.2.0 lacks, with those that it needs; Spark downloads them from Maven Central by default.
PACKAGES = "io.delta:delta-spark_4.2_2.13:4.4.0"
# It logs each error that it raises, with a traceback.
logging.getLogger("py4j").setLevel(logging.CRITICAL)
_SECRETS = r"(?i)secret|password|passwd|token|credential|access[.]?key|jaas|keystore|truststore|kafka[.](sasl|ssl)"
# A run of half a minute on few cores is mostly the warm-up of Java. It takes an eighth less time with a collector
# without concurrent threads, and with C2 compiling less: its four thresholds are twelve times their defaults.
_COLLECTOR = "-XX:+UseParallelGC"
# Otherwise a full collection runs each time the classes outgrow the metaspace, which begins with 21 MB.
_CLASSES = "-XX:MetaspaceSize=256m"
_COMPILER = (
    "-XX:Tier4InvocationThreshold=60000 -XX:Tier4MinInvocationThreshold=7200 "
    "-XX:Tier4CompileThreshold=180000 -XX:Tier4BackEdgeThreshold=480000"
)
# Each task writes its own file, and each reader of the table opens all of them.
_SHUFFLED = 8
_WEB_IDENTITY = "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider"
_SETTINGS = {
    "spark.app.name": "group-hygiene",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Larger files (128 MiB) are not compacted again.
    "spark.databricks.delta.optimize.minFileSize": str(1 << 27),
    # The default has 12 bytes, and is slow to write and to read.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # As the workers' files, with `parquet.writer.version`, see below.
    "spark.sql.parquet.compression.codec": "zstd",
    **{f"spark.hadoop.parquet.enable.dictionary#{path}": "false" for path in NEARLY_UNIQUE},
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # The default of Hadoop 3.5 needs further libraries.
    "spark.hadoop.fs.s3a.input.stream.type": "classic",
    # Two commits of the same version to a table: the second one fails, as those of delta-rs do.
    "spark.hadoop.fs.s3a.create.conditional.enabled": "true",
    "spark.redaction.regex": _SECRETS,
    "spark.sql.redaction.options.regex": _SECRETS,
    # For texts without options, such as plans: redacts all that follows, as a password may contain any delimiter. It is
    # matched against every plan, so it must not begin with a repetition.
    "spark.sql.redaction.string.regex": r"(?is)(jaas|keystore|truststore|password|secret).*",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, slots=True)
class Options:
    """master: Spark's master; None = of spark-submit, else all cores of this machine.

    jars: a folder of jars that PySpark lacks; None = Spark downloads PACKAGES. memory: of the driver, which includes
    the executors if Spark runs locally. log: file for Spark's output, appended to. ui_port: of Spark's web UI, which
    listens on localhost if Spark runs locally; None = off. settings: further ones, which take precedence; never a
    secret.
    """

    master: str | None = None
    jars: Path | None = None
    memory: str = "2g"
    log: Path = Path("spark.log")
    ui_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def spark_session(options: Options) -> Iterator[SparkSession]:
    """A session in a new Java process, which ends with the context; under spark-submit, its session.

    Raises PipelineError with what to do, for example without Java, without jars, or if the master is unreachable.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    home = os.environ.get("JAVA_HOME")
    if not submitted and shutil.which("java", path=str(Path(home, "bin")) if home else None) is None:
        raise PipelineError(
            "Spark needs Java 17: install it (Debian: apt install default-jre-headless), or set JAVA_HOME"
        )
    conf = SparkConf(loadDefaults=False)
    for name, value in _settings(options, submitted).items():
        conf.set(name, value)
    # Otherwise workers start the first python3 of the PATH, which may lack packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if conf.get("spark.master", "").startswith("local"):
        # There is no setting for the address of Spark's web UI: without this, it listens on all.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Java creates folders in its working directory, which must be writable, and not the user's.
    with tempfile.TemporaryDirectory(prefix="group-hygiene-", ignore_cleanup_errors=True) as place:
        context, gateway = _start(options, conf, place)
        spark = SparkSession(context)
        # Columns without a dictionary are stored as differences. Delta finds this setting only here.
        spark.conf.set("parquet.writer.version", "v2")
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
        raise PipelineError(f"the log {options.log} can't be written: {error.strerror}; choose another one") from error
    try:
        with opened as log, chdir(place):
            gateway: Any = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
            context = SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, Py4JError, OSError, RuntimeError) as error:
        raise PipelineError(f"Spark does not start: see the end of {options.log}") from error
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
                raise PipelineError(f"{options.jars} contains no jars: omit --jars, or name a folder with jars")
            settings["spark.jars"] = ",".join(jars)
        if master.startswith("local"):
            settings["spark.driver.host"] = "127.0.0.1"
            settings["spark.driver.bindAddress"] = "127.0.0.1"
            # A collector of the environment takes precedence, as Java refuses to start with two.
            given = " ".join(os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
            collector = [] if re.search(r"Use\w+GC", given) else [_COLLECTOR]
            settings["spark.driver.defaultJavaOptions"] = " ".join([*collector, _CLASSES, _COMPILER])
            # For shuffles on one machine, neither 200 tasks nor adaptive plans pay.
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
    """Settings for Hadoop's S3A, from the environment variables of delta-rs; none of them is a secret.

    S3A reads keys from AWS_ACCESS_KEY_ID etc. by itself, but neither endpoint and region nor, in a pod of EKS, the role
    of the ServiceAccount (AWS_WEB_IDENTITY_TOKEN_FILE): it would use the node's identity.
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


def _end(gateway: Any) -> None:
    """End the Java process, too: otherwise it runs until this process ends, and the next session uses it again."""
    if gateway.proc is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
