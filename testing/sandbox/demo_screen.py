"""The demo's output: headings, commands with their output, one table, marks. Independent of Kafka and Kubernetes."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NARROWEST, _WIDEST = 100, 110
_UNDER = " " * 5
_BOLD, _DIM, _RED, _GREEN = "1", "2", "31", "32"


@dataclass(frozen=True)
class Check:
    """One claim; it holds if `detail`, which describes the difference, is empty."""

    claim: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        return not self.detail


@dataclass(frozen=True)
class Row:
    """One line of the table, which is a check, too."""

    check: Check
    cells: Sequence[str]


class Screen:
    """Writes to stdout, at most 110 columns wide; colours only on a terminal and without NO_COLOR."""

    def __init__(self) -> None:
        terminal = sys.stdout.isatty()
        self._colours = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        columns = shutil.get_terminal_size((_WIDEST, 24)).columns if terminal else _WIDEST
        self._width = min(max(columns, _NARROWEST), _WIDEST)
        unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        self._passed, self._failed = ("✓", "✗") if unicode else ("ok", "FAILED")

    def heading(self, text: str) -> None:
        print(f"\n{self._colour(_BOLD, text)}")

    def text(self, text: str, indent: str = "   ") -> None:
        """Words, wrapped."""
        wrapper = textwrap.TextWrapper(
            self._width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
        )
        print(wrapper.fill(text))

    def lines(self, *lines: str) -> None:
        """Lines, each truncated if it is too long."""
        for line in lines:
            print(self._cut(f"   {line}".rstrip()))

    def command(self, command: str, output: Iterable[str] = ()) -> None:
        """A shell command and its output; long lines are truncated."""
        print(self._colour(_DIM, f"   $ {command}"), flush=True)
        self.lines(*output)

    def table(self, titles: Sequence[str], rows: Sequence[Row]) -> None:
        """Rows, each with a mark; below a failed one are the details."""
        head, *lines = in_columns([titles, *(row.cells for row in rows)])
        print(self._colour(_DIM, f"{_UNDER}{head}"))
        for row, line in zip(rows, lines, strict=True):
            print(f"   {self._mark(row.check)} {self._cut(line)}")
            self._explain(row.check)

    def checks(self, checks: Iterable[Check]) -> None:
        for check in checks:
            print(f"   {self._mark(check)} {check.claim}")
            self._explain(check)

    def result(self, checks: Sequence[Check]) -> bool:
        """The last line; True when all passed."""
        passed = sum(check.passed for check in checks)
        failed = len(checks) - passed
        line = f"demo: {passed} passed, {failed} failed"
        print(f"\n{self._colour(_RED if failed else _GREEN, line)}", flush=True)
        return failed == 0

    def _explain(self, check: Check) -> None:
        if not check.passed:
            print(
                self._colour(
                    _RED, textwrap.fill(check.detail, self._width, initial_indent=_UNDER, subsequent_indent=_UNDER)
                )
            )

    def _mark(self, check: Check) -> str:
        return self._colour(_GREEN, self._passed) if check.passed else self._colour(_RED, self._failed)

    def _colour(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colours else text

    def _cut(self, line: str) -> str:
        return line if len(line) <= self._width else f"{line[: self._width - 4]} ..."


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of the same number of cells as lines, each column as wide as it must be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def shorten(names: Sequence[str], *prefixes: str) -> str:
    """`a, b, perf-consumer-* (20)`: names, with those of a common prefix as their number."""
    many = {prefix: sum(name.startswith(prefix) for name in names) for prefix in prefixes}
    others = [name for name in names if not name.startswith(prefixes)]
    return ", ".join([*others, *(f"{prefix}* ({count})" for prefix, count in many.items() if count)])
