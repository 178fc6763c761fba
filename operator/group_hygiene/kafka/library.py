"""Overrides of private parts of kafka-python 3.0.12, each with its reason, and requests that it lacks.

The library has almost no limits for what brokers send. No other module uses its private parts; its next version is
checked against this one, and by `tests/kafka/test_foreign_answers.py`.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import kafka.errors as kafka_errors
from kafka.codec import gzip_encode
from kafka.errors import KafkaProtocolError
from kafka.net.inet import create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.scram import SaslMechanismScram, ScramClient
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.admin import DescribeLogDirsRequest, ListGroupsRequest
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchRequest, OffsetFetchRequest
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.schemas.fields.codecs import UnsignedVarInt32
from kafka.record import default_records

from group_hygiene.kafka import schemas
from group_hygiene.kafka.bounds import ANSWER_BYTES, DECODED_BYTES, DECODED_WEIGHT, FRAME_BYTES, LIST_BYTES, TOO_MUCH
from group_hygiene.kafka.codecs import unpack
from group_hygiene.kafka.encoding import LayoutError, Reader
from group_hygiene.model.groups import ID_MAX, Fault, Partition
from group_hygiene.process.memory import Intake, TooMuch
from group_hygiene.process.sockets import OPEN_SOCKETS, OpenSocket
from group_hygiene.spec.client_settings import Hosts

if TYPE_CHECKING:
    from group_hygiene.kafka.client import Deadline


# The least that Kafka's clients accept, and three times the most that a cluster's administrator may set
# (ScramMechanism): each login takes some 30 ms of CPU then, and there may be one for each of 1,000 brokers.
_SCRAM_ITERATIONS_MIN, _SCRAM_ITERATIONS_MAX = 4096, 50_000
_UNSEEN_BYTES = 256 << 10
_AT_ONCE = 1 << 16
_FLOOD = Fault(TOO_MUCH, f"the brokers' answers together are larger than {ANSWER_BYTES} bytes")
# org.apache.kafka.common.record.DefaultRecordBatch: the records begin after its header.
_RECORDS_AT = 61


class _Meter:
    """A socket that counts received bytes, within the limit for all brokers together.

    The library reads as long as there are bytes, before it parses any. So after some bytes this socket pretends that
    there are no more, and the library checks the length of the answer that they belong to.
    """

    def __init__(self, manager: Manager, counted: OpenSocket) -> None:
        self._sock: Any = None
        self._manager = manager
        self._counted = counted
        self._unseen = 0

    def use(self, sock: Any) -> _Meter:
        """Raises TooMuch if another namespace needs the memory for it."""
        self._sock = sock
        OPEN_SOCKETS.connected(self._counted, sock)
        return self

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

    def close(self) -> None:
        OPEN_SOCKETS.remove(self._counted)
        self._manager.forget(self)
        if self._sock is not None:
            self._sock.close()


class _Parser(KafkaProtocol):  # type: ignore[misc]
    """The library's parser of a connection, with a limit for each answer by its request.

    The library does not decode records either: an answer to Fetch may be as large as one that the operator decodes.
    """

    def __init__(self, manager: Manager) -> None:
        super().__init__(client_id=manager.config["client_id"])
        self._manager = manager
        self._list: LargeList | None = None

    def receive_bytes(self, data: bytes) -> list[Any]:
        """As the library, but a list of groups that is too large is read without very long ids."""
        if not any(map(_lists_groups, self.in_flight_requests)):
            received: list[Any] = super().receive_bytes(data)
            return received
        answers: list[Any] = []
        rest = memoryview(data)
        while rest:
            if self._list is not None:
                size = min(len(rest), self._list.missing)
                answers += self._take_of(self._list, bytes(rest[:size]))
            elif self._receiving:
                size = min(len(rest), len(self._rbuffer) - self._rbuffer.tell())
                answers += super().receive_bytes(bytes(rest[:size]))
            else:
                size = min(len(rest), 4 - self._header.tell())
                head = bytes(self._header[: self._header.tell()] + rest[:size])
                if not self._begins_list(head):
                    answers += super().receive_bytes(bytes(rest[:size]))
            rest = rest[size:]
        return answers

    def _begins_list(self, head: bytes) -> bool:
        """head: the bytes of an answer's length that were received."""
        header = self._awaited
        size = int.from_bytes(head, "big", signed=True)
        if len(head) < 4 or not _lists_groups(header) or size <= LIST_BYTES:
            return False
        self._list = LargeList(size, header.request_api_version)
        self._header.seek(0)
        return True

    def _take_of(self, large: LargeList, data: bytes) -> list[Any]:
        self._manager.give_back(large.write(data))
        if large.held > LIST_BYTES:
            raise kafka_errors.InvalidReceiveError(f"a list of groups is larger than {LIST_BYTES} bytes")
        if large.missing:
            return []
        self._manager.weigh(large.held)
        self.in_flight_requests[0].left_out, self._list = large.left_out, None
        frame = KafkaBytes(0)
        frame += large.answer()
        return [self._process_response(frame)]

    @property
    def _awaited(self) -> Any:
        """The header of the request whose answer is next; None = there is none."""
        return self.in_flight_requests[0] if self.in_flight_requests else None

    def _process_response(self, read_buffer: Any) -> Any:
        with self._manager.decoding(0 if isinstance(self._awaited, RawHeader) else len(read_buffer)):
            return super()._process_response(read_buffer)

    def _validate_frame_size(self, nbytes: int) -> None:
        header = self._awaited
        raw = isinstance(header, RawHeader) or getattr(header, "request_api_key", None) == FetchRequest.API_KEY
        most = LIST_BYTES if _lists_groups(header) else FRAME_BYTES if raw else DECODED_BYTES
        if not 0 <= nbytes <= most:
            raise kafka_errors.InvalidReceiveError(f"a broker's answer is larger than {most} bytes")
        # Before the buffer for it is allocated.
        self._manager.weigh(nbytes if raw else nbytes * DECODED_WEIGHT)


def _lists_groups(header: object) -> bool:
    """Whether a request's answer is a list of groups that the operator decodes itself."""
    return isinstance(header, RawHeader) and header.request_api_key == ListGroupsRequest.API_KEY


class WeakScram(kafka_errors.SaslAuthenticationFailedError):  # type: ignore[misc]
    """A broker asks for a proof of the password from which others could guess it, or that takes long. It got none."""


class _ScramClient(ScramClient):  # type: ignore[misc]
    """The library's exchange, with limits for the number of iterations."""

    def create_salted_password(self, salt: bytes, iterations: int) -> None:
        if not _SCRAM_ITERATIONS_MIN <= iterations <= _SCRAM_ITERATIONS_MAX:
            limits = f"{_SCRAM_ITERATIONS_MIN} to {_SCRAM_ITERATIONS_MAX} are accepted"
            raise WeakScram(f"it asks for SCRAM with {iterations} iterations: {limits}")
        super().create_salted_password(salt, iterations)


class _Scram(SaslMechanismScram):  # type: ignore[misc]
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._scram_client = _ScramClient(
            config["sasl_plain_username"], config["sasl_plain_password"], config["sasl_mechanism"]
        )


for _name in ScramClient.MECHANISMS:
    register_sasl_mechanism(_name, _Scram, overwrite=True)


# The library's level is 9, at which some data (repeated escapes in JSON) take fifteen times as long as at Java's.
default_records.gzip_encode = partial(gzip_encode, compresslevel=6)


class HostRefused(kafka_errors.AuthorizationError):  # type: ignore[misc]
    """A broker's host may not get a token of this process's identity. Nothing was sent to it."""

    def __init__(self, host: str) -> None:
        super().__init__(f"host {host} may not get tokens of this AWS identity")


class NoRoom(kafka_errors.KafkaConnectionError):  # type: ignore[misc]
    """There is no memory for another connection. Nothing was sent."""


class Manager(KafkaConnectionManager):  # type: ignore[misc]
    """The library's connections, with limits of size and time for the answers to requests that are sent together.

    is_asked: whether a caller waits for answers until the deadline of `begin`; otherwise the library may reconnect.
    refused: why no more bytes are accepted; None = none were refused since `begin`. hosts: the brokers to which it may
    connect, also those that other brokers name; None = any.
    """

    hosts: Hosts | None = None
    is_asked = True

    def __init__(self, net: NetworkSelector, intake: Intake, deadline: Deadline, **config: Any) -> None:
        super().__init__(net, **config)
        self.intake = intake
        self._meters = set[_Meter]()
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

    def give_back(self, size: int) -> None:
        """Received bytes that are no longer held."""
        self._left += size

    def weigh(self, size: int) -> None:
        """Count the memory of received data, in bytes. Raises an error of the library if it is too much."""
        with self._refusing():
            self.intake.take(size, self._deadline.left)

    @contextmanager
    def decoding(self, size: int) -> Iterator[None]:
        """As `Intake.decoding`, until the deadline. Raises an error of the library."""
        with ExitStack() as turn:
            with self._refusing():
                turn.enter_context(self.intake.decoding(size, self._deadline.left))
            yield

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raises an error of the library for TooMuch, and notes why."""
        try:
            yield
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

    def forget(self, meter: _Meter) -> None:
        """Its socket is closed."""
        self._meters.discard(meter)

    def close_sockets(self) -> None:
        """After the end of the network thread: also those to which the library would still write."""
        for meter in list(self._meters):
            meter.close()

    async def _connect(self, node: Any, conn: Any, *arguments: Any, **options: Any) -> None:
        made = conn.connection_made

        def connection_made(transport: Any) -> None:
            made(transport)
            conn.parser = _Parser(self)

        conn.connection_made = connection_made
        await super()._connect(node, conn, *arguments, **options)

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        if self.hosts is not None and not self.hosts.include(node.host):
            raise HostRefused(node.host)
        if self.is_asked and self._deadline.left <= 0:
            # The library looks names up in this thread: with slow name servers, each broker would take seconds more.
            raise kafka_errors.KafkaConnectionError(f"no time was left to connect to {node.host}")
        try:
            meter = _Meter(self, OPEN_SOCKETS.add(self.intake.owner))
            return await self._connected(meter, node, timeout_at)
        except TooMuch as error:
            raise NoRoom(str(error)) from error

    async def _connected(self, meter: _Meter, node: Any, timeout_at: float | None) -> Any:
        """As the library, which shows its socket only after the TLS handshake, for which it has no limit of time."""
        options, context = self.config["socket_options"], self.config["ssl_context"]
        self._meters.add(meter)
        try:
            sock = await create_connection(self._net, node.host, node.port, options, timeout_at=timeout_at)
            transport = (
                KafkaSSLTransport(self._net, sock, host=node.host, ssl_context=context)
                if self.ssl_enabled
                else KafkaTCPTransport(self._net, sock, host=node.host)
            )
            transport._sock = meter.use(transport._sock)
            await transport.handshake()
        except BaseException as error:
            meter.close()
            if isinstance(error, OSError):
                raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
            raise
        return transport


def packed_records(batch: Any) -> memoryview:
    """The records of a batch of format 2, as they are in it. The library would unpack them without a limit."""
    return memoryview(batch._buffer)[_RECORDS_AT:]


def unpack_old(batch: Any, most: int) -> None:
    """Unpack the records of a batch of an older format (magic 0 and 1) in it, to at most `most` bytes. Raises TooMuch.

    The library would unpack them without a limit, when they are read.
    """
    if batch.compression_type:
        _, packed = batch._read_key_value(batch.KEY_OFFSET_V1 if batch.magic else batch.KEY_OFFSET_V0)
        batch._buffer, batch._decompressed = memoryview(unpack(batch.compression_type, packed or b"", most)), True


def checksum(batch: Any) -> int:
    """The library has no public name for it in the older formats."""
    return int(batch.crc if batch.magic >= 2 else batch._crc)


# Receives a list of groups that is too large to be held: what has a very long id is left out while it arrives.
#
# Kafka accepts ids of 32,767 bytes, so a few hundred groups, which any client with a prefix of ids may create, make a
# list of many megabytes. Pure: bytes in, bytes out.

# Bytes that are collected before rows are read from them. A row has at most three names of 32,767 bytes.
_ROWS_AT_ONCE = 1 << 18


class LargeList:
    """The bytes of an answer to ListGroups v3 to v5, without the rows whose ids have more than ID_MAX characters.

    missing: bytes that are yet to come. left_out: rows that were dropped. held: bytes in memory. By Kafka's message
    definition ListGroupsResponse and KIP-482. `write` and `answer` raise KafkaProtocolError for another layout.
    """

    def __init__(self, size: int, version: int) -> None:
        self.missing = size
        self.left_out = 0
        # The names beside the id: the protocol type, from v4 on the state, from v5 on the type.
        self._others = version - 2
        self._unread = bytearray()
        self._start = b""
        self._rows: int | None = None
        self._left = 0
        self._whole = bytearray()

    @property
    def held(self) -> int:
        return len(self._whole) + len(self._unread)

    def write(self, data: bytes) -> int:
        """Add the bytes that come next, at most `missing`. Returns how many bytes are no longer held."""
        self.missing -= len(data)
        self._unread += data
        if self.missing and len(self._unread) < _ROWS_AT_ONCE:
            return 0
        before = self.held
        self._read()
        return before - self.held

    def answer(self) -> bytes:
        """The answer as if the broker had not listed the groups that were dropped; nothing may be missing.

        What is held is released, as there may be tens of megabytes.
        """
        if self._rows is None or self._left:
            raise KafkaProtocolError("a list of groups ends before its last group")
        rows: bytes = UnsignedVarInt32.encode(self._rows - self.left_out + 1)
        whole = b"".join((self._start, rows, self._whole, self._unread))
        self._whole.clear()
        self._unread.clear()
        return whole

    def _read(self) -> None:
        reader = Reader(bytes(self._unread), 0, flexible=True)
        try:
            if self._rows is None:
                # The header: correlation id and tagged fields; then throttle time and error.
                reader.take(4)
                reader.tagged()
                reader.take(4 + 2)
                self._start = reader.data[: reader.at]
                self._rows = self._left = reader.announced()
        except LayoutError as error:
            raise KafkaProtocolError(f"the start of a list of groups can't be decoded: {error}") from error
        read = reader.at
        try:
            while self._left:
                name = reader.text()
                for _ in range(self._others):
                    reader.text()
                reader.tagged()
                if len(name) > ID_MAX:
                    self.left_out += 1
                else:
                    self._whole += reader.data[read : reader.at]
                read = reader.at
                self._left -= 1
        except (LayoutError, UnicodeDecodeError) as error:
            # The rest of the row is yet to come.
            if not self.missing or len(reader.data) - read >= _ROWS_AT_ONCE:
                raise KafkaProtocolError(f"a group of a list can't be decoded: {error}") from error
        del self._unread[:read]


# Requests that kafka-python lacks, which it generates from the schemas in `schemas/`.
#
# The schemas follow the message definitions of Apache Kafka (clients/src/main/resources/common/message).


class ConsumerGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Describe groups of the KIP-848 protocol, for which DescribeGroups answers Dead. API key 69."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


class ShareGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Describe share groups (KIP-932). API key 77."""


class ShareGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


class StreamsGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Describe Streams groups (KIP-1071). API key 89."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Read the start offsets of share groups (KIP-932), from v1 on with lag (KIP-1226). API key 90."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Set the start offsets of an Empty share group, or create one with them (KIP-932). API key 91."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


def topic_rows(
    row_class: Any, field: str, entries: Mapping[Partition, Any], ids: Mapping[str, str] = MappingProxyType({})
) -> list[Any]:
    """The rows of a request, one for each topic: its name or id in `field`, and the entries of its partitions."""
    topics: dict[str, list[Any]] = {}
    for place, entry in entries.items():
        topics.setdefault(place.topic, []).append(entry)
    return [row_class(partitions=rows, **{field: ids.get(topic, topic)}) for topic, rows in topics.items()]


class RawAnswer(NamedTuple):
    """The undecoded body of an answer, for `answers`. left_out: groups that `LargeList` dropped from it."""

    body: bytes
    version: int
    left_out: int

    @property
    def throttle_time_ms(self) -> int:
        """Required of each response by the library; the first field of those that are read raw."""
        (milliseconds,) = struct.unpack_from(">i", self.body)
        return int(milliseconds)


class _RawResponseClass:
    """Replaces the class of a response in the library: reads the header, and leaves the body undecoded."""

    def __init__(self, response_class: Any, version: int, left_out: int) -> None:
        self._class = response_class
        self._version = version
        self._left_out = left_out

    def parse_header(self, buffer: Any) -> Any:
        return self._class.parse_header(buffer)

    def decode(self, buffer: Any) -> RawAnswer:
        # Its own read() would copy the bytes twice.
        return RawAnswer(bytes(memoryview(buffer)[buffer.tell() :]), self._version, self._left_out)


class RawHeader(RequestHeader, init=False):  # type: ignore[call-arg, misc]
    """The header of a request. The library uses it to find the class of the response."""

    left_out = 0

    def get_response_class(self) -> _RawResponseClass:
        return _RawResponseClass(super().get_response_class(), self.request_api_version, self.left_out)


class _Raw:
    """A request that is answered by a RawAnswer. versions: the first and the last one that `answers` reads."""

    header_class = RawHeader
    versions: tuple[int, int]

    def __init__(self, **fields: Any) -> None:
        first, last = self.versions
        super().__init__(**{"min_version": first, "max_version": last} | fields)


class RawListGroupsRequest(_Raw, ListGroupsRequest, init=False):  # type: ignore[call-arg, misc]
    versions = (3, 5)


class RawOffsetFetchRequest(_Raw, OffsetFetchRequest, init=False):  # type: ignore[call-arg, misc]
    versions = (8, 8)


class RawMetadataRequest(_Raw, MetadataRequest, init=False):  # type: ignore[call-arg, misc]
    versions = (5, 12)


class RawDescribeLogDirsRequest(_Raw, DescribeLogDirsRequest, init=False):  # type: ignore[call-arg, misc]
    versions = (1, 5)
