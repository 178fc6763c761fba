"""The benchmark's own promises: every program sees all that was loaded, a wrong count is a failure, the last line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from testing.bench import report
from testing.bench.errors import BenchError, WrongCount
from testing.bench.load import Loaded, coordinating_partition, load
from testing.bench.memory import ALIVE_PER_BROKER, held
from testing.bench.plan import check_verdicts, plan_runs, target
from testing.bench.programs import KAFKA_VERSION, Job, Measured, jobs, prepare, take_turns
from testing.sandbox.kafka import KafkaCluster

pytestmark = pytest.mark.slow  # of the benches, which no user runs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[str, Loaded]]:
    """One broker with 300 groups, 3 of them unused."""
    with KafkaCluster() as kafka:
        loaded, members = load(kafka.bootstrap_servers, 300)
        yield kafka.bootstrap_servers, loaded
        members.stop()


@pytest.fixture(scope="module")
def many() -> Iterator[tuple[str, Loaded]]:
    """One broker with 4,000 groups."""
    with KafkaCluster(config={"group.coordinator.append.linger.ms": "0"}) as kafka:
        loaded, members = load(kafka.bootstrap_servers, 4_000)
        yield kafka.bootstrap_servers, loaded
        members.stop()


def test_programs_count_what_was_loaded(filled: tuple[str, Loaded]) -> None:
    """Ours and all peers, Java and Go built for it, agree with what was loaded in every run; their memory is known."""
    servers, loaded = filled
    prepare()
    results = take_turns(jobs(), servers, 2)
    report.check_counts(results, loaded)
    assert [len(result.runs) for result in results] == [2] * 8
    assert all(0 < min(result.runs) < result.first < result.total for result in results)
    assert all(1 < result.rss_mb < 1_000 for result in results)


def test_a_program_that_fails_ends_the_benchmark(filled: tuple[str, Loaded]) -> None:
    """No figure without an answer."""
    failing = Job("failing", "full", lambda _: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(BenchError, match="failing full gave no answer: exit code 3"):
        take_turns([failing], filled[0], 1)


def test_plan_is_measured_on_a_shipped_example() -> None:
    """As a whole process, its start apart, on groups that the example matches; and it says whether it was quick."""
    with KafkaCluster() as kafka:
        start, plan = results = plan_runs(kafka.bootstrap_servers, 1, 50)
    assert (str(start.job), str(plan.job)) == ("group-hygiene start-up", "group-hygiene plan 50")
    assert start.runs[0] + plan.runs[0] == pytest.approx(plan.first)
    plan.runs = [0.25, 0.999, 30.0]
    assert target(results) == "target plan after start-up < 1 s: 0.999, met"
    plan.runs = [1.0]
    assert target(results).endswith(": 1.000, NOT MET")


@pytest.mark.parametrize(
    "printed",
    [
        pytest.param("perf-consumer-1  Empty  Classic  Match  -\n", id="one-is-missing"),
        pytest.param(
            "perf-consumer-1  Empty  Classic  Match  -\nperf-consumer-2  Empty  Classic  Skip  CaughtUp\n",
            id="one-is-kept",
        ),
    ],
)
def test_plan_that_does_not_judge_all_is_a_failure(printed: str) -> None:
    """Also here: what is left out takes no time."""
    with pytest.raises(WrongCount, match="but there are 2 groups"):
        check_verdicts(printed, 2)


def test_answers_do_not_pile_up(many: tuple[str, Loaded]) -> None:
    """However many requests a scan takes, what is alive are the few that a broker answers at a time."""
    servers, loaded = many
    few, more = held(servers, 1_000, loaded.groups), held(servers, 100, loaded.groups)
    assert (few.requests, more.requests) == (4, 40)
    assert few.alive > 0
    assert 0 < more.alive <= ALIVE_PER_BROKER < 10
    assert more.alive_mb < few.alive_mb


def test_a_wrong_count_is_a_failure() -> None:
    """A program that is quick because it leaves something out is not quick."""
    loaded = Loaded(groups=300, partitions=3000, empty=295, unused=3, unused_partitions=30)
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
    assert report.targets(line).splitlines() == [
        "target steady_vs_java_full <= 0.25: 0.25, met",
        "target steady_vs_java_steady <= 2: 0.25, met",
        "target full_vs_java_full <= 1.3: 0.25, met",
        "target rss_mb <= 200: 40, met",
    ]
    assert "target rss_mb <= 200: 200.1, NOT MET" in report.targets(line | {"rss_mb": 200.1})


def test_what_is_kept_says_where_it_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure without its commit, machine, broker and date can't be compared with another."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    line = dict.fromkeys(report.TARGETS, 0.5) | {"groups": 300}
    text = json.loads(
        report.keep(line, [measured("full", (300, 300, 3000))], {"commit": "abc", "dirty": True}).read_text()
    )
    assert text["targets_met"] == dict.fromkeys(report.TARGETS, True) | {"steady_vs_java_full": False}
    assert (text["commit"], text["dirty"], text["kafka"], text["result"]) == ("abc", True, KAFKA_VERSION, line)
    assert datetime.fromisoformat(text["date"]).tzinfo is not None
    assert text["machine"]["cpu"]
    assert text["machine"]["cores"] > 0


def test_the_source_is_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whether files differ from it, other than results; unknown outside of a repository."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "testing" / "bench" / "results")
    (tmp_path / "testing" / "bench" / "results").mkdir(parents=True)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert report.source() == {"commit": None, "dirty": None}
    author = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    for command in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    (tmp_path / "testing" / "bench" / "results" / "scan-1.json").write_text("{}")
    clean = report.source()
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "testing" / "bench" / "new.py").write_text("")
    assert report.source() == clean | {"dirty": True}


def test_groups_are_sent_to_their_coordinators() -> None:
    """As Java hashes: String.hashCode is 96354 of "abc" and negative of "live-0"."""
    assert coordinating_partition("abc", 50) == 96354 % 50
    assert coordinating_partition("live-0", 50) == 1102435441 % 50


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    """Without Java nothing is started: one line that says what to install, and exit code 1."""
    done = subprocess.run(
        [sys.executable, "-m", "testing.bench.scan", "--groups", "200"],
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
