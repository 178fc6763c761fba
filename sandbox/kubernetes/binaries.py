"""Where kube-apiserver and etcd come from: KUBEBUILDER_ASSETS, else our cache, else a build from Go modules."""

import hashlib
import os
import re
from pathlib import Path

from sandbox.cache import cached, run_long
from sandbox.errors import MissingPrerequisite
from sandbox.prerequisites import GO, find
from sandbox.process import Command

_SOURCE = Path(__file__).parent
_NAMES = ("kube-apiserver", "etcd")


def control_plane() -> Path:
    """The directory with both programs; builds them when there is no other way."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        for name in _NAMES:
            if not os.access(Path(assets, name), os.X_OK):
                raise MissingPrerequisite(f"{name} is missing in KUBEBUILDER_ASSETS={assets}; unset it to build one")
        return Path(assets)
    modules = (_SOURCE / "go.mod").read_bytes() + (_SOURCE / "go.sum").read_bytes()
    # The modules are part of the name: other versions must not find the old programs.
    return cached(f"kubernetes-{_version('k8s.io/kubernetes')}-{hashlib.sha256(modules).hexdigest()[:8]}", _build)


def _build(into: Path) -> None:
    kubernetes = _version("k8s.io/kubernetes")
    major, minor, _ = kubernetes.split(".")
    stamp = "-X k8s.io/component-base/version."
    flags = f"-s -w {stamp}gitVersion=v{kubernetes} {stamp}gitMajor={major} {stamp}gitMinor={minor}"
    _go_build(
        into,
        "k8s.io/kubernetes/cmd/kube-apiserver",
        f"building kube-apiserver {kubernetes} from Go modules (about 5 minutes, once)",
        flags,
    )
    etcd = "go.etcd.io/etcd/server/v3"
    _go_build(into, etcd, f"building etcd {_version(etcd)} from Go modules (about 30 seconds, once)", "-s -w")


def _go_build(into: Path, package: str, what: str, flags: str) -> None:
    name = _NAMES[0] if package.endswith(_NAMES[0]) else _NAMES[1]
    # Without cgo no C compiler is needed.
    environment = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    argv = (find(GO), "build", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", into / name, package)
    run_long(what, Command(argv, Path("go.log"), environment, _SOURCE))


def _version(module: str) -> str:
    found = re.search(rf"^\s*{re.escape(module)} v(\S+)", (_SOURCE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"sandbox/kubernetes/go.mod does not require {module}")
    return found[1]
