"""How the operator's log lines look, and that they name the run which they are of."""

from __future__ import annotations

import inspect
import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kopf._cogs.clients import api

from group_hygiene.observe.logs import JsonFormatter, TextFormatter
from group_hygiene.process import runs
from group_hygiene.process.start import start

ROOT = Path(__file__).parents[2]


def record(message: str, *arguments: object, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("group_hygiene.x", logging.WARNING, "x.py", 1, message, arguments, more.pop("exc", None))
    made.__dict__.update(more)
    return made


def test_a_line_of_json() -> None:
    """Time in UTC, level, logger, message, and of what holds all fields; nothing that a library adds to a record."""
    line = record("group %r\nof %s", "a\u2028b", "ü", k8s_ref={"token": "s3cret"})
    with runs.about(run="1f0a9c3e", namespace="kafka", connection="main"), runs.about(policy="kafka/unused"):
        text = JsonFormatter().format(line)
    assert "\n" not in text
    found = json.loads(text)
    moment = datetime.fromisoformat(found.pop("time"))
    assert (moment.tzinfo, abs(moment.timestamp() - line.created) < 0.001) == (UTC, True)
    assert found == {
        "level": "warning",
        "logger": "group_hygiene.x",
        "message": "group 'a\\u2028b'\nof ü",
        "run": "1f0a9c3e",
        "namespace": "kafka",
        "connection": "main",
        "policy": "kafka/unused",
    }
    assert set(json.loads(JsonFormatter().format(line))) == {"time", "level", "logger", "message"}


def test_a_traceback_is_a_field_of_json_and_follows_text() -> None:
    """So that JSON stays one line, and the text's first line ends with the run."""
    try:
        raise ValueError("boom")
    except ValueError:
        line = record("unexpected", exc=sys.exc_info())
    found = json.loads(JsonFormatter().format(line))
    assert found["message"] == "unexpected"
    assert found["traceback"].startswith("Traceback")
    assert found["traceback"].endswith("ValueError: boom")
    with runs.about(run="1f0a9c3e"):
        first, second, *_ = TextFormatter().format(line).splitlines()
    assert first.endswith("WARNING group_hygiene.x: unexpected [run 1f0a9c3e]")
    assert second.startswith("  Traceback")
    assert TextFormatter().format(record("quiet")).endswith("quiet")


_FORGED = "2030-01-31 12:00:00,000 INFO group_hygiene.controller.loop: group 'payroll': Deleted"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"x\n{_FORGED}", id="line-feed"),
        pytest.param(f"x\r\n{_FORGED}", id="carriage-return"),
        pytest.param(f"x\x0b{_FORGED}\x0c", id="vertical-tab"),
        pytest.param(f"x\u0085{_FORGED}", id="next-line"),
        pytest.param(f"x\u2028{_FORGED}\u2029", id="unicode-separators"),
        pytest.param("x\x1b[2K\x1b]0;y\x07\x9b1m", id="terminal"),
        pytest.param("x\u202edeleted\u2066y\u200b", id="turned-around-and-invisible"),
        pytest.param("x\ud800y", id="half-of-a-pair"),
    ],
)
def test_no_text_forges_a_line(text: str) -> None:
    """Brokers, users and tenants write what messages and errors quote: they begin no line and change no terminal."""
    try:
        raise ValueError(text)
    except ValueError:
        line = record("broker 1: %s", text, exc=sys.exc_info(), stack_info=f"Stack:\n{text}")
    first, *others = TextFormatter().format(line).split("\n")
    assert [part for part in (first, *others) if not part.isprintable()] == []
    assert "broker 1: x" in first
    assert [part for part in others if not part.startswith("  ")] == []


def test_fields_end_with_what_they_are_about_and_reach_a_thread_that_inherits() -> None:
    """Side by side, runs don't see each other's; a thread of a pool knows those of who asked, and keeps none."""
    with ThreadPoolExecutor(1) as pool, runs.about(run="a", connection="main"):
        with runs.about(run="b"):
            assert pool.submit(runs.inheriting(runs.current)).result() == {"run": "b", "connection": "main"}
        assert runs.current() == {"run": "a", "connection": "main"}
        assert pool.submit(runs.current).result() == {}
    assert runs.current() == {}
    assert len({runs.new_id() for _ in range(1000)}) > 990


PROGRAM = """
import logging, sys, threading, warnings
from group_hygiene.observe.logs import configure
configure(sys.argv[1], "info")
logging.getLogger("kopf.objects").warning("theirs")
logging.getLogger("quiet").debug("too much")
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_all_that_is_said_has_the_form(form: str) -> None:
    """As JSON every line of stderr is an object: libraries' lines, Python's warnings, and what ended a thread."""
    command = [sys.executable, "-c", PROGRAM, form]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT / "operator")}, capture_output=True, text=True, check=True
    )
    lines = done.stderr.splitlines()
    if form == "text":
        assert lines[0].endswith("WARNING kopf.objects: theirs")
        return
    found = [json.loads(line) for line in lines]
    assert [line["logger"] for line in found] == ["kopf.objects", "py.warnings", "group_hygiene.observe.logs"]
    assert found[2]["traceback"].endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("what", "level"),
    [pytest.param("will retry", "WARNING", id="again"), pytest.param("escalating", "ERROR", id="last")],
)
def test_a_request_that_kopf_sends_again_is_no_error(what: str, level: str) -> None:
    """While the API server starts, for example. An alert on errors of the log would fire."""
    program = (
        "import logging\n"
        "from group_hygiene.observe.logs import configure\n"
        "configure('text', 'info')\n"
        f"logging.getLogger('kopf._cogs').error('Request attempt #1/9 failed; {what}: GET a -> OSError()')\n"
    )
    environment = {"PYTHONPATH": str(ROOT / "operator")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert f" {level} kopf" in done.stderr
    assert "will retry: {what}" in inspect.getsource(api)


def test_an_operator_that_can_not_start_says_so_in_one_object(tmp_path: Path) -> None:
    """There is no API server: exit code 1, and stderr stays JSON to its last line."""
    command = [sys.executable, "-m", "group_hygiene.cli", "operator", "--log-format", "json", "--health-port", "0"]
    environment = {"PYTHONPATH": str(ROOT / "operator"), "KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    *_, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert (last["level"], "no Kubernetes API server" in last["message"]) == ("critical", True)


@pytest.mark.parametrize(
    ("name", "level", "shown"),
    [
        pytest.param("kafka.made.later", logging.DEBUG, False, id="a-logger-that-was-made-later"),
        pytest.param("kafka", logging.DEBUG, False, id="the-parent"),
        pytest.param("kafka.net.connection", logging.INFO, True, id="above-debug"),
        pytest.param("group_hygiene.kafka", logging.DEBUG, True, id="our-own"),
    ],
)
def test_kafka_python_logs_no_request(name: str, level: int, shown: bool) -> None:
    """Requests may contain passwords. Whatever levels and handlers a user configures, the text is not there."""
    start()
    made = logging.getLogger(name).makeRecord(name, level, "x.py", 1, "sent %s", ("s3cret",), None)
    assert ("s3cret" in f"{made.getMessage()} {made.__dict__}") is shown
