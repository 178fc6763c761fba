"""The end of the demo: a policy tried on its past, a report on the remaining groups, and who used one of them last."""

from collections.abc import Sequence
from pathlib import Path

from testing.sandbox.demo_checks import Story
from testing.sandbox.demo_command import Answer
from testing.sandbox.demo_screen import Check

_HASTY = "examples/backtest/hasty.yaml"
# It stays there after the demo.
REPORT = Path(".sandbox/report.html")
_TOO_MUCH_REGRET = 3
_HEAD = "REGRETTED GROUP"
# Its consumer came back, and left again.
IDLE_GROUP, _CLIENT = "payments-audit", "payments-audit-1"
_MEGABYTE = 1_000_000


def commands() -> tuple[Sequence[str], Sequence[str]]:
    """The commands: a backtest of the hasty policy, with an interval of a second; and the report."""
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.unlink(missing_ok=True)
    backtest = ("backtest", "-f", _HASTY, "--step", "1s", "--max-regret", "0")
    return backtest, ("report", "--output-file", str(REPORT))


def shown(answer: Answer) -> list[str]:
    """The essential lines of the backtest: deletions and regrets."""
    heading = [line for line in answer.out if line.startswith("GroupPolicy") or "would have deleted" in line]
    return [*heading, *_regrets(answer), f"(exit code {answer.code})"]


def who(tables: Path) -> Sequence[str]:
    """The command that names the last client of an idle group."""
    return "explain", IDLE_GROUP, "-f", _HASTY, "--activity", str(tables)


def shown_who(lines: Sequence[str]) -> list[str]:
    """The heading, which names the last client; the checks follow."""
    end = next((at for at, line in enumerate(lines) if line.startswith("CHECK")), 0)
    return [*lines[:end], "..."]


def check_past(story: Story, restored: str, backtest: Answer, report: Answer, explained: Sequence[str]) -> list[Check]:
    """The backtest names the group that was used again, and no unused one; the report has all groups."""
    return [_regretted(story, restored, backtest), _reported(story, report), _named(explained)]


def _regretted(story: Story, restored: str, answer: Answer) -> Check:
    claim = f"the backtest names {restored}, which was brought back, and no other unused group; its exit code is 3"
    found = {line.split()[0] for line in _regrets(answer)[1:]}
    unused = {group for kind in story.kinds if kind.abandoned for group in kind.groups} - {restored}
    if answer.code != _TOO_MUCH_REGRET:
        return Check(claim, f"exit code {answer.code}: {' '.join(answer.errors[-3:])}")
    if restored not in found:
        return Check(claim, f"it names only {', '.join(sorted(found)) or 'none'}")
    wrong = sorted(found & unused)
    return Check(claim, f"it names {', '.join(wrong)}" if wrong else "")


def _reported(story: Story, answer: Answer) -> Check:
    claim = f"the report's page is below 3 MB and names every group: {REPORT}"
    if answer.code or not REPORT.is_file():
        return Check(claim, f"exit code {answer.code}: {' '.join(answer.errors[-3:])}")
    text = REPORT.read_text()
    missing = sorted(group for group in story.after if group not in text)
    if missing:
        return Check(claim, f"not in it: {', '.join(missing)}")
    return Check(claim, f"it has {len(text):,} characters" if len(text) > 3 * _MEGABYTE else "")


def _named(explained: Sequence[str]) -> Check:
    claim = f"explain and the report name the last client of {IDLE_GROUP}: {_CLIENT} from 127.0.0.1"
    text = REPORT.read_text() if REPORT.is_file() else ""
    missing = []
    if not any("last used " in line and f"by client '{_CLIENT}' from 127.0.0.1" in line for line in explained):
        missing.append("explain")
    # In the JSON of a page, quotes are escaped.
    if f"{_CLIENT}\\u0027 from 127.0.0.1" not in text:
        missing.append("the report")
    return Check(claim, f"not {' and not '.join(missing)}" if missing else "")


def _regrets(answer: Answer) -> list[str]:
    """The table of regrets, its titles first."""
    start = next((at for at, line in enumerate(answer.out) if line.startswith(_HEAD)), len(answer.out))
    end = next((at for at in range(start, len(answer.out)) if not answer.out[at]), len(answer.out))
    return list(answer.out[start:end])
