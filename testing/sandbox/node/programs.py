"""containerd, CoreDNS and the pause program, built from the Go modules in this folder."""

from pathlib import Path

from testing.sandbox import golang
from testing.sandbox.cache import cached

_SOURCE = Path(__file__).parent
_CONTAINERD, _COREDNS, _PAUSE = (_SOURCE / name for name in ("containerd", "coredns", "pause"))
_CONTAINERD_MODULE = "github.com/containerd/containerd/v2"
_COREDNS_MODULE = "github.com/coredns/coredns"
CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")


def containerd() -> Path:
    """The directory with `CONTAINERD_PROGRAMS`; builds them when the cache has none."""
    return cached(golang.cache_name("containerd", _CONTAINERD, _CONTAINERD_MODULE), _build_containerd)


def coredns() -> Path:
    """CoreDNS with the plugins of its main.go; builds it when the cache has none."""
    return cached(golang.cache_name("coredns", _COREDNS, _COREDNS_MODULE), _build_coredns) / "coredns"


def pause() -> Path:
    """The program that holds a pod's namespaces; builds it when the cache has none."""
    return cached(golang.content_name("pause", _PAUSE), _build_pause) / "pause"


def _build_containerd(into: Path) -> None:
    version = golang.version(_CONTAINERD, _CONTAINERD_MODULE)
    flags = f"-s -w -X {_CONTAINERD_MODULE}/version.Version=v{version}"
    for name in CONTAINERD_PROGRAMS:
        what = f"building {name} {version} from Go modules (about 1 minute, once)"
        # Unused snapshotters, some of which need C libraries.
        tags = "no_btrfs no_devmapper no_zfs"
        golang.build(_CONTAINERD, f"{_CONTAINERD_MODULE}/cmd/{name}", into / name, what, flags, tags=tags)


def _build_coredns(into: Path) -> None:
    what = f"building CoreDNS {golang.version(_COREDNS, _COREDNS_MODULE)} from Go modules (about 1 minute, once)"
    golang.build(_COREDNS, ".", into / "coredns", what)


def _build_pause(into: Path) -> None:
    golang.build(_PAUSE, ".", into / "pause", "building pause (a few seconds, once)")
