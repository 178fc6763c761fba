"""The bench of the pipeline keeps its own promises: it measures a real one, and a wrong count ends it."""

import pytest

from bench import pipeline
from bench.errors import WrongCount
from bench.load import PARTITIONS

_GROUPS = 100
_FIGURES = {
    *("records", "full_s", "increment_s", "spark_count_s", "raw_read_s", "records_per_s", "full_vs_count"),
    *("increment_vs_full", "peak_rss_mb", "activity_query_s", "startup_s"),
}


def test_it_measures_a_real_pipeline() -> None:
    """Each part took its time, and saw every record; the line has all figures that have a target."""
    with pipeline.filled(_GROUPS) as servers:
        times = pipeline.measure(servers, _GROUPS)
    line = pipeline.summary(_GROUPS * PARTITIONS, times)
    assert line.keys() == _FIGURES
    assert pipeline.TARGETS.keys() <= _FIGURES
    assert all(value > 0 for value in line.values()), line
    assert all(value for value in pipeline.parts(times).values())


def test_a_wrong_count_ends_it() -> None:
    """A part that read too little would be the fastest of all."""
    with pytest.raises(WrongCount, match="the reader counted 9, but there are 10"):
        pipeline._check("the reader", 9, 10)
