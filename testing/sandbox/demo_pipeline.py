"""The Spark pipeline in the demo: `group-hygiene pipeline run --continuous`, in a separate process, as from a shell.

Its tables, its log and Spark's temporary files are in one scratch directory, which is removed at the end.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder

from testing.sandbox.demo_command import ADDRESS, PROGRAM, Answer, program
from testing.sandbox.errors import SandboxError
from testing.sandbox.process import Command, Keeper, Server, check_running
from testing.sandbox.spark.jars import jars

# Short, so that the tables are hardly older than a run of Spark, also on a busy machine.
_EVERY = "2s"
_STOP_SECONDS, _LOOK_SECONDS = 10.0, 300.0
# For a program that runs a minute, optimizing compilation does not pay.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


class Pipeline:
    """`prepare`, then `start` as soon as Kafka has its `__consumer_offsets`."""

    def __init__(self) -> None:
        self._keeper: Keeper | None = None
        self._server: Server | None = None

    def prepare(self) -> None:
        """Download missing jars, and make a directory for the tables."""
        self._jars = jars()
        self._keeper = Keeper()

    @property
    def tables(self) -> Path:
        """The folder of the tables."""
        return self._scratch / "tables"

    def command(self) -> str:
        """The shell command, with the address of Kafka in the environment."""
        return shlex.join([PROGRAM, *self._arguments()])

    def start(self, bootstrap: str) -> None:
        """Start it without waiting: Spark takes long."""
        if self._keeper is None:
            raise SandboxError("the pipeline was stopped already")
        argv = [str(program()), *self._arguments()]
        self._server = self._keeper.start(
            "pipeline", Command(argv, self._scratch / "pipeline.log", self._environment(bootstrap))
        )

    def read_since(self, moment: datetime) -> bool:
        """Whether the tables include all records that the log had at a moment."""
        coverage = str(self.tables / "coverage")
        if not DeltaTable.is_deltatable(coverage):
            return False
        answer = QueryBuilder().register("t", DeltaTable(coverage)).execute("SELECT min(read_at) AS at FROM t")
        (at,) = answer.read_all().column("at").to_pylist()
        return at is not None and bool(at > moment)

    def look_back(self, *commands: Sequence[str]) -> list[Answer]:
        """End it, and run these commands on its tables concurrently."""
        if self._keeper is not None and self._server is not None:
            self._keeper.stop([self._server], _STOP_SECONDS)
            self._server = None
        given = ("--warehouse", str(self.tables))
        started = [
            subprocess.Popen(
                [program(), *arguments, *given],
                env={**os.environ, **self._environment("")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for arguments in commands
        ]
        try:
            said = [process.communicate(timeout=_LOOK_SECONDS) for process in started]
        finally:
            for process in started:
                process.kill()
        return [
            Answer(shlex.join([PROGRAM, *arguments, *given]), process.returncode, out.splitlines(), errors.splitlines())
            for arguments, process, (out, errors) in zip(commands, started, said, strict=True)
        ]

    def stop(self) -> None:
        """Kill it, which is safe at any time, and remove the tables."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()

    def check(self) -> None:
        """Raise StartFailed with the end of its log when it has ended by itself."""
        if self._server is not None:
            check_running([self._server])

    @property
    def _scratch(self) -> Path:
        if self._keeper is None:
            raise SandboxError("the pipeline was stopped already")
        return self._keeper.scratch

    def _arguments(self) -> list[str]:
        return ["pipeline", "run", "--warehouse", str(self.tables), "--continuous", "--every", _EVERY]

    def _environment(self, bootstrap: str) -> Mapping[str, str]:
        scratch = str(self._scratch)
        return {
            ADDRESS: bootstrap,
            "GROUP_HYGIENE_SPARK_JARS": str(self._jars),
            # For temporary files of Python, Spark and Java, which killed processes leave.
            "TMPDIR": scratch,
            "SPARK_LOCAL_DIRS": scratch,
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={scratch} {_JAVA_OPTIONS}",
        }
