"""How the sandbox calls Java: class path, heap and log levels, with all arguments in a file.

The file (mode 0600, Java's own `@file` syntax) keeps passwords away from the process list.
"""

import hashlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testing.sandbox.cache import basic, cached
from testing.sandbox.errors import SandboxError
from testing.sandbox.files import write_private
from testing.sandbox.prerequisites import JAVA, find

_ARCHIVE = "classes.jsa"


@dataclass(frozen=True)
class Jvm:
    """How the JVM of a broker runs.

    By default it starts quickly (one compiler, an archive of loaded classes), which tests want; `peak_speed` is for
    benchmarks. `record_to` writes that archive when the JVM ends by itself. `classes`: a folder of more classes.
    """

    heap: str = "512m"
    peak_speed: bool = False
    record_to: Path | None = None
    classes: Path | None = None

    def options(self, archive: Path | None) -> list[str]:
        """The JVM's own options."""
        options = [
            f"-Xmx{self.heap}",
            # Its files in the temporary directory would outlive a SIGKILL.
            "-XX:-UsePerfData",
        ]
        if not self.peak_speed:
            options += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        if self.record_to is not None:
            options.append(f"-XX:ArchiveClassesAtExit={self.record_to / _ARCHIVE}")
        elif archive is not None:
            # Java prints its warning about an archive that it can't load on standard output, which programs use.
            options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=warning:stderr"]
        return options


@dataclass(frozen=True)
class JavaProgram:
    """One Java main class to run."""

    main_class: str
    jars: Path
    arguments: Sequence[str | Path]
    jvm: Jvm = Jvm()
    log_levels: Mapping[str, str] = field(default_factory=dict)


def java_command(program: JavaProgram, arguments_file: Path) -> list[str | Path]:
    """Write the arguments file, and return the command line that uses it.

    `log_levels` is logger -> level; the empty name is all others.
    """
    java = find(JAVA)
    log = {
        "showDateTime": "true",
        "dateTimeFormat": "HH:mm:ss.SSS",
        **{f"log.{name}" if name else "defaultLogLevel": level for name, level in program.log_levels.items()},
    }
    archive = _archive_directory(java, program.jars) / _ARCHIVE
    words = [
        *program.jvm.options(archive if archive.exists() else None),
        *(f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in log.items()),
        "-cp",
        f"{program.jars}/*" + (f":{program.jvm.classes}" if program.jvm.classes else ""),
        program.main_class,
        *(str(argument) for argument in program.arguments),
    ]
    write_private(arguments_file, "\n".join(_quoted(word) for word in words) + "\n")
    return [java, f"@{arguments_file}"]


@basic()
def record_classes(jars: Path, record: Callable[[Path], None]) -> None:
    """Make an archive of loaded classes (JEP 350) for this Java and these jars: it halves the CPU time of a start.

    `record` runs a program once with `Jvm.record_to`. A Java without this feature makes no archive, which is harmless.
    """
    cached(_archive_directory(find(JAVA), jars).name, record)


def compile_classes(jars: Path, sources: Sequence[Path], into: Path) -> Path:
    """Compile Java classes that use these jars into the folder, and return it."""
    # Only the launcher `javac` knows `*` in a class path.
    path = ":".join(map(str, sorted(jars.glob("*.jar"))))
    done = subprocess.run(
        [find(JAVA), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", path, "-d", into, *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SandboxError(f"javac: {done.stdout}{done.stderr}")
    return into


def properties_file(path: Path, properties: Mapping[str, str]) -> Path:
    """Write a Java properties file that only its owner can read."""
    return write_private(path, "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(properties.items())))


def _archive_directory(java: Path, jars: Path) -> Path:
    program = java.resolve()
    # An archive is good for one build of Java, and for jars in this folder: a cache may be copied to another one.
    build = f"{program} {program.stat().st_size} {program.stat().st_mtime} {jars}"
    return jars.with_name(f"{jars.name}-classes-{hashlib.sha256(build.encode()).hexdigest()[:8]}")


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n")
    # Java reads such a file as Latin-1, and takes UTF-16 units in this notation.
    units = (character.encode("utf-16-be").hex() for character in text)
    return "".join(
        character if character.isascii() else "".join(f"\\u{unit[at : at + 4]}" for at in range(0, len(unit), 4))
        for character, unit in zip(text, units, strict=True)
    )


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
