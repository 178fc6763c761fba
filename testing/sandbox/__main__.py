"""`python -m testing.sandbox`: runs Kafka and a Kubernetes API server in the foreground, for demos and manual tests."""

import argparse
import contextlib
import fcntl
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testing.sandbox import actionlint, argocd, browser, flux, grafana, helm, lua, prometheus
from testing.sandbox.alertmanager import server as alertmanager
from testing.sandbox.crds import ARGOCD, FLUX, PROMETHEUS, strimzi
from testing.sandbox.errors import SandboxError
from testing.sandbox.files import write_private
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.cluster import PATIENT
from testing.sandbox.kafka.jars import VERSIONS, tool_jars
from testing.sandbox.kafka.programs import Programs
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.kubernetes.binaries import control_plane
from testing.sandbox.manifests import CRDS, install_user_roles
from testing.sandbox.node import Node
from testing.sandbox.node.kafka import NAMESPACE, PORT, SERVICE, USER, NodeKafka
from testing.sandbox.place import direct
from testing.sandbox.prerequisites import JAVA, KUBECTL, OPENSSL, find
from testing.sandbox.s3 import server as s3
from testing.sandbox.spark.jars import jars as spark_jars
from testing.sandbox.spark.jars import jars_of_the_image
from testing.sandbox.wheels import wheels

_ROOT = Path(__file__).parents[2]
_EXAMPLES = """\
examples:
  python -m testing.sandbox up                          Kafka 4.4.0 with one broker, and Kubernetes
  python -m testing.sandbox up --brokers 3              ... with three brokers and a controller
  python -m testing.sandbox up --kafka-version 2.8.2    ... with an old Kafka, on ZooKeeper
  python -m testing.sandbox up --node                   ... with a Kubernetes that runs pods (Linux, as root)
  python -m testing.sandbox prepare                     download and build Kafka and Kubernetes now

While it is up, in another terminal:
  source .venv/bin/activate && source .sandbox/env
  kubectl get namespaces
  python -m testing.sandbox groups                      create unused groups, to try policies on
"""


def main() -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    # A shell starts background processes with SIGINT ignored; a SIGINT that is sent explicitly must work.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for program in (JAVA, OPENSSL, KUBECTL):
            find(program)
        if options.command == "prepare":
            if options.browser:
                browser.prepare()
            _prepare_basics()
            if options.extra:
                _prepare_extra()
            if options.node:
                Node().prepare()
        elif options.command == "groups":
            _groups(options.bootstrap_servers)
        else:
            _up(options)
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m testing.sandbox", description=__doc__, epilog=_EXAMPLES, formatter_class=raw
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser(
        "up",
        help="start one Kafka and one API server, until Ctrl-C",
        description="Start one Kafka cluster and one Kubernetes API server, until Ctrl-C or SIGTERM. "
        "Their addresses are in .sandbox/env while they run; their data is deleted at the end.",
        epilog=_EXAMPLES,
        formatter_class=raw,
    )
    up.add_argument("--kafka-version", choices=VERSIONS, default=VERSIONS[0], help="default: %(default)s")
    up.add_argument("--brokers", type=int, choices=range(1, 6), default=1, metavar="N", help="1 to 5, default: 1")
    up.add_argument(
        "--node",
        action="store_true",
        help="run a Kubernetes with one node, whose pods use the Kafka with TLS and SCRAM; needs Linux, root, and "
        "Debian's packages podman, runc, containernetworking-plugins, nftables and conntrack",
    )
    up.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="NAME",
        help="with --node: copy this image from podman's store to the node; repeatable",
    )
    groups = commands.add_parser(
        "groups",
        help="create the groups of the tutorial",
        description="Create ten consumer groups on the running Kafka: five are unused, and five only seem unused.",
    )
    address = os.environ.get("BOOTSTRAP_SERVERS")
    groups.add_argument("--bootstrap-servers", default=address, required=address is None, help="default: %(default)s")
    prepare = commands.add_parser(
        "prepare",
        help="only download and build what most tests need",
        description=f"Download Kafka {VERSIONS[0]}, and build the Kubernetes API server, into the cache.",
    )
    prepare.add_argument(
        "--extra",
        action="store_true",
        help=f"also Kafka {', '.join(VERSIONS[1:])}, programs that use Kafka, the jars of Spark, an S3 store, "
        "Alertmanager, the checkers of rules, dashboards, charts and workflows, and the packages of an image",
    )
    prepare.add_argument("--node", action="store_true", help="also prepare the programs of a Kubernetes node")
    prepare.add_argument("--browser", action="store_true", help="also prepare a Chromium, for the tests of the report")
    return parser


def _prepare_basics() -> None:
    KafkaCluster().prepare()
    tool_jars(VERSIONS[0])
    control_plane()


def _prepare_extra() -> None:
    for version in VERSIONS[1:]:
        KafkaCluster(version).prepare()
    alertmanager.program()
    prometheus.programs()
    grafana.checker()
    helm.program()
    lua.program()
    actionlint.program()
    flux.program()
    argocd.program()
    for module in (PROMETHEUS, ARGOCD, *FLUX):
        module.crds()
    strimzi()
    spark_jars()
    jars_of_the_image()
    s3.program()
    Programs("", (), ("orders",)).prepare()
    wheels("operator")


def _groups(bootstrap_servers: str) -> None:
    # Imported only here: starting servers needs no client.
    from testing.sandbox.leftovers import make_leftovers

    print(f"{make_leftovers(bootstrap_servers)} groups made")


def _up(options: argparse.Namespace) -> None:
    version, brokers = options.kafka_version, options.brokers
    with _only_one():
        if options.node:
            node = Node()
            _run_both(NodeKafka(node, version, brokers), node, lambda kafka: _start_node(kafka, node, options.image))
        else:
            kubernetes = ApiServer()
            cluster = KafkaCluster(version, brokers, config=PATIENT)
            _run_both(cluster, kubernetes, lambda kafka: _start(kafka, kubernetes))


def _run_both(kafka: KafkaCluster, kubernetes: ApiServer | Node, start: Callable[[KafkaCluster], None]) -> None:
    # Reports missing prerequisites of a node before any download.
    kubernetes.prepare()
    kafka.prepare()
    try:
        start(kafka)
        with _environment(kafka, kubernetes) as file:
            _explain(kafka, kubernetes, file)
            _wait(kafka, kubernetes)
    except KeyboardInterrupt:
        print("stopping ...", file=sys.stderr)
    finally:
        kafka.stop()
        kubernetes.stop()


def _start(kafka: KafkaCluster, kubernetes: ApiServer) -> None:
    print("starting (about 6 seconds) ...", file=sys.stderr, flush=True)
    with ThreadPoolExecutor() as pool:
        for started in [pool.submit(kafka.start), pool.submit(kubernetes.start)]:
            started.result()
    _install_crds(kubernetes)
    install_user_roles(kubernetes)


def _start_node(kafka: KafkaCluster, node: Node, images: Sequence[str]) -> None:
    print("starting (about 30 seconds) ...", file=sys.stderr, flush=True)
    node.start()
    kafka.start()
    _install_crds(node.api)
    install_user_roles(node.api)
    for image in images:
        node.load_image(image)


def _wait(kafka: KafkaCluster, kubernetes: ApiServer | Node) -> None:
    """Wait for a signal, or until a server ends by itself."""
    never = threading.Event()
    while not never.wait(1.0):
        kafka.check()
        kubernetes.check()


def _install_crds(kubernetes: ApiServer) -> None:
    kubernetes.kubectl("apply", "--server-side", "-f", str(CRDS))
    kubernetes.wait_established("-f", str(CRDS))


@contextlib.contextmanager
def _environment(kafka: KafkaCluster, kubernetes: ApiServer | Node) -> Iterator[Path]:
    """The file .sandbox/env, for `source`, while the servers run."""
    file = _ROOT / ".sandbox" / "env"
    variables = {"KUBECONFIG": str(kubernetes.kubeconfig), "BOOTSTRAP_SERVERS": kafka.plaintext_bootstrap}
    if isinstance(kubernetes, Node):
        variables |= direct(kubernetes.address)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    # For `group-hygiene`, without activating the environment.
    lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"\n')
    write_private(file, "".join(lines))
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    directory = _ROOT / ".sandbox"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SandboxError("a sandbox of this folder is up already; its addresses are in .sandbox/env") from None
        yield


def _explain(kafka: KafkaCluster, kubernetes: ApiServer | Node, file: Path) -> None:
    brokers = f"{len(kafka.broker_ids)} broker" + ("s" if len(kafka.broker_ids) > 1 else "")
    node = isinstance(kubernetes, Node)
    url = kubernetes.api.url if isinstance(kubernetes, Node) else kubernetes.url
    inside = f"; from pods {SERVICE}.{NAMESPACE}:{PORT} with TLS, user {USER}" if node else ""
    print(
        f"Kafka {kafka.version} ({brokers}) at {kafka.plaintext_bootstrap}{inside}\n"
        f"Kubernetes at {url}\n\n"
        f"In another terminal:\n  source {file.relative_to(_ROOT)}\n  kubectl get namespaces\n\n"
        "Ctrl-C stops both and removes their data.",
        flush=True,
    )


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
