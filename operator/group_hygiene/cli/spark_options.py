"""Options of the commands that start Spark, and their common parts: the log file, missing Spark, progress."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from group_hygiene.cli.options import size, with_arguments, with_options
from group_hygiene.errors import UsageError


def _group(given: dict[str, Any]) -> None:
    spark = {name: given.pop(name) for name in ("master", "jars", "memory", "log", "ui_port")}
    given["spark"] = spark | {"log": spark["log"] or _log_file()}


# Of all Spark jobs; the command gets them as `warehouse` and `spark`, for session.Options.
spark_options = with_options(
    click.option(
        "--warehouse",
        metavar="URI",
        required=True,
        help="Folder of the Delta tables of this Kafka cluster: a local one, or s3a://, abfss:// or gs://.",
    ),
    click.option(
        "--master",
        metavar="URL",
        help="Spark master.  [default: that of spark-submit, else local[*], all cores of this machine]",
    ),
    click.option(
        "--jars",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        envvar="GROUP_HYGIENE_SPARK_JARS",
        show_envvar=True,
        help="Folder with Delta's jars. Without it, Spark downloads them from Maven Central.",
    ),
    click.option(
        "--memory",
        type=size,
        metavar="SIZE",
        default="2g",
        show_default=True,
        help="Memory of Spark's Java process: 4g, 800m.",
    ),
    click.option(
        "--log-file",
        "log",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File for Spark's own log.  [default: group-hygiene-spark-<uid>.log in the folder of temporary files]",
    ),
    click.option("--ui-port", type=click.IntRange(1, 65535), help="Port of Spark's web UI.  [default: no web UI]"),
    with_arguments(_group),
)


@contextmanager
def needs_spark() -> Iterator[None]:
    """For imports of modules that need Spark: raises UsageError if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "group_hygiene":
            raise
        raise UsageError(
            f'this needs Spark ({error.name} is missing): pip install "kafka-group-hygiene[pipeline]"'
        ) from error


def progress_printer() -> Callable[[str], None]:
    """A function that prints a line of progress on stderr, with the seconds since this call."""
    started = time.monotonic()

    def report(line: str) -> None:
        click.echo(f"{time.monotonic() - started:6.1f}s  {line}", err=True)
        sys.stderr.flush()

    return report


def _log_file() -> Path:
    """The default log file. Creates it, readable only by its owner.

    Its name is predictable: raises UsageError if another user has put a link, a pipe or a file there.
    """
    path = Path(tempfile.gettempdir(), f"group-hygiene-spark-{os.getuid()}.log")
    try:
        # Without O_NONBLOCK, open() of a pipe would wait for a reader.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise UsageError(f"{path} can't be written ({error.strerror}): name another file with --log-file") from error
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_nlink != 1:
            raise UsageError(f"{path} is not a regular file that only you own: name another one with --log-file")
        os.fchmod(file, 0o600)
    finally:
        os.close(file)
    return path
