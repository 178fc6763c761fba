"""The bench of the backtest keeps its own promises: what is not exactly what is known is told, and ends it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from group_hygiene.cli.manifests import read_manifests
from group_hygiene.model.groups import GroupType
from testing.bench import backtest
from testing.bench.backtest import Known, Times, differences
from testing.bench.errors import BenchError
from testing.bench.lives import RULE, Numbers
from testing.bench.past import Past, _Gaps

pytestmark = pytest.mark.slow  # of the benches, which no user runs

ROOT = Path(__file__).parents[2]
AT = datetime(2026, 6, 8, 12, tzinfo=UTC)
MS = timedelta(milliseconds=1)
KNOWN = Known(
    3,
    {("one", AT, AT + MS), ("one", AT + timedelta(days=22), AT + timedelta(days=30)), ("two", AT, AT + MS)},
    {AT: (2, 2), AT + timedelta(days=22): (1, 1)},
)
STEPS = {"2026-06-07T12:00:00Z": 0, "2026-06-08T12:00:00Z": 2, "2026-06-30T12:00:00Z": 1}


def regretted(group: str = "one", deleted: str = "2026-06-08T12:00:00Z", back: str = "2026-06-08T12:00:00.001Z") -> Any:
    return {
        "group": group,
        "markedAt": "2026-06-06T12:00:00Z",
        "deletedAt": deleted,
        "cameBackAt": back,
        "by": "Commit",
    }


RIGHT = (regretted(), regretted("one", "2026-06-30T12:00:00Z", "2026-07-08T12:00:00Z"), regretted("two"))


def answer(*regrets: Any, deleted: int = 3, regret: int = 3, steps: Mapping[str, int] = STEPS) -> str:
    """What `backtest -o json` says. steps: the deletions of each; all of them are regretted."""
    policy = {"namespace": "bench", "name": "unused", "deleted": deleted, "regret": regret, "regrets": regrets}
    policy["steps"] = [{"at": at, "deleted": many, "regret": many} for at, many in steps.items()]
    times = {"from": "2026-06-01T12:00:00Z", "to": "2026-08-30T12:00:00Z", "step": "24h"}
    return json.dumps({"clusterID": "past", **times, "policies": [policy]})


def test_the_known_answer_is_right() -> None:
    """In any order."""
    assert differences(answer(*RIGHT), KNOWN) == []
    assert differences(answer(*reversed(RIGHT)), KNOWN) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        pytest.param(answer(*RIGHT, deleted=4), ["it says 4 deletions, and there are 3"], id="deletions"),
        pytest.param(answer(*RIGHT, regret=2), ["it says 2 regrets, and there are 3"], id="count"),
        pytest.param(
            answer(*RIGHT[1:]),
            ["not told: one, deleted 2026-06-08T12:00:00+00:00, came back 2026-06-08T12:00:00.001+00:00"],
            id="missing",
        ),
        pytest.param(
            answer(*RIGHT, regretted("three")),
            ["told, and not so: three, deleted 2026-06-08T12:00:00+00:00, came back 2026-06-08T12:00:00.001+00:00"],
            id="too-many",
        ),
        pytest.param(
            answer(*RIGHT[1:], regretted(back="2026-06-08T12:00:00.002Z")),
            [
                "not told: one, deleted 2026-06-08T12:00:00+00:00, came back 2026-06-08T12:00:00.001+00:00",
                "told, and not so: one, deleted 2026-06-08T12:00:00+00:00, came back 2026-06-08T12:00:00.002+00:00",
            ],
            id="a-millisecond",
        ),
        pytest.param(
            answer(*RIGHT[1:], regretted(deleted="2026-06-07T12:00:00Z")),
            [
                "not told: one, deleted 2026-06-08T12:00:00+00:00, came back 2026-06-08T12:00:00.001+00:00",
                "told, and not so: one, deleted 2026-06-07T12:00:00+00:00, came back 2026-06-08T12:00:00.001+00:00",
            ],
            id="another-step",
        ),
        pytest.param(answer(*RIGHT, RIGHT[0]), ["it tells 1 regrets more than once"], id="twice"),
        pytest.param(
            answer(*RIGHT, steps=STEPS | {"2026-06-08T12:00:00Z": 1, "2026-06-09T12:00:00Z": 1}),
            [
                "at 2026-06-08T12:00:00Z it says (1, 1) deletions and regrets, and there are (2, 2)",
                "at 2026-06-09T12:00:00Z it says (1, 1) deletions and regrets, and there are (0, 0)",
            ],
            id="step",
        ),
    ],
)
def test_differences_are_reported(text: str, wrong: list[str]) -> None:
    """Each regret by its group and its times, whichever side has it."""
    assert differences(text, KNOWN) == wrong


def test_ten_of_each_side_are_reported() -> None:
    """A program that is all wrong says so in some lines."""
    known = Known(0, {(f"group-{number:02d}", AT, AT + MS) for number in range(12)}, {})
    wrong = differences(
        answer(*(regretted(f"other-{number:02d}") for number in range(11)), deleted=0, regret=12, steps={}), known
    )
    assert len(wrong) == 22
    assert wrong[9].startswith("not told: group-09,")
    assert wrong[10] == "not told: 2 more"
    assert wrong[20].startswith("told, and not so: other-09,")
    assert wrong[21] == "told, and not so: 1 more"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param('{"policies": []}', id="no-policy"),
        pytest.param(answer({"group": "one"}), id="no-times"),
        pytest.param(answer(regretted(back="2026-06-08T12:00:00")), id="a-time-of-nowhere"),
        pytest.param(answer(regretted(back="2026-06-08T12:00:00+02:00")), id="not-in-utc"),
        pytest.param(answer(regretted(back="soon")), id="no-time"),
    ],
)
def test_no_answer_is_a_failure(text: str) -> None:
    """Rather than none or all of them being wrong."""
    with pytest.raises(BenchError, match="no answer of a backtest"):
        differences(text, KNOWN)


# As the command line ends: in a process of its own, as it takes signals over.
_PROGRAM = """
import sys
from testing.bench.backtest import conclude
from testing.bench.command import run
line = {"groups": 500, "regret_exact": len(sys.argv) == 1}
sys.exit(run(lambda: conclude(line, sys.argv[1:])))
"""


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        pytest.param([], 0, [], id="right"),
        pytest.param(["not told: one", "not told: two"], 1, ["not told: one", "not told: two"], id="wrong"),
    ],
)
def test_the_last_line_and_the_exit_code(wrong: list[str], code: int, said: list[str]) -> None:
    """The figures are the last line in any case; what is wrong is told, and then the exit code is 1."""
    command = [sys.executable, "-c", _PROGRAM, *wrong]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert json.loads(done.stdout.splitlines()[-1]) == {"groups": 500, "regret_exact": not wrong}
    assert done.stderr.splitlines()[1:] == said


def test_the_last_line_has_these_keys() -> None:
    """What reads the figures finds them by these names."""
    none: Numbers = np.empty(0, np.int64)
    past = Past(100_000, 90, 5, AT, AT, AT, [], _Gaps(none, none, none, none))
    times = Times(write=1.0, backtest=2.0, report=3.0, report_mb=0.5, peak_rss_mb=4.0, bytes_scanned=6)
    line = backtest.summary(past, times, exact=True)
    assert line == {
        **{"groups": 100_000, "days": 90, "backtest_s": 2.0, "report_s": 3.0, "report_mb": 0.5},
        **{"peak_rss_mb": 4.0, "bytes_scanned": 6},
        "regret_exact": True,
    }
    assert list(line)[-1] == "regret_exact"
    assert backtest.TARGETS == {"backtest_s": 300, "report_s": 120, "report_mb": 3, "peak_rss_mb": 4096}
    assert backtest.TARGETS.keys() <= line.keys()


def test_the_policy_is_the_rule(tmp_path: Path) -> None:
    """The command line reads of it what the past was made for, and of no group that it is left out."""
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(backtest.policy()))
    (policy,) = read_manifests([str(tmp_path / "policy.yaml")]).policies
    assert (policy.when.idle_for, policy.grace_period, policy.backup_retention) == RULE[:3]
    assert {GroupType.CLASSIC, GroupType.CONSUMER} <= policy.match.types
