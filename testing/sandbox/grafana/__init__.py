"""A check of dashboards by Grafana's own types (its foundation SDK), built from the Go files in this folder."""

import subprocess
from pathlib import Path

from testing.sandbox import golang
from testing.sandbox.cache import cached

_SOURCE = Path(__file__).parent
_MODULE = "github.com/grafana/grafana-foundation-sdk/go"


def checker() -> Path:
    """The program; builds it when the cache has none."""
    return cached(golang.cache_name("grafana-dashboard-check", _SOURCE, _MODULE), _build) / "dashboard-check"


def check(dashboard: str) -> subprocess.CompletedProcess[str]:
    """Parse the JSON of a dashboard strictly; stdout has the parsed dashboard, or stderr the error."""
    return subprocess.run([checker()], input=dashboard, capture_output=True, text=True, timeout=60, check=False)


def _build(into: Path) -> None:
    what = f"building a check by Grafana's types {golang.version(_SOURCE, _MODULE)} from Go modules (a minute, once)"
    golang.build(_SOURCE, ".", into / "dashboard-check", what)
