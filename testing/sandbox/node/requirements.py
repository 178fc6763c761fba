"""The prerequisites of a node on this machine, checked before anything starts."""

import os
import shutil
import sys
from pathlib import Path

from testing.sandbox.errors import MissingPrerequisite

# Program -> Debian's package.
_PROGRAMS = {
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "podman": "podman",
    "runc": "runc",
    "sysctl": "procps",
}
PLUGINS = Path("/usr/lib/cni")
_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
_PLUGINS_PACKAGE = "containernetworking-plugins"
# All of Debian's packages that a node needs.
PACKAGES = {*_PROGRAMS.values(), _PLUGINS_PACKAGE}
# With the directories of administrators' programs, which PATH may lack.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def check() -> None:
    """Raise MissingPrerequisite with one line that names everything that is missing."""
    if sys.platform != "linux":
        raise MissingPrerequisite("a node needs Linux: it runs containers without a virtual machine")
    missing = {package for program, package in _PROGRAMS.items() if shutil.which(program, path=PATH) is None}
    if not all((PLUGINS / plugin).exists() for plugin in _PLUGINS):
        missing.add(_PLUGINS_PACKAGE)
    wanted = []
    if os.geteuid() != 0:
        wanted.append("root: it makes namespaces and mounts")
    if missing:
        wanted.append(f"Debian's packages: apt install {' '.join(sorted(missing))}")
    if not Path("/sys/fs/cgroup").is_dir():
        wanted.append("control groups in /sys/fs/cgroup")
    if wanted:
        raise MissingPrerequisite(f"a node needs {', and '.join(wanted)}")


def program(name: str) -> str:
    """The path of a program that `check` found."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise MissingPrerequisite(f"a node needs {name}: apt install {_PROGRAMS.get(name, name)}")
    return found
