"""The program as a whole: how it starts, helps, completes and exits, and that its documentation is complete."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from group_hygiene import __version__
from group_hygiene.cli import main, output
from group_hygiene.model.groups import GroupState
from testing.sandbox.kafka import KafkaCluster
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "cli-reference.md").read_text()
COMMANDS = sorted(main.commands)
SLOW = ("kafka", "kubernetes", "kopf", "aiohttp", "cel", "yaml")


def sections() -> dict[str, str]:
    """The text of docs/cli-reference.md on each command (with its subcommands), and on options of many commands."""
    found: dict[str, str] = {}
    for part in REFERENCE.split("\n## ")[1:]:
        title = part.partition("\n")[0]
        program, _, name = title.partition(" ")
        command = name.split()[0] if program == "group-hygiene" else title
        found[command] = found.get(command, "") + part
    return found


def options() -> Iterator[Any]:
    for name, command in sorted(main.commands.items()):
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for spelling in parameter.opts:
                    yield pytest.param(name, spelling, id=f"{name}{spelling}")


@pytest.mark.parametrize(("command", "option"), list(options()))
def test_every_option_is_documented(command: str, option: str) -> None:
    """In the section of its command, or in the one on options of many commands."""
    shared = sections()["Options of many commands"]
    assert f"`{option}" in sections()[command] + shared


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_exit_codes(run: Run, command: str) -> None:
    """In its help and in the documentation."""
    answer = run(command, "--help")
    assert answer.code == 0
    for text in (answer.out, sections()[command]):
        assert f"group-hygiene {command}" in text
        assert "Exit codes" in text


def test_environment_is_documented() -> None:
    """Each variable that stands for an option."""
    names = {str(p.envvar) for command in main.commands.values() for p in command.params if p.envvar}
    given = ("BOOTSTRAP_SERVER", "COMMAND_CONFIG", "SPARK_JARS")
    assert names == {f"GROUP_HYGIENE_{name}" for name in given}
    assert all(f"`{name}" in REFERENCE for name in names)


def test_it_starts_without_what_is_slow() -> None:
    """Help and completion import nothing that takes long."""
    code = f"import group_hygiene.cli, sys; print([name for name in {SLOW} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        pytest.param("list --state Em", ["Empty"], id="state"),
        pytest.param("list --state empty,st", ["empty,Stable"], id="second-in-a-list"),
        pytest.param("list --type s", ["Share", "Streams"], id="types-in-any-case"),
        pytest.param("plan -o y", ["yaml"], id="form"),
        pytest.param("expl", ["explain"], id="command"),
        pytest.param("plan -f pol", ["pol"], id="file"),
        pytest.param("doctor --connection-file con", ["con"], id="connection-file"),
        pytest.param("plan --activity tab", ["tab"], id="folder"),
        pytest.param("list --kubeconfig k", ["k"], id="kubeconfig"),
    ],
)
def test_completion(words: str, completed: list[str]) -> None:
    """As bash asks for it; as a process, by the name that the module has."""
    line = f"group-hygiene {words}"
    environment = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    code = "from group_hygiene.cli import main; main(prog_name='group-hygiene')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment, "_GROUP_HYGIENE_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == completed


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        pytest.param(["list", "--state", "Em"], ["Empty", ":4"], id="value"),
        pytest.param(["expl"], ["explain", ":4"], id="command"),
        pytest.param(["plan", "-f", ""], [":0"], id="file"),
    ],
)
def test_completion_of_the_kubectl_plugin(words: list[str], completed: list[str]) -> None:
    """Values, then cobra's directive: 4 = complete no file names."""
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["kubectl_complete-group_hygiene"].partition(":")
    code = f"from {module} import {function}; {function}()"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(run: Run, shell: str, tmp_path: Path) -> None:
    """It defines the completion of our command; where the shell is there, it reads the script without an error."""
    script = run("completion", shell)
    assert script.code == 0
    assert f"_GROUP_HYGIENE_COMPLETE={shell}_complete" in script.out
    if shutil.which(shell):
        (tmp_path / "script").write_text(script.out)
        done = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_by_the_script(run: Run, tmp_path: Path) -> None:
    """In a shell that has read the script, as a user's."""
    programs = tmp_path / "group-hygiene"
    start = "from group_hygiene.cli import main; main(prog_name='group-hygiene')"
    programs.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{start}" "$@"\n')
    programs.chmod(0o755)
    code = f"""
        {run("completion", "bash").out}
        COMP_WORDS=(group-hygiene list --state Em) COMP_CWORD=3
        _group_hygiene_completion group-hygiene
        echo "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("Empty", "")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["list", "--sate", "Empty"], id="unknown-option"),
        pytest.param(["plan"], id="required-option"),
        pytest.param(["describe"], id="required-argument"),
        pytest.param(["lsit"], id="unknown-command"),
        pytest.param(["list", "-o", "xml"], id="unknown-form"),
        pytest.param([], id="nothing"),
    ],
)
def test_usage_errors_exit_1(run: Run, arguments: list[str]) -> None:
    """2 means that plan would act."""
    assert run(*arguments).code == 1


def test_unknown_state_lists_the_valid_ones(run: Run) -> None:
    """In Kafka's own spelling."""
    answer = run("list", "--state", "Idle")
    assert answer.code == 1
    assert f"'Idle' is none of {', '.join(GroupState)}" in answer.err


@pytest.mark.parametrize(
    ("where", "says"),
    [
        pytest.param(">/dev/full", "Error: the output can't be written: No space left on device\n", id="full"),
        pytest.param(">&-", "Error: the output can't be written: stdout is closed\n", id="closed"),
        pytest.param("2>&-", "", id="stderr-closed"),
        pytest.param(">&- 2>&-", "", id="both-closed"),
        pytest.param("| true", "", id="nobody-reads"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.usefixtures("groups")
def test_a_closed_output(kafka: KafkaCluster, where: str, says: str, unbuffered: str) -> None:
    """One line where there is somebody to read it, no traceback, and exit code 1; without stderr all goes on."""
    asked = f"{sys.executable} -m group_hygiene.cli list -o json --bootstrap-server {kafka.bootstrap_servers} {where}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    script = ["bash", "-c", f"{asked}; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0 if where == "2>&-" else 1, says)
    assert ("assign-only" in done.stdout) is (where == "2>&-")


NO_UTF8, LONG = os.fsdecode(b"\xff\xfe"), "é" * 16_384
OF_GROUPS = [
    *(["describe"], ["offsets"], ["explain", "-f", "-"], ["history"], ["restore"]),
    ["keep", "--for", "1d", "--why", "x"],
]


@pytest.mark.parametrize(
    ("group", "says"),
    [
        pytest.param(NO_UTF8, r"\xff\xfe is not UTF-8", id="not-utf-8"),
        pytest.param(LONG, f"{'é' * 80}... is 32,768 bytes long, and Kafka's maximum is 32,767", id="too-long"),
    ],
)
@pytest.mark.parametrize("command", OF_GROUPS, ids=lambda command: command[0])
def test_a_group_that_can_be_none(process: Run, command: list[str], group: str, says: str) -> None:
    """Refused before anything is asked, with its beginning."""
    answer = process(*command, group, "--bootstrap-server", "127.0.0.1:1")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[-1].endswith(f": {says}")


@pytest.mark.parametrize("option", ["--why", "--by", "--ledger-topic"])
def test_text_that_kafka_could_not_take(process: Run, option: str) -> None:
    """The ledger is written in UTF-8."""
    answer = process("keep", "g", "--for", "1d", "--why", "x", option, NO_UTF8, "--bootstrap-server", "127.0.0.1:1")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.endswith("is not UTF-8\n")


def test_the_longest_group_is_looked_for(run: Run) -> None:
    """As long as Kafka takes it."""
    answer = run("describe", "x" * 32_767, "--bootstrap-server", "127.0.0.1:1", "--timeout", "20s")
    assert "connection refused" in answer.err


@pytest.mark.parametrize("how", ["-m", "script", "kubectl"])
def test_ways_to_call_it(how: str) -> None:
    """As a module, as a script, and as a plugin of kubectl."""
    scripts = Path(sys.executable).parent
    command = {
        "-m": [sys.executable, "-m", "group_hygiene.cli"],
        "script": [str(scripts / "group-hygiene")],
        "kubectl": [str(scripts / "kubectl-group_hygiene")],
    }[how]
    done = subprocess.run([*command, "list", "--help"], capture_output=True, text=True, check=False)
    called = {"-m": "python -m group_hygiene.cli", "script": "group-hygiene", "kubectl": "kubectl group-hygiene"}[how]
    assert done.stdout.startswith(f"Usage: {called} list")
    assert (done.returncode, done.stderr) == (0, "")


class Terminal:
    """A stream that says it is a terminal, and keeps what is written to it."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        pytest.param({}, True, id="terminal"),
        pytest.param({"NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param({"TERM": "dumb"}, False, id="dumb-terminal"),
    ],
)
def test_colours(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], coloured: bool) -> None:
    """Only on a terminal that can, and only where nobody said no."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setitem(os.environ, name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    table = output.Table([output.Column("STATE", coloured=True)], [["Stable"]])
    output.show(output.Report({}, [], [table]), "table")
    assert ("\x1b[" in terminal.text) is coloured
    assert "Stable" in terminal.text


def test_progress_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, after a while, and taken away again."""
    monkeypatch.delenv("TERM", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.working("reading"):
        pass
    assert "reading" not in terminal.text
    monkeypatch.setattr(output, "_PROGRESS_AFTER_S", 0.0)
    with output.working("reading"):
        while "reading ..." not in terminal.text:
            pass
    assert terminal.text.endswith("\r\x1b[2K")


@pytest.mark.parametrize(
    ("arguments", "continuous"),
    [
        pytest.param([], False, id="nothing-said"),
        pytest.param(["--once"], False, id="once"),
        pytest.param(["--continuous"], True, id="continuous"),
    ],
)
@pytest.mark.parametrize("name", ["ingest", "run"])
def test_the_pipeline_ends_without_continuous(name: str, arguments: list[str], continuous: bool) -> None:
    """A CronJob that says nothing would wait for ever."""
    group = main.commands["pipeline"]
    assert isinstance(group, click.Group)
    command = group.commands[name]
    given = ["--bootstrap-server", "kafka:9092", "--warehouse", "/data/hygiene", *arguments]
    assert command.make_context(name, given).params["continuous"] is continuous


def test_version(run: Run) -> None:
    """That of the package, as with `--version`; those of the CRDs and of Python are separate."""
    answer = run("version", "-o", "json")
    assert answer.json == {
        "version": __version__,
        "apiVersion": "grouphygiene.io/v1alpha1",
        "pythonVersion": platform.python_version(),
    }
    assert run("version").out.splitlines()[1].split() == ["group-hygiene", __version__]
    assert run("--version").out.split()[-1] == __version__


@pytest.mark.parametrize(("form", "separator"), [("table", None), ("wide", None), ("csv", ",")])
def test_no_headers(run: Run, form: str, separator: str | None) -> None:
    """Rows alone, for scripts."""
    with_titles = run("version", "-o", form) if form != "wide" else run("catalogue", "-o", form)
    without = run(*(["version"] if form != "wide" else ["catalogue"]), "-o", form, "--no-headers")
    assert with_titles.out.splitlines()[1:] == without.out.splitlines()
    assert with_titles.out.split(separator)[0] in ("COMPONENT", "PROGRAM")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["-n", "team", "list", "--connection", "main"], "no file /no/file", id="before"),
        pytest.param(["--namespace=team", "alert", "test", "main"], "no file /no/file", id="subcommand"),
        pytest.param(["-n", "team", "list"], "--namespace must only be given with --connection", id="no-connection"),
        pytest.param(["-n", "team", "crds"], "No such option", id="command-without-namespaces"),
        pytest.param(["-n", "Team", "operator"], "'Team' is not a valid name of a namespace", id="operator"),
    ],
)
def test_namespace_before_the_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    """As after it, also in its errors: a command that would ignore a namespace refuses it."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", "/no/file")
    answer = run(*arguments)
    assert answer.code == 1
    assert says in answer.err


def test_namespace_after_the_command_wins(run: Run) -> None:
    """As in kubectl, and in every answer that shows it."""
    manifest = "{apiVersion: grouphygiene.io/v1alpha1, kind: GroupPolicy, metadata: {name: a}, spec: {connectionRef: "
    manifest += "{name: main}, match: {groups: ['*']}, action: Alert}}"
    command = ["plan", "--validate-only", "-o", "name", "-f", "-"]
    before = run("-n", "team", *command, stdin=manifest)
    assert before.out == "GroupPolicy team/a\n", before.err
    assert run("-n", "team", *command, "-n", "other", stdin=manifest).out == "GroupPolicy other/a\n"
