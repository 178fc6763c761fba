"""The command line in this process, and a real broker with a group of every kind that the tests here share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from group_hygiene.cli import main
from group_hygiene.engine.executor import open_ledger
from group_hygiene.kafka.client import Client, connect
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model.groups import CommittedOffset, Partition
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, at, soon


class Answer(NamedTuple):
    """What one call of the program left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer's shell says must not reach the tests."""
    for name in ("GROUP_HYGIENE_BOOTSTRAP_SERVER", "GROUP_HYGIENE_COMMAND_CONFIG", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run() -> Run:
    """`group-hygiene` with these arguments."""

    def call(*arguments: object, stdin: str | bytes | None = None) -> Answer:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def process() -> Run:
    """`group-hygiene` with these arguments, as users run it: in a process of its own, with this environment."""

    def call(*arguments: object, stdin: str | None = None) -> Answer:
        command = [sys.executable, "-m", "group_hygiene.cli", *(str(argument) for argument in arguments)]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, check=False)
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="package")
def kafka() -> Iterator[KafkaCluster]:
    """One broker of the newest version, open to everybody, that counts requests."""
    with KafkaCluster(request_log=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(kafka: KafkaCluster) -> Iterator[Client]:
    """The product's client, for what an operator does."""
    made = connect(Settings((kafka.bootstrap_servers,)))
    yield made
    made.close()


@pytest.fixture
def make(kafka: KafkaCluster) -> Iterator[Maker]:
    maker = Maker(kafka.bootstrap_servers)
    yield maker
    maker.close()


@pytest.fixture
def ledger(client: Client, make: Maker) -> Ledger:
    """An operator's ledger, in a topic of its own."""
    topic = make.name("ledger")
    settings = LedgerSettings(installation="theirs", writer=f"operator-{topic}", topic=topic)
    made = open_ledger(client, settings, soon(), create=True)
    assert made is not None
    made.claim()
    return made


@pytest.fixture
def on_ledger(run: Run, kafka: KafkaCluster, ledger: Ledger) -> Run:
    """`group-hygiene` with these arguments, on the broker and with that ledger."""
    topic = ledger._settings.topic

    def call(command: str, *arguments: object, stdin: str | None = None) -> Answer:
        where = ("--bootstrap-server", kafka.bootstrap_servers, "--ledger-topic", topic)
        return run(command, *where, *arguments, stdin=stdin)

    return call


@pytest.fixture(scope="package")
def groups(kafka: KafkaCluster) -> Iterator[Maker]:
    """A topic `orders` of two partitions (5 records in the first), and groups that are named after what they are."""
    make = Maker(kafka.bootstrap_servers)
    make.tag = ""  # the names here are its own
    make.topic("orders", partitions=2, records=5)
    make.join("live-classic", "orders", commit=at("orders", 3))
    make.join("live-848", "orders", "consumer", at("orders", 2))
    make.abandoned("left-classic", "orders")
    make.abandoned("left-848", "orders", "consumer")
    make.abandoned("caught-up", "orders", commit=at("orders", 5))
    make.simple("assign-only", {Partition("orders", 0): CommittedOffset(4), Partition("orders", 1): CommittedOffset(0)})
    yield make
    make.close()


@pytest.fixture
def on(run: Run, kafka: KafkaCluster, groups: Maker) -> Run:
    """`group-hygiene` with these arguments, on the broker with the groups."""

    def call(command: str, *arguments: object, stdin: str | None = None) -> Answer:
        return run(command, "--bootstrap-server", kafka.bootstrap_servers, *arguments, stdin=stdin)

    return call
