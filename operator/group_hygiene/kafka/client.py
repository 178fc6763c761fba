"""Connects to brokers, sends requests concurrently, and turns every failure into a Fault.

Requests go to a broker by id, so that one broker's or chunk's failure does not affect others: the library's high-level
calls raise at the first error and lose all other answers. Only this module uses the library's connection manager, with
the limits that `library` adds to it.
"""

from __future__ import annotations

import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import kafka.errors as kafka_errors
from kafka.net.selector import NetworkSelector

from group_hygiene.errors import (
    AuthenticationFailed,
    ConnectError,
    HygieneError,
    MemoryExhausted,
    TLSFailed,
    Unreachable,
)
from group_hygiene.kafka.bounds import NO_ROOM, TOO_MUCH
from group_hygiene.kafka.library import HostRefused, Manager, NoRoom, RawAnswer, WeakScram
from group_hygiene.kafka.login import library_config, token_hosts
from group_hygiene.model.groups import Fault
from group_hygiene.process.clock import elapsed
from group_hygiene.process.egress import Egress
from group_hygiene.process.memory import Intake, TooMuch
from group_hygiene.spec.client_settings import Settings

Request = Any
Response = Any
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
T = TypeVar("T")

CLIENT_ID = "group-hygiene"
_IN_FLIGHT_PER_BROKER = 4
_ENDED_IN_SASL = "it ended the connection (wrong username, password or mechanism?)"
_NO_SASL = (
    "the listener has no SASL: name the port of a listener with SASL, or connect without a login (no spec.sasl, or "
    "security.protocol PLAINTEXT or SSL)"
)
_BACKOFF_START, _BACKOFF_CAP = 0.1, 2.0
_POLL_S = 0.01
_TIMED_OUT = Fault("REQUEST_TIMED_OUT", "no answer in time", retriable=True)
NO_ANSWER = Fault("NO_ANSWER", "the broker's answer leaves it out")
# The code for a single answer, which a smaller request may avoid.
_TOO_LARGE = "ANSWER_TOO_LARGE"


class Call(NamedTuple):
    """One request for one broker; broker None = any."""

    broker: int | None
    request: Request


class Deadline:
    """A point in elapsed time that limits a whole scan."""

    def __init__(self, seconds: float) -> None:
        self._at = elapsed() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._at - elapsed())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs in this context has a time limit of its own, and takes nothing of the scan's time."""
        began = elapsed()
        try:
            yield
        finally:
            self._at += elapsed() - began


class Client:
    """A connection to one Kafka cluster, for one thread at a time. `connect` creates it, `close` ends it."""

    def __init__(self, manager: Manager, net: NetworkSelector, settings: Settings) -> None:
        self._manager = manager
        self._net = net
        self._next_at = 0.0
        self._in_burst = False
        self.settings = settings
        self.intake = manager.intake

    def supports(self, request_class: Any, version: int = 0) -> bool:
        """Whether the cluster's brokers know this version of a request, by ApiVersions and not by their release."""
        try:
            return bool(self._manager.broker_version_data.api_version(request_class) >= version)
        except kafka_errors.IncompatibleBrokerVersion:
            return False

    def send(self, call: Call, deadline: Deadline) -> Response | Fault:
        """One request, one answer."""
        return self.send_each({None: call}, deadline)[None]

    def send_each(
        self,
        calls: Mapping[K, Call],
        deadline: Deadline,
        reduce: Callable[[K, Response], R] | None = None,
    ) -> dict[K, R | Fault]:
        """Send all requests concurrently, a few at a time per broker; returns for each key its answer or Fault.

        `reduce` converts each answer when it arrives, so that raw answers don't accumulate. It may raise TooMuch. The
        Fault is ANSWER_TOO_LARGE if one answer exceeds `bounds`, ANSWERS_TOO_LARGE if all together do.
        """
        results: dict[K, R | Fault] = {}
        queues: dict[int | None, list[tuple[K, Call]]] = {}
        for key, call in calls.items():
            queues.setdefault(call.broker, []).append((key, call))

        async def worker(queue: list[tuple[K, Call]]) -> None:
            while queue:
                key, call = queue.pop()
                if not await self._keep_pace(deadline) or self._manager.refused is not None:
                    results[key] = self._manager.refused or _named(_TIMED_OUT, call.broker)
                    continue
                try:
                    # The library may choose a broker that hangs: leave time for another one.
                    seconds = (
                        deadline.left if call.broker is not None else min(deadline.left, max(1, deadline.left / 4))
                    )
                    timeout_ms = max(1, int(seconds * 1000))
                    sent = self._manager.send(call.request, call.broker, request_timeout_ms=timeout_ms)
                    # The request's timeout starts only when the connection is open, which takes long with a broker that
                    # hangs. It is never sent late: the library drops overdue requests.
                    answer = await self._manager.wait_for(sent, timeout_ms)
                    # Raw answers are decoded here, others were.
                    size = len(answer.body) if isinstance(answer, RawAnswer) else 0
                    with self.intake.decoding(size, deadline.left):
                        results[key] = answer if reduce is None else reduce(key, answer)
                except kafka_errors.UnknownBrokerIdError as error:
                    self._manager.cluster.request_update()
                    results[key] = fault_of(error)
                except kafka_errors.KafkaError as error:
                    results[key] = self._manager.refused or _named(fault_of(error), call.broker)
                except TooMuch as error:
                    results[key] = Fault(TOO_MUCH, str(error))
                except UnicodeEncodeError:
                    results[key] = Fault("INVALID_REQUEST", "a name in it is no valid text")
                except AuthenticationFailed as error:
                    # A lost connection could not get a token, so nothing was sent.
                    results[key] = Fault("SASL_AUTHENTICATION_FAILED", str(error))

        async def run_all() -> None:
            workers = [
                self._manager.call_soon(worker, queue)
                for queue in queues.values()
                for _ in range(min(_IN_FLIGHT_PER_BROKER, len(queue)))
            ]
            for running in workers:
                await running

        self._manager.begin(deadline)
        for queue in queues.values():
            queue.reverse()
        self._manager.is_asked = True
        try:
            self._manager.run(run_all)
        finally:
            self._manager.is_asked = False
        return results

    async def _keep_pace(self, deadline: Deadline) -> bool:
        """Wait for this request's turn, if the connection limits requests per second. Runs in the network thread.

        False, without waiting, if the turn would come after the deadline.
        """
        rate, left = self.settings.requests_per_second, deadline.left
        if rate is None or left <= 0:
            return left > 0
        now = elapsed()
        turn = max(now, self._next_at)
        wait = 0.0 if self._in_burst else turn - now
        if wait >= left:
            return False
        self._next_at = turn + 1 / rate
        if wait > 0:
            await self._net.sleep(wait)
        return True

    @contextmanager
    def burst(self) -> Iterator[None]:
        """Send requests without pauses; later ones wait longer, so that the rate is met on average."""
        self._in_burst = True
        try:
            yield
        finally:
            self._in_burst = False

    def close(self) -> None:
        _close(self._manager, self._net)


def _close(manager: Manager, net: NetworkSelector) -> None:
    manager.close()
    net.close()
    manager.close_sockets()


def connect(
    settings: Settings, timeout: float | None = None, egress: Egress | None = None, intake: Intake | None = None
) -> Client:
    """Connect to all bootstrap servers and continue with the first that accepts, within `timeout` seconds.

    timeout: default: the settings'. egress: which addresses an endpoint of OAuth tokens may have; None = any. intake:
    counts received bytes; default: one without turns.

    Raises SecretProblem (malformed PEM), TLSFailed, AuthenticationFailed, MemoryExhausted or Unreachable, each with
    what to check.
    """
    hosts = token_hosts(settings)
    seconds = timeout if timeout is not None else settings.timeout.total_seconds()
    deadline = Deadline(seconds)
    config = library_config(settings, seconds, egress) | {
        "client_id": CLIENT_ID,
        "client_software_name": CLIENT_ID,
        # `send_each` has its own window; the library fails what exceeds its own instead of queueing it.
        "max_in_flight_requests_per_connection": 1_000,
        "socket_connection_setup_timeout_ms": min(10_000, int(seconds * 1000)),
    }
    if "sasl_oauth_token_provider" in config:
        config["sasl_oauth_token_provider"].token()  # the library would only log the error, and try again
    net = NetworkSelector(**config)
    manager = Manager(net, intake or Intake(), deadline, **config)
    manager.hosts = hosts
    try:
        net.start()
        _reach_one(manager, net, settings, config["ssl_context"], deadline)
        manager.run(_bootstrap, manager, int(max(1.0, deadline.left) * 1000))
    except BaseException as error:
        _close(manager, net)
        if isinstance(error, kafka_errors.KafkaError):
            raise _explain(settings, config["ssl_context"], [error], deadline) from error
        if isinstance(error, (ValueError, OverflowError)):
            # An invalid host name (an empty label, one of 64 characters) fails when it is encoded.
            raise Unreachable(f"bootstrapServers {', '.join(settings.bootstrap_servers)}: {error}") from error
        raise
    return Client(manager, net, settings)


def fault_of(error: kafka_errors.KafkaError) -> Fault:
    """A library exception as a Fault, under Kafka's own name for it."""
    if isinstance(error, HostRefused):
        return Fault("SASL_AUTHENTICATION_FAILED", str(error.args[0]))
    if isinstance(error, NoRoom):
        return Fault(NO_ROOM, str(error.args[0]))
    if isinstance(error, kafka_errors.InvalidReceiveError):
        return Fault(_TOO_LARGE, ", ".join(map(str, error.args)))
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
        return Fault("UNSUPPORTED_VERSION", "the broker is too old for this request")
    if isinstance(error, (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)):
        return _TIMED_OUT
    if isinstance(error, kafka_errors.BrokerResponseError) and error.errno is not None:
        return fault_of_code(error.errno)
    if isinstance(error, kafka_errors.UnknownBrokerIdError):
        return Fault("BROKER_NOT_AVAILABLE", "the broker is not in the cluster's metadata", retriable=True)
    text = ", ".join(str(arg) for arg in error.args) or type(error).__name__
    return Fault("NETWORK_EXCEPTION", text, retriable=bool(error.retriable))


def _named(fault: Fault, broker: int | None) -> Fault:
    """Name the broker in the message of a timeout."""
    if fault is not _TIMED_OUT or broker is None:
        return fault
    return replace(fault, message=f"no answer from broker {broker} in time")


def fault_of_code(code: int, message: str | None = None) -> Fault:
    """A protocol error code (org.apache.kafka.common.protocol.Errors) as a Fault. `code` is not 0."""
    kind = kafka_errors.for_code(code)
    name = kind.message or f"ERROR_{code}"
    # A transaction may stay open for any time, so a retry is not useful.
    retriable = bool(kind.retriable) and name != "UNSTABLE_OFFSET_COMMIT"
    return Fault(name, message or _ADVICE.get(name) or kind.description or "", retriable)


_ADVICE = {
    "CLUSTER_AUTHORIZATION_FAILED": "needs DESCRIBE on the cluster",
    "COORDINATOR_LOAD_IN_PROGRESS": "the coordinator is still loading its groups",
    "COORDINATOR_NOT_AVAILABLE": "the group has no coordinator now",
    "GROUP_AUTHORIZATION_FAILED": "needs DESCRIBE on the group",
    "NOT_COORDINATOR": "the group's coordinator moved",
    "TOPIC_AUTHORIZATION_FAILED": "needs DESCRIBE on the topic",
}


class Results(dict[K, R | Fault]):
    """Maps each group, partition or broker to its result, or to the Fault that says why there is none."""

    @property
    def ok(self) -> dict[K, R]:
        return {key: result for key, result in self.items() if not isinstance(result, Fault)}

    @property
    def faults(self) -> dict[K, Fault]:
        return {key: result for key, result in self.items() if isinstance(result, Fault)}

    def converted(self, convert: Callable[[R], T]) -> Results[K, T]:
        """With each result in another form."""
        found = {key: result if isinstance(result, Fault) else convert(result) for key, result in self.items()}
        return Results[K, T](found)


def send_checked(client: Client, call: Call, code: Callable[[Response], int], deadline: Deadline) -> Response | Fault:
    """One request. code: returns the error in its answer, 0 = none, which becomes a Fault."""
    answer = client.send(call, deadline)
    error = 0 if isinstance(answer, Fault) else code(answer)
    return fault_of_code(error) if error else answer


def retrying(
    keys: Iterable[K], attempt: Callable[[list[K]], Mapping[K, R | Fault]], deadline: Deadline
) -> Results[K, R]:
    """Call `attempt` for all keys, then again for those with a retriable Fault, with growing pauses, until the
    deadline.

    A key that `attempt` omits gets a Fault: a missing answer is never an empty one.
    """
    results = Results[K, R]()
    left, pause = list(keys), _BACKOFF_START
    while left:
        answers = attempt(left)
        for key in left:
            results[key] = answers.get(key, NO_ANSWER)
        left = [key for key in left if isinstance(fault := results[key], Fault) and fault.retriable]
        if not left or deadline.left <= pause:
            break
        time.sleep(pause * random.uniform(0.8, 1.2))
        pause = min(pause * 2, _BACKOFF_CAP)
    return results


def retrying_one(attempt: Callable[[], R | Fault], deadline: Deadline) -> R | Fault:
    """As `retrying`, for one question."""

    def attempt_all(_: list[None]) -> dict[None, R | Fault]:
        return {None: attempt()}

    return retrying([None], attempt_all, deadline)[None]


async def _bootstrap(manager: Manager, timeout_ms: int) -> None:
    """The library's bootstrap, with a time limit that includes the handshake of its connection.

    The library may have done it already, as its metadata refresh starts by itself: then the connection is closed.
    """
    if not manager.bootstrapped:
        await manager.wait_for(manager.bootstrap_async(timeout_ms), timeout_ms)


def _reach_one(
    manager: Manager,
    net: NetworkSelector,
    settings: Settings,
    context: ssl.SSLContext | None,
    deadline: Deadline,
) -> None:
    """Connect to the bootstrap servers concurrently, and use the first that accepts. Raises the reason if none does.

    The library's own bootstrap would try again until its timeout, whatever the error, and only log it.
    """
    failures: list[kafka_errors.KafkaError] = []

    async def reach(broker: Any) -> Any:
        connection = manager.get_connection(broker.node_id, timeout_ms=deadline.left * 1000)
        try:
            await connection
        except (ValueError, OverflowError) as error:
            failures.append(kafka_errors.KafkaConnectionError(str(error)))
            return None
        except kafka_errors.KafkaError as error:
            # Over TLS the library loses the broker's refusal: the connection ends in the same moment. But after the
            # exchange of versions, the broker can only have ended the authentication.
            in_sasl = settings.sasl is not None and connection.broker_version is not None
            ended = in_sasl and not isinstance(error, kafka_errors.BrokerResponseError)
            failures.append(kafka_errors.SaslAuthenticationFailedError(_ENDED_IN_SASL) if ended else error)
            return None
        return connection

    async def reach_all() -> bool:
        attempts = [manager.call_soon(reach, broker) for broker in manager.cluster.bootstrap_brokers()]
        while True:
            # The library sets no time limit on a TLS handshake.
            over = deadline.left <= 0 or all(attempt.is_done for attempt in attempts)
            for attempt in attempts:
                if attempt.is_done and attempt.value is not None:
                    manager.keep_bootstrap(attempt.value)
                    return True
            if over:
                return False
            await net.sleep(_POLL_S)

    if not manager.run(reach_all):
        raise _explain(settings, context, failures, deadline)


def _explain(
    settings: Settings,
    context: ssl.SSLContext | None,
    errors: Sequence[kafka_errors.KafkaError],
    deadline: Deadline,
) -> HygieneError:
    """Why connecting failed, with the broker's message; without one, by `probe`."""
    refused = (kafka_errors.SaslAuthenticationFailedError, kafka_errors.UnsupportedSaslMechanismError)
    for error in errors:
        if isinstance(error, NoRoom):
            return MemoryExhausted(str(error.args[0]))
        if isinstance(error, WeakScram):
            return AuthenticationFailed(f"the broker was not sent a login: {error.args[0]}")
        if isinstance(error, kafka_errors.IllegalSaslStateError):
            return AuthenticationFailed(_NO_SASL)
        if isinstance(error, refused):
            user = f"as {settings.sasl.username!r} " if settings.sasl and settings.sasl.username else ""
            text = ", ".join(str(arg) for arg in error.args) or type(error).__name__
            return AuthenticationFailed(f"the broker refuses to authenticate {user}by SASL: {text}")
    found = probe(settings.bootstrap_servers, context, settings.sasl is not None, deadline.left)
    for problem in found.values():
        if isinstance(problem, ConnectError):
            return problem
    results = "; ".join(f"{server}: {problem}" for server, problem in found.items())
    return Unreachable(f"no bootstrap server answers ({results})")


# Finds out by plain sockets, without kafka-python, why connecting to an address failed.

UNRESOLVED = "does not resolve"
_NO_TLS = (
    "speaks Kafka without TLS: name the port of a listener with TLS, or connect without TLS (no spec.tls, or "
    "security.protocol PLAINTEXT or SASL_PLAINTEXT)"
)
_MAX_S, _MIN_S = 3.0, 1.0
# ApiVersions, version 0, correlation 1, without a client id: a Kafka broker answers it before authentication.
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


def probe(
    servers: Sequence[str], context: ssl.SSLContext | None, with_sasl: bool, seconds: float
) -> dict[str, str | ConnectError]:
    """The result for each of the servers (host:port): a text, or the error that explains why connecting failed.

    All at once, for `seconds`, but at least 1 and at most 3. with_sasl: the failed attempt used SASL.
    """
    seconds = min(_MAX_S, max(_MIN_S, seconds))
    found: dict[str, str | ConnectError] = {}

    def run(server: str) -> None:
        found[server] = _probe(server, context, with_sasl, seconds)

    # No pool: its shutdown would wait for a resolver that hangs.
    threads = [threading.Thread(target=run, args=(server,), daemon=True) for server in servers]
    end = time.monotonic() + seconds + 0.2
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return {server: found.get(server, f"no answer within {seconds:.0f} s") for server in servers}


def _probe(server: str, context: ssl.SSLContext | None, with_sasl: bool, seconds: float) -> str | ConnectError:
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    end = time.monotonic() + seconds
    connected = False
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as raw:
            connected = True
            raw.settimeout(max(0.1, end - time.monotonic()))
            if context is None:
                if _speaks_kafka(raw):
                    return "speaks Kafka but refuses connections" + ("" if with_sasl else " without SASL, it seems")
                wants = "TLS" if with_sasl else "TLS or SASL"
                return f"accepts connections but does not speak Kafka in plain text (does it want {wants}?)"
            with context.wrap_socket(raw, server_hostname=host):
                wants = "a client certificate" if with_sasl else "SASL or a client certificate"
                return f"speaks TLS but does not answer Kafka requests (does it want {wants}?)"
    except ssl.SSLCertVerificationError as error:
        return TLSFailed(f"{server}: the certificate is not trusted: {error.verify_message}")
    except (ssl.SSLError, ConnectionError) as error:
        if connected and context is not None and _is_plain(host, int(port), end):
            return TLSFailed(f"{server} {_NO_TLS}")
        if isinstance(error, ssl.SSLError):
            return TLSFailed(f"{server}: the TLS handshake fails: {error.reason or error}")
        return (error.strerror or str(error)).lower()
    except socket.gaierror:
        return f"the name {host} {UNRESOLVED}"
    except TimeoutError:
        does = "accepts connections but gives no answer" if connected else "no answer to a TCP connect"
        return f"{does} within {seconds:.0f} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except (ValueError, OverflowError):
        return "that can't be a host name and port"


def _is_plain(host: str, port: int, end: float) -> bool:
    """Whether the listener speaks Kafka without TLS."""
    seconds = max(0.1, end - time.monotonic())
    try:
        with socket.create_connection((host, port), timeout=seconds) as raw:
            return _speaks_kafka(raw)
    except OSError:
        return False


def _speaks_kafka(raw: socket.socket) -> bool:
    raw.sendall(_API_VERSIONS)
    try:
        answer = raw.recv(8)
    except ConnectionError:
        return False
    return answer[4:] == _API_VERSIONS[8:12]
