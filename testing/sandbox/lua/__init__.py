"""Health checks in Lua, run as Argo CD runs them: by gopher-lua, built from the Go files in this folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from testing.sandbox import golang
from testing.sandbox.cache import cached

_SOURCE = Path(__file__).parent
_MODULE = "github.com/yuin/gopher-lua"


class Health(NamedTuple):
    """A script's result for an object."""

    status: str
    message: str


def program() -> Path:
    """Builds it when the cache has none."""
    return cached(golang.cache_name("lua-health", _SOURCE, _MODULE), _build) / "lua-health"


def assess(script: str, objects: Sequence[Mapping[str, Any]]) -> list[Health]:
    """The health of each object. Raises ValueError with Lua's error for the script."""
    return [Health(**answer) for answer in golang.ask(program(), {"script": script, "objects": objects})]


def _build(into: Path) -> None:
    what = f"building gopher-lua {golang.version(_SOURCE, _MODULE)} from Go modules (seconds, once)"
    golang.build(_SOURCE, ".", into / "lua-health", what)
