"""A node leaves nothing behind, and does not disturb another one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from testing.sandbox.node import Node
from testing.sandbox.node.node import clear_dead
from testing.sandbox.waiting import wait_for
from tests.node import machine
from tests.node.conftest import IMAGE

ROOT = Path(__file__).parents[2]
_NAMESPACES = ("pid", "mnt", "net")

_CALLER = f"""
import json, time
import pytest

from testing.sandbox.node import Node
from testing.sandbox.node.node import clear_dead
from testing.sandbox.node.kafka import NodeKafka
with Node() as node, NodeKafka(node) as kafka:
    node.load_image("{IMAGE}")
    node.kubectl("run", "sleeper", "--image={IMAGE}", "--image-pull-policy=Never", "--command", "--", "sleep", "600")
    node.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=120s")
    scratch, others = str(node.log("kubelet").parent), [str(node.kubeconfig.parent), str(kafka.log(1).parents[1])]
    print(json.dumps({{"pid": node.pid, "address": node.address, "scratch": scratch, "others": others}}), flush=True)
    time.sleep(600)
"""


_KEEPER = """
import json, time
from testing.sandbox.node import cgroups
from testing.sandbox.process import Command, Keeper
with Keeper(isolated=True) as keeper:
    keeper.ask({"do": "remove", "directories": cgroups.create(keeper.scratch.name)})
    keeper.start("server", Command(["sh", "-c", "setsid sleep 700 & sleep 700"], keeper.scratch / "log"))
    print(json.dumps({"pid": keeper.pid, "scratch": str(keeper.scratch)}), flush=True)
    time.sleep(600)
"""


def _processes_in(namespaces: set[str]) -> list[str]:
    """The command lines of processes in one of these namespaces, each written as its link in /proc."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if namespaces & {str((process / "ns" / kind).readlink()) for kind in _NAMESPACES}:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def _processes_of_pods(scratch: str) -> list[str]:
    """The command lines of processes in the node's control groups, which have namespaces of their own."""
    numbers = {number for group in _groups(scratch) for file in group.rglob("cgroup.procs") for number in _lines(file)}
    return [Path("/proc", number, "cmdline").read_bytes().replace(b"\0", b" ").decode() for number in numbers]


def _lines(file: Path) -> list[str]:
    return file.read_text().split()


def _groups(scratch: str) -> list[Path]:
    """One in each hierarchy."""
    root, name = Path("/sys/fs/cgroup"), Path(scratch).name
    return [*root.glob(name), *root.glob(f"*/{name}")]


def _start_caller(script: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    caller = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    line = caller.stdout.readline()
    caller.stdout.close()
    return caller, json.loads(line)


def test_after_sigkill_of_the_caller_nothing_is_left(files_before: list[machine.File], node: Node) -> None:
    """No process, mount, network, control group or file, of a node with a pod and a broker; the other node runs on.

    Directories of this machine that programs of Kubernetes use, its links and its packet filter are as they were.
    """
    before = machine.shared()
    assert machine.files() == files_before
    caller, seen = _start_caller(_CALLER)
    try:
        namespaces = {str(Path(f"/proc/{seen['pid']}/ns/{kind}").readlink()) for kind in _NAMESPACES}
        running = _processes_in(namespaces)
        for program in ("containerd", "kubelet", "kube-apiserver", "java"):
            assert any(program in command for command in running), program
        assert any("sleep 600" in command for command in _processes_of_pods(seen["scratch"]))
        assert seen["address"] != node.address
    finally:
        caller.kill()
        caller.wait()

    def left() -> list[str]:
        links = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
        return [
            *_processes_in(namespaces),
            *(str(group) for group in _groups(seen["scratch"])),
            *(directory for directory in (seen["scratch"], *seen["others"]) if Path(directory).exists()),
            *(line for line in links.splitlines() if seen["address"].rpartition(".")[0] + "." in line),
            *(line for line in Path("/proc/mounts").read_text().splitlines() if seen["scratch"] in line),
        ]

    def changed() -> list[str]:
        after = machine.shared()
        return [*map(str, set(machine.files()) ^ set(files_before)), *before.symmetric_difference(after)]

    wait_for(lambda: not left(), lambda: "\n".join(left()), 60)
    wait_for(lambda: not changed(), lambda: "\n".join(changed()), 10)
    time.sleep(1)
    node.check()
    assert node.is_ready()


@pytest.mark.usefixtures("node")
def test_the_next_start_removes_what_a_killed_keeper_left() -> None:
    """Its processes end with it, also one that left its session; nobody was there to remove files and groups."""
    caller, seen = _start_caller(_KEEPER)
    inside = Path("/proc", str(seen["pid"]))
    namespaces = {str((inside / "ns" / kind).readlink()) for kind in _NAMESPACES}
    outside = int((inside / "stat").read_text().rpartition(")")[2].split()[1])
    caller.send_signal(signal.SIGSTOP)
    os.kill(outside, signal.SIGKILL)
    caller.kill()
    caller.wait()
    wait_for(lambda: not _processes_in(namespaces), lambda: "\n".join(_processes_in(namespaces)), 60)
    assert Path(seen["scratch"]).exists()
    clear_dead()
    assert not Path(seen["scratch"]).exists()
    assert not _groups(seen["scratch"])


def test_containers_run_on_while_parts_of_the_node_restart(node: Node) -> None:
    """containerd, the kubelet and the API server end and come back; a pod is still in its first container."""
    run = ("run", "lasting", f"--image={IMAGE}", "--image-pull-policy=Never", "--command", "--", "sleep", "900")
    node.kubectl(*run)
    node.kubectl("wait", "pod/lasting", "--for=condition=Ready", "--timeout=120s")
    node.restart_containerd()
    node.stop_kubelet()
    node.start_kubelet()
    node.restart_api_server()
    # The kubelet finds its pods again a moment after the API server is back.
    wait_for(
        lambda: node.kubectl("exec", "lasting", "--", "true", check=False).returncode == 0,
        lambda: node.kubectl("describe", "pod,nodes", check=False).stdout,
        60,
    )
    (status,) = json.loads(node.kubectl("get", "pod", "lasting", "-o=json").stdout)["status"]["containerStatuses"]
    assert (status["ready"], status["restartCount"]) == (True, 0)
    node.kubectl("delete", "pod", "lasting", "--grace-period=0", "--force")
