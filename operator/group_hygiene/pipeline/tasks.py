"""Reports the progress of Spark's current stage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_EVERY_S = 5.0


@contextmanager
def report_tasks(spark: SparkSession, report: Callable[[int, int], None]) -> Iterator[None]:
    """Within the context, call `report(done, all)` every few seconds with the tasks of the newest stage, on changes."""
    over = threading.Event()

    def watch() -> None:
        last = (0, 0)
        while not over.wait(_EVERY_S):
            now = _newest(spark)
            if now != last and now[0]:
                report(*now)
            last = now

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _newest(spark: SparkSession) -> tuple[int, int]:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    found = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
    return found[-1] if found else (0, 0)
