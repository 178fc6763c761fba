"""The bench of the operator: what it says of its targets, and that it measures."""

from __future__ import annotations

from typing import Any

import pytest

from testing.bench import operator, report

_SIZES = [(groups, policies) for groups in (10_000, 100_000, 500_000) for policies in (1, 10, 50)]


def row(groups: int, policies: int, start: str) -> dict[str, Any]:
    """What just meets each target."""
    too_many = groups * policies > 10_000_000
    return {
        "groups": groups,
        "policies": policies,
        "start": start,
        "peak_rss_mb": 512.0,
        "run_s": 300.0,
        "run_cpu_s": 5.0 if start == "running" else 50.0,
        "read_cpu_s": 2.0,
        "scan_s": 200.0,
        "api_reads_per_round": 4.0 if policies > 1 else 0.0,
        "bytes_per_group": 250 if policies == 1 else None,
        "bytes_per_pair": None if policies == 1 else 20,
        "problem": "TooManyGroups: 49" if too_many else "",
    }


def rows(**more: Any) -> list[dict[str, Any]]:
    """All rows; the last of each size has more."""
    return [row(*size, "running") for size in _SIZES] + [row(*size, "started") | more for size in _SIZES]


def _missed(found: list[dict[str, Any]]) -> list[str]:
    lines = report.targets(operator.figures(found), operator.TARGETS).splitlines()
    return [line.split()[1] for line in lines if line.endswith("NOT MET")]


def test_targets_that_are_met() -> None:
    assert operator.figures(rows()).keys() == operator.TARGETS.keys()
    assert _missed(rows()) == []


@pytest.mark.parametrize(
    ("more", "missed"),
    [
        ({"peak_rss_mb": 512.1}, ["peak_mb_500000x10", "peak_mb_100000x50"]),
        ({"run_s": 300.1}, ["run_s_500000x10"]),
        ({"bytes_per_group": 251}, ["bytes_per_group_500000"]),
        ({"bytes_per_pair": 21}, ["bytes_per_pair_100000x50"]),
        ({"problem": "TooManyGroups: 1"}, ["not_run_500000x10", "not_run_100000x50"]),
        ({"problem": "TooManyGroups: 50"}, ["not_run_500000x10", "not_run_100000x50", "too_many_500000x50"]),
        (
            {"problem": "ConnectionNotReady: 1, TooManyGroups: 3"},
            ["not_run_500000x10", "not_run_100000x50", "other_reasons_500000x50"],
        ),
        (
            {"problem": "the process ended"},
            ["not_run_500000x10", "not_run_100000x50", "other_reasons_500000x50"],
        ),
        ({"start": "running", "run_cpu_s": 5.1}, ["cpu_vs_reading_100000x1"]),
    ],
)
def test_a_target_that_is_missed(more: dict[str, Any], missed: list[str]) -> None:
    """By a process that starts, too: the higher figure counts."""
    assert _missed(rows(**more)) == missed


def test_reads_that_grow_with_the_policies() -> None:
    found = rows()
    found[1] |= {"api_reads_per_round": 4.1}
    assert _missed(found) == ["more_api_reads"]


def test_only_what_was_measured_is_judged() -> None:
    assert operator.figures([row(2_000, 1, "running"), row(2_000, 3, "running")]) == {"more_api_reads": 4.0}


@pytest.mark.slow  # of the benches, which no user runs
def test_it_measures() -> None:
    """A few groups: each figure is there, and all policies run."""
    first, _, second, _ = found = operator.measure([200], [1, 2], 10)
    assert [(each.policies, each.start, each.problem) for each in found] == [
        (1, "running", ""),
        (1, "started", ""),
        (2, "running", ""),
        (2, "started", ""),
    ]
    for each in found:
        assert 10 < each.peak_rss_mb < 512
        assert min(each.run_s, each.run_cpu_s, each.read_cpu_s, each.scan_s) >= 0
    assert first.bytes_per_group is not None
    assert second.bytes_per_pair is not None
