"""The format of log lines: text, or one JSON object per line. Configures the root logger; does not log itself."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import Any

from group_hygiene.model.naming import printable
from group_hygiene.process import runs
from group_hygiene.spec.fields import timestamp

FORMS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """A readable line that ends with its run's id; a traceback follows, indented.

    Messages quote brokers and users, so line breaks and control characters in them are escaped.
    """

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # the library's name
        run = runs.current().get("run")
        return printable(super().formatMessage(record)) + (f" [run {run}]" if run else "")

    def formatException(self, ei: Any) -> str:  # the library's name
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # the library's name
        return _indented(super().formatStack(stack_info))


class JsonFormatter(logging.Formatter):
    """An object with `time` (RFC 3339, UTC), `level`, `logger`, `message`, the `runs.FIELDS` that are set, `traceback`.

    Other attributes, which libraries add to records, are left out: they may contain anything.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": timestamp(datetime.fromtimestamp(record.created, UTC), "milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name in runs.FIELDS if (value := runs.current().get(name))},
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["traceback"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line)


def _indented(text: str) -> str:
    """Indent each line, so that it can't be mistaken for the first line of a record."""
    return "\n".join(f"  {printable(line)}" for line in text.split("\n"))


def configure(form: str, level: str) -> None:
    """Let all loggers, those of libraries too, write to stderr in one of FORMS, from that level on.

    As JSON, Python's warnings and uncaught errors of threads are log lines, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    handler.addFilter(_warn_of_retries)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if form == "json":
        logging.captureWarnings(True)
        threading.excepthook = _log_end_of_thread


def _warn_of_retries(record: logging.LogRecord) -> bool:
    """kopf logs a failed request as an error, also if it tries again: the API server may just not be there yet."""
    if record.name.startswith("kopf.") and "; will retry: " in record.getMessage():
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread is not None else "unknown"
    what = (ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback)
    logging.getLogger(__name__).error("thread %s ended", name, exc_info=what)
