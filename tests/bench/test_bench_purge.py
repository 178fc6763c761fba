"""The purge's own promises: it measures a real purge, and each of its verdicts can fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testing.bench import purge, report
from testing.bench.errors import BenchError
from testing.bench.other_client import Round, p99, rounds
from testing.bench.purge import Options, Purged
from testing.bench.purge_ledger import problems
from testing.bench.purge_stage import DeletingRun
from testing.sandbox.ledger_log import Record

pytestmark = pytest.mark.slow  # of the benches, which no user runs

OPTIONS = Options(groups=200, max_per_run=100, interval=5, idle=2.0, rate=50.0, rounds=20)
_ONE = "unused-0000007"


@pytest.fixture(scope="module")
def purged() -> Purged:
    """A purge of 200 groups in two runs."""
    return purge.purge(OPTIONS)


def test_it_measures_a_real_purge(purged: Purged) -> None:
    """Every group is deleted in as many runs as the limit asks for, the ledger is right, and each figure is there."""
    assert [run.deleted for run in purged.watched.runs] == [100, 200]
    assert purge.wrongs(purged) == []
    line = purge.summary(OPTIONS, purged)
    assert (line["groups"], line["runs"], line["ledger_problems"]) == (200, 2, 0)
    assert 1_000 < line["status_max_bytes"] < 20_000
    assert 10 < line["rss_first_mb"] <= line["rss_peak_mb"] < 1_000
    assert min(line["p99_idle_ms"], line["p99_purge_ms"], line["seconds"], line["operator_cpu_s"]) > 0
    assert min(line["rounds"]) >= OPTIONS.rounds
    # A batch has 50 groups at most.
    assert line["batches"] >= 4
    assert 0 <= line["write_to_send_p50_ms"] <= line["write_to_send_p99_ms"] < 10_000


def without(kind: str, value: bool) -> Callable[[Sequence[Record]], list[Record]]:
    """Leave out what the ledger says of one group: its entries of a kind, or the end of them."""

    def change(records: Sequence[Record]) -> list[Record]:
        return [r for r in records if not (r.key[0] == kind and _ONE in r.key and (r.value is not None) == value)]

    return change


def edited(
    kind: str, edit: Callable[[Any], Any], key: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None
) -> Any:
    """Add another entry of a kind about one group; under the same key unless `key` says another."""

    def change(records: Sequence[Record]) -> list[Record]:
        last = [r for r in records if r.key[0] == kind and _ONE in r.key and r.value is not None][-1]
        value = edit(json.loads(json.dumps(last.value)))
        return [*records, replace(last, key=key(last.key) if key else last.key, value=value)]

    return change


def _moved(value: Any) -> Any:
    next(iter(value["offsets"].values()))[3][1] += 1
    return value


def _fewer(value: Any) -> Any:
    next(iter(value["offsets"].values())).pop()
    return value


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(without("backup", True), "no whole backup", id="backup-missing"),
        pytest.param(edited("backup", lambda v: v | {"parts": 2}), "no whole backup", id="part-of-a-backup-missing"),
        pytest.param(
            edited("backup", _moved), "its backup is not what it had committed: 10 offsets of 10", id="offset-differs"
        ),
        pytest.param(
            edited("backup", _fewer), "its backup is not what it had committed: 9 offsets of 10", id="offset-missing"
        ),
        pytest.param(without("outcome", True), "0 outcomes say that it was deleted", id="outcome-missing"),
        pytest.param(
            edited("outcome", lambda v: v, lambda key: (*key[:2], "another", *key[3:])),
            "2 outcomes say that it was deleted",
            id="two-outcomes",
        ),
        pytest.param(
            edited("outcome", lambda v: v | {"what": "NotDeleted"}),
            "0 outcomes say that it was deleted",
            id="outcome-not-deleted",
        ),
        pytest.param(without("intent", False), "left after its deletion: intent", id="intent-open"),
        pytest.param(without("mark", False), "left after its deletion: mark", id="mark-left"),
    ],
)
def test_a_wrong_ledger_is_found(
    purged: Purged, change: Callable[[Sequence[Record]], list[Record]], expected: str
) -> None:
    """In the ledger of a real purge, whatever one group lacks, or has too much of, is told of that group alone."""
    assert problems(change(purged.records), purged.made) == [f"{_ONE}: {expected}"]


def test_groups_without_a_deletion_are_found(purged: Purged) -> None:
    """A ledger that tells of too many deletions is wrong too, and so is one that tells of a group which is there."""
    made = {name: offsets for name, offsets in purged.made.items() if name != _ONE}
    assert problems(purged.records, made) == [f"{_ONE}: told as deleted, and was not"]
    assert purge.wrongs(replace(purged, left=[_ONE])) == [f"{_ONE}: it is still there"]
    assert len(problems([], purged.made)) == len(purged.made)


def test_every_target_can_be_missed(purged: Purged) -> None:
    """Each figure comes from what was measured, and one that is too high is NOT MET."""
    watched = purged.watched
    runs = [DeletingRun(0.0, 100, 100.0), DeletingRun(1.0, 200, 110.1)]
    late = [Round(each.at, each.took * 3) for each in purged.idle]
    worse = replace(
        purged,
        watched=replace(watched, runs=runs, statuses=[*watched.statuses, 20_000]),
        records=without("backup", True)(purged.records),
        during=late,
    )
    lines = report.targets(purge.summary(OPTIONS, worse), purge.TARGETS).splitlines()
    assert lines == [
        "target rss_growth_percent <= 10: 10.1, NOT MET",
        "target status_max_bytes <= 19999: 20000, NOT MET",
        "target ledger_problems <= 0: 1, NOT MET",
        "target p99_ratio <= 2: 3, NOT MET",
    ]
    good = dict.fromkeys(purge.TARGETS, 0)
    assert all(line.endswith("0, met") for line in report.targets(good, purge.TARGETS).splitlines())


def test_the_other_client_is_believed_only_when_it_worked(tmp_path: Path) -> None:
    """A line in the making is left out, and what is no figure is a failure."""
    log = tmp_path / "log"
    log.write_text("1.5 0.25\n2.5 0.5\n3.5 0.")
    assert rounds(log) == [Round(1.5, 0.25), Round(2.5, 0.5)]
    log.write_text("1.5 0.25\nTraceback (most recent call last):\n")
    with pytest.raises(BenchError, match="the other client failed"):
        rounds(log)
    assert p99([Round(0.0, 1.0)] * 980 + [Round(0.0, 9.0)] * 20) == pytest.approx(9.0)
    assert p99([Round(0.0, 1.0)] * 995 + [Round(0.0, 9.0)] * 5) == pytest.approx(1.0)


def test_what_is_kept_says_where_it_is_from(purged: Purged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures, whether they meet their targets, and the circumstances."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    line = purge.summary(OPTIONS, purged) | {"p99_ratio": 2.1}
    path = purge.keep(line, {"commit": "abc", "dirty": True})
    text = json.loads(path.read_text())
    assert path.name == "purge-200.json"
    assert (text["commit"], text["result"]) == ("abc", line)
    assert text["targets_met"]["ledger_problems"] is True
    assert text["targets_met"]["p99_ratio"] is False
