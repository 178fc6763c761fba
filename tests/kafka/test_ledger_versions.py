"""The ledger on brokers of several generations: read and written, made anew, without a permission, and unanswered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from group_hygiene.engine.executor import open_ledger
from group_hygiene.errors import LedgerFenced
from group_hygiene.kafka.client import Client, connect
from group_hygiene.ledger.contents import Contents
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, Mark, Removal
from group_hygiene.spec.client_settings import Mechanism, Sasl, Settings
from group_hygiene.spec.fields import Hidden
from testing.sandbox.kafka import KafkaCluster, Security
from tests.kafka.books import (
    EVERYTHING,
    LosingClient,
    backup,
    claimed,
    everything,
    fresh,
    mark,
    opened,
    refused,
    seen,
    settings,
)
from tests.kafka.makers import Maker, soon
from tests.kafka.permissions import (
    CREATE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    WRITERS,
    Acl,
    grant,
    ledger_least,
    without,
)

# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("2.8.2", "3.9.1", "4.2.0", "4.3.0", "4.4.0")),
        "2.5.1",
    ],
)
def generation(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """One broker of each in turn, with permissions for who logs in."""
    security = Security(sasl="PLAIN", users=dict.fromkeys(USERS, PASSWORD), authorizer=True)
    with KafkaCluster(request.param, security=security) as running:
        maker = Maker(running.plaintext_bootstrap)
        grant(maker, USERS)
        maker.close()
        yield running


def ledger_of(user: str) -> str:
    """A ledger topic for each user, so that none must be deleted for the next."""
    return f"ledger-of-{user}"


def lacking(user: str, *denied: tuple[object, list[object]]) -> tuple[Acl, ...]:
    """All that its ledger needs, but these operations on this kind of resource."""
    names: dict[object, str] = {TOPIC: ledger_of(user), TRANSACTIONAL_ID: WRITERS}
    return without(ledger_least(ledger_of(user)), *((kind, names[kind], operations) for kind, operations in denied))


PASSWORD = "of-everybody"
USERS: Mapping[str, tuple[Acl, ...]] = {
    "least": ledger_least(ledger_of("least")),
    "no-create": lacking("no-create", (TOPIC, [CREATE])),
    # READ, WRITE, CREATE and ALTER on a topic imply DESCRIBE.
    "no-describe": lacking("no-describe", (TOPIC, [CREATE, DESCRIBE, READ, WRITE])),
    "no-describe-configs": lacking("no-describe-configs", (TOPIC, [DESCRIBE_CONFIGS])),
    "no-read": lacking("no-read", (TOPIC, [READ])),
    "no-write": lacking("no-write", (TOPIC, [WRITE])),
    "no-transactional-id": lacking("no-transactional-id", (TRANSACTIONAL_ID, [DESCRIBE, WRITE])),
    "reader": tuple((TOPIC, ledger_of("reader"), operation) for operation in (DESCRIBE, DESCRIBE_CONFIGS, READ)),
}


def as_user(kafka: KafkaCluster, user: str) -> Client:
    return connect(Settings((kafka.bootstrap_servers,), sasl=Sasl(Mechanism.PLAIN, user, Hidden(PASSWORD))))


def test_what_is_written_is_read_with_the_least_permissions(generation: KafkaCluster) -> None:
    """By the writer, by who opens it later, and in a full pass; removals too; the broker's clock is told."""
    client, topic = as_user(generation, "least"), ledger_of("least")
    try:
        assert open_ledger(client, settings(topic), soon(), create=False) is None
        ledger = opened(client, settings(topic))
        assert ledger.id is None
        ledger.claim()
        before = datetime.now(UTC)
        written = ledger.write(EVERYTHING)
        assert written is not None
        assert abs(written - before) < timedelta(minutes=1)
        assert ledger.write([Removal(mark("g-1").key)]) is not None
        reader = opened(client, settings(topic, known=ledger.id))
        assert reader.contents == ledger.contents
        assert reader.contents.seen == {"uid-1": {"g-1": seen("g-1"), "g-2": seen("g-2")}}
        assert reader.contents.marks == {"uid-1": {}}
        assert set(reader.contents.intents) == {"g-1"}
        assert set(reader.contents.deletions) == {"g-4"}
        expected = {each for each in EVERYTHING if not isinstance(each, Backup | Mark)}
        assert everything(reader) == expected
        assert [each for each in reader.entries(lambda key: key[0] == "backup", soon())] == [backup("g-1")]
        ledger.write([mark("g-5")])
        reader.read_on(soon())
        assert reader.contents == ledger.contents
        successor = claimed(client, topic)
        with pytest.raises(LedgerFenced):
            ledger.write([mark("g-6")])
        successor.read_on(soon())
        assert set(successor.contents.marks["uid-1"]) == {"g-5"}
    finally:
        client.close()


def test_a_recreated_topic_is_another_ledger(generation: KafkaCluster) -> None:
    """By its id, or, below 2.8, as it ends before our position; a topic that is gone as well."""
    maker, topic = Maker(generation.plaintext_bootstrap), "made-anew"
    client = connect(Settings((generation.plaintext_bootstrap,)))
    try:
        ledger = claimed(client, topic)
        ledger.write([mark("g-1")])
        maker.delete_topic(topic)
        generation.wait_deleted(topic)
        assert topic in refused(lambda: ledger.read_on(soon()), reasons.LEDGER_RESET)
        opened(client, settings(topic, known=None))
        refused(lambda: ledger.read_on(soon()), reasons.LEDGER_RESET)
        assert ledger.contents == Contents()
        refused(lambda: opened(client, settings(topic, known=ledger.id or "former")), reasons.LEDGER_RESET)
    finally:
        client.close()
        maker.close()


@pytest.mark.parametrize(
    ("user", "needs"),
    [
        ("no-create", "needs CREATE on the topic "),
        ("no-describe", "needs DESCRIBE on the topic "),
        ("no-describe-configs", "needs DESCRIBE_CONFIGS on the topic "),
        ("no-read", "needs READ on the topic "),
        ("no-write", "needs WRITE on the topic "),
        ("no-transactional-id", f"needs WRITE and DESCRIBE on the transactional id {WRITERS}"),
        ("reader", "needs CREATE on the topic "),
    ],
)
def test_a_missing_permission_is_named(generation: KafkaCluster, user: str, needs: str) -> None:
    """With its resource; without a secret."""
    client = as_user(generation, user)
    try:
        message = refused(lambda: claimed(client, ledger_of(user)))
        assert needs + ledger_of(user) in message
        assert PASSWORD not in message
    finally:
        client.close()


@pytest.mark.parametrize(
    ("loses", "there"), [pytest.param("requests", False, id="request"), pytest.param("answers", True, id="answer")]
)
def test_a_commit_without_an_answer_is_looked_up(generation: KafkaCluster, loses: str, there: bool) -> None:
    """Whether it is written is not known; the next call finds out, before anything else is written."""
    client, topic = connect(Settings((generation.plaintext_bootstrap,))), f"loses-{loses}"
    losing = LosingClient(client)
    try:
        ledger = claimed(losing, topic)  # type: ignore[arg-type]
        losing.loses = loses
        assert "NETWORK_EXCEPTION" in refused(lambda: ledger.write([mark("g-1")]))
        assert ledger.contents.marks == {}
        losing.loses = ""
        ledger.write([mark("g-2")])
        assert set(ledger.contents.marks["uid-1"]) == ({"g-1", "g-2"} if there else {"g-2"})
        assert fresh(client, topic) == ledger.contents
    finally:
        client.close()
