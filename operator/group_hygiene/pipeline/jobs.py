"""The Spark session and its jobs: ingest, then maintain, once or repeatedly.

Settings of a session are arguments of a process, which all users of the machine can list: they must hold no secret.

`maintain` drops old rows, compacts small files, removes files of old versions. Of commits that are not new any more,
the first and the last of each day stay: enough to find every time of a day or longer in which a group was unused. It
never drops a bronze row that is not in `activity` yet, nor a file of a version that `coverage` may still name.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from delta import DeltaTable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import Halted, PipelineError
from group_hygiene.kafka.client import Client
from group_hygiene.pipeline import store
from group_hygiene.pipeline.ingest.reading import Choices, ingest
from group_hygiene.pipeline.store import NEARLY_UNIQUE, Table
from group_hygiene.pipeline.tables import (
    ACTIVITY,
    COMMITS,
    COVERAGE,
    GROUP_STATES,
    PRUNED,
    QUARANTINE,
    RECORDS,
    THINNED,
)

# The jar that pyspark 4.2.0 lacks, with those that it needs; Spark downloads them from Maven Central by default.
PACKAGES = "io.delta:delta-spark_4.2_2.13:4.4.0"
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
# A property of `coverage`: time of the last maintenance, in seconds since 1970.
_MAINTAINED = "grouphygiene.maintained"
# A table of so many files is not compacted: that would rewrite all of a small one at each run.
_FEW = 8
T = TypeVar("T")
Report = Callable[[str], None]
# Object stores that both Spark's connectors and delta-rs support.
_STORES = ("s3a", "s3", "abfss", "abfs", "gs")
# It logs each error that it raises, with a traceback.
logging.getLogger("py4j").setLevel(logging.CRITICAL)


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


@dataclass(frozen=True, slots=True)
class Retention:
    """history: of records, by their time in the log, and of groups that are gone (which `ingest` drops).
    files: of old versions of a table.

    commits: of every commit; of older ones, the first and the last of a day are enough.
    activity: of old versions of `activity`, as each run rewrites a large part of it. Readers use the version that
    `coverage` names, which stays.
    """

    history: timedelta = timedelta(days=90)
    commits: timedelta = timedelta(days=14)
    files: timedelta = timedelta(days=7)
    activity: timedelta = timedelta(days=1)


def maintain(
    spark: SparkSession, warehouse: str, retention: Retention | None = None, at_most_every: timedelta | None = None
) -> bool:
    """Maintain all existing tables. False = not due. If ingest runs at the same time, one of both fails.

    at_most_every: not due if the last maintenance, or the tables' creation, is more recent than this.
    """
    retention, now = retention or Retention(), datetime.now(UTC)
    if not COVERAGE.exists(warehouse):
        return False
    if at_most_every is not None:
        done = COVERAGE.settings(warehouse).get(_MAINTAINED)
        last = store.created(COVERAGE.path(warehouse)) if done is None else datetime.fromtimestamp(int(done), UTC)
        if now - last < at_most_every:
            return False
    # Before anything is written: it refuses tables of a later version.
    covered = COVERAGE.rows(warehouse)[:1]
    store.vacuum(ACTIVITY.path(warehouse), retention.activity, [row["activity_version"] for row in covered])
    # The last batch that is in `activity`.
    taken_in = covered[0]["batch"] if covered else 0
    for table in RECORDS:
        if not table.exists(warehouse):
            continue
        found = DeltaTable.forPath(spark, table.path(warehouse))
        _prune(found, warehouse, table, now - retention.history, taken_in)
        if table is COMMITS:
            _thin(spark, warehouse, now - retention.commits, taken_in)
        if len(table.files(warehouse, table.version(warehouse), "batch")) > _FEW:
            found.optimize().executeCompaction()
    for table in (*RECORDS, COVERAGE):
        store.vacuum(table.path(warehouse), retention.files)
    store.set_property(COVERAGE.path(warehouse), _MAINTAINED, str(int(now.timestamp())))
    return True


def _prune(found: DeltaTable, warehouse: str, table: Table, oldest: datetime, taken_in: int) -> None:
    rows = (F.col("record_time") < oldest) & (F.col("batch") <= taken_in)
    if found.toDF().where(rows).isEmpty():
        return
    before = table.settings(warehouse).get(PRUNED)
    if before is None or datetime.fromisoformat(before) < oldest:
        # First: a backtest must know that the rows are incomplete.
        store.set_property(table.path(warehouse), PRUNED, oldest.isoformat())
    found.delete(rows)


def _thin(spark: SparkSession, warehouse: str, oldest: datetime, taken_in: int) -> None:
    """Drop commits of the days before `oldest`, of each place and day all but the first, the last and the latest.

    Tombstones and commits of aborted transactions count apart. The latest is the one with the latest time of its own.
    """
    end = oldest.replace(hour=0, minute=0, second=0, microsecond=0)
    begin = datetime.fromisoformat(COMMITS.settings(warehouse).get(THINNED, "0001-01-01T00:00:00+00:00"))
    if begin >= end:
        return
    wiped, day = F.col("committed_offset").isNull(), F.to_date("record_time").alias("day")

    def ends(since: datetime, until: datetime, of: Column | str) -> tuple[str, DataFrame]:
        """Which rows are from these days, and of each place and day `of` those that stay, and the number of rows."""
        times = (f"timestamp '{moment.isoformat()}'" for moment in (since, until))
        which = "record_time >= {} AND record_time < {} AND batch <= {}".format(*times, taken_in)
        stay = F.array(F.min_by(of, "log_offset"), F.max_by(of, "log_offset"), F.max_by(of, "commit_ms"))
        # Not by a window: an aggregation shuffles no more than these rows of a task's.
        same = ("era", "log_partition", "group", "topic", "partition", wiped, "aborted", day)
        rows = COMMITS.read(spark, warehouse).where(which).groupBy(*same)
        return which, rows.agg(F.array_distinct(F.array_compact(stay)).alias("ends"), F.count("*").alias("rows"))

    _, found = ends(begin, end, "log_offset")
    days = found.where("rows > size(ends)").select("day").distinct().orderBy("day").toArrow()["day"].to_pylist()
    # One at a time: it bounds what is shuffled, and a run that was killed continues with the next one.
    for begin in (datetime.combine(date, datetime.min.time(), UTC) for date in days):
        which, found = ends(begin, until := begin + timedelta(days=1), F.struct(*COMMITS.schema.names))
        writer = found.select(F.inline("ends")).write.format("delta").mode("overwrite").option("replaceWhere", which)
        writer.save(COMMITS.path(warehouse))
        store.set_property(COMMITS.path(warehouse), THINNED, until.isoformat())
    store.set_property(COMMITS.path(warehouse), THINNED, end.isoformat())


class Job(StrEnum):
    INGEST = "ingest"
    MAINTAIN = "maintain"


@dataclass(frozen=True, slots=True)
class Work:
    """jobs: the jobs to run. warehouse: a folder or a URI. retention: of its tables.

    start_over: see `reading.plan`; until a round succeeds.

    every: time between rounds; None = one round only. hosts: whether to store the hosts of clients.
    """

    jobs: Collection[Job]
    warehouse: str
    retention: Retention = field(default_factory=Retention)
    start_over: bool = False
    every: timedelta | None = None
    hosts: bool = True


def run(options: Options, client: Client | None, work: Work, report: Report) -> None:
    """Run the jobs in a new session, repeatedly if `work.every` is set. Only ingest needs a client.

    May be killed at any point: the tables stay consistent. Raises HygieneError.
    """
    once(options, lambda spark: repeat(spark, client, work, report, options.log), report)


def once(options: Options, work: Callable[[SparkSession], T], report: Report) -> T:
    """Run `work` in a new session, and return its result. Raises HygieneError."""
    report("starting Spark")
    with spark_session(options) as spark, _explained(options.log):
        return work(spark)


def repeat(spark: SparkSession, client: Client | None, work: Work, report: Report, log: Path) -> None:
    """Run the rounds in an existing session. log: of the session.

    If further rounds follow, a failure is reported, and the next round retries. Otherwise raises PipelineError, as it
    does if a user must choose how to continue (Halted), or if the session has ended.
    """
    while True:
        try:
            with _explained(log):
                _round(spark, client, work, report)
                work = replace(work, start_over=False)
        except PipelineError as error:
            if work.every is None or isinstance(error, Halted) or not _alive(spark):
                raise
            report(f"failed, will retry: {error}")
        if work.every is None:
            return
        # Java holds what Python's objects refer to, also those in cycles: plans, and tables that were broadcast.
        gc.collect()
        time.sleep(work.every.total_seconds())


def warehouse_uri(text: str) -> str:
    """The URI unchanged, or a local path as an absolute one. Raises PipelineError if it can't hold tables."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        if scheme not in _STORES:
            known = ", ".join(f"{store}://" for store in _STORES)
            raise PipelineError(f"--warehouse {text} is neither a folder nor in an object store ({known})")
        return text.rstrip("/")
    path = Path(unquote(rest) if separator else text).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise PipelineError(f"--warehouse {text} is not a folder")
    if set("%\\") & set(str(path)):
        raise PipelineError(f"--warehouse {text} contains % or \\, which Delta's libraries misinterpret")
    return str(path)


def _round(spark: SparkSession, client: Client | None, work: Work, report: Report) -> None:
    if Job.INGEST in work.jobs and client is not None:
        choices = Choices(work.start_over, work.hosts, work.retention.history)
        written, read_at = ingest(spark, client, work.warehouse, lambda line: report(f"ingest: {line}"), choices)
        upto = "not complete yet" if read_at is None else f"complete as of {read_at:%Y-%m-%d %H:%M:%S} UTC"
        report(
            f"ingest: {written[COMMITS.name]:,} commits ({written['aborted']:,} of aborted transactions), "
            f"{written[GROUP_STATES.name]:,} group records, {written[QUARANTINE.name]:,} malformed ones in quarantine; "
            f"{upto}"
        )
    # With other jobs, once a day is enough.
    every = timedelta(days=1) if len(work.jobs) > 1 else None
    if Job.MAINTAIN in work.jobs and maintain(spark, work.warehouse, work.retention, every):
        report("maintain: done")


def _alive(spark: SparkSession) -> bool:
    """Whether its Java process answers and is not stopped."""
    context: Any = spark.sparkContext
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


@contextmanager
def _explained(log: Path) -> Iterator[None]:
    """Raise Spark's errors as PipelineError with their first line; the rest is in Spark's log."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error).strip()
        first = text.splitlines()[0] if text else type(error).__name__
        raise PipelineError(f"Spark failed: {first} (details in {log})") from error
