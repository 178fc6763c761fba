"""The keeper: a small process that runs servers for one caller, so that none of them outlives that caller.

It holds a pipe from its caller. When that pipe ends (the caller closed it, crashed, or was SIGKILLed), it kills every
server and removes the scratch directory, which it made itself, so that its removal is always ensured. When the keeper
itself is SIGKILLed, Linux kills the servers (PR_SET_PDEATHSIG). Then the scratch directory, which may hold passwords,
stays without its lock; the next start of any keeper removes it (`sandbox.process.clear_dead`).

With `--isolated` it is the first process of new process, mount and network namespaces. When it ends, Linux kills all
processes in them (also those that a server started and left), and unmounts what they mounted. The process that was
called stays outside and removes the scratch directory after that.

Runs as a script in Python's isolated mode, so it imports nothing of this project. One JSON object a line: commands on
stdin, one reply for each on stdout. `sandbox.process` is the other end.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1
CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PARENT_CHECK_SECONDS = 0.5
REMOVE_SECONDS = 10.0


class CallerGone(Exception):
    """The pipe ended, the parent changed, or a SIGTERM came: time to clean up."""


def _die_with_parent() -> Callable[[], None] | None:
    """A function that a child calls between fork and exec, to be killed when the keeper dies; None if not supported."""
    if sys.platform != "linux":
        return None
    # Loaded here and not in the child: after fork, only async-signal-safe calls are allowed.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    keeper = os.getpid()

    def arm() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(1)

    return arm


class Keeper:
    """The servers of one caller, by name."""

    def __init__(self, scratch: str, isolated: bool) -> None:
        self._scratch = scratch
        self._isolated = isolated
        self._remove: list[str] = []
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._arm = _die_with_parent()

    def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute one command; returns its result."""
        match command["do"]:
            case "start":
                return {"pid": self._start(command)}
            case "signal":
                self._signal(self._servers[command["name"]], command["signal"])
                return {}
            case "stop":
                self._stop([self._servers[name] for name in command["names"]], command["grace"])
                return {}
            case "poll":
                return {"code": self._servers[command["name"]].poll()}
            case "remove":
                # Directories in which the kernel keeps the files: of control groups.
                self._remove += command["directories"]
                return {}
            case other:
                return {"error": f"unknown command {other}"}

    def end(self) -> None:
        """Kill all servers and remove the scratch directory.

        SIGKILL is enough: their data is removed with the directory.
        """
        if not self._isolated:
            self._stop(list(self._servers.values()), 0)
            _remove_scratch(self._scratch)
            return
        # All other processes in this namespace. Mounts must not be removed recursively: the process outside removes the
        # scratch directory.
        if os.getpid() != 1:
            raise RuntimeError("not the first process of a namespace: no process is killed")
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        for directory in self._remove:
            for path, _, _ in os.walk(directory, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)

    def reap(self) -> None:
        """Reap children that ended: the first process of a namespace inherits those of others, too."""
        servers = {server.pid: server for server in self._servers.values()}
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in servers:
                    servers[ended.si_pid].poll()
                else:
                    os.waitpid(ended.si_pid, 0)

    def _start(self, command: dict[str, Any]) -> int:
        name = command["name"]
        if name in self._servers and self._servers[name].poll() is None:
            raise RuntimeError(f"{name} runs already")
        # Only for the owner: logs may contain a server's configuration.
        log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._servers[name] = subprocess.Popen(
                command["argv"],
                env=command["env"],
                cwd=command["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=self._arm,  # noqa: PLW1509 - sound: the keeper has one thread
            )
        finally:
            os.close(log)
        return self._servers[name].pid

    def _signal(self, server: subprocess.Popen[bytes], number: int) -> None:
        # poll() first: only an unreaped child's id surely still belongs to it.
        if server.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, number)

    def _stop(self, servers: list[subprocess.Popen[bytes]], grace: float) -> None:
        if grace > 0:
            for server in servers:
                # A stopped process would only see the SIGTERM once continued.
                self._signal(server, signal.SIGCONT)
                self._signal(server, signal.SIGTERM)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and any(server.poll() is None for server in servers):
                time.sleep(0.02)
        for server in servers:
            self._signal(server, signal.SIGKILL)
        for server in servers:
            server.wait()


def _commands(caller: int, idle: Callable[[], None]) -> Any:
    """Yield the caller's commands; raises CallerGone when there will be no more."""
    buffer = b""
    while True:
        ready, _, _ = select.select([0], [], [], PARENT_CHECK_SECONDS)
        idle()
        if not ready:
            # A fork of the caller may hold the pipe open: the parent's id changes even then.
            if os.getppid() != caller:
                raise CallerGone
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            raise CallerGone
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            yield json.loads(line)


def _reply(answer: dict[str, Any]) -> None:
    try:
        os.write(1, json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:
        raise CallerGone from None


def _make_locked_scratch(kind: str) -> str:
    """A directory that is locked while the keeper lives, inside or outside. The holder of the lock may remove it."""
    while True:
        scratch = tempfile.mkdtemp(prefix=f"kafka-group-hygiene-{kind}-")
        # Another process may remove it before it is locked.
        try:
            lock = os.open(scratch, os.O_RDONLY)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(scratch):
            return scratch
        os.close(lock)


def _remove_scratch(scratch: str) -> None:
    deadline = time.monotonic() + REMOVE_SECONDS
    while os.path.exists(scratch) and time.monotonic() < deadline:
        shutil.rmtree(scratch, ignore_errors=True)
        time.sleep(0.02)


def _isolate(scratch: str, caller: int) -> int:
    """Continue as the first process of new namespaces, and return its id outside of them.

    The process that was called does not return: it waits for that one, removes the scratch directory and exits.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.unshare(CLONE_NEWPID))
    inside = os.fork()
    if inside == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # Here /proc is still that of outside.
        outside = int(os.readlink("/proc/self"))
        check(libc.unshare(CLONE_NEWNS | CLONE_NEWNET))
        check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
        check(libc.mount(b"proc", b"/proc", b"proc", 0, None))
        return outside
    # The pipes belong to the process inside: a process outside that holds one end would keep the other open.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.waitpid(inside, os.WNOHANG) == (0, 0):
        if os.getppid() != caller:
            with contextlib.suppress(ProcessLookupError):
                os.kill(inside, signal.SIGTERM)
        time.sleep(0.05)
    _remove_scratch(scratch)
    os._exit(0)


def _gone(_number: int, _frame: object) -> None:
    raise CallerGone


def main() -> None:
    """Serve one caller until it is gone."""
    caller = os.getppid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _gone)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    isolated = "--isolated" in sys.argv
    scratch = _make_locked_scratch("node" if isolated else "servers")
    pid = os.getpid()
    if isolated:
        pid = _isolate(scratch, caller)
        caller = os.getppid()
    keeper = Keeper(scratch, isolated)
    try:
        _reply({"scratch": scratch, "pid": pid})
        for command in _commands(caller, keeper.reap if isolated else lambda: None):
            try:
                answer = keeper.handle(command)
            except (OSError, RuntimeError, KeyError, ValueError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            _reply(answer)
    except CallerGone:
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        keeper.end()


if __name__ == "__main__":
    main()
