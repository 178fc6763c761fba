"""The findings of `doctor`: one line for each. No I/O."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import NamedTuple

from group_hygiene.cli.output import MARKS, Report, Table
from group_hygiene.cli.pages import with_addresses
from group_hygiene.errors import HygieneError


class CheckResult(StrEnum):
    """Warning: the operator works, but something should be better, or could not be checked."""

    OK = "Ok"
    WARNING = "Warning"
    FAILED = "Failed"


class Area(Enum):
    """The subject of a check, and the exit code if it fails; of several failures the first decides."""

    KUBERNETES = 10
    CONNECTION = 11
    KAFKA = 12
    PERMISSIONS = 13
    LEDGER = 14
    EVIDENCE = 15
    CLOCK = 16


class Finding(NamedTuple):
    """check: the name of the check. found: its result in words. advice: the remedy; empty = none."""

    area: Area
    check: str
    result: CheckResult
    found: str
    advice: str = ""


def ok(area: Area, check: str, found: str) -> Finding:
    return Finding(area, check, CheckResult.OK, with_addresses(found))


def warning(area: Area, check: str, found: str, advice: str) -> Finding:
    return Finding(area, check, CheckResult.WARNING, found, with_addresses(advice))


def failed(area: Area, check: str, found: str, advice: str) -> Finding:
    return Finding(area, check, CheckResult.FAILED, found, with_addresses(advice))


def run_check(area: Area, check: str, examine: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of `examine`. An exception becomes a finding, so that the other checks run."""
    try:
        yield from examine()
    except HygieneError as error:
        yield failed(area, check, f"{error.reason}: {error}", f"docs/reasons.md, {error.reason}")
    except Exception as error:
        # The text may contain a secret: the line of the source is enough to find the bug.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        yield failed(area, check, f"unexpected: {type(error).__name__} at {where}", "report it as a bug")


def report_of(findings: Sequence[Finding]) -> Report:
    """All findings in order, and the exit code of the first failure."""
    lines = [f"{MARKS[f.result]} {f.check}: {f.found}" + (f" → {f.advice}" if f.advice else "") for f in findings]
    code = next((each.area.value for each in findings if each.result is CheckResult.FAILED), 0)
    checks = [
        {
            "area": finding.area.name.capitalize(),
            "check": finding.check,
            "result": str(finding.result),
            "found": finding.found,
            "advice": finding.advice or None,
        }
        for finding in findings
    ]
    return Report({"checks": checks, "exitCode": code}, (), [Table((), (), lines)], exit_code=code)
