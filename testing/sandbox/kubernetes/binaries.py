"""Finds kube-apiserver and etcd: in KUBEBUILDER_ASSETS, else in the cache, else by a build from Go modules.

The programs of a node come from the cache or a build.
"""

import os
from functools import partial
from pathlib import Path

from testing.sandbox import golang
from testing.sandbox.cache import basic, cached
from testing.sandbox.errors import MissingPrerequisite

_SOURCE = Path(__file__).parent
_MODULE = "k8s.io/kubernetes"
_NAMES = ("kube-apiserver", "etcd")
# Releases beside that of this folder, to which the CRDs are applied, too: each is pinned in a folder of this name.
OTHER_RELEASES = ("oldest", "newest")
NODE_PROGRAMS = ("kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy")


@basic(lambda release="": not release)
def control_plane(release: str = "") -> Path:
    """The directory with both programs; builds them if necessary. release: one of `OTHER_RELEASES`."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and not release:
        for name in _NAMES:
            if not os.access(Path(assets, name), os.X_OK):
                raise MissingPrerequisite(f"{name} is missing in KUBEBUILDER_ASSETS={assets}; unset it to build one")
        return Path(assets)
    source = _SOURCE / release
    return cached(golang.cache_name("kubernetes", source, _MODULE), partial(_build, source))


def kubernetes_version(release: str = "") -> str:
    """The version that `control_plane` builds, without its v."""
    return golang.version(_SOURCE / release, _MODULE)


def node_programs() -> Path:
    """The directory with what a cluster with a node runs besides: `NODE_PROGRAMS`; builds them when the cache has none.

    They are of the version that `control_plane` builds.
    """
    return cached(golang.cache_name("kubernetes-node", _SOURCE, _MODULE), _build_node)


def _build(source: Path, into: Path) -> None:
    _build_component(source, "kube-apiserver", into, "about 5 minutes")
    etcd = "go.etcd.io/etcd/server/v3"
    what = f"building etcd {golang.version(source, etcd)} from Go modules (about 30 seconds, once)"
    golang.build(source, etcd, into / "etcd", what)


def _build_node(into: Path) -> None:
    for name in NODE_PROGRAMS:
        _build_component(_SOURCE, name, into, "about 1 minute")


def _build_component(source: Path, name: str, into: Path, duration: str) -> None:
    kubernetes = golang.version(source, _MODULE)
    major, minor, _ = kubernetes.split(".")
    stamp = "-X k8s.io/component-base/version."
    flags = f"-s -w {stamp}gitVersion=v{kubernetes} {stamp}gitMajor={major} {stamp}gitMinor={minor}"
    what = f"building {name} {kubernetes} from Go modules ({duration}, once)"
    golang.build(source, f"{_MODULE}/cmd/{name}", into / name, what, flags)
