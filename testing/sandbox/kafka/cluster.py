"""A real Kafka cluster on this machine: start, stop, kill, pause."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testing.sandbox.errors import SandboxError
from testing.sandbox.kafka.jars import VERSIONS, jars, tool_jars
from testing.sandbox.kafka.java import JavaProgram, Jvm, java_command, properties_file, record_classes
from testing.sandbox.kafka.layout import CONTROLLER_ID, Door, Layout, Node, new_cluster_id, uses_kraft
from testing.sandbox.kafka.request_log import LOGGER, requests_in, settled_size
from testing.sandbox.kafka.security import Security
from testing.sandbox.kafka.storage import format_broker, format_controller, run
from testing.sandbox.kafka.tls import Authority, Certificate
from testing.sandbox.kafka.wire import known_brokers
from testing.sandbox.kafka.zookeeper import broker_registered, scram_commands, serves, zookeeper_program
from testing.sandbox.process import Command, Server, check_running, wait_until
from testing.sandbox.service import Service

START_SECONDS = 300.0
STOP_SECONDS = 60.0
# For a busy machine, which may delay the heartbeats of brokers that are not killed.
PATIENT = {"broker.session.timeout.ms": "60000"}

Mark = dict[int, int]


@dataclass(frozen=True)
class Alteration:
    """What differs in the next starts of one broker: added settings, its environment, another version of Kafka."""

    config: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None


class KafkaCluster(Service):
    """A Kafka cluster of 1 broker, or of several with a separate controller process.

    With several brokers any of them can be killed without losing the controller. `config` is added to (and wins over)
    the server.properties of brokers and controller. It is ready when every broker knows all others.
    """

    _what = "cluster"
    _zookeeper = False

    def __init__(
        self,
        version: str = VERSIONS[0],
        brokers: int = 1,
        *,
        security: Security | None = None,
        config: Mapping[str, str] | None = None,
        request_log: bool = False,
        jvm: Jvm | None = None,
    ) -> None:
        super().__init__()
        self.version = version
        self.broker_ids = list(range(1, brokers + 1))
        self.security = security or Security()
        self._config = dict(config or {})
        self._request_log = request_log
        self._jvm = jvm or Jvm()
        self._servers: dict[int, Server] = {}
        self._paused: set[int] = set()
        self._altered: dict[int, Alteration] = {}
        self._authority: Authority | None = None

    def prepare(self) -> None:
        self._jars = jars(self.version)
        if self._jvm.record_to is None:
            record_classes(self._jars, self._record)

    def stop(self) -> None:
        super().stop()
        self._servers.clear()
        self._paused.clear()

    @property
    def bootstrap_servers(self) -> str:
        """host:port,... of the client listener: the secured one."""
        return ",".join(f"{self._place.address}:{node.client_port}" for node in self._layout.brokers)

    @property
    def plaintext_bootstrap(self) -> str:
        """host:port,... of the internal plaintext listener, whose clients have all permissions."""
        return ",".join(f"{self._place.address}:{node.internal_port}" for node in self._layout.brokers)

    def door(self, index: int) -> dict[int, Door]:
        """Broker -> ports of one of `security.doors`; a proxy before it listens on the advertised ones."""
        return {node.id: node.doors[index] for node in self._layout.brokers}

    @property
    def cluster_id(self) -> str:
        """The id that clients see; with ZooKeeper, Kafka makes it itself."""
        return _properties(self._layout.brokers[0].directory / "data" / "meta.properties")["cluster.id"]

    @property
    def authority(self) -> Authority:
        """The certificate authority of a cluster with TLS; its `ca` is what clients must trust."""
        if self._authority is None:
            raise SandboxError("this cluster was started without tls=True")
        return self._authority

    @property
    def ca_file(self) -> Path:
        """PEM file of the certificate authority."""
        return self.authority.ca

    def client_certificate(self, name: str) -> Certificate:
        """A client certificate (PEM files) for the principal User:<name>; `admin` is the superuser."""
        return self.authority.issue(name)

    def kill_broker(self, broker: int) -> None:
        """SIGKILL, without a controlled shutdown."""
        self._end_broker(broker, 0)

    def stop_broker(self, broker: int) -> None:
        """Stop it with a controlled shutdown: it hands over its partitions first."""
        self._end_broker(broker, STOP_SECONDS)

    def start_broker(self, broker: int) -> None:
        """Start a broker that was killed or stopped, with its old ports and data, and wait until all know it.

        Kafka admits it only when its former session has expired, after 6 seconds. It answers before its group
        coordinators have loaded: for a moment ListGroups returns COORDINATOR_LOAD_IN_PROGRESS, or, before the broker
        knows its leaderships (seen with 2.5.1), an empty list without an error.
        """
        port = self._layout.zookeeper_port
        if port:
            # A broker ends when ZooKeeper still has the session of its killed predecessor; in KRaft it waits by itself.
            wait_until(lambda: not broker_registered(port, broker), list(self._servers.values()), START_SECONDS)
        self._launch(self._node(broker))
        self.wait_ready()

    def alter_broker(self, broker: int, alteration: Alteration) -> None:
        """Let its next starts differ from those of the others; this replaces an earlier alteration."""
        self._altered[broker] = alteration

    def pause_broker(self, broker: int) -> None:
        """SIGSTOP: connections stay open without responses."""
        self._servers[broker].send(signal.SIGSTOP)
        self._servers[broker].wait_stopped()
        self._paused.add(broker)

    def resume_broker(self, broker: int) -> None:
        """SIGCONT."""
        self._servers[broker].send(signal.SIGCONT)
        self._paused.discard(broker)

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until all brokers that run (and are not paused) answer and know each other and a controller."""
        waiting = [node for node in self._layout.brokers if node.id in self._servers and node.id not in self._paused]
        ids = {node.id for node in waiting}

        def ready() -> bool:
            while waiting and ids <= set(self._known(waiting[0]) or ()):
                waiting.pop(0)
            return not waiting

        wait_until(ready, list(self._servers.values()), timeout)

    def wait_forgotten(self, broker: int, timeout: float = START_SECONDS) -> None:
        """Wait until no running (and not paused) broker has a killed one in its metadata."""
        running = [node for node in self._layout.brokers if node.id in self._servers and node.id not in self._paused]

        def forgotten() -> bool:
            known = [self._known(node) for node in running]
            return all(brokers is not None and broker not in brokers for brokers in known)

        wait_until(forgotten, list(self._servers.values()), timeout)

    def wait_deleted(self, topic: str, timeout: float = START_SECONDS) -> None:
        """Wait until a deleted topic is completely removed, which is after clients no longer see it.

        A controller with ZooKeeper removes a topic's settings last: if the topic is recreated before, it loses its own.
        """
        port = self._layout.zookeeper_port
        if not port:
            return

        def done() -> bool:
            shell = ["-server", f"127.0.0.1:{port}", "ls", "/admin/delete_topics"]
            answer = self.tool("org.apache.zookeeper.ZooKeeperMain", *shell)
            listed = [line for line in answer.stdout.splitlines() if line.startswith("[")]
            return bool(listed) and topic not in listed[-1].strip("[]").split(", ")

        wait_until(done, list(self._servers.values()), timeout)

    def check(self) -> None:
        """Raise StartFailed with the end of its log if a process has ended by itself."""
        check_running(list(self._servers.values()))

    def log(self, broker: int) -> Path:
        """The log file of a broker."""
        return self._log(self._node(broker))

    def pid(self, broker: int) -> int:
        return self._servers[broker].pid

    def mark(self) -> Mark:
        """The current position in the request logs of all brokers, for counting; needs request_log=True.

        A broker that is stopped or paused adds nothing, so its position is the end of its log.
        """
        if not self._request_log:
            raise SandboxError("this cluster was started without request_log=True")
        plain = self.security.protocol == "PLAINTEXT"
        return {
            node.id: settled_size(self._log(node), node.client_port if plain else node.internal_port)
            if node.id in self._servers and node.id not in self._paused
            else self._log(node).stat().st_size
            for node in self._layout.brokers
        }

    def count_requests(
        self, api: str, *, client_id: str | None = None, since: Mark | None = None, without: str | None = None
    ) -> dict[int, int]:
        """How many requests each broker answered since a mark (or its start); needs request_log=True.

        `api` is a name of Kafka's ApiKeys, such as LIST_GROUPS. Without `client_id`, those of all clients and brokers.
        without: a topic; requests that name it are not counted.
        """
        counts = {}
        for broker, end in self.mark().items():
            requests = requests_in(self.log(broker), (since or {}).get(broker, 0), end, without)
            counts[broker] = sum(request.api == api and client_id in (None, request.client_id) for request in requests)
        return counts

    def tool(
        self, main_class: str, *arguments: str, stdin: str = "", of_broker: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's own command-line classes, or a Java program that uses Kafka's; the output is text.

        of_broker: with the jars of these brokers; otherwise with those of `tool_jars`, of the same version where Maven
        has all of it.
        """
        libraries = self._jars if of_broker else tool_jars(self.version)
        program = JavaProgram(main_class, libraries, arguments, log_levels={"": "warn"})
        command = java_command(program, self._scratch / "tool.args")
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=600, check=False)

    def _start(self) -> None:
        self._layout = self._make_layout()
        self._settings: dict[int, dict[str, str]] = {}
        tls = {}
        if self.security.tls:
            self._authority = Authority(self._scratch / "tls", self._place)
            tls = self._authority.broker_properties(self.security.client_auth == "required")
        for node in self._layout.nodes:
            node.directory.mkdir()
            settings = self._layout.properties(node, self.security) | (tls if node.client_port else {})
            # One thread for each listener logs its requests in their order.
            settings |= ({"num.network.threads": "1"} if self._request_log else {}) | self._config
            self._settings[node.id] = settings
            properties_file(node.directory / "server.properties", settings)
        if self._layout.kraft:
            self._start_kraft()
        else:
            self._start_zookeeper()
            for node in self._layout.brokers:
                self._launch(node)
        self.wait_ready()

    def _start_kraft(self) -> None:
        controller = self._layout.controller or self._layout.brokers[0]
        # Brokers first: they load classes while the controller's directory is formatted.
        for node in self._layout.nodes:
            if node is not controller:
                format_broker(self._layout, node)
                self._launch(node)
        format_controller(self._jars, self._layout, controller, self.security)
        self._launch(controller)

    def _start_zookeeper(self) -> None:
        directory = self._scratch / "zookeeper"
        directory.mkdir()
        port = self._layout.zookeeper_port
        command = java_command(zookeeper_program(self._jars, directory, port), directory / "server.args")
        server = self._running.start("zookeeper", Command(command, directory / "server.log"))
        # Under the id that no broker has.
        self._servers[CONTROLLER_ID] = server
        if self.security.scram:
            wait_until(lambda: serves(port), [server], START_SECONDS)
            shell = JavaProgram(
                *("org.apache.zookeeper.ZooKeeperMain", self._jars, ["-server", f"127.0.0.1:{port}"]),
                log_levels={"": "warn"},
            )
            run(java_command(shell, directory / "shell.args"), scram_commands(self.security))

    def _make_layout(self) -> Layout:
        version = tuple(int(part) for part in self.version.split("."))
        scratch = self._scratch
        kraft = uses_kraft(version) and not self._zookeeper
        alone = len(self.broker_ids) == 1 and kraft
        ports = iter(self._ports.take((3 + 2 * self.security.doors) * len(self.broker_ids) + 1))
        brokers = tuple(
            Node(
                *(broker, scratch / f"broker-{broker}", next(ports), next(ports), next(ports) if alone else 0),
                doors=tuple(Door(next(ports), next(ports)) for _ in range(self.security.doors)),
            )
            for broker in self.broker_ids
        )
        if not kraft:
            return Layout(version, new_cluster_id(), brokers, zookeeper_port=next(ports))
        controller = None if alone else Node(CONTROLLER_ID, scratch / "controller", controller_port=next(ports))
        return Layout(version, new_cluster_id(), brokers, controller, address=self._place.address)

    def _known(self, node: Node) -> dict[int, int] | None:
        return known_brokers(node.internal_port, address=self._place.address)

    def _node(self, broker: int) -> Node:
        return next(node for node in self._layout.nodes if node.id == broker)

    def _launch(self, node: Node) -> None:
        levels = {"": "info"} | ({LOGGER: "debug"} if self._request_log else {})
        altered = self._altered.get(node.id, Alteration())
        libraries = jars(altered.version) if altered.version else self._jars
        config = properties_file(node.directory / "server.properties", self._settings[node.id] | dict(altered.config))
        program = JavaProgram("kafka.Kafka", libraries, [config], jvm=self._jvm, log_levels=levels)
        command = java_command(program, node.directory / "server.args")
        self._servers[node.id] = self._running.start(node.name, Command(command, self._log(node), altered.environment))

    def _end_broker(self, broker: int, grace: float) -> None:
        self._servers.pop(broker).stop(grace)
        self._paused.discard(broker)

    def _log(self, node: Node) -> Path:
        return node.directory / "server.log"

    def _record(self, into: Path) -> None:
        what = f"recording the classes of Kafka {self.version} for quicker starts (about 10 seconds, once)"
        print(f"{what} ...", file=sys.stderr, flush=True)
        with KafkaCluster(self.version, jvm=Jvm(record_to=into)) as cluster:
            cluster.stop_broker(1)


class ZooKeeperCluster(KafkaCluster):
    """Brokers with ZooKeeper, of a version below 4.0 that has KRaft, too."""

    _zookeeper = True


def _properties(file: Path) -> dict[str, str]:
    lines = (line.partition("=") for line in file.read_text().splitlines() if not line.startswith("#"))
    return {name: value.replace("\\", "") for name, _, value in lines}
