"""`python -m sandbox`: Kafka and a Kubernetes API server in the foreground, for a demo or to try things by hand."""

import argparse
import contextlib
import fcntl
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sandbox import actionlint, browser, flux, grafana, helm, lua, prometheus
from sandbox.alertmanager import server as alertmanager
from sandbox.errors import SandboxError
from sandbox.files import write_private
from sandbox.flux.crds import crds as flux_crds
from sandbox.kafka import KafkaCluster
from sandbox.kafka.jars import VERSIONS
from sandbox.kubernetes import ApiServer
from sandbox.kubernetes.binaries import control_plane
from sandbox.manifests import CRDS
from sandbox.prerequisites import JAVA, KUBECTL, OPENSSL, find
from sandbox.prometheus.crds import operator_crds
from sandbox.spark.jars import jars as spark_jars
from sandbox.wheels import wheels

_ROOT = Path(__file__).parents[1]
_EXAMPLES = """\
examples:
  python -m sandbox up                          Kafka 4.4.0 with one broker, and Kubernetes
  python -m sandbox up --brokers 3              ... with three brokers and a controller
  python -m sandbox up --kafka-version 2.8.2    ... with an old Kafka, on ZooKeeper
  python -m sandbox prepare                     download and build everything now

While it is up, in another terminal:
  source .sandbox/env
  kubectl get namespaces
  python -m sandbox litter                      groups to try policies on
"""


def main() -> int:
    """Run the command line; answers with the exit code."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    # A shell starts what it puts into the background with SIGINT ignored; whoever sends one all the same means it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for program in (JAVA, OPENSSL, KUBECTL):
            find(program)
        if options.command == "prepare":
            if options.browser:
                browser.prepare()
            _prepare()
        elif options.command == "litter":
            _litter(options.bootstrap_servers)
        else:
            _up(options.kafka_version, options.brokers)
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m sandbox", description=__doc__, epilog=_EXAMPLES, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser(
        "up",
        help="start one Kafka and one API server, until Ctrl-C",
        description="Start one Kafka cluster and one Kubernetes API server, until Ctrl-C or SIGTERM. "
        "Their addresses are in .sandbox/env meanwhile; their data is thrown away.",
        epilog=_EXAMPLES,
        formatter_class=raw,
    )
    up.add_argument("--kafka-version", choices=VERSIONS, default=VERSIONS[0], help="default: %(default)s")
    up.add_argument("--brokers", type=int, choices=range(1, 6), default=1, metavar="N", help="1 to 5, default: 1")
    litter = commands.add_parser(
        "litter",
        help="make the groups of the tutorial",
        description="Make ten consumer groups on the Kafka that is up: five that nobody uses, and five that only look "
        "like it.",
    )
    address = os.environ.get("BOOTSTRAP_SERVERS")
    litter.add_argument("--bootstrap-servers", default=address, required=address is None, help="default: %(default)s")
    prepare = commands.add_parser(
        "prepare",
        help="only download and build everything",
        description=f"Download Kafka {', '.join(VERSIONS)} and what Spark needs, and build the Kubernetes API server "
        "and Alertmanager, and what checks rules, dashboards, charts and workflows, into the cache, with the packages "
        "of an image.",
    )
    prepare.add_argument("--browser", action="store_true", help="also a Chromium, for the tests of the report")
    return parser


def _prepare() -> None:
    for version in VERSIONS:
        KafkaCluster(version).prepare()
    control_plane()
    alertmanager.program()
    prometheus.programs()
    operator_crds()
    grafana.checker()
    helm.program()
    lua.program()
    actionlint.program()
    flux.program()
    flux_crds()
    spark_jars()
    wheels("operator")


def _litter(bootstrap_servers: str) -> None:
    # Only here: what starts servers needs no client.
    from sandbox.leftovers import make_leftovers

    print(f"{make_leftovers(bootstrap_servers)} groups made")


def _up(version: str, brokers: int) -> None:
    kafka = KafkaCluster(version, brokers)
    kubernetes = ApiServer()
    with _only_one():
        kafka.prepare()
        control_plane()
        try:
            print("starting (about 6 seconds) ...", file=sys.stderr, flush=True)
            with ThreadPoolExecutor() as pool:
                for started in [pool.submit(kafka.start), pool.submit(kubernetes.start)]:
                    started.result()
            _install_crds(kubernetes)
            with _environment(kafka, kubernetes) as file:
                _explain(kafka, kubernetes, file)
                _wait(kafka, kubernetes)
        except KeyboardInterrupt:
            print("stopping ...", file=sys.stderr)
        finally:
            kafka.stop()
            kubernetes.stop()


def _wait(kafka: KafkaCluster, kubernetes: ApiServer) -> None:
    """Until a signal, or until a server ends by itself."""
    never = threading.Event()
    while not never.wait(1.0):
        kafka.check()
        kubernetes.check()


def _install_crds(kubernetes: ApiServer) -> None:
    kubernetes.kubectl("apply", "--server-side", "-f", str(CRDS))
    kubernetes.wait_established("-f", str(CRDS))


@contextlib.contextmanager
def _environment(kafka: KafkaCluster, kubernetes: ApiServer) -> Iterator[Path]:
    """.sandbox/env, to be sourced, while the servers run."""
    file = _ROOT / ".sandbox" / "env"
    variables = {"KUBECONFIG": str(kubernetes.kubeconfig), "BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    write_private(file, "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()))
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


def _explain(kafka: KafkaCluster, kubernetes: ApiServer, file: Path) -> None:
    brokers = f"{len(kafka.broker_ids)} broker" + ("s" if len(kafka.broker_ids) > 1 else "")
    print(
        f"Kafka {kafka.version} ({brokers}) at {kafka.bootstrap_servers}\n"
        f"Kubernetes at {kubernetes.url}\n\n"
        f"In another terminal:\n  source {file.relative_to(_ROOT)}\n  kubectl get namespaces\n\n"
        "Ctrl-C stops both and removes their data.",
        flush=True,
    )


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
