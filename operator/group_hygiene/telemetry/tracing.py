"""Spans of runs, sent by OTLP over HTTP if a collector is configured; without one, OpenTelemetry is not loaded.

Spans have the names and numbers of log lines, and no texts of errors, which may contain anything. They wait in a
bounded queue, and a separate thread sends them: a collector that hangs loses spans, but delays nothing.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from group_hygiene import __version__
from group_hygiene.errors import HygieneError
from group_hygiene.process import runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_ATTRIBUTES, _LENGTH = 16, 256
# None = no spans; opening one then only checks this.
_tracer: Any = None
_provider: TracerProvider | None = None


def endpoint_variable(environment: Mapping[str, str] = os.environ) -> str | None:
    """The variable that names a collector; None = tracing is off."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    return next((name for name in _ENDPOINTS if environment.get(name)), None)


def start() -> bool:
    """Start tracing if the environment configures a collector; returns whether it does.

    Raises HygieneError if OpenTelemetry is not installed, or if the configuration is not supported.
    """
    global _tracer, _provider  # noqa: PLW0603  # one process, one collector
    variable = endpoint_variable()
    if variable is None:
        return False
    if set(os.environ[variable]) & {"?", "@"}:
        # Libraries log addresses at DEBUG.
        raise HygieneError(f"{variable} must have no user and no query: a key belongs in OTEL_EXPORTER_OTLP_HEADERS")
    protocol = next((value for name in _PROTOCOLS if (value := os.environ.get(name))), "http/protobuf")
    if protocol != "http/protobuf":
        raise HygieneError(f"traces are sent by OTLP as http/protobuf only, and the environment asks for {protocol!r}")
    try:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        message = f"{variable} enables traces, but OpenTelemetry is not installed"
        raise HygieneError(f"{message}: pip install 'kafka-group-hygiene[tracing]'") from error
    # It logs each failure with the address, which may contain a key.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    own = Resource({"service.name": "group-hygiene", "service.version": __version__})
    try:
        limits = SpanLimits(
            max_span_attributes=_ATTRIBUTES, max_span_attribute_length=_LENGTH, max_events=0, max_links=0
        )
        _provider = TracerProvider(
            resource=own.merge(OTELResourceDetector().detect()), span_limits=limits, shutdown_on_exit=False
        )
        _provider.add_span_processor(BatchSpanProcessor(_exporter()))
    except ValueError as error:
        raise HygieneError(f"the variables OTEL_... are invalid: {error}") from error
    _tracer = _provider.get_tracer("group_hygiene", __version__)
    log.info("traces are sent to the collector in %s", variable)
    return True


def stop(done: Callable[[], None]) -> None:
    """Send the queued spans in a daemon thread, which calls `done` at its end."""
    global _tracer, _provider
    provider, _tracer, _provider = _provider, None, None

    if provider is None:
        done()
        return
    shutdown = provider.shutdown

    def flush() -> None:
        shutdown()
        done()

    threading.Thread(target=flush, name="last traces", daemon=True).start()


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """A span for the time of the context, with these attributes and the FIELDS of `runs`."""
    if _tracer is None:
        yield
        return
    from opentelemetry.trace import Status, StatusCode

    attributes = {**runs.current(), **attributes}
    silent = {"record_exception": False, "set_status_on_exception": False}
    with _tracer.start_as_current_span(name, attributes=attributes, **silent) as opened:
        try:
            yield
        except BaseException as error:
            opened.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


def note(**attributes: str | int) -> None:
    """Add attributes to the current span."""
    if _tracer is None:
        return
    from opentelemetry.trace import get_current_span

    get_current_span().set_attributes(attributes)


def traced(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: each call is a span."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def within(*arguments: P.args, **named: P.kwargs) -> R:
            if _tracer is None:
                return function(*arguments, **named)
            with span(name):
                return function(*arguments, **named)

        return within

    return wrap


def _exporter() -> SpanExporter:
    """An exporter that logs once when the collector stops accepting spans, and once when it accepts them again."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class LoggingExporter(SpanExporter):
        def __init__(self) -> None:
            self._exporter, self._failing = OTLPSpanExporter(), False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = self._exporter.export(spans)
            failing = result is not SpanExportResult.SUCCESS
            if failing != self._failing:
                log.warning("the collector of traces %s", "fails: spans are lost" if failing else "accepts spans again")
            self._failing = failing
            return result

        def shutdown(self) -> None:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return self._exporter.force_flush(timeout_millis)

    return LoggingExporter()
