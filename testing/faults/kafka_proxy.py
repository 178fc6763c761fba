"""A proxy before the brokers that recognizes requests, and can inject a fault at any of them.

All other bytes pass unchanged. Clients reach it through the advertised ports of a cluster's door.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from confluent_kafka import KafkaException

from testing.faults.errors import FaultsError
from testing.faults.owners import Senders
from testing.faults.requests import Exchange, Steps, parse
from testing.faults.tls_connection import TlsConnection
from testing.sandbox.errors import NotReached, SandboxError
from testing.sandbox.kafka.layout import Door


class When(Enum):
    """A moment in the life of a request."""

    BEFORE = "before the broker has it"
    BETWEEN = "after the broker did it, before the client knows"
    AFTER = "after the client got the answer"


class Then(Enum):
    """How to treat the request or response."""

    PASS = "it goes on"
    DROP = "the connection ends"
    SWALLOW = "it is lost, and the connection stands"


@dataclass
class Rule:
    """An action at one matching request. do: called once in the proxy's thread; may take long.

    fired, done: set when `do` begins and ends. failure: its exception.
    """

    matches: Callable[[Exchange], bool]
    when: When
    do: Callable[[Exchange], Then | None]
    skip: int = 0
    fired: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    failure: str = ""

    def wait(self, what: str, seconds: float = 60.0) -> None:
        """Wait until it is done. Raises NotReached if it was not done in time, or failed."""
        if not self.done.wait(seconds) or self.failure:
            raise NotReached(f"{what}: {self.failure or 'it never happened'}")


class _Dropped(Exception):
    pass


def _on_loopback(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), backlog=128)


@dataclass(frozen=True)
class Front:
    """The address of a proxy. address: IPv4, also of the brokers. listen: makes the listening socket of a port there.

    tls: of the clients' connections, which the proxy terminates; None = no TLS.
    """

    address: str = "127.0.0.1"
    listen: Callable[[int], socket.socket] = _on_loopback
    tls: ssl.SSLContext | None = None


_Connection = socket.socket | TlsConnection


class KafkaProxy:
    """One proxy for all brokers of a cluster. `log`: all requests so far, in the order in which brokers got them."""

    def __init__(self, door: Mapping[int, Door], senders: Senders, front: Front | None = None) -> None:
        self.log: list[Exchange] = []
        self._senders, self._front = senders, front or Front()
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._steps: dict[str, Steps] = {}
        self._cut: set[str] = set()
        self._changed = threading.Condition(self._lock)
        self._sockets: set[_Connection] = set()
        self._closed = False
        self._doors = dict(door)
        self._listeners = [self._listen(broker, ports) for broker, ports in self._doors.items()]

    @property
    def bootstrap_servers(self) -> str:
        """host:port,... for clients of the proxy."""
        return ",".join(f"{self._front.address}:{ports.advertised}" for ports in self._doors.values())

    def rule(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._rules.clear()

    def cut(self, sender: str) -> None:
        """Stop all traffic of a process in both directions, as in a network failure."""
        with self._lock:
            self._cut.add(sender)

    def mend(self, sender: str) -> None:
        """Let its traffic pass again, including what was sent meanwhile, as TCP retransmits it."""
        with self._changed:
            self._cut.discard(sender)
            self._changed.notify_all()

    def seen(self, api: int) -> list[Exchange]:
        """The requests of one API key that brokers got so far."""
        with self._lock:
            return [exchange for exchange in self.log if exchange.api == api]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            sockets = [*self._listeners, *self._sockets]
        for each in sockets:
            _end(each)

    def _listen(self, broker: int, ports: Door) -> socket.socket:
        listener = self._front.listen(ports.advertised)
        threading.Thread(target=self._accept, args=(listener, broker, ports.port), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket, broker: int, port: int) -> None:
        while True:
            try:
                client, peer = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, peer, broker, port), daemon=True).start()

    def _serve(self, accepted: socket.socket, peer: tuple[str, int], broker: int, port: int) -> None:
        sender = self._senders.of(peer, self._doors[broker].advertised)
        try:
            self._pass(sender)
            server = socket.create_connection((self._front.address, port), timeout=5)
            server.settimeout(None)
        except (OSError, _Dropped):
            _end(accepted)
            return
        for each in (accepted, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            client = accepted if self._front.tls is None else TlsConnection(accepted, self._front.tls)
        except OSError:
            for each in (accepted, server):
                _end(each)
            return
        with self._lock:
            self._sockets |= {client, server}
        waiting: dict[int, Exchange] = {}
        back = threading.Thread(target=self._answers, args=(server, client, waiting), daemon=True)
        back.start()
        try:
            while (frame := _read(client)) is not None:
                self._request(parse(frame, sender, broker), server, waiting)
        except (OSError, _Dropped):
            pass
        finally:
            _end(client)
            _end(server)
            back.join()
            with self._lock:
                self._sockets -= {client, server}

    def _request(self, exchange: Exchange, server: socket.socket, waiting: dict[int, Exchange]) -> None:
        exchange.sent = time.time()
        with self._lock:
            exchange.step = self._steps.setdefault(exchange.sender, Steps()).name(exchange) if exchange.sender else ""
        self._pass(exchange.sender)
        if self._stop(exchange, When.BEFORE) is Then.SWALLOW:
            return
        waiting[exchange.correlation] = exchange
        with self._lock:
            exchange.forwarded = time.time()
            self.log.append(exchange)
        server.sendall(struct.pack(">i", len(exchange.body)) + exchange.body)

    def _answers(self, server: socket.socket, client: _Connection, waiting: dict[int, Exchange]) -> None:
        try:
            while (frame := _read(server)) is not None:
                exchange = waiting.pop(struct.unpack_from(">i", frame)[0])
                exchange.answer = frame
                self._pass(exchange.sender)
                if self._stop(exchange, When.BETWEEN) is Then.SWALLOW:
                    continue
                reply = exchange.instead or frame
                client.sendall(struct.pack(">i", len(reply)) + reply)
                self._stop(exchange, When.AFTER)
        except (OSError, _Dropped):
            pass
        finally:
            _end(client)
            _end(server)

    def _pass(self, sender: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or sender not in self._cut)
            if self._closed:
                raise _Dropped

    def _stop(self, exchange: Exchange, when: When) -> Then:
        with self._lock:
            found = next((rule for rule in self._rules if rule.when is when and rule.matches(exchange)), None)
            if found is not None and found.skip > 0:
                found.skip -= 1
                found = None
            if found is not None:
                self._rules.remove(found)
        if found is None:
            return Then.PASS
        found.fired.set()
        try:
            then = found.do(exchange) or Then.PASS
        except (FaultsError, SandboxError, KafkaException) as error:
            found.failure, then = str(error), Then.PASS
        finally:
            found.done.set()
        if then is Then.DROP:
            raise _Dropped
        return then


def _read(connection: _Connection) -> bytes | None:
    """One frame without its size; None = the connection ended."""
    size = _exactly(connection, 4)
    return None if size is None else _exactly(connection, struct.unpack(">i", size)[0])


def _exactly(connection: _Connection, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _end(connection: _Connection) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
