"""The bench of the pipeline keeps its own promises: it measures a real one, and a wrong count ends it."""

import json
import subprocess
import sys

import pytest

from bench import pipeline
from bench.errors import WrongCount

# In a process of its own: each part has a Spark of its own, and a process can have but one at a time.
_PROGRAM = """
import json
from bench import pipeline
from bench.load import PARTITIONS
with pipeline.filled(100) as servers:
    times = pipeline.measure(servers, 100)
print(json.dumps([pipeline.summary(100 * PARTITIONS, times), pipeline.parts(times)]))
"""
_FIGURES = {
    *("records", "full_s", "increment_s", "spark_count_s", "raw_read_s", "records_per_s", "full_vs_count"),
    *("increment_vs_full", "peak_rss_mb", "activity_query_s", "startup_s"),
}


def test_it_measures_a_real_pipeline() -> None:
    """Each part took its time, and saw every record; the line has all figures that have a target."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    line, parts = json.loads(done.stdout.splitlines()[-1])
    assert line.keys() == _FIGURES
    assert pipeline.TARGETS.keys() <= _FIGURES
    assert all(value > 0 for value in line.values()), line
    assert all(parts.values())


def test_a_wrong_count_ends_it() -> None:
    """A part that read too little would be the fastest of all."""
    with pytest.raises(WrongCount, match="the reader counted 9, but there are 10"):
        pipeline._check("the reader", 9, 10)
