"""Formats the directories for a first start in KRaft mode."""

import shutil
import subprocess
from pathlib import Path

from testing.sandbox.cache import basic, cached
from testing.sandbox.errors import StartFailed
from testing.sandbox.kafka.java import JavaProgram, Jvm, java_command, properties_file
from testing.sandbox.kafka.layout import Layout, Node, new_cluster_id
from testing.sandbox.kafka.scram import Credential
from testing.sandbox.kafka.security import Security


@basic()
def format_controller(jars: Path, layout: Layout, node: Node, security: Security) -> None:
    """Format the directory of the process that has the controller role; the first metadata and SCRAM users go there.

    Without SCRAM users the first metadata depends on the version only, so Kafka's tool, a JVM, writes it once.
    """
    if security.scram:
        _run_storage_tool(jars, layout, node, security)
        return
    data = node.directory / "data"

    def build(into: Path) -> None:
        _run_storage_tool(jars, layout, node, security)
        (data / "meta.properties").unlink()
        shutil.copytree(data, into, dirs_exist_ok=True)
        shutil.rmtree(data)

    shutil.copytree(cached(f"{jars.name}-formatted", build), data)
    _write_meta_properties(layout, node)


def format_broker(layout: Layout, node: Node) -> None:
    """Write the same as `kafka-storage format` for a broker, without the second that a JVM takes to start."""
    (node.directory / "data").mkdir()
    _write_meta_properties(layout, node)


def _run_storage_tool(jars: Path, layout: Layout, node: Node, security: Security) -> None:
    scram: list[str] = []
    if security.scram:
        for name, password in security.users.items():
            mechanism = str(security.sasl)
            scram += ["--add-scram", Credential.of(mechanism, password).for_storage_tool(mechanism, name)]
    program = JavaProgram(
        "kafka.tools.StorageTool",
        jars,
        ["format", "--cluster-id", layout.cluster_id, "--config", node.directory / "server.properties", *scram],
        jvm=Jvm(heap="128m"),
    )
    run(java_command(program, node.directory / "format.args"))


def _write_meta_properties(layout: Layout, node: Node) -> None:
    properties_file(
        node.directory / "data" / "meta.properties",
        {
            "version": "1",
            "cluster.id": layout.cluster_id,
            "node.id": str(node.id),
            "directory.id": new_cluster_id(),
        },
    )


def run(command: list[str | Path], stdin: str = "") -> str:
    """Run a short program; raises StartFailed with its output when it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise StartFailed(f"exit code {done.returncode} from Kafka's own tool:\n{done.stdout}{done.stderr}")
    return done.stdout
