"""What the runs say: are the counts right, who was how fast, and the lines that are printed and kept."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.errors import WrongCount
from bench.load import Loaded
from bench.programs import CONFLUENT, JAVA_ADMIN, KADM, NAIVE, OURS, Measured

RESULTS = Path(__file__).parent / "results"
_TITLES = ("program", "job", "median", "min", "max", "first", "process", "peak RSS", "vs Java")


def check_counts(results: Sequence[Measured], loaded: Loaded) -> None:
    """Raises WrongCount unless every run of every program saw exactly what was loaded."""
    expected = {
        "steady": (loaded.empty, loaded.litter, loaded.litter_partitions),
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
    for result in sorted(results, key=lambda r: (r.job.name != "steady", statistics.median(r.runs))):
        median = statistics.median(result.runs)
        seconds = (median, min(result.runs), max(result.runs), result.first, result.total)
        ratio = f"{median / java[result.job.name]:.2f}x" if result.job.name in java else ""
        memory = f"{result.rss_mb:.0f} MB"
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


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1024**3, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def keep(line: Mapping[str, Any], results: Sequence[Measured], load_average: Sequence[float]) -> Path:
    """Write the last result for this number of groups, with when and where it was."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"scan-{line['groups']}.json"
    runs = {str(result.job): [round(seconds, 4) for seconds in result.runs] for result in results}
    text = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        # One minute's average at the start and at the end: the brokers and the programs alone make up to about 2.
        "load_average": [round(value, 1) for value in load_average],
        "result": dict(line),
        "runs": runs,
        "peak_rss_mb": {str(result.job): round(result.rss_mb, 1) for result in results},
    }
    path.write_text(json.dumps(text, indent=2) + "\n")
    return path
