"""How the driver talks to a measured program: a line in = do the job once, a line of JSON out = what was counted."""

import json
import sys
import time
from collections.abc import Callable
from typing import NamedTuple


class Counts(NamedTuple):
    """What one run of a job has seen.

    listed: groups in the lists; groups: groups whose offsets were fetched; partitions: their committed offsets.
    """

    listed: int
    groups: int
    partitions: int


def serve(job: Callable[[], Counts]) -> None:
    """Say that we are connected; then run the job for each line of stdin, until its end."""
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        counts = job()
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, **counts._asdict()}), flush=True)
