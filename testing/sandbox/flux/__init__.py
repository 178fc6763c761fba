"""The status that Flux derives from an object's conditions: its own kstatus, built from the Go files in this folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testing.sandbox import golang
from testing.sandbox.cache import cached

_SOURCE = Path(__file__).parent
_MODULE = "github.com/fluxcd/cli-utils"


def program() -> Path:
    """Builds it when the cache has none."""
    return cached(golang.cache_name("flux-health", _SOURCE, _MODULE), _build) / "flux-health"


def assess(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Current, InProgress or Failed, for each object."""
    return [str(status) for status in golang.ask(program(), {"objects": objects})]


def _build(into: Path) -> None:
    what = f"building Flux's health checks {golang.version(_SOURCE, _MODULE)} from Go modules (a minute, once)"
    golang.build(_SOURCE, ".", into / "flux-health", what)
