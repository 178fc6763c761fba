"""What the runs say: are the counts right, who was how fast, and the lines that are printed and kept."""

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testing.bench.command import say
from testing.bench.errors import WrongCount
from testing.bench.load import Loaded
from testing.bench.programs import CONFLUENT, JAVA_ADMIN, KADM, KAFKA_VERSION, NAIVE, OURS, Measured

RESULTS = Path(__file__).parent / "results"
# The most that each figure may be.
TARGETS = {"steady_vs_java_full": 0.25, "steady_vs_java_steady": 2.0, "full_vs_java_full": 1.3, "rss_mb": 200.0}
_ORDER = ("steady", "full")
# A load average from which on the machine has something else to do.
_BUSY = 1.0
_TITLES = ("program", "job", "median", "min", "max", "first", "process", "peak RSS", "vs Java")


def check_counts(results: Sequence[Measured], loaded: Loaded) -> None:
    """Raises WrongCount unless every run of every program saw exactly what was loaded."""
    expected = {
        "steady": (loaded.empty, loaded.unused, loaded.unused_partitions),
        "full": (loaded.groups, loaded.groups, loaded.partitions),
    }
    for result in results:
        for counts in result.counts:
            if counts != expected[result.job.name]:
                raise WrongCount(
                    f"{result.job} counted (listed, groups, partitions) = {counts}, "
                    f"but there are {expected[result.job.name]}"
                )


def table(results: Sequence[Measured]) -> str:
    """The results as aligned text; `first` is from the start of the process to its first result."""
    java = {r.job.name: statistics.median(r.runs) for r in results if r.job.program == JAVA_ADMIN}
    rows: list[tuple[str, ...]] = [_TITLES]
    for result in sorted(results, key=_rank):
        median = statistics.median(result.runs)
        seconds = (median, min(result.runs), max(result.runs), result.first, result.total)
        ratio = f"{median / java[result.job.name]:.2f}x" if result.job.name in java else ""
        memory = f"{result.rss_mb:.0f} MB" if result.rss_mb else ""
        rows.append((result.job.program, result.job.name, *(f"{value:.3f} s" for value in seconds), memory, ratio))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _rank(result: Measured) -> tuple[int, float]:
    name = result.job.name
    return _ORDER.index(name) if name in _ORDER else len(_ORDER), statistics.median(result.runs)


def targets(line: Mapping[str, Any], wanted: Mapping[str, float] = TARGETS) -> str:
    """One line for each figure that has a target: whether it is met."""
    return "\n".join(
        f"target {name} <= {most:g}: {line[name]:g}, {'met' if line[name] <= most else 'NOT MET'}"
        for name, most in wanted.items()
    )


def summary(results: Sequence[Measured], groups: int) -> dict[str, Any]:
    """Medians in seconds, peak memory in MiB; a `vs` is our time divided by theirs."""
    medians = {(r.job.program, r.job.name): statistics.median(r.runs) for r in results}
    memory = {r.job.name: r.rss_mb for r in results if r.job.program == OURS}
    steady, full = medians[OURS, "steady"], medians[OURS, "full"]
    java_steady, java_full = medians[JAVA_ADMIN, "steady"], medians[JAVA_ADMIN, "full"]
    return {
        "groups": groups,
        "steady_s": round(steady, 4),
        "full_s": round(full, 4),
        "java_steady_s": round(java_steady, 4),
        "java_full_s": round(java_full, 4),
        "kadm_steady_s": round(medians[KADM, "steady"], 4),
        "kadm_full_s": round(medians[KADM, "full"], 4),
        "confluent_full_s": round(medians[CONFLUENT, "full"], 4),
        "naive_full_s": round(medians[NAIVE, "full"], 4),
        "steady_vs_java_steady": round(steady / java_steady, 3),
        "steady_vs_java_full": round(steady / java_full, 3),
        "full_vs_java_full": round(full / java_full, 3),
        "rss_mb": round(memory["steady"], 1),
        "full_rss_mb": round(memory["full"], 1),
    }


@dataclass(frozen=True)
class Circumstances:
    """Of one measurement. source: which code was measured. load: the machine's load average before."""

    source: Mapping[str, Any]
    load: float

    def document(self) -> dict[str, Any]:
        """What is kept beside the figures."""
        return {**self.source, "load_average": [round(self.load, 1), round(os.getloadavg()[0], 1)]}


def circumstances() -> Circumstances:
    """As they are before anything is measured, and before figures of this run are written."""
    found = Circumstances(source(), os.getloadavg()[0])
    if found.load > _BUSY:
        say(f"this machine is busy (load average {found.load:.1f}): the figures will say less")
    return found


def source() -> dict[str, Any]:
    """Which source the figures are of: the commit, and whether files differ from it; results of runs don't count."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(RESULTS.parents[2]), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    changes = git("status", "--porcelain", "--", ":/", ":(top,exclude)testing/bench/results")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1024**3, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def keep(line: Mapping[str, Any], results: Sequence[Measured], circumstances: Mapping[str, Any]) -> Path:
    """Write the last result for this number of groups: when, where and of which source it was, and `circumstances`.

    Among them `load_average`, at the start and at the end: the brokers and the programs alone make up to about 2.
    """
    details = {
        "runs": {str(result.job): [round(seconds, 4) for seconds in result.runs] for result in results},
        "peak_rss_mb": {str(result.job): round(result.rss_mb, 1) for result in results if result.rss_mb},
    }
    return write(f"scan-{line['groups']}", line, TARGETS, circumstances, details)


def write(
    name: str,
    line: Mapping[str, Any],
    wanted: Mapping[str, float],
    circumstances: Mapping[str, Any],
    details: Mapping[str, Any] | None = None,
) -> Path:
    """The file of one result, over the last one of that name; `details` are its last keys."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    text = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "kafka": KAFKA_VERSION,
        **circumstances,
        "result": dict(line),
        "targets_met": {name: line[name] <= most for name, most in wanted.items()},
        **(details or {}),
    }
    path.write_text(json.dumps(text, indent=2) + "\n")
    return path
