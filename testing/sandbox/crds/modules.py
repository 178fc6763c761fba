"""CRDs from Go modules with pinned checksums."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from testing.sandbox.cache import cached
from testing.sandbox.errors import BuildFailed
from testing.sandbox.prerequisites import GO, find


class Module(NamedTuple):
    """path@version as `go mod download` takes it, its h1 sum as in go.sum, and the files wanted, of `folder`."""

    path: str
    version: str
    sum: str
    folder: str
    files: tuple[str, ...]

    def crds(self) -> Path:
        """A folder with these files; downloads them when the cache has none. Raises BuildFailed."""
        name = f"{self.path.split('/')[2]}-crds-{self.version}-{len(self.files)}"
        return cached(name, self._download)

    def _download(self, into: Path) -> None:
        argv = [str(find(GO)), "mod", "download", "-json", f"{self.path}@{self.version}"]
        # A module may have hundreds of megabytes; only a few files are stored.
        modules = into / "modules"
        environment = {**os.environ, "GOFLAGS": "-modcacherw", "GOWORK": "off", "GOMODCACHE": str(modules)}
        # In a folder without a go.mod, so that none is changed.
        done = subprocess.run(argv, cwd=into, env=environment, capture_output=True, text=True, timeout=600, check=False)
        found = json.loads(done.stdout or "{}")
        if done.returncode or found.get("Sum") != self.sum:
            raise BuildFailed(f"{argv[-1]}: {found.get('Error') or found.get('Sum') or done.stderr}")
        for name in self.files:
            shutil.copyfile(Path(found["Dir"], self.folder, name), into / name)
        shutil.rmtree(modules)


PROMETHEUS = Module(
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    "example/prometheus-operator-crd",
    tuple(f"monitoring.coreos.com_{kind}.yaml" for kind in ("prometheusrules", "podmonitors", "servicemonitors")),
)
ARGOCD = Module(
    "github.com/argoproj/argo-cd/v3",
    "v3.4.13",
    "h1:kmnF4nE5SQ83OhtdX6DMmLSpH0eRIa1gNYdCLNHqB+A=",
    "manifests/crds",
    ("application-crd.yaml",),
)
FLUX = (
    Module(
        "github.com/fluxcd/kustomize-controller",
        "v1.9.6",
        "h1:XB+G3A0mky0j5uVHZWv4oSlS2RvZBoNIUhstIvY0JKE=",
        "config/crd/bases",
        ("kustomize.toolkit.fluxcd.io_kustomizations.yaml",),
    ),
    Module(
        "github.com/fluxcd/source-controller",
        "v1.9.6",
        "h1:nG534/bI6nVpyHra7ONAk6xDB3xPsVT+EOLHZHXPrrc=",
        "config/crd/bases",
        ("source.toolkit.fluxcd.io_gitrepositories.yaml",),
    ),
    Module(
        "github.com/fluxcd/helm-controller",
        "v1.6.0",
        "h1:jlS5X11SG26gspubB5aLrdVSCm0q0tA4ULsY+vwSkL0=",
        "config/crd/bases",
        ("helm.toolkit.fluxcd.io_helmreleases.yaml",),
    ),
)
