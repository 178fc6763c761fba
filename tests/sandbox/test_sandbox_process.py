"""The sandbox cleans up after itself, whatever happens to its caller."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from testing.sandbox.cache import cached
from testing.sandbox.errors import BuildFailed, SandboxError, StartFailed
from testing.sandbox.ports import Ports
from testing.sandbox.process import Command, Keeper, wait_until
from testing.sandbox.waiting import wait_for

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # of what starts and ends servers, on which other tests stand
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc or PR_SET_PDEATHSIG")

CALLER = """
import time
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kubernetes import ApiServer
with KafkaCluster() as kafka, ApiServer() as api:
    print(kafka.log(1).parents[1], api.kubeconfig.parent, flush=True)
    time.sleep(600)
"""

FORKING_CALLER = """
import os, sys, time
from testing.sandbox.process import Command, Keeper
keeper = Keeper()
keeper.start("sleeper", Command(["sleep", "600", ], log=keeper.scratch / "log"))
if os.fork() == 0:
    sys.stdout = None
    os.close(1)
    time.sleep(600)
print(keeper.scratch, flush=True)
time.sleep(600)
"""


def processes_of(directory: str) -> list[str]:
    """The command lines that name a directory, and of processes that work in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if directory in command or str((process / "cwd").readlink()).startswith(directory):
                found.append(command)
        except OSError:
            continue
    return found


def eventually_clean(directory: str) -> bool:
    """Wait until the directory and all processes that use it are gone."""
    return wait_for(lambda: not Path(directory).exists() and not processes_of(directory), f"{directory} is gone")


def run_caller(script: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Start a caller in a process of its own; answers with its scratch directories."""
    caller = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    directories = caller.stdout.readline().split()
    caller.stdout.close()
    return caller, directories


@LINUX_ONLY
def test_a_killed_caller_leaves_nothing_behind() -> None:
    """After SIGKILL of the caller no java, etcd or kube-apiserver runs and no scratch directory is left."""
    caller, directories = run_caller(CALLER)
    assert len(directories) == 2
    assert any("java" in command for command in processes_of(directories[0]))
    assert len([command for command in processes_of(directories[1]) if "etcd" in command]) == 2
    caller.kill()
    caller.wait()
    assert all(eventually_clean(directory) for directory in directories)


@LINUX_ONLY
def test_a_fork_of_the_caller_does_not_keep_servers_alive() -> None:
    """A forked child inherits the pipe; the keeper sees all the same that its caller is gone."""
    caller, (directory,) = run_caller(FORKING_CALLER)
    (child,) = Path(f"/proc/{caller.pid}/task/{caller.pid}/children").read_text().split()[1:]
    caller.kill()
    caller.wait()
    try:
        assert eventually_clean(directory)
    finally:
        os.kill(int(child), signal.SIGKILL)


@LINUX_ONLY
def test_servers_end_with_a_killed_keeper() -> None:
    """Even the SIGKILL of the keeper leaves no server; the caller still removes the scratch directory."""
    keeper = Keeper()
    server = keeper.start("sleeper", Command(["sleep", "600"], log=keeper.scratch / "log"))
    parent = int(Path(f"/proc/{server.pid}/stat").read_text().split()[3])
    os.kill(parent, signal.SIGKILL)
    with pytest.raises(SandboxError, match="gone"):
        server.exit_code()
    keeper.close()
    assert eventually_clean(str(keeper.scratch))


@LINUX_ONLY
def test_the_next_start_removes_what_a_killed_keeper_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files may hold passwords. What lives, what is not ours, and what is no directory stays."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    caller, (left,) = run_caller(FORKING_CALLER)
    assert Path(left).parent == tmp_path
    (keeper,) = [pid for pid in _children(caller.pid) if "keeper.py" in Path("/proc", pid, "cmdline").read_text()]
    (child,) = [pid for pid in _children(caller.pid) if pid != keeper]
    for pid in (keeper, str(caller.pid), child):
        os.kill(int(pid), signal.SIGKILL)
    caller.wait()
    os.mkfifo(tmp_path / "kafka-group-hygiene-servers-pipe")
    other = tmp_path / "kafka-group-hygiene-other"
    other.mkdir()
    assert Path(left).exists()
    with Keeper() as first, Keeper() as second:
        assert not Path(left).exists()
        assert first.scratch.exists()
        assert second.scratch.exists()
        assert other.exists()
    assert not first.scratch.exists()


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_server_that_ends_shows_its_log() -> None:
    """The error has the exit code and the last words."""
    with Keeper() as keeper:
        words = Command([sys.executable, "-c", "print('last words'); raise SystemExit(3)"], log=keeper.scratch / "log")
        server = keeper.start("talker", words)
        with pytest.raises(StartFailed, match=r"(?s)talker ended with exit code 3.*last words"):
            wait_until(lambda: False, [server], timeout=180)


def test_a_stubborn_server_is_killed() -> None:
    """A frozen server, and one that ignores SIGTERM, end after the grace."""
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    with Keeper() as keeper:
        log = keeper.scratch / "log"
        server = keeper.start("stubborn", Command([sys.executable, "-c", stubborn], log=log))
        wait_until(lambda: "up" in server.log_tail(), [server], timeout=180)
        server.send(signal.SIGSTOP)
        server.stop(grace=0.2)
        assert server.exit_code() == -signal.SIGKILL


@LINUX_ONLY
def test_a_taken_port_stays_ours_and_is_usable() -> None:
    """Nobody else gets the port, while a server that sets SO_REUSEADDR can listen on it twice in a row."""
    ports = Ports()
    try:
        first, second = ports.take(2)
        assert first != second
        with socket.socket() as thief, pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", first))
        for _ in range(2):
            with socket.create_server(("127.0.0.1", first)):
                pass
    finally:
        ports.release()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kafka-group-hygiene"


def test_two_runs_build_once(own_cache: Path) -> None:
    """The second waits for the first and takes what it made."""
    builds = []

    def build(into: Path) -> None:
        builds.append(into)
        time.sleep(0.3)
        (into / "made").touch()

    runs = [threading.Thread(target=cached, args=("thing", build)) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(builds) == 1
    assert (own_cache / "thing" / "made").exists()


def test_a_failed_build_leaves_no_entry(own_cache: Path) -> None:
    """What is in the cache is complete; the next run builds again."""

    def fail(into: Path) -> None:
        (into / "half").touch()
        raise BuildFailed("no")

    with pytest.raises(BuildFailed):
        cached("thing", fail)
    assert [entry.name for entry in own_cache.iterdir()] == ["locks"]


@pytest.mark.parametrize("command", ["up", "prepare"])
def test_a_missing_prerequisite_is_one_line(command: str, tmp_path: Path) -> None:
    """It says what is missing and how to install it, without a traceback."""
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    run = [sys.executable, "-m", "testing.sandbox", command]
    done = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("java is missing")
    assert "apt install" in line
    assert "brew install" in line
