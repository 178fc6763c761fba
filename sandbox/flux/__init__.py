"""What Flux makes of objects by healthCheckExprs: its own evaluator, built from the Go files in this folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandbox import golang
from sandbox.cache import cached

_SOURCE = Path(__file__).parent
_MODULE = "github.com/fluxcd/pkg/runtime"


def program() -> Path:
    """Builds it when the cache has none."""
    return cached(golang.cache_name("flux-health", _SOURCE, _MODULE), _build) / "flux-health"


def assess(expressions: Mapping[str, str], objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Current, InProgress or Failed, for each object. Raises ValueError with what Flux has against the expressions."""
    return [str(status) for status in golang.ask(program(), {"expressions": expressions, "objects": objects})]


def _build(into: Path) -> None:
    what = f"building Flux's health checks {golang.version(_SOURCE, _MODULE)} from Go modules (a minute, once)"
    golang.build(_SOURCE, ".", into / "flux-health", what)
