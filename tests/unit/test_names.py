"""Group ids as lines of a file: what `-o name` prints, `--from-file` reads."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from group_hygiene.cli.options import groups_argument
from group_hygiene.cli.output import Report, line_of, show, text_of
from group_hygiene.errors import UsageError
from tests.examples import examples

# Lone surrogates can't be in a group id, which is UTF-8.
IDS = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\\n\r\x00\u2028 \ufeff'))


@click.command()
@groups_argument
def named(names: tuple[str, ...]) -> None:
    """A command with GROUP... and --from-file."""
    click.echo(repr(names))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param("billing", "billing", id="plain"),
        pytest.param("job\\nnight", "job\\nnight", id="backslash"),
        pytest.param("job\nnight", '"job\\nnight"', id="line-feed"),
        pytest.param("job\rnight", '"job\\rnight"', id="carriage-return"),
        pytest.param('"quoted"', '"\\"quoted\\""', id="quotes-around"),
        pytest.param('say "hi"', 'say "hi"', id="quotes-inside"),
        pytest.param("", '""', id="empty"),
        pytest.param('""', '"\\"\\""', id="two-quotes"),
        pytest.param("a\x00b", '"a\\u0000b"', id="zero-byte"),
        pytest.param(" two  blanks ", " two  blanks ", id="blanks"),
        pytest.param("\ufeffbom", '"\\ufeffbom"', id="byte-order-mark"),
        pytest.param("tab\t", '"tab\\t"', id="tab"),
        pytest.param("\u202eevil", '"\\u202eevil"', id="right-to-left"),
        pytest.param("größe", "größe", id="letters"),
    ],
)
def test_line_of_an_id(name: str, line: str) -> None:
    """Printable ids stay as they are, all others are JSON: the line names this id and no other."""
    assert (line_of(name), text_of(line)) == (line, name)


@given(IDS, st.sampled_from(["utf-8", "ascii", "cp1252"]))
@settings(max_examples=examples(400))
def test_any_id_is_read_back(name: str, encoding: str) -> None:
    """Each id is one printable line, in the encoding of the stream, that is read back as the same id."""
    line = line_of(name, encoding)
    assert line.isprintable()
    assert line != ""
    assert text_of(line.encode(encoding).decode("utf-8")) == name


@given(st.lists(IDS, min_size=1, unique=True))
@settings(max_examples=examples(100))
def test_a_report_of_names_is_a_file_of_groups(names: list[str]) -> None:
    """All lines that `-o name` prints, read by `--from-file`, are the ids, in their order."""

    @click.command()
    def listing() -> None:
        show(Report({}, names, ()), "name")

    listed = CliRunner().invoke(listing).stdout
    read = CliRunner().invoke(named, ["--from-file", "-"], input=listed)
    assert read.stdout == f"{tuple(names)!r}\n"


@pytest.mark.parametrize("line", ['"', '"a', '"a" b', "\"a'", '"\\x00"'])
def test_a_line_that_is_no_json(line: str) -> None:
    """It is refused: it must not be read as an id that begins with a quote."""
    with pytest.raises(UsageError, match="begins with a quote, but is no JSON string"):
        text_of(line)


@pytest.mark.parametrize(
    ("arguments", "text", "names"),
    [
        pytest.param(["a", "b", "a"], b"", ("a", "b"), id="repeated"),
        pytest.param(["a", "--from-file", "-"], b"b\na\n\nc", ("a", "b", "c"), id="both"),
        pytest.param(["--from-file", "-"], b"\xef\xbb\xbfa\r\nb\r\n", ("a", "b"), id="windows"),
        pytest.param(["--from-file", "-"], b'""\n', ("",), id="the-empty-id"),
    ],
)
def test_groups_of_arguments_and_of_a_file(arguments: list[str], text: bytes, names: tuple[str, ...]) -> None:
    """Each once, in order."""
    assert CliRunner().invoke(named, arguments, input=text).stdout == f"{names!r}\n"


@pytest.mark.parametrize(
    ("arguments", "text", "says"),
    [
        pytest.param(["", "a"], b"", "GROUP must not be empty", id="unset-variable"),
        pytest.param(["--from-file", "-"], b"gr\xfc\xdfe\n", "it is not UTF-8", id="latin-1"),
        pytest.param(["--from-file", "-"], b"x" * 40_000, "Kafka's maximum is 32,767", id="long"),
    ],
)
def test_what_is_no_group(arguments: list[str], text: bytes, says: str) -> None:
    answer = CliRunner().invoke(named, arguments, input=text)
    assert (answer.exit_code, says in answer.stderr) == (2, True), answer.stderr
