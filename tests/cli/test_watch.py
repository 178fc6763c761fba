"""`--watch` of `list` and `plan` on a real broker: the rows that change, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from threading import Thread
from time import sleep
from typing import IO

import pytest

from group_hygiene.cli.output import Column, Report, Table, show_each
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.cli.conftest import Run
from tests.cli.test_plan_and_explain import policy
from tests.kafka.makers import Maker, at


class Watch:
    """`group-hygiene` in a process of its own that goes on. lines: of stdout until now; errors: those of stderr."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "group_hygiene.cli", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.errors: list[str] = []
        streams = ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        self._readers = [Thread(target=_read, args=each, daemon=True) for each in streams]
        for reader in self._readers:
            reader.start()

    def wait(self, event: str, group: str) -> str:
        """The first line with the event of the group."""
        return wait_for(lambda: next((line for line in self.lines if line.split()[:2] == [event, group]), None))

    def count(self, beginning: str) -> int:
        """The number of lines on stdout that begin so."""
        return sum(line.startswith(beginning) for line in self.lines)

    def interrupt(self) -> int:
        """Ctrl-C; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self.process.wait(timeout=60)
        for reader in self._readers:
            reader.join()
        return code


def _read(stream: IO[str], lines: list[str]) -> None:
    with stream:
        for line in stream:
            lines.append(line.rstrip("\n"))


@pytest.fixture
def watch(kafka: KafkaCluster) -> Iterator[Callable[..., Watch]]:
    started: list[Watch] = []

    def start(*arguments: str) -> Watch:
        where = ("--bootstrap-server", kafka.bootstrap_servers, "--watch", "--interval", "1s")
        started.append(Watch(*arguments, *where))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.end()


def test_rows_that_change(watch: Callable[..., Watch], make: Maker) -> None:
    """All rows once, then those of groups that appear, change their state or go, in columns as wide; 130 by Ctrl-C."""
    topic, group, other = make.topic(records=3), make.name("watched"), make.name("other")
    make.simple(other, at(topic, 1))
    running = watch("list", "--match", f"{make.tag}*")
    running.wait("ADDED", other)
    make.join(group, topic)
    joined = running.wait("ADDED", group)
    make.leave(group)
    running.wait("MODIFIED", group)
    make.delete_group(group)
    running.wait("DELETED", group)
    assert running.interrupt() == 130
    assert [line for line in running.errors if line] == []
    titles, *rows = running.lines
    assert titles.split() == ["EVENT", "GROUP", "STATE", "TYPE", "PROTOCOL-TYPE"]
    assert [tuple(row.split()[:3]) for row in rows if row.split()[2] in ("Stable", "Empty")] == [
        ("ADDED", other, "Empty"),
        ("ADDED", group, "Stable"),
        ("MODIFIED", group, "Empty"),
        ("DELETED", group, "Empty"),
    ]
    assert joined.index(group) == rows[0].index(other)


def test_groups_that_an_incomplete_list_lacks_are_not_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    """They may exist: only a complete answer shows that a group is gone."""

    def answer(*groups: str, errors: Sequence[str] = ()) -> Report:
        return Report({}, groups, [Table([Column("GROUP")], [[group] for group in groups])], errors=errors)

    answers = iter([answer("a", "b"), answer("a", errors=["groups may be missing"]), answer("a", "b"), answer("b")])
    with pytest.raises(StopIteration):
        show_each(lambda: next(answers), "table", timedelta(0))
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()] == [
        ["EVENT", "GROUP"],
        ["ADDED", "a"],
        ["ADDED", "b"],
        ["DELETED", "a"],
    ]
    assert err == "Error: groups may be missing\n"


def test_a_plan_that_changes(watch: Callable[..., Watch], make: Maker, tmp_path: Path) -> None:
    """The policy's heading and the verdicts that changed; an edited file counts, and one with a mistake is an error."""
    topic, group, other = make.topic(records=3), make.name("watched"), make.name("other")
    make.simple(other, at(topic, 1))
    file = tmp_path / "policy.yaml"
    file.write_text(policy(match={"groups": [f"{make.tag}*"]}))
    running = watch("plan", "-f", str(file))
    assert "SimpleGroup" in running.wait("ADDED", other)
    make.abandoned(group, topic, commit=at(topic, 1))
    running.wait("ADDED", group)
    file.write_text("kind: [")
    wait_for(lambda: any(line.startswith("Error: ") and str(file) in line for line in running.errors))
    file.write_text(policy(match={"groups": [group]}))
    running.wait("DELETED", other)
    assert running.interrupt() == 130
    assert len([line for line in running.errors if line.startswith("Error: ")]) == 1
    headings = [line for line in running.lines if line.startswith("GroupPolicy ")]
    assert len(headings) >= 3


@pytest.mark.parametrize("command", ["list", "plan"])
def test_lag_alone_is_no_change(watch: Callable[..., Watch], make: Maker, tmp_path: Path, command: str) -> None:
    """A row is not shown again because its lag grew, nor is a policy's heading; and a note is shown once."""
    topic, group, other, last = make.topic(records=3), *map(make.name, ("behind", "other", "last"))
    make.abandoned(group, topic, commit=at(topic, 1))
    properties, file = tmp_path / "client.properties", tmp_path / "policy.yaml"
    properties.write_text("fetch.max.bytes=1\n")
    file.write_text(policy(match={"groups": [f"{make.tag}*"]}, when={"unchangedFor": "72h", "lag": {"atLeast": 1}}))
    arguments = {"list": ["--lag", "--match", f"{make.tag}*"], "plan": ["-f", str(file)]}
    running = watch(command, *arguments[command], "--command-config", str(properties))
    first = running.wait("ADDED", group)
    assert "2" in first.split() or "2 records wait for it" in first
    make.simple(other, at(topic, 3))
    running.wait("ADDED", other)
    headings = running.count("GroupPolicy ")
    make.produce(topic, [(None, b"x")] * 4)
    sleep(2.5)
    assert running.count("GroupPolicy ") == headings
    make.simple(last, at(topic, 3))
    running.wait("ADDED", last)
    assert not [line for line in running.lines if line.startswith("MODIFIED")]
    make.delete_group(group)
    gone = running.wait("DELETED", group)
    assert "6" in gone.split() or "6 records wait for it" in gone
    assert running.interrupt() == 130
    assert len([line for line in running.errors if "fetch.max.bytes" in line]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["list", "-w", "-o", "json"], "only -o table and -o wide can be given with it", id="json"),
        pytest.param(["plan", "-w", "-f", "-"], "-f - can't be given with it", id="stdin"),
        pytest.param(["list", "--interval", "5s"], "--interval must only be given with --watch", id="interval"),
        pytest.param(["list", "-w", "--interval", "10ms"], "it must be from 1s to 1d", id="too-often"),
        pytest.param(["list", "-w", "--bootstrap-server", "127.0.0.1:1"], "connection refused", id="no-broker"),
    ],
)
def test_what_cannot_be_watched(run: Run, arguments: list[str], says: str) -> None:
    """An error at once, also where the first read fails."""
    answer = run(*arguments)
    assert answer.code == 1
    assert says in answer.err
