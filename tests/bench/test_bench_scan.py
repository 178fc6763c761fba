"""The benchmark's own promises: every program sees all that was loaded, a wrong count is a failure, the last line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import report
from bench.errors import BenchError, WrongCount
from bench.load import Loaded, coordinating_partition, load
from bench.programs import Job, Measured, jobs, ours, python_peers, take_turns
from sandbox.kafka import KafkaCluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[str, Loaded]]:
    """One broker with 300 groups, 3 of them litter."""
    with KafkaCluster() as kafka:
        loaded, members = load(kafka.bootstrap_servers, 300)
        yield kafka.bootstrap_servers, loaded
        members.stop()


def test_programs_count_what_was_loaded(filled: tuple[str, Loaded]) -> None:
    """Ours and the peers in Python agree with what was loaded, in every run, and their memory is known."""
    servers, loaded = filled
    results = take_turns([*ours(), *python_peers()], servers, 2)
    report.check_counts(results, loaded)
    assert [len(result.runs) for result in results] == [2] * 4
    assert all(0 < min(result.runs) < result.first < result.total for result in results)
    assert all(10 < result.rss_mb < 1_000 for result in results)


def test_a_program_that_fails_ends_the_benchmark(filled: tuple[str, Loaded]) -> None:
    """No figure without an answer."""
    failing = Job("failing", "full", lambda _: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(BenchError, match="failing full gave no answer: exit code 3"):
        take_turns([failing], filled[0], 1)


def test_a_wrong_count_is_a_failure() -> None:
    """A program that is quick because it leaves something out is not quick."""
    loaded = Loaded(groups=300, partitions=3000, empty=295, litter=3, litter_partitions=30)
    right = measured("full", (300, 300, 3000))
    report.check_counts([right, measured("steady", (295, 3, 30))], loaded)
    with pytest.raises(WrongCount, match="ours full counted"):
        report.check_counts([right, measured("full", (300, 300, 2999))], loaded)


def test_the_last_line_has_these_keys() -> None:
    """What reads the figures finds them by these names, and a ratio below 1 means that we are faster."""
    results = [Measured(job, runs=[1.0, 9.0, 2.0], rss_mb=40.0) for job in jobs()]
    for result in results:
        if result.job.program == "ours":
            result.runs = [0.5, 0.5, 7.0]
    line = report.summary(results, 300)
    assert list(line) == [
        "groups",
        "steady_s",
        "full_s",
        "java_steady_s",
        "java_full_s",
        "kadm_steady_s",
        "kadm_full_s",
        "confluent_full_s",
        "naive_full_s",
        "steady_vs_java_steady",
        "steady_vs_java_full",
        "full_vs_java_full",
        "rss_mb",
        "full_rss_mb",
    ]
    assert (line["steady_s"], line["java_full_s"], line["full_vs_java_full"]) == (0.5, 2.0, 0.25)
    assert "0.25x" in report.table(results)


def test_groups_are_sent_to_their_coordinators() -> None:
    """As Java hashes: String.hashCode is 96354 of "abc" and negative of "live-0"."""
    assert coordinating_partition("abc", 50) == 96354 % 50
    assert coordinating_partition("live-0", 50) == 1102435441 % 50


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    """Without Java nothing is started: one line that says what to install, and exit code 1."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.scan", "--groups", "200"],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("java is missing (")
    assert len(done.stderr.splitlines()) == 1


def measured(job: str, counts: tuple[int, int, int]) -> Measured:
    return Measured(Job("ours", job, lambda _: []), runs=[1.0], counts=[counts])
