"""Connects to brokers, sends requests concurrently, and turns every failure into a Fault.

Only this module uses the library's connection manager. Requests go to a broker by id, so that one broker's or chunk's
failure does not affect others: the library's high-level calls raise at the first error and lose all other answers.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.scram import SaslMechanismScram, ScramClient
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.parser import KafkaProtocol

from group_hygiene.errors import AuthenticationFailed, ConnectError, HygieneError, Unreachable
from group_hygiene.kafka.aws_tokens import MskTokenProvider
from group_hygiene.kafka.bounds import ANSWER_BYTES, DECODED_BYTES, DECODED_WEIGHT, FRAME_BYTES, TooMuch
from group_hygiene.kafka.oauth import TokenProvider
from group_hygiene.kafka.probe import probe
from group_hygiene.kafka.protocol import RawHeader
from group_hygiene.kafka.tls import client_context
from group_hygiene.model import reasons
from group_hygiene.model.groups import Fault
from group_hygiene.network.egress import Egress
from group_hygiene.process.clock import elapsed
from group_hygiene.process.memory import Intake
from group_hygiene.spec.connection import Settings
from group_hygiene.spec.msk import Hosts

Request = Any
Response = Any
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

CLIENT_ID = "group-hygiene"
_IN_FLIGHT_PER_BROKER = 4
_ENDED_IN_SASL = "it ended the connection (wrong username, password or mechanism?)"
_NO_SASL = (
    "the listener has no SASL: name the port of a listener with SASL, or connect without a login (no spec.sasl, or "
    "security.protocol PLAINTEXT or SSL)"
)
_BACKOFF_START, _BACKOFF_CAP = 0.1, 2.0
_POLL_S = 0.01
_SCRAM_ITERATIONS_MIN = 4096
_UNSEEN_BYTES = 256 << 10
_AT_ONCE = 1 << 16
_TIMED_OUT = Fault("REQUEST_TIMED_OUT", "no answer in time", retriable=True)
NO_ANSWER = Fault("NO_ANSWER", "the broker's answer leaves it out")
# The code for a single answer, which a smaller request may avoid; and that for all answers together.
_TOO_LARGE, TOO_MUCH = "ANSWER_TOO_LARGE", "ANSWERS_TOO_LARGE"
_FLOOD = Fault(TOO_MUCH, f"the brokers' answers together are larger than {ANSWER_BYTES} bytes")


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


class _Meter:
    """A socket that counts received bytes, within the limit for all brokers together.

    The library reads as long as there are bytes, before it parses any. So after some bytes this socket pretends that
    there are no more, and the library checks the length of the answer that they belong to.
    """

    def __init__(self, sock: Any, manager: _Manager) -> None:
        self._sock = sock
        self._manager = manager
        self._unseen = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv(self, size: int) -> bytes:
        # Bytes that TLS has already decrypted would not wake the reader.
        if self._unseen >= _UNSEEN_BYTES and not (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()):
            self._unseen = 0
            raise BlockingIOError
        # The library asks for 4 KiB at a time, and takes what it gets.
        received: bytes = self._sock.recv(max(size, _AT_ONCE))
        self._unseen += len(received)
        self._manager.take(len(received))
        return received


class _Parser(KafkaProtocol):  # type: ignore[misc]
    """The library's parser of a connection, with a limit for each answer by its request.

    The library does not decode records either: an answer to Fetch may be as large as one that the operator decodes.
    """

    def __init__(self, manager: _Manager) -> None:
        super().__init__(client_id=CLIENT_ID)
        self._manager = manager

    def _validate_frame_size(self, nbytes: int) -> None:
        header = self.in_flight_requests[0] if self.in_flight_requests else None
        raw = isinstance(header, RawHeader) or getattr(header, "request_api_key", None) == FetchRequest.API_KEY
        most = FRAME_BYTES if raw else DECODED_BYTES
        if not 0 <= nbytes <= most:
            raise kafka_errors.InvalidReceiveError(f"a broker's answer is larger than {most} bytes")
        # Before the buffer for it is allocated.
        self._manager.weigh(nbytes if raw else nbytes * DECODED_WEIGHT)


class _WeakScram(kafka_errors.SaslAuthenticationFailedError):  # type: ignore[misc]
    """A broker asks for a proof of the password from which others could guess it. It got none."""


class _ScramClient(ScramClient):  # type: ignore[misc]
    """The library's exchange, with the least number of iterations that Kafka's clients accept (ScramMechanism)."""

    def create_salted_password(self, salt: bytes, iterations: int) -> None:
        if iterations < _SCRAM_ITERATIONS_MIN:
            raise _WeakScram(f"it asks for SCRAM with {iterations} iterations, less than {_SCRAM_ITERATIONS_MIN}")
        super().create_salted_password(salt, iterations)


class _Scram(SaslMechanismScram):  # type: ignore[misc]
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._scram_client = _ScramClient(
            config["sasl_plain_username"], config["sasl_plain_password"], config["sasl_mechanism"]
        )


for _name in ScramClient.MECHANISMS:
    register_sasl_mechanism(_name, _Scram, overwrite=True)


class _HostRefused(kafka_errors.AuthorizationError):  # type: ignore[misc]
    """A broker's host may not get a token of this process's identity. Nothing was sent to it."""

    def __init__(self, host: str) -> None:
        super().__init__(f"host {host} may not get tokens of this AWS identity")


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """The library's connections, with limits of size and time for the answers to requests that are sent together.

    refused: why no more bytes are accepted; None = none were refused since `begin`. hosts: the brokers to which it may
    connect, also those that other brokers name; None = any.
    """

    hosts: Hosts | None = None

    def __init__(self, net: NetworkSelector, intake: Intake, deadline: Deadline, **config: Any) -> None:
        super().__init__(net, **config)
        self.intake = intake
        self.begin(deadline)

    def begin(self, deadline: Deadline) -> None:
        """Start a new limit for the answers to the requests that are sent next."""
        self._left, self._deadline = ANSWER_BYTES, deadline
        self.refused: Fault | None = None

    def take(self, size: int) -> None:
        """Count received bytes. Raises an error of the library if they are too many."""
        self._left -= size
        if self._left < 0:
            self.refused = _FLOOD
            raise kafka_errors.InvalidReceiveError(_FLOOD.message)
        self.weigh(size)

    def weigh(self, size: int) -> None:
        """Count the memory of received data, in bytes. Raises an error of the library if it is too much."""
        try:
            self.intake.take(size, self._deadline.left)
        except TooMuch as error:
            self.refused = Fault(TOO_MUCH, str(error))
            raise kafka_errors.InvalidReceiveError(str(error)) from error

    def keep_bootstrap(self, connection: Any) -> None:
        """Bootstrap by this connection, and end those to the other bootstrap servers. Runs in the network thread.

        Of several servers, the library would choose one at random and wait for it to the end, even if it hangs.
        """
        for broker in self.cluster.bootstrap_brokers():
            if broker.node_id != connection.node_id:
                self.close(broker.node_id)
        self.cluster._bootstrap_brokers = {connection.node_id: self.cluster.broker_metadata(connection.node_id)}
        self.broker_version_data = connection.broker_version_data
        # The answers of the other servers no longer count.
        self.begin(self._deadline)

    async def _connect(self, node: Any, conn: Any, *arguments: Any, **options: Any) -> None:
        made = conn.connection_made

        def connection_made(transport: Any) -> None:
            made(transport)
            conn.parser = _Parser(self)

        conn.connection_made = connection_made
        await super()._connect(node, conn, *arguments, **options)

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        if self.hosts is not None and not self.hosts.include(node.host):
            raise _HostRefused(node.host)
        transport = await super()._build_transport(node, timeout_at=timeout_at)
        transport._sock = _Meter(transport._sock, self)
        return transport


class Client:
    """A connection to one Kafka cluster, for one thread at a time. `connect` creates it, `close` ends it."""

    def __init__(self, manager: _Manager, net: NetworkSelector, settings: Settings) -> None:
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
        self._manager.run(run_all)
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
        self._manager.close()
        self._net.close()


def connect(
    settings: Settings, timeout: float | None = None, egress: Egress | None = None, intake: Intake | None = None
) -> Client:
    """Connect to all bootstrap servers and continue with the first that accepts, within `timeout` seconds.

    timeout: default: the settings'.

    egress: which addresses an endpoint of OAuth tokens may have; None = any. intake: counts received bytes; default:
    one without turns.

    Raises SecretProblem (malformed PEM), TLSFailed, AuthenticationFailed or Unreachable, each with what to check.
    """
    hosts = _token_hosts(settings)
    seconds = timeout if timeout is not None else settings.timeout.total_seconds()
    deadline = Deadline(seconds)
    config = library_config(settings, seconds, egress) | {
        "client_software_name": CLIENT_ID,
        # `send_each` has its own window; the library fails what exceeds its own instead of queueing it.
        "max_in_flight_requests_per_connection": 1_000,
        "socket_connection_setup_timeout_ms": min(10_000, int(seconds * 1000)),
    }
    if "sasl_oauth_token_provider" in config:
        config["sasl_oauth_token_provider"].token()  # the library would only log the error, and try again
    net = NetworkSelector(**config)
    manager = _Manager(net, intake or Intake(), deadline, **config)
    manager.hosts = hosts
    try:
        net.start()
        _reach_one(manager, net, settings, config["ssl_context"], deadline)
        manager.run(_bootstrap, manager, int(max(1.0, deadline.left) * 1000))
    except kafka_errors.KafkaError as error:
        _end(manager, net)
        raise _explain(settings, config["ssl_context"], [error], deadline) from error
    except (ValueError, OverflowError) as error:
        # An invalid host name (an empty label, one of 64 characters) fails when it is encoded.
        _end(manager, net)
        raise Unreachable(f"bootstrapServers {', '.join(settings.bootstrap_servers)}: {error}") from error
    except BaseException:
        _end(manager, net)
        raise
    return Client(manager, net, settings)


def _token_hosts(settings: Settings) -> Hosts | None:
    """The brokers that may get tokens of this process's identity; None = any. Checks the bootstrap servers' hosts.

    Raises AuthenticationFailed with the reason IdentityNotAllowed.
    """
    hosts = settings.sasl.msk.hosts if settings.sasl is not None and settings.sasl.msk is not None else None
    if hosts is None:
        return None
    for server in settings.bootstrap_servers:
        host = server.rpartition(":")[0]
        if not hosts.include(host):
            message = (
                f"bootstrapServers: {host} may not get tokens of this AWS identity, only {', '.join(hosts.patterns)}"
            )
            raise AuthenticationFailed(message, reasons.IDENTITY_NOT_ALLOWED)
    return hosts


def fault_of(error: kafka_errors.KafkaError) -> Fault:
    """A library exception as a Fault, under Kafka's own name for it."""
    if isinstance(error, _HostRefused):
        return Fault("SASL_AUTHENTICATION_FAILED", str(error.args[0]))
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


def retrying(
    keys: Iterable[K],
    attempt: Callable[[list[K]], Mapping[K, R | Fault]],
    deadline: Deadline,
) -> dict[K, R | Fault]:
    """Call `attempt` for all keys, then again for those with a retriable Fault, with growing pauses, until the
    deadline.

    A key that `attempt` omits gets a Fault: a missing answer is never an empty one.
    """
    results: dict[K, R | Fault] = {}
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


def library_config(settings: Settings, timeout: float, egress: Egress | None = None) -> dict[str, Any]:
    """The library's settings for the cluster. timeout: seconds to get a token. egress: see `connect`.

    Raises SecretProblem for malformed PEM.
    """
    config: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "client_id": CLIENT_ID,
        "reconnect_backoff_max_ms": 1_000,
        "security_protocol": _protocol(settings),
        "ssl_context": client_context(settings.tls) if settings.tls else None,
    }
    sasl = settings.sasl
    if sasl is not None:
        config["sasl_mechanism"] = str(sasl.mechanism)
        if sasl.oauth is not None:
            config["sasl_oauth_token_provider"] = TokenProvider(sasl.oauth, timeout, egress)
        elif sasl.msk is not None:
            # MSK accepts the tokens of AWS's signer by this mechanism; AWS_MSK_IAM is one of Java clients.
            config["sasl_mechanism"] = "OAUTHBEARER"
            config["sasl_oauth_token_provider"] = MskTokenProvider(sasl.msk)
        else:
            config["sasl_plain_username"] = sasl.username
            config["sasl_plain_password"] = sasl.password
    return config


def _protocol(settings: Settings) -> str:
    if settings.sasl is not None:
        return "SASL_SSL" if settings.tls else "SASL_PLAINTEXT"
    return "SSL" if settings.tls else "PLAINTEXT"


def _end(manager: KafkaConnectionManager, net: NetworkSelector) -> None:
    manager.close()
    net.close()


async def _bootstrap(manager: _Manager, timeout_ms: int) -> None:
    """The library's bootstrap, with a time limit that includes the handshake of its connection.

    The library may have done it already, as its metadata refresh starts by itself: then the connection is closed.
    """
    if not manager.bootstrapped:
        await manager.wait_for(manager.bootstrap_async(timeout_ms), timeout_ms)


def _reach_one(
    manager: _Manager,
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
        if isinstance(error, _WeakScram):
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
