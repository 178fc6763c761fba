"""`python -m testing.bench.executors`: the pipeline on clusters of 1, 2 and 4 executors, all on this machine.

Each reads the same log of a real broker into a warehouse of its own, with Spark's `local-cluster`, whose executors are
processes. Each executor must have done tasks, and `activity` must be the same. On two
cores it shows what further executors cost, not what they gain.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from group_hygiene.errors import HygieneError
from group_hygiene.kafka.client import connect
from group_hygiene.pipeline.jobs import Job, Options, Work, repeat, spark_session
from group_hygiene.pipeline.store import read
from group_hygiene.pipeline.tables import ACTIVITY
from group_hygiene.spec.client_settings import Settings
from testing.bench import report
from testing.bench.command import run, say
from testing.bench.errors import BenchError, WrongCount
from testing.bench.logs import LEAST_RECORDS, log_of
from testing.bench.pipeline import filled
from testing.sandbox.spark.event_log import SETTINGS, tasks_by_executor
from testing.sandbox.spark.jars import jars

EXECUTORS = (1, 2, 4)
# The files whose lines name the stages.
_STAGES = {"ingest": "reading.py"}
_SECONDS = 1200.0


def main() -> int:
    """Run the command line; returns the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m testing.bench.executors", description=__doc__, formatter_class=raw)
    parser.add_argument("--records", type=int, default=5_000_000, help="of the log (default: %(default)s)")
    parser.add_argument("--one", nargs=3, metavar=("EXECUTORS", "SERVERS", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return run(lambda: _one(int(options.one[0]), options.one[1], Path(options.one[2])), HygieneError)
    if options.records < LEAST_RECORDS or options.records % LEAST_RECORDS:
        parser.error(f"a multiple of {LEAST_RECORDS:,} is needed")
    return run(lambda: _measure(options.records), HygieneError)


def _measure(records: int) -> None:
    before = report.circumstances()
    line: dict[str, Any] = {"records": records}
    folder = Path(tempfile.mkdtemp(prefix="kafka-group-hygiene-bench-"))
    try:
        with filled(log_of("distinct", records), records) as one:
            for number in EXECUTORS:
                say(f"{number} executors")
                line[str(number)] = _program(number, one.servers, folder / str(number))
        first, *others = (_groups(folder / str(number)) for number in EXECUTORS)
        if any(other != first for other in others):
            raise WrongCount("the tables differ")
    finally:
        shutil.rmtree(folder)
    report.write(f"executors-{records}", line, {}, before.document(), {})
    print(json.dumps(line), flush=True)


def _program(number: int, servers: str, folder: Path) -> Any:
    command = [sys.executable, "-m", "testing.bench.executors", "--one", str(number), servers, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise BenchError(f"the pipeline failed on {number} executors")
    result = json.loads(done.stdout.splitlines()[-1])
    for job, tasks in result["tasks"].items():
        if len(tasks) != number:
            raise WrongCount(f"{len(tasks)} of {number} executors did tasks of {job}")
    return result


def _one(number: int, servers: str, folder: Path) -> None:
    """Prints a line of JSON: seconds of wall time, and the tasks of each executor, by stage."""
    events, warehouse = folder / "events", str(folder / "warehouse")
    events.mkdir(parents=True)
    settings = SETTINGS | {"spark.eventLog.dir": events.as_uri()}
    options = Options(f"local-cluster[{number},1,1024]", jars(), "1g", folder / "spark.log", settings=settings)
    client, seconds = connect(Settings((servers,))), dict[str, float]()
    try:
        with spark_session(options) as spark:
            started = time.monotonic()
            repeat(spark, client, Work((Job.INGEST,), warehouse), say, options.log)
            seconds["ingest_s"] = round(time.monotonic() - started, 3)
    finally:
        client.close()
    tasks = {job: sorted(tasks_by_executor(events, file).values()) for job, file in _STAGES.items()}
    print(json.dumps(seconds | {"tasks": tasks}), flush=True)


def _groups(folder: Path) -> pa.Table:
    """`activity` in the order of the groups, without the time of its update."""
    uri = ACTIVITY.path(str(folder / "warehouse"))
    rows = read(uri, ACTIVITY.version(str(folder / "warehouse")), str(folder), "true").read_all()
    return rows.select(ACTIVITY.schema.names).cast(ACTIVITY.schema).drop_columns(["updated_at"]).sort_by("group")


if __name__ == "__main__":
    sys.exit(main())
