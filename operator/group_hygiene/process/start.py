"""What a process of this program sets when it begins: garbage collection, open files, what kafka-python may log."""

from __future__ import annotations

import gc
import logging
import resource
from contextlib import suppress
from typing import Any

# Libraries whose records at DEBUG may contain a secret.
_SECRETIVE = frozenset({"kafka", "boto3", "botocore", "s3transfer"})
_FILES = 1 << 20
_make_record = logging.getLogRecordFactory()


def start() -> None:
    """To be called once, before the first connection to Kafka; a second call changes nothing."""
    # A scan keeps a million small records, none of them in a cycle. At Python's default of one collection per 700 new
    # objects, the garbage collector takes a third of a full scan's time and frees nothing.
    gc.set_threshold(100_000, 50, 100)
    # A connection to each of many brokers takes more descriptors than the 1,024 that container runtimes give at first.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if resource.RLIM_INFINITY != soft < most:
        # Some systems have a lower limit of their own.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    # Above DEBUG, kafka-python logs what it also raises.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    # A level would not protect passwords: a logging configuration of the user's own may set it again.
    logging.setLogRecordFactory(_without_requests)


def _without_requests(name: str, level: int, *details: Any, **more: Any) -> logging.LogRecord:
    """At DEBUG, kafka-python logs requests, and PLAIN and OAUTHBEARER send the password or the token in one.

    AWS's libraries log signed URLs, which are such tokens, and responses with credentials.
    """
    record = _make_record(name, level, *details, **more)
    if level <= logging.DEBUG and name.partition(".")[0] in _SECRETIVE:
        record.msg, record.args, record.exc_info = "left out, as it may contain a password or a token", None, None
    return record
