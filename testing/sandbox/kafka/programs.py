"""Real programs that use consumer groups: those of the Kafka distribution in one JVM, and Spring Cloud Stream."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from testing.sandbox.kafka.cluster import STOP_SECONDS
from testing.sandbox.kafka.jars import VERSIONS, connectors, spring, tool_jars
from testing.sandbox.kafka.java import JavaProgram, Jvm, compile_classes, java_command, properties_file
from testing.sandbox.process import Command, Server, check_running
from testing.sandbox.service import Service

# A main class and its arguments; a mapping is a file of properties.
Program = Sequence[str | Mapping[str, str]]
# In arguments and properties: the address of Kafka, and a folder.
BOOTSTRAP, _FOLDER = "BOOTSTRAP", "FOLDER"
FILE_SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
_WORKER = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "plugin.discovery": "service_load",
    "offset.flush.interval.ms": "1000",
    "listeners": "http://127.0.0.1:0",
    "bootstrap.servers": BOOTSTRAP,
    "offset.storage.file.filename": f"{_FOLDER}/offsets",
}
_RUNNER, _ANONYMOUS = (Path(__file__).parent / "java" / name for name in ("Programs.java", "Anonymous.java"))


class Programs(Service):
    """Runs these programs against a cluster. `start` does not wait for them: wait for what they do in Kafka."""

    _what = "programs"

    def __init__(self, bootstrap: str, programs: Sequence[Program], anonymous: Sequence[str] = ()) -> None:
        """anonymous: topics that Spring Cloud Stream reads, each in a group of its own."""
        super().__init__()
        self._bootstrap, self._programs, self._anonymous = bootstrap, programs, anonymous
        self._servers: list[Server] = []

    def prepare(self) -> None:
        self._jars, self._more = tool_jars(VERSIONS[0]), connectors(VERSIONS[0])
        if self._anonymous:
            self._spring = spring()

    def check(self) -> None:
        """Raise StartFailed with the end of its log if a program has failed."""
        check_running(self._servers)

    def end(self) -> None:
        """Let those that still run commit their offsets and leave their groups."""
        self._running.stop(self._servers, STOP_SECONDS)

    def _start(self) -> None:
        words = [word for program in self._programs for word in (*map(self._word, program), "--")]
        more = Jvm(classes=self._more / "*")
        self._servers = [self._run("kafka", JavaProgram(str(_RUNNER), self._jars, words, more, {"": "warn"}))]
        if self._anonymous:
            classes = compile_classes(self._spring, [_ANONYMOUS], self._scratch / "classes")
            properties = {
                "spring.cloud.stream.kafka.binder.brokers": self._bootstrap,
                "spring.cloud.stream.bindings.print-in-0.destination": ",".join(self._anonymous),
                "spring.cloud.stream.kafka.bindings.print-in-0.consumer.startOffset": "earliest",
            }
            words = [f"--{name}={value}" for name, value in properties.items()]
            spring = JavaProgram(_ANONYMOUS.stem, self._spring, words, Jvm(classes=classes))
            self._servers.append(self._run("spring", spring))

    def _run(self, name: str, program: JavaProgram) -> Server:
        command = java_command(program, self._scratch / f"{name}.args")
        return self._running.start(name, Command(command, self._scratch / f"{name}.log"))

    def _word(self, word: str | Mapping[str, str]) -> str:
        if isinstance(word, str):
            return word.replace(BOOTSTRAP, self._bootstrap).replace(_FOLDER, str(self._scratch))
        properties = {name: self._word(value) for name, value in word.items()}
        return str(properties_file(self._scratch / f"{len(list(self._scratch.iterdir()))}.properties", properties))


def perf_test(topic: str) -> Program:
    """kafka-consumer-perf-test without a group: it makes up an id with a random number at each call."""
    return (
        *("org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", BOOTSTRAP),
        *("--topic", topic, "--num-records", "3", "--timeout", "60000"),
    )


def console_consumer(group: str, *topics: str, records: int, protocol: str = "classic") -> Program:
    """kafka-console-consumer with a group: it commits when it ends after so many records."""
    return (
        *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", BOOTSTRAP, "--from-beginning"),
        *("--group", group, "--include", "|".join(topics), "--max-messages", str(records)),
        *("--command-property", f"group.protocol={protocol}"),
    )


def end_to_end_latency(topic: str) -> Program:
    """kafka-e2e-latency: it assigns its partitions and commits, as `test-group-` and the milliseconds of now."""
    return (
        *("org.apache.kafka.tools.EndToEndLatency", "--bootstrap-server", BOOTSTRAP, "--topic", topic),
        *("--num-records", "3", "--producer-acks", "1", "--record-size", "10"),
    )


def connect(connectors: Mapping[str, Mapping[str, str]]) -> Program:
    """connect-standalone with these connectors: name -> properties. The group of a sink is `connect-NAME`."""
    settings = [{"name": name, "tasks.max": "1", **properties} for name, properties in connectors.items()]
    return "org.apache.kafka.connect.cli.ConnectStandalone", _WORKER, *settings


def word_count() -> Program:
    """WordCount of Kafka Streams' examples: group `streams-wordcount`, topic `streams-plaintext-input`."""
    stores = "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers"
    properties = {
        "bootstrap.servers": BOOTSTRAP,
        "state.dir": f"{_FOLDER}/state",
        "dsl.store.suppliers.class": stores,
        "commit.interval.ms": "1000",
        # An application of Streams does not leave its group when it ends.
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "2000",
    }
    return "org.apache.kafka.streams.examples.wordcount.WordCountDemo", properties
