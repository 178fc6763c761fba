"""What is said where connecting fails, and that it takes no longer than it may: sockets that are no broker of Kafka."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from group_hygiene.errors import AuthenticationFailed, TLSFailed, Unreachable
from group_hygiene.kafka.client import connect, probe
from group_hygiene.spec.client_settings import Mechanism, OAuth, Sasl, Settings, Tls
from group_hygiene.spec.fields import Hidden
from testing.sandbox.kafka import KafkaCluster

# kafka-python forgets to close the socket of a handshake that was given up; it ends with the object.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning"),
    pytest.mark.usefixtures("forgotten_sockets"),
]

# What a token endpoint has at most, whatever the timeout.
OF_ITS_OWN = 10
PLAIN = Sasl(Mechanism.PLAIN, "user", Hidden("secret"))
SCRAM = Sasl(Mechanism.SCRAM_SHA_512, "user", Hidden("secret"))
NO_ANSWER, NOTHING = "accepts connections but gives no answer within 1 s", "no answer within 1 s"


@contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """host:port of a listener that does this with each connection, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def silent() -> Iterator[str]:
    """A listener that accepts and never answers, as a frozen broker does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def rude() -> Iterator[str]:
    """A listener that ends the connection once it was asked something, as one for TLS does."""
    with listening(lambda connection: connection.recv(100)) as address:
        yield address


@pytest.mark.parametrize(
    ("tls", "sasl"),
    [
        pytest.param(None, None, id="plain-text"),
        pytest.param(None, PLAIN, id="sasl"),
        pytest.param(Tls(), None, id="tls"),
    ],
)
def test_a_listener_that_never_answers(silent: str, tls: Tls | None, sasl: Sasl | None) -> None:
    """It is told from one that speaks something else, and whoever has SASL is not asked whether it is needed."""
    with pytest.raises(Unreachable) as caught:
        connect(Settings((silent,), tls, sasl, timedelta(seconds=1)))
    # Nor is it said, when this machine is so busy that it took too long to find out that connections are accepted.
    assert str(caught.value) in {f"no bootstrap server answers ({silent}: {said})" for said in (NO_ANSWER, NOTHING)}


@pytest.mark.parametrize(
    ("sasl", "hint"), [pytest.param(False, "TLS or SASL", id="without-sasl"), pytest.param(True, "TLS", id="sasl")]
)
def test_a_listener_that_speaks_something_else(rude: str, sasl: bool, hint: str) -> None:
    """What it may want is what it was not given."""
    said = f"accepts connections but does not speak Kafka in plain text (does it want {hint}?)"
    assert probe([rude], None, sasl, 3.0) == {rude: said}


def test_a_broker_that_speaks_kafka_is_not_said_not_to(kafka: KafkaCluster) -> None:
    """A broker that answers but lets nobody in has another reason."""
    found = probe([kafka.bootstrap_servers], None, False, 3.0)
    assert found == {kafka.bootstrap_servers: "speaks Kafka but refuses connections without SASL, it seems"}


def test_servers_are_looked_at_side_by_side() -> None:
    """All are asked before one must have answered: these listeners speak once each of them was asked."""
    everybody = threading.Barrier(3)

    def answer(connection: socket.socket) -> None:
        everybody.wait(60)
        connection.recv(100)

    with listening(answer) as one, listening(answer) as two, listening(answer) as three:
        found = probe([one, two, three], None, True, 3.0)
    assert set(found) == {one, two, three}
    assert all("does not speak Kafka in plain text" in str(said) for said in found.values())


def test_a_slow_token_endpoint_keeps_the_timeout(silent: str) -> None:
    """It has no time of its own."""
    oauth = OAuth(f"http://{silent}/token", "id", Hidden("secret"))
    before = time.monotonic()
    with pytest.raises(AuthenticationFailed, match="does not answer"):
        connect(Settings((silent,), None, Sasl(Mechanism.OAUTHBEARER, oauth=oauth), timedelta(seconds=1)))
    assert time.monotonic() - before < OF_ITS_OWN


@pytest.mark.parametrize(
    ("tls", "sasl", "says"),
    [
        pytest.param(Tls(), None, "speaks Kafka without TLS: name the port of a listener with TLS", id="tls"),
        pytest.param(Tls(), SCRAM, "speaks Kafka without TLS: name the port of a listener with TLS", id="tls-and-sasl"),
        pytest.param(None, SCRAM, "the listener has no SASL: name the port of a listener with SASL", id="scram"),
        pytest.param(None, PLAIN, "the listener has no SASL: name the port of a listener with SASL", id="plain"),
    ],
)
def test_a_listener_without_what_the_client_uses(
    kafka: KafkaCluster, tls: Tls | None, sasl: Sasl | None, says: str
) -> None:
    """The cause and what to do, for a real broker whose listener is plain text. No password was sent."""
    with pytest.raises((TLSFailed, AuthenticationFailed), match=says):
        connect(Settings((kafka.bootstrap_servers,), tls, sasl, timedelta(seconds=30)))
