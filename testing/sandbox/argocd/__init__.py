"""Whether Argo CD shows an object as OutOfSync: by its own gitops-engine, built from the Go files in this folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testing.sandbox import golang
from testing.sandbox.cache import cached

_SOURCE = Path(__file__).parent
_MODULE = "github.com/argoproj/argo-cd/gitops-engine"


def program() -> Path:
    """Builds it when the cache has none."""
    return cached(golang.cache_name("argocd-diff", _SOURCE, _MODULE), _build) / "argocd-diff"


def out_of_sync(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[bool]:
    """For each pair of an object in Git and the live object."""
    asked = [{"git": git, "live": live} for git, live in pairs]
    return [bool(answer) for answer in golang.ask(program(), {"pairs": asked})]


def _build(into: Path) -> None:
    what = f"building Argo CD's diff {golang.version(_SOURCE, _MODULE)} from Go modules (2 minutes, once)"
    golang.build(_SOURCE, ".", into / "argocd-diff", what)
