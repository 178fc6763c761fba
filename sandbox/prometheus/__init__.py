"""promtool, Prometheus' own checker of rules, metrics and queries, built from the go.mod in this folder."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sandbox import golang
from sandbox.cache import cached

_SOURCE = Path(__file__).parent
_MODULE = "github.com/prometheus/prometheus"


def promtool() -> Path:
    """The program; builds it when the cache has none."""
    return cached(golang.cache_name("promtool", _SOURCE, _MODULE), _build) / "promtool"


def run(arguments: Sequence[str | Path], input: str = "") -> subprocess.CompletedProcess[str]:
    """`promtool <arguments>`, with its exit code and what it said; nothing is raised for what it finds wrong."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "TZ": "UTC"}
    return subprocess.run(
        [promtool(), *arguments],
        input=input,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _build(into: Path) -> None:
    # Among Go modules 3.x is 0.3xx.
    what = f"building promtool {golang.version(_SOURCE, _MODULE)} from Go modules (about 5 minutes, once)"
    golang.build(_SOURCE, f"{_MODULE}/cmd/promtool", into / "promtool", what)
