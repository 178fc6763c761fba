"""Helm, built from the go.mod in this folder; it renders and checks the chart, and reaches no cluster by itself."""

import os
import subprocess
import tempfile
from pathlib import Path

from sandbox import golang
from sandbox.cache import cached

_SOURCE = Path(__file__).parent
_KUBERNETES = _SOURCE.parent / "kubernetes"
_MODULE = "helm.sh/helm/v3"


def program() -> Path:
    """The helm program; builds it when the cache has none."""
    return cached(golang.cache_name("helm", _SOURCE, _MODULE), _build) / "helm"


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`helm <arguments>`, with its exit code and what it said; nothing is raised for what it finds wrong."""
    with tempfile.TemporaryDirectory() as home:
        # What its user has configured, plugins and repositories among it, changes nothing here.
        own = {f"HELM_{part}_HOME": home for part in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **own, "KUBECONFIG": os.devnull}
        return subprocess.run(
            [program(), *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
        )


def _build(into: Path) -> None:
    version = golang.version(_SOURCE, _MODULE)
    major, minor, _ = golang.version(_KUBERNETES, "k8s.io/kubernetes").split(".")
    stamps = {
        "internal/version.version": f"v{version}",
        # For which Kubernetes it renders when it asks none.
        "pkg/chartutil.k8sVersionMajor": major,
        "pkg/chartutil.k8sVersionMinor": minor,
    }
    flags = " ".join(("-s -w", *(f"-X {_MODULE}/{name}={value}" for name, value in stamps.items())))
    what = f"building helm {version} from Go modules (about 3 minutes, once)"
    golang.build(_SOURCE, f"{_MODULE}/cmd/helm", into / "helm", what, flags)
