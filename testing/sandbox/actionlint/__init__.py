"""actionlint, which checks workflows of GitHub Actions, built from the go.mod in this folder."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from testing.sandbox import golang
from testing.sandbox.cache import cached

_SOURCE = Path(__file__).parent
_MODULE = "github.com/rhysd/actionlint"


def program() -> Path:
    """Builds it when the cache has none."""
    return cached(golang.cache_name("actionlint", _SOURCE, _MODULE), _build) / "actionlint"


def lint(files: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    """Check these workflows; errors are on stdout, code 0 = none. Calls no other linters."""
    argv: list[str | Path] = [program(), "-no-color", "-shellcheck=", "-pyflakes=", *files]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def _build(into: Path) -> None:
    what = f"building actionlint {golang.version(_SOURCE, _MODULE)} from Go modules (half a minute, once)"
    golang.build(_SOURCE, f"{_MODULE}/cmd/actionlint", into / "actionlint", what)
