"""The configuration files of a node's programs, as texts; nothing is started here."""

import json
from dataclasses import dataclass
from pathlib import Path

from testing.sandbox.node.network import PODS
from testing.sandbox.node.requirements import PLUGINS

PAUSE = "localhost/pause:1"
DOMAIN = "cluster.local"
# What the kubelet sets in /proc/sys if it is otherwise (setupKernelTunables in its container manager).
_MACHINE = {
    "kernel/keys/root_maxbytes": 25_000_000,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}
# Directories of /var/lib that a node has for itself.
_OWN = ("cni", "kubelet")


@dataclass(frozen=True)
class Files:
    """Where a node's files are, in its scratch directory."""

    scratch: Path

    @property
    def socket(self) -> Path:
        """containerd's."""
        return self.scratch / "containerd.sock"

    @property
    def networks(self) -> Path:
        """The directory with the configuration of pods' networks."""
        return self.scratch / "networks"

    @property
    def plugins(self) -> Path:
        """The directory of volume plugins, of which there are none."""
        return self.scratch / "volume-plugins"

    @property
    def mounts(self) -> Path:
        """The directory with files and directories that replace those of this machine in the node's mount namespace."""
        return self.scratch / "mounts"


def containerd(files: Files) -> str:
    """containerd's config.toml."""
    return f"""\
version = 3
root = "{files.scratch}/containerd"
state = "{files.scratch}/containerd-state"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "{files.socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{files.scratch}/containerd-opt"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
  # Not every machine lets root lower a process's score, which pods' sandboxes otherwise want.
  restrict_oom_score_adj = true
  disable_apparmor = true

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{PLUGINS}"]
  conf_dir = "{files.networks}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def pod_network(files: Files) -> str:
    """A CNI configuration list: a bridge to which pods are connected."""
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(files.scratch / "pod-addresses"),
        },
    }
    ports = {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}, indent=1)


def kubelet(files: Files, address: str, authority: Path, group: str) -> str:
    """A KubeletConfiguration (JSON is YAML). group: the control group under which pods' groups are made."""
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(authority)},
        },
        # Only the API server has a certificate of that authority.
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group}",
        "clusterDNS": [address],
        "clusterDomain": DOMAIN,
        "containerRuntimeEndpoint": f"unix://{files.socket}",
        "enforceNodeAllocatable": [],
        # Neither the disk nor the swap of this machine is the node's business.
        "evictionHard": {"memory.available": "100Mi"},
        "failCgroupV1": False,
        "failSwapOn": False,
        # Goes on where it may not change this machine's sysctls and scores.
        "featureGates": {"KubeletInUserNamespace": True},
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "podLogsDir": str(files.scratch / "pod-logs"),
        # No pod inherits how this machine finds names.
        "resolvConf": "",
        "syncFrequency": "10s",
        "volumePluginDir": str(files.plugins),
    }
    return json.dumps(configuration, indent=1)


def corefile(address: str, kubeconfig: Path) -> str:
    """CoreDNS's configuration: the names of services and pods, and no others."""
    return f"""\
. {{
    bind {address}
    errors
    ready 127.0.0.1:8181
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
    }}
}}
"""


def setup(files: Files) -> str:
    """A shell script that makes the node's mounts, in its mount namespace. It changes nothing outside of it.

    Some paths of the programs have no option: the kubelet removes all sockets in /var/lib/kubelet/device-plugins, and
    CNI keeps its results in /var/lib/cni. So the node has its own /var/lib with its own directories of these names, and
    the machine's other entries. Mount points in the machine's /var/lib would stay there, or go under another node.

    The kubelet sees settings of the kernel as it wants them, and changes files in place of those of the whole machine.
    """
    return f"""\
set -eu
mkdir -p {files.mounts}/lib {files.mounts}/log
mount -t tmpfs -o mode=755 run /run
mount --bind {files.mounts}/log /var/log
mount -t tmpfs -o mode=755 lib {files.mounts}/lib
for entry in /var/lib/* /var/lib/.[!.]*; do
    name=${{entry##*/}}
    case $name in {"|".join(_OWN)}) continue ;; esac
    if [ -L "$entry" ]; then
        cp -P "$entry" {files.mounts}/lib/
    elif [ -d "$entry" ]; then
        mkdir "{files.mounts}/lib/$name"
        mount --rbind "$entry" "{files.mounts}/lib/$name"
    elif [ -e "$entry" ]; then
        : > "{files.mounts}/lib/$name"
        mount --bind "$entry" "{files.mounts}/lib/$name"
    fi
done
for name in {" ".join(_OWN)}; do mkdir "{files.mounts}/lib/$name"; done
mount --move {files.mounts}/lib /var/lib
{"".join(_pretend(files, name, value) for name, value in _MACHINE.items())}"""


def _pretend(files: Files, name: str, value: int) -> str:
    file = files.mounts / name.replace("/", ".")
    return f"echo {value} > {file}; mount --bind {file} /proc/sys/{name}\n"
