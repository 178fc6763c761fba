"""Starts and stops child processes through a keeper, which ensures that they end with their caller.

A `Keeper` is one scratch directory plus the servers that use it. See `sandbox.keeper` for what happens when the caller
crashes.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

from testing.sandbox.errors import PortTaken, SandboxError, StartFailed

POLL_SECONDS = 0.1
_STANDSTILL_S = 10.0
TAIL_LINES = 25
_KEEPER = Path(__file__).with_name("keeper.py")
_PORT_TAKEN = ("address already in use", "addressinuse", "failed to bind")


@dataclass(frozen=True)
class Command:
    """One program to run: arguments, the file for its output, additions to the environment."""

    argv: Sequence[str | Path]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


class Server:
    """One running program of a keeper."""

    def __init__(self, keeper: "Keeper", name: str, pid: int, log: Path) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self._keeper = keeper

    def exit_code(self) -> int | None:
        """None while it runs."""
        code = self._keeper.ask({"do": "poll", "name": self.name})["code"]
        return None if code is None else int(code)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its whole process group; a program that ended already is no error."""
        self._keeper.ask({"do": "signal", "name": self.name, "signal": int(number)})

    def wait_stopped(self) -> None:
        """After SIGSTOP: wait until each of its threads is stopped, as a running one may still answer.

        Without /proc it returns at once.
        """
        deadline = time.monotonic() + _STANDSTILL_S
        while time.monotonic() < deadline:
            try:
                states = [stat.read_text().rpartition(")")[2].split()[0] for stat in _threads(self.pid)]
            except OSError:
                # One of them ended meanwhile.
                continue
            if all(state in "TZX" for state in states):
                return
            time.sleep(0.01)

    def stop(self, grace: float) -> None:
        """SIGTERM, wait at most `grace` seconds, then SIGKILL; at once SIGKILL when grace is 0."""
        self._keeper.stop([self], grace)

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of its log; very long lines are cut."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 64 * 1024))
            text = log.read().decode(errors="replace")
        return "\n".join(line[:400] for line in text.splitlines()[-lines:])


class Keeper:
    """One scratch directory and the servers in it. Use it as a context manager, or call `close`.

    enter: a command that starts another one elsewhere, such as in a network namespace.
    isolated: in process, mount and network namespaces of its own, which end with it (Linux, as root). Then `pid` is the
    process that other programs can name to reach these namespaces, and the ids of servers are valid in there only.
    """

    def __init__(self, enter: Sequence[str] = (), *, isolated: bool = False) -> None:
        clear_dead("servers")
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [*enter, sys.executable, "-I", "-S", str(_KEEPER), *(["--isolated"] if isolated else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A new session: Ctrl-C in the terminal must reach the caller only, which then stops the servers in order.
            start_new_session=True,
        )
        first = self._read()
        self.scratch, self.pid = Path(first["scratch"]), int(first["pid"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self, name: str, command: Command) -> Server:
        """Start a program under a name that is free (or whose program has ended)."""
        answer = self.ask(
            {
                "do": "start",
                "name": name,
                "argv": [str(argument) for argument in command.argv],
                "log": str(command.log),
                "env": {**os.environ, **command.env},
                "cwd": str(command.cwd or self.scratch),
            }
        )
        return Server(self, name, int(answer["pid"]), command.log)

    def stop(self, servers: Iterable[Server], grace: float) -> None:
        """Stop several programs at the same time: the grace is for all together."""
        self.ask({"do": "stop", "names": [server.name for server in servers], "grace": grace})

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send one command to the keeper process and return its answer."""
        with self._lock:
            if self._process.stdin is None or self._process.stdin.closed:
                raise SandboxError("this sandbox part was stopped already")
            try:
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError as error:
                raise SandboxError("the keeper process is gone, and its servers with it") from error
            answer = self._read()
        if "error" in answer:
            raise SandboxError(f"{command.get('name', command['do'])}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Kill all programs and remove the scratch directory; idempotent."""
        with self._lock:
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        # The keeper did this, unless it was killed itself.
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise SandboxError("the keeper process is gone, and its servers with it")
        answer: dict[str, Any] = json.loads(line)
        return answer


def clear_dead(kind: str, before: Callable[[Path], None] = lambda _: None) -> None:
    """Remove scratch directories of this user whose keepers were killed. kind: `servers` or `node`.

    before: what to do with each before it is removed.
    """
    for directory in Path(tempfile.gettempdir()).glob(f"kafka-group-hygiene-{kind}-*"):
        # OSError: it is gone, its keeper lives (BlockingIOError), or it is no directory.
        with contextlib.suppress(OSError), _locked(directory) as status:
            if status.st_uid == os.geteuid():
                before(directory)
                shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[os.stat_result]:
    """Raises BlockingIOError while its keeper lives."""
    # Without O_DIRECTORY, a FIFO of this name would block.
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield os.fstat(lock)
    finally:
        os.close(lock)


def wait_until(ready: Callable[[], bool], servers: Sequence[Server], timeout: float) -> None:
    """Call `ready` every 100 ms until it returns True.

    Raises StartFailed with the end of the log if a server ended or the time is over; PortTaken if the log shows that.
    """
    deadline = time.monotonic() + timeout
    while not ready():
        check_running(servers)
        if time.monotonic() > deadline:
            _fail(servers[0], f"{', '.join(server.name for server in servers)} not ready after {timeout:.0f} s")
        time.sleep(POLL_SECONDS)


def check_running(servers: Iterable[Server]) -> None:
    """Raise StartFailed (or PortTaken) when one of them has ended."""
    for server in servers:
        code = server.exit_code()
        if code is not None:
            _fail(server, f"{server.name} ended with exit code {code}")


def _fail(server: Server, what: str) -> NoReturn:
    tail = server.log_tail()
    error = PortTaken if any(sign in tail.lower() for sign in _PORT_TAKEN) else StartFailed
    raise error(f"{what}; the end of its log:\n{tail}")


def _threads(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").glob("*/stat"))
