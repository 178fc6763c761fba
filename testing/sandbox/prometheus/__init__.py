"""Prometheus' checks of rules, metrics and queries: promtool and its parser, built from the go.mod in this folder."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testing.sandbox import golang
from testing.sandbox.cache import cached

_SOURCE = Path(__file__).parent
_MODULE = "github.com/prometheus/prometheus"
_PROMTOOL, _QUERIES = "promtool", "queries"


@dataclass(frozen=True)
class Query:
    """A parsed query: (metric, labels) of each selector, and the labels that group or join. error: of the parser."""

    error: str
    selectors: tuple[tuple[str, frozenset[str]], ...]
    grouping: frozenset[str]


def programs() -> Path:
    """The folder with promtool and our reader of queries; builds them when the cache has none."""
    return cached(golang.cache_name("prometheus", _SOURCE, _MODULE), _build)


def promtool(*arguments: str | Path, input: str = "") -> subprocess.CompletedProcess[str]:
    """Run `promtool <arguments>`; returns exit code and output, and does not raise for errors that it finds."""
    return _run([programs() / _PROMTOOL, *arguments], input)


def parse(queries: Sequence[str]) -> list[Query]:
    """Parse each query by Prometheus' own parser."""
    done = _run([programs() / _QUERIES], json.dumps(list(queries)))
    return [
        Query(
            answer["error"],
            tuple((selector["metric"], frozenset(selector["labels"])) for selector in answer["selectors"]),
            frozenset(answer["grouping"]),
        )
        for answer in json.loads(done.stdout)
    ]


def _run(argv: Sequence[str | Path], input: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TZ": "UTC"}
    return subprocess.run(argv, input=input, env=environment, capture_output=True, text=True, timeout=300, check=False)


def _build(into: Path) -> None:
    # As a Go module, 3.x has version 0.3xx.
    what = f"building promtool {golang.version(_SOURCE, _MODULE)} from Go modules (about 4 minutes, once)"
    golang.build(_SOURCE, f"{_MODULE}/cmd/promtool", into / _PROMTOOL, what)
    golang.build(_SOURCE, "./queries", into / _QUERIES, "building a reader of queries (seconds, once)")
