"""A real Kafka Connect worker on this machine, with the connectors of MirrorMaker 2 and of files."""

from collections.abc import Mapping

from sandbox.kafka.cluster import STOP_SECONDS, KafkaCluster
from sandbox.kafka.jars import connectors, tool_jars
from sandbox.kafka.java import JavaProgram, Jvm, java_command, properties_file
from sandbox.process import Command, check_running
from sandbox.service import Service

WORKER = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "plugin.discovery": "service_load",
    "offset.flush.interval.ms": "1000",
    "listeners": "http://127.0.0.1:0",
}


class ConnectWorker(Service):
    """One standalone worker of a cluster. `start` does not wait for its connectors: wait for what they do."""

    _what = "Connect worker"

    def __init__(self, kafka: KafkaCluster, connectors: Mapping[str, Mapping[str, str]]) -> None:
        """connectors: name -> its properties."""
        super().__init__()
        self._kafka, self._connectors = kafka, connectors

    def prepare(self) -> None:
        self._jars, self._plugins = tool_jars(self._kafka.version), connectors(self._kafka.version)

    def check(self) -> None:
        """Raise StartFailed if it has ended."""
        check_running([self._server])

    def end(self) -> None:
        """Let it commit its offsets and leave its groups."""
        self._server.stop(STOP_SECONDS)

    def _start(self) -> None:
        worker = WORKER | {
            "bootstrap.servers": self._kafka.plaintext_bootstrap,
            "offset.storage.file.filename": str(self._scratch / "offsets"),
        }
        files = [properties_file(self._scratch / "worker.properties", worker)]
        for name, properties in self._connectors.items():
            settings = {"name": name, "tasks.max": "1", **properties}
            files.append(properties_file(self._scratch / f"{name}.properties", settings))
        program = JavaProgram(
            "org.apache.kafka.connect.cli.ConnectStandalone",
            self._jars,
            files,
            jvm=Jvm(classes=self._plugins / "*"),
            log_levels={"": "warn"},
        )
        log = self._scratch / "connect.log"
        self._server = self._running.start("connect", Command(java_command(program, self._scratch / "args"), log))
