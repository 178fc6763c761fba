"""The cache of downloads and builds: one directory per entry, which is complete or does not exist.

Most tests need a few entries only, which `basic` functions provide; `make test` prepares these, and refuses all others.
"""

import contextlib
import fcntl
import functools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TypeVar

from testing.sandbox.errors import BuildFailed, NotBasic
from testing.sandbox.process import Command, Keeper

HEARTBEAT_SECONDS = 15.0
# Set in the environment by `make test`.
ONLY_BASIC = "ONLY_BASIC"
_basic = ContextVar("_basic", default=False)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def basic(when: Callable[..., bool] = lambda *_, **__: True) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """For functions that provide what most tests need. when: for which arguments that holds."""

    def decorate(provide: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(provide)
        def provided(*arguments: _P.args, **named: _P.kwargs) -> _R:
            token = _basic.set(when(*arguments, **named))
            try:
                return provide(*arguments, **named)
            finally:
                _basic.reset(token)

        return provided

    return decorate


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/kafka-group-hygiene, by default in ~/.cache; created if needed."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base, "kafka-group-hygiene")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The directory of that name; if it does not exist, `build` fills an empty one, which is then moved into place.

    Of concurrent runs one builds, and the others wait. Raises NotBasic in `make test` for what it does not prepare.
    """
    if os.environ.get(ONLY_BASIC) and not _basic.get():
        raise NotBasic(f"{name}: `make test` prepares no more than what most tests need; see tests/needs.py")
    target = cache_dir() / name
    if target.is_dir():
        return target
    with _locked(name):
        if target.is_dir():
            return target
        # Left by a killed run: no other run can be using it, as we hold the lock.
        for stale in cache_dir().glob(f".{name}.*.part"):
            shutil.rmtree(stale, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".part", dir=cache_dir()))
        try:
            build(part)
            part.chmod(0o755)
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def run_long(what: str, command: Command) -> None:
    """Run a download or build to its end, with progress on stderr.

    `command.log` is relative to a scratch directory. The program ends with its caller, like a server.
    """
    with Keeper() as keeper:
        log = keeper.scratch / command.log
        started = time.monotonic()
        server = keeper.start(what, Command(command.argv, log, command.env, command.cwd))
        with _progress(what) as beat:
            while (code := server.exit_code()) is None:
                beat(time.monotonic() - started)
                time.sleep(0.2)
        if code != 0:
            raise BuildFailed(f"{what}: exit code {code}; the end of its output:\n{server.log_tail()}")


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[float], None]]:
    terminal = sys.stderr.isatty()
    last = 0.0

    def beat(elapsed: float) -> None:
        nonlocal last
        if elapsed - last < (1.0 if terminal else HEARTBEAT_SECONDS):
            return
        last = elapsed
        print(
            f"\r{what} ... {elapsed:.0f}s" if terminal else f"{what} ... {elapsed:.0f}s",
            end="" if terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    print(f"{what} ...", end="" if terminal else "\n", file=sys.stderr, flush=True)
    try:
        yield beat
    finally:
        if terminal:
            print(file=sys.stderr)


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    locks = cache_dir() / "locks"
    locks.mkdir(exist_ok=True)
    # The file stays: removing it would let two runs lock two different files of that name.
    with (locks / name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another run that makes {name} ...", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
