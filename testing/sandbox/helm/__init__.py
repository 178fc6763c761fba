"""Helm, built from the go.mod in this folder; it renders and checks the chart, without a cluster."""

import os
import subprocess
import tempfile
from pathlib import Path

from testing.sandbox import golang
from testing.sandbox.cache import cached

_SOURCE = Path(__file__).parent
_KUBERNETES = _SOURCE.parent / "kubernetes"
_MODULE = "helm.sh/helm/v3"


def program() -> Path:
    """The helm program; builds it when the cache has none."""
    return cached(golang.cache_name("helm", _SOURCE, _MODULE), _build) / "helm"


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `helm <arguments>`; returns exit code and output, and does not raise for errors that it finds."""
    with tempfile.TemporaryDirectory() as home:
        # Ignores the user's configuration, plugins and repositories.
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
        # The version of Kubernetes for which it renders without a cluster.
        "pkg/chartutil.k8sVersionMajor": major,
        "pkg/chartutil.k8sVersionMinor": minor,
    }
    flags = " ".join(("-s -w", *(f"-X {_MODULE}/{name}={value}" for name, value in stamps.items())))
    what = f"building helm {version} from Go modules (about 3 minutes, once)"
    golang.build(_SOURCE, f"{_MODULE}/cmd/helm", into / "helm", what, flags)
