"""What must be on disk before the first start in KRaft mode: formatted directories."""

import subprocess
from pathlib import Path

from sandbox.errors import StartFailed
from sandbox.kafka.java import JavaProgram, Jvm, java_command, properties_file
from sandbox.kafka.layout import Layout, Node, new_cluster_id
from sandbox.kafka.scram import Credential
from sandbox.kafka.security import Security


def format_controller(jars: Path, layout: Layout, node: Node, security: Security) -> None:
    """Format the directory of the process that has the controller role; the first metadata and SCRAM users go there."""
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


def format_broker(layout: Layout, node: Node) -> None:
    """What `kafka-storage format` writes for a mere broker, without the second that a JVM takes to start."""
    data = node.directory / "data"
    data.mkdir()
    properties_file(
        data / "meta.properties",
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
