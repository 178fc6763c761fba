"""Where kube-apiserver and etcd come from: KUBEBUILDER_ASSETS, else our cache, else a build from Go modules."""

import os
from pathlib import Path

from sandbox import golang
from sandbox.cache import cached
from sandbox.errors import MissingPrerequisite

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
    return cached(golang.cache_name("kubernetes", _SOURCE, "k8s.io/kubernetes"), _build)


def _build(into: Path) -> None:
    kubernetes = golang.version(_SOURCE, "k8s.io/kubernetes")
    major, minor, _ = kubernetes.split(".")
    stamp = "-X k8s.io/component-base/version."
    flags = f"-s -w {stamp}gitVersion=v{kubernetes} {stamp}gitMajor={major} {stamp}gitMinor={minor}"
    golang.build(
        _SOURCE,
        "k8s.io/kubernetes/cmd/kube-apiserver",
        into / "kube-apiserver",
        f"building kube-apiserver {kubernetes} from Go modules (about 5 minutes, once)",
        flags,
    )
    etcd = "go.etcd.io/etcd/server/v3"
    what = f"building etcd {golang.version(_SOURCE, etcd)} from Go modules (about 30 seconds, once)"
    golang.build(_SOURCE, etcd, into / "etcd", what)
