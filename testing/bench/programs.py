"""The programs that are measured, and one running process of each: started once, told to run again and again."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testing.bench.command import say
from testing.bench.errors import BenchError
from testing.bench.load import UNUSED
from testing.sandbox.cache import cached, run_long
from testing.sandbox.kafka.jars import jars
from testing.sandbox.prerequisites import GO, JAVA, MAVEN, Program, find
from testing.sandbox.proc import memory_mb
from testing.sandbox.process import Command

KAFKA_VERSION = "4.3.0"
OURS, JAVA_ADMIN, KADM = "ours", "Java AdminClient", "franz-go kadm"
CONFLUENT, NAIVE = "confluent-kafka", "kafka-python"
# Groups whose offsets a full scan holds at a time, in the three that can choose: Java and franz-go were faster with
# this than with all at once, and it bounds the memory of all three.
BATCH = 2_000
JAVAC = Program(
    "javac", "compiles the Java AdminClient's benchmark; part of a JDK", "default-jdk-headless", "openjdk@17"
)
_GO = replace(GO, purpose="builds the franz-go benchmark")
_HERE = Path(__file__).parent
_RUN_SECONDS = 600.0
_EXIT_SECONDS = 30.0


@dataclass(frozen=True)
class Job:
    """One program doing one job. `command` gets the bootstrap servers."""

    program: str
    name: str
    command: Callable[[str], Sequence[str | Path]]

    def __str__(self) -> str:
        return f"{self.program} {self.name}"


@dataclass
class Measured:
    """What the runs of one process gave. Times are in seconds, memory in MiB.

    first: from the start of the process to its first result; runs: those after that one, by the program's own clock;
    total: all the time that the process had something to do.
    """

    job: Job
    first: float = 0.0
    total: float = 0.0
    runs: list[float] = field(default_factory=list)
    counts: list[tuple[int, int, int]] = field(default_factory=list)
    rss_mb: float = 0.0


def prepare() -> None:
    """Build what must be built; raises MissingPrerequisite with one line when a program for that is missing."""
    for program in (JAVA, JAVAC, MAVEN, _GO):
        find(program)
    _java_classes()
    _kadm()


def jobs() -> list[Job]:
    """All programs and jobs, in the order in which they take turns."""
    return [
        *ours(),
        Job(JAVA_ADMIN, "steady", lambda servers: _java(servers, "steady")),
        Job(KADM, "steady", lambda servers: _go(servers, "steady")),
        Job(JAVA_ADMIN, "full", lambda servers: _java(servers, "full")),
        kadm_full(),
        *python_peers(),
    ]


def ours() -> list[Job]:
    """The operator's own calls."""
    return [
        Job(OURS, "steady", lambda servers: [*_ours(servers, "steady"), "--pattern", f"{UNUSED}*"]),
        Job(OURS, "full", lambda servers: [*_ours(servers, "full"), "--batch", str(BATCH)]),
    ]


def ours_at_once(chunk: int) -> Job:
    """All offsets of all groups by one call, which asks for `chunk` groups a request."""
    options = ["--batch", str(sys.maxsize), "--chunk", str(chunk)]
    return Job(OURS, "full", lambda servers: [*_ours(servers, "full"), *options])


def kadm_full() -> Job:
    """franz-go reads all offsets of all groups. Builds the program, if that was not done yet."""
    _kadm()
    return Job(KADM, "full", lambda servers: _go(servers, "full"))


def python_peers() -> list[Job]:
    """The peers that need neither Java nor Go."""
    return [
        Job(CONFLUENT, "full", lambda servers: _python("confluent", servers)),
        Job(NAIVE, "full", lambda servers: _python("naive", servers)),
    ]


def _ours(servers: str, job: str) -> list[str]:
    return [*_python("ours", servers), "--job", job]


def _python(module: str, servers: str) -> list[str]:
    return [sys.executable, "-m", f"bench.clients.{module}", "--bootstrap", servers]


def _java(servers: str, job: str) -> list[str | Path]:
    options = ["-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    class_path = os.pathsep.join([str(_java_classes()), f"{jars(KAFKA_VERSION)}/*"])
    return [find(JAVA), *options, "-cp", class_path, "ScanBench", servers, job, UNUSED, str(BATCH)]


def _go(servers: str, job: str) -> list[str | Path]:
    return [_kadm(), servers, job, UNUSED, str(BATCH)]


def _java_classes() -> Path:
    source = _HERE / "java" / "ScanBench.java"
    libraries = jars(KAFKA_VERSION)

    def build(into: Path) -> None:
        argv: list[str | Path] = [find(JAVAC), "-cp", f"{libraries}/*", "-d", into, source]
        run_long("compiling the Java AdminClient's benchmark", Command(argv, Path("javac.log")))

    return cached(f"bench-java-{KAFKA_VERSION}-{_digest(source)}", build)


def _kadm() -> Path:
    return _go_program("kadm", Path())


def raw_read() -> Path:
    """The program that reads a topic with franz-go: see testing/bench/go/rawread. Raises MissingPrerequisite."""
    return _go_program("rawread", Path("rawread"))


def _go_program(name: str, folder: Path) -> Path:
    """Builds it, if that was not done yet; folder: in testing/bench/go."""
    sources = [_HERE / "go" / file for file in (folder / "main.go", "go.mod", "go.sum")]

    def build(into: Path) -> None:
        environment = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
        argv: list[str | Path] = [
            find(_GO),
            "build",
            "-mod=readonly",
            "-buildvcs=false",
            "-trimpath",
            "-o",
            into / name,
            f"./{folder}",
        ]
        run_long(f"building the franz-go benchmark {name}", Command(argv, Path("go.log"), environment, _HERE / "go"))

    return cached(f"bench-{name}-{_digest(*sources)}", build) / name


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


class Session:
    """One process of a program. The time that others run in between counts for nothing."""

    def __init__(self, job: Job, servers: str) -> None:
        self.result = Measured(job)
        started = time.monotonic()
        self._process = subprocess.Popen(
            job.command(servers),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_HERE.parent,
            # Ctrl-C is for the driver, who then ends them all.
            start_new_session=True,
        )
        try:
            self._read()
            self.run()
        except BaseException:
            self.kill()
            raise
        self.result.runs.clear()
        self.result.first = self.result.total = time.monotonic() - started

    def run(self) -> None:
        """One run of the job."""
        started = time.monotonic()
        answer = self._ask()
        self.result.total += time.monotonic() - started
        self.result.runs.append(float(answer["seconds"]))
        self.result.counts.append((answer["listed"], answer["groups"], answer["partitions"]))

    def close(self) -> Measured:
        """Note its memory and end it."""
        self.result.rss_mb = _peak_mb(self._process.pid)
        started = time.monotonic()
        try:
            assert self._process.stdin is not None
            self._process.stdin.close()
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.result.job} does not end") from None
        finally:
            self.kill()
        self.result.total += time.monotonic() - started
        if code != 0:
            raise BenchError(f"{self.result.job} ended with exit code {code}")
        return self.result

    def kill(self) -> None:
        """End it, whatever it does; nothing if it has ended."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _ask(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("run\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(f"{self.result.job} has ended by itself") from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(_RUN_SECONDS, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise BenchError(f"{self.result.job} gave no answer: exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def take_turns(chosen: Sequence[Job], servers: str, runs: int) -> list[Measured]:
    """Start each program and let it run once, to be warm; then `runs` rounds in which each runs once.

    All processes live side by side and one of them works at a time, so what drifts (a broker that gets warm, a machine
    that gets busy) hits all of them alike. Every other round goes backwards.
    """
    sessions: list[Session] = []
    try:
        for job in chosen:
            say(f"  {job}: first run")
            sessions.append(Session(job, servers))
        for number in range(runs):
            say(f"  round {number + 1} of {runs}")
            for session in reversed(sessions) if number % 2 else sessions:
                session.run()
        return [session.close() for session in sessions]
    except BaseException:
        for session in sessions:
            session.kill()
        raise


def _peak_mb(pid: int) -> float:
    """The peak resident memory of a process that still runs; where there is no /proc, what it has now."""
    if peak := memory_mb(pid, "VmHWM"):
        return peak
    answer = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return int(answer.stdout or 0) / 1024
