"""What a broker says reaches a terminal as text: no line feed, no terminal sequence, no mark of direction."""

from __future__ import annotations

import click
import pytest

from group_hygiene.cli.output import Column, Report, Table, note, show
from group_hygiene.cli.program import CommandLine
from group_hygiene.errors import Unreachable

FORGED = "denied\x1b[2J\nError: all is fine\u202e\u2028\x07"


def _shown(captured: pytest.CaptureFixture[str]) -> str:
    """All that was printed, without the line feeds that end lines."""
    out, err = captured.readouterr()
    for line in (out + err).splitlines():
        assert line.isprintable(), line
        assert not line.startswith("Error: all is fine")
    return out + err


@pytest.mark.parametrize("form", ["text", "wide", "name"])
def test_a_report(capsys: pytest.CaptureFixture[str], form: str) -> None:
    """Cells, headings, names, notes and errors."""
    table = Table((Column("GROUP"),), ((FORGED,),), (FORGED,))
    assert show(Report({}, (FORGED,), (table,), (FORGED,), (FORGED,)), form) == 1
    text = _shown(capsys)
    assert text.count(r"\x1b[2J\nError: all is fine\u202e\u2028\x07") == (2 if form == "name" else 4)
    assert text.count(r"\u001b[2J\nError: all is fine\u202e\u2028\u0007") == (1 if form == "name" else 0)


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        *(
            pytest.param(f"{sign}HYPERLINK(1)", f"'{sign}HYPERLINK(1)", id=f"U+{ord(sign):04X}")
            for sign in "=+-@\uff1d\uff0b\uff0d\uff20"
        ),
        pytest.param("-", "'-", id="hyphen-alone"),
        pytest.param('=1,"2"', '"\'=1,""2"""', id="quoted"),
        pytest.param("\t=1", r"\t=1", id="tab-first"),
        pytest.param("\r\n=1", r"\r\n=1", id="line-break-first"),
        pytest.param("a=1", "a=1", id="not-first"),
        pytest.param("'=1", "'=1", id="apostrophe"),
        pytest.param(-1, "-1", id="number"),
    ],
)
def test_no_cell_of_csv_is_a_formula(capsys: pytest.CaptureFixture[str], cell: str | int, line: str) -> None:
    """A text that a spreadsheet would evaluate begins with an apostrophe; numbers stay numbers."""
    show(Report({}, (), (Table((Column("GROUP"), Column("N")), [(cell, None)]),)), "csv")
    assert _shown(capsys).splitlines()[1] == f"{line},"


def test_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    note(FORGED)
    assert _shown(capsys).startswith(r"Note: denied\x1b[2J\n")


def test_an_error_that_ends_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A line feed in it begins a line that is indented, so that none looks like another message."""

    @click.group(cls=CommandLine)
    def program() -> None:
        pass

    @program.command()
    def fail() -> None:
        raise Unreachable(FORGED)

    with pytest.raises(SystemExit) as ended:
        program.main(["fail"])
    assert ended.value.code == 1
    assert "  Error: all is fine" in _shown(capsys)


def test_one_long_id_does_not_pad_the_other_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """The output of thousands of groups would have a row of 32 KB for each; the long id itself stays whole."""
    rows = [("a", "Empty"), ("x" * 30_000, "Empty"), ("b", "Empty")]
    show(Report({}, (), (Table((Column("GROUP"), Column("STATE")), rows),)), "table")
    lines = _shown(capsys).splitlines()
    assert [len(line) for line in lines] == [157, 157, 30_007, 157]
