"""How far Spark is with the stage that it works on, told while somebody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_EVERY_S = 5.0


@contextmanager
def telling_tasks(spark: SparkSession, tell: Callable[[int, int], None]) -> Iterator[None]:
    """Meanwhile, tell every few seconds how many tasks of the newest stage are done, of how many, if that changed."""
    over = threading.Event()

    def watch() -> None:
        told = (0, 0)
        while not over.wait(_EVERY_S):
            now = _newest(spark)
            if now != told and now[0]:
                tell(*now)
            told = now

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
