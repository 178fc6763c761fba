"""The CRDs of Flux, out of its Go modules, whose sums are pinned. Flux itself is not run here."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from sandbox.cache import cached
from sandbox.errors import BuildFailed
from sandbox.prerequisites import GO, find

_VERSION = "v1.9.6"
_MODULES = {
    "github.com/fluxcd/kustomize-controller": (
        "h1:XB+G3A0mky0j5uVHZWv4oSlS2RvZBoNIUhstIvY0JKE=",
        "kustomize.toolkit.fluxcd.io_kustomizations.yaml",
    ),
    "github.com/fluxcd/source-controller": (
        "h1:nG534/bI6nVpyHra7ONAk6xDB3xPsVT+EOLHZHXPrrc=",
        "source.toolkit.fluxcd.io_gitrepositories.yaml",
    ),
}


def crds() -> Path:
    """A folder with those of Kustomization and GitRepository; downloads them when the cache has none."""
    return cached(f"flux-crds-{_VERSION}", _download)


def _download(into: Path) -> None:
    environment = {**os.environ, "GOFLAGS": "", "GOWORK": "off"}
    for module, (wanted, name) in _MODULES.items():
        argv: list[str | Path] = [find(GO), "mod", "download", "-json", f"{module}@{_VERSION}"]
        # In a folder without a go.mod of its own, so that none is changed.
        done = subprocess.run(argv, cwd=into, env=environment, capture_output=True, text=True, timeout=600, check=False)
        told = json.loads(done.stdout or "{}")
        if done.returncode or told.get("Sum") != wanted:
            raise BuildFailed(f"{module}@{_VERSION}: {told.get('Error') or told.get('Sum') or done.stderr}")
        shutil.copyfile(Path(told["Dir"], "config", "crd", "bases", name), into / name)
