"""What `doctor` found: one line for each thing it looked at. No I/O."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from group_hygiene.cli.output import MARKS, Report, Table
from group_hygiene.errors import HygieneError


class Result(StrEnum):
    """Warning: it works, and something is not as good as it could be, or could not be seen."""

    OK = "Ok"
    WARNING = "Warning"
    FAILED = "Failed"


class Area(Enum):
    """What a failure is about, and the exit code that it ends with; of several the first counts."""

    KUBERNETES = 10
    CONNECTION = 11
    KAFKA = 12
    PERMISSIONS = 13
    LEDGER = 14
    EVIDENCE = 15
    CLOCK = 16


class Finding(NamedTuple):
    """check: what was looked at, in a word or two. advice: what to do; empty = nothing."""

    area: Area
    check: str
    result: Result
    found: str
    advice: str = ""


def ok(area: Area, check: str, found: str) -> Finding:
    return Finding(area, check, Result.OK, found)


def warning(area: Area, check: str, found: str, advice: str) -> Finding:
    return Finding(area, check, Result.WARNING, found, advice)


def failed(area: Area, check: str, found: str, advice: str) -> Finding:
    return Finding(area, check, Result.FAILED, found, advice)


def looking(area: Area, check: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What `look` finds; what it raises is a finding as well, and never stops the rest."""
    try:
        yield from look()
    except HygieneError as error:
        yield failed(area, check, f"{error.reason}: {error}", "see the page on reasons")
    except Exception as error:
        # Its text may hold anything, a secret too: where it was is enough to find it.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        yield failed(area, check, f"unexpected: {type(error).__name__} at {where}", "report it as a bug")


def report_of(findings: Sequence[Finding]) -> Report:
    """All of it, in order, and the exit code of the first that failed."""
    lines = [_line(finding) for finding in findings]
    code = next((each.area.value for each in findings if each.result is Result.FAILED), 0)
    document = {"checks": [_document(finding) for finding in findings], "exitCode": code}
    return Report(document, (), [Table((), (), lines)], exit_code=code)


def _line(finding: Finding) -> str:
    advice = f" → {finding.advice}" if finding.advice else ""
    return f"{MARKS[finding.result]} {finding.check}: {finding.found}{advice}"


def _document(finding: Finding) -> dict[str, Any]:
    return {
        "area": finding.area.name.capitalize(),
        "check": finding.check,
        "result": str(finding.result),
        "found": finding.found,
        "advice": finding.advice or None,
    }
