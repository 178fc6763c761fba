"""Traces: off unless asked for, and then a clear word where they can't be sent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from group_hygiene.telemetry import tracing
from tests.receiving import Receiver

ROOT = Path(__file__).parents[2]
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
# All of the program but its commands: what the operator loads before it talks to anybody.
LOADED = """
import sys
import group_hygiene.controller.app
from group_hygiene.telemetry import tracing
with tracing.span("run"):
    tracing.note(groups=1)
print(tracing.start(), [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"])
"""
# Python finds no module of that name.
BARE = (
    "import sys; sys.modules['opentelemetry.sdk'] = None; from group_hygiene.telemetry import tracing; tracing.start()"
)
# A span of what fails, for an error whose text is a secret.
FAILS = """
import threading
from group_hygiene.telemetry import tracing
tracing.start()
try:
    with tracing.span("run", connection="main"):
        raise ValueError("s3cret")
except ValueError:
    pass
done = threading.Event()
tracing.stop(done.set)
print(done.wait(120))
"""


def python(code: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    where = {"PYTHONPATH": str(ROOT / "operator"), **environment}
    return subprocess.run([sys.executable, "-c", code], env=where, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="nothing-said"),
        pytest.param(ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, id="disabled"),
        pytest.param(ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, id="no-exporter", marks=pytest.mark.slow),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, id="empty", marks=pytest.mark.slow),
        pytest.param({"OTEL_SERVICE_NAME": "x"}, id="only-a-name", marks=pytest.mark.slow),
    ],
)
def test_without_a_collector_nothing_is_loaded(environment: Mapping[str, str]) -> None:
    """The operator imports nothing of OpenTelemetry, and spans cost nothing."""
    assert python(LOADED, environment).stdout == "False []\n"


def test_which_variable_asks() -> None:
    """That of traces comes before that of everything."""
    traces = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}
    assert tracing.endpoint_variable(ENDPOINT) == "OTEL_EXPORTER_OTLP_ENDPOINT"
    assert tracing.endpoint_variable(ENDPOINT | traces) == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("code", "environment", "says"),
    [
        pytest.param(
            BARE,
            ENDPOINT,
            "OTEL_EXPORTER_OTLP_ENDPOINT enables traces, but OpenTelemetry is not installed: pip install "
            "'kafka-group-hygiene[tracing]'",
            id="not-installed",
        ),
        pytest.param(
            "from group_hygiene.telemetry import tracing; tracing.start()",
            ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "traces are sent by OTLP as http/protobuf only, and the environment asks for 'grpc'",
            id="another-protocol",
        ),
        pytest.param(
            "from group_hygiene.telemetry import tracing; tracing.start()",
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces?key=s3cret"},
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT must have no user and no query: a key belongs in "
            "OTEL_EXPORTER_OTLP_HEADERS",
            id="key-in-the-address",
        ),
    ],
)
def test_what_can_not_be_sent_is_an_error(code: str, environment: Mapping[str, str], says: str) -> None:
    """Whoever asked for traces hears at the start why there are none."""
    assert python(code, environment).stderr.splitlines()[-1] == f"group_hygiene.errors.HygieneError: {says}"


def test_a_span_tells_the_kind_of_an_error_and_never_its_text() -> None:
    """What was open is sent before the end, with the names of where it was opened."""
    with Receiver() as collector:
        done = python(FAILS, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url("")})
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    (request,) = collector.at("/v1/traces")
    assert b"s3cret" not in request.body
    (span,) = ExportTraceServiceRequest.FromString(request.body).resource_spans[0].scope_spans[0].spans
    assert (span.name, span.status.code, span.status.message) == ("run", Status.STATUS_CODE_ERROR, "ValueError")
    assert {a.key: a.value.string_value for a in span.attributes} == {"connection": "main"}
    assert list(span.events) == []


def test_an_unreachable_collector_ends_nothing() -> None:
    """The last spans are given up, and one line says so."""
    done = python(FAILS, ENDPOINT | {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"})
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert done.stderr.splitlines() == ["the collector of traces fails: spans are lost"]


def test_a_collector_that_hangs_holds_nothing_up() -> None:
    """Spans are opened and the process ends, although the collector may take an hour for its answer."""
    with Receiver(answers={"/v1/traces": None}) as collector:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url(""), "OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
        done = python(FAILS.replace("print(done.wait(120))", "print(True)"), environment)
    assert (done.returncode, done.stdout) == (0, "True\n")
