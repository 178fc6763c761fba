"""Finds kube-apiserver and etcd: in KUBEBUILDER_ASSETS, else in the cache, else by a build from Go modules.

The programs of a node come from the cache or a build.
"""

import os
from pathlib import Path

from sandbox import golang
from sandbox.cache import cached
from sandbox.errors import MissingPrerequisite

_SOURCE = Path(__file__).parent
_MODULE = "k8s.io/kubernetes"
_NAMES = ("kube-apiserver", "etcd")
NODE_PROGRAMS = ("kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy")


def control_plane() -> Path:
    """The directory with both programs; builds them if necessary."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        for name in _NAMES:
            if not os.access(Path(assets, name), os.X_OK):
                raise MissingPrerequisite(f"{name} is missing in KUBEBUILDER_ASSETS={assets}; unset it to build one")
        return Path(assets)
    return cached(golang.cache_name("kubernetes", _SOURCE, _MODULE), _build)


def node_programs() -> Path:
    """The directory with what a cluster with a node runs besides: `NODE_PROGRAMS`; builds them when the cache has none.

    They are of the version that `control_plane` builds.
    """
    return cached(golang.cache_name("kubernetes-node", _SOURCE, _MODULE), _build_node)


def _build(into: Path) -> None:
    _build_component("kube-apiserver", into, "about 5 minutes")
    etcd = "go.etcd.io/etcd/server/v3"
    what = f"building etcd {golang.version(_SOURCE, etcd)} from Go modules (about 30 seconds, once)"
    golang.build(_SOURCE, etcd, into / "etcd", what)


def _build_node(into: Path) -> None:
    for name in NODE_PROGRAMS:
        _build_component(name, into, "about 1 minute")


def _build_component(name: str, into: Path, duration: str) -> None:
    kubernetes = golang.version(_SOURCE, _MODULE)
    major, minor, _ = kubernetes.split(".")
    stamp = "-X k8s.io/component-base/version."
    flags = f"-s -w {stamp}gitVersion=v{kubernetes} {stamp}gitMajor={major} {stamp}gitMinor={minor}"
    what = f"building {name} {kubernetes} from Go modules ({duration}, once)"
    golang.build(_SOURCE, f"{_MODULE}/cmd/{name}", into / name, what, flags)
