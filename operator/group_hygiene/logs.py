"""How log lines look: as text, or as one JSON object a line. Configures the root logger; nothing here logs."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import Any

from group_hygiene import runs
from group_hygiene.naming import printable

FORMS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """A line for people, which ends with the run that it is of; a traceback follows, indented.

    Messages and errors quote brokers and users: nothing in them begins another line, or changes a terminal.
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
    """An object with `time` (RFC 3339, UTC), `level`, `logger`, `message`, what of `runs.FIELDS` holds, `traceback`.

    What a library puts into a record beside that is left out: nobody knows what it holds.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
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
    """Lines that can't be taken for the first line of a record, as they begin with spaces."""
    return "\n".join(f"  {printable(line)}" for line in text.split("\n"))


def configure(form: str, level: str) -> None:
    """Let every logger, those of libraries too, write to stderr in one of FORMS, from that level on.

    As JSON also Python's warnings, and what ends a thread, are such lines.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if form == "json":
        logging.captureWarnings(True)
        threading.excepthook = _log_end_of_thread


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread is not None else "unknown"
    what = (ended.exc_type, ended.exc_value or ended.exc_type(), ended.exc_traceback)
    logging.getLogger(__name__).error("thread %s ended", name, exc_info=what)
