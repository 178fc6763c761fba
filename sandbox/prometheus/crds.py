"""The CRDs of the Prometheus Operator, out of its Go module. The operator itself is not run here."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from sandbox.cache import cached
from sandbox.errors import BuildFailed
from sandbox.prerequisites import GO, find

_MODULE, _VERSION = "github.com/prometheus-operator/prometheus-operator", "v0.85.0"
_SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
_NAMES = tuple(f"monitoring.coreos.com_{kind}.yaml" for kind in ("prometheusrules", "podmonitors", "servicemonitors"))


def operator_crds() -> Path:
    """A folder with the CRDs of PrometheusRule, PodMonitor and ServiceMonitor; downloads them when needed."""
    # An entry that was made for fewer of them is another one.
    return cached(f"prometheus-operator-crds-{_VERSION}-{len(_NAMES)}", _download)


def _download(into: Path) -> None:
    environment = {**os.environ, "GOFLAGS": "", "GOWORK": "off"}
    argv: list[str | Path] = [find(GO), "mod", "download", "-json", f"{_MODULE}@{_VERSION}"]
    # In a folder without a go.mod of its own, so that none is changed.
    done = subprocess.run(argv, cwd=into, env=environment, capture_output=True, text=True, timeout=600, check=False)
    told = json.loads(done.stdout or "{}")
    if done.returncode or told.get("Sum") != _SUM:
        raise BuildFailed(f"{_MODULE}@{_VERSION}: {told.get('Error') or told.get('Sum') or done.stderr}")
    for name in _NAMES:
        shutil.copyfile(Path(told["Dir"], "example", "prometheus-operator-crd", name), into / name)
