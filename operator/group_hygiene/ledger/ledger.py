"""The ledger of one Kafka cluster: entries in a compacted topic, written in transactions by one process at a time.

`model.entries` defines the entries. Makes no decisions; an entry counts as written only once it was read back.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from group_hygiene.errors import LedgerFenced, LedgerProblem
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.offsets import start_offsets
from group_hygiene.kafka.partition import Batch, Fetched, PartitionLeader, Record, fetch_readable
from group_hygiene.ledger import topic as ledger_topic
from group_hygiene.ledger.contents import (
    COMMAND_LINE,
    Contents,
    LedgerSettings,
    Unreadable,
    decode,
    decode_key,
    encode_key,
    encode_value,
    expires,
)
from group_hygiene.ledger.topic import MOVED, Pair, ProducerState, Writer, Written
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, Change, Entry, Key, Owner, Removal
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.process import memory

_CALL_SECONDS = 20.0
# How long reads wait for another client's open transaction.
_OPEN_SECONDS = 10.0
_WAIT_MS = 100
_ANSWER_SECONDS = 0.5
# A transaction of this many small entries takes a second; more entries are written in several transactions.
_TRANSACTION_ENTRIES = 100_000
# Decoded, and in the results of a restore, a backup takes up to eight times its bytes. Bytes between two checks of the
# memory that is left.
_TIMES_AS_ENTRIES, _STEP_BYTES = 8, 1 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# How long a whole log may take.
_WHOLE_SECONDS = 300.0
_OWNER_KEY = encode_key(("owner",))


def open_ledger(
    client: Client, settings: LedgerSettings, deadline: Deadline, create: ledger_topic.CreateTopic | None, claim: bool
) -> Ledger | None:
    """The ledger, read to its end; None = there is no such topic, and `create`, which creates it, is None.

    claim: claim it before reading, as a transaction that the previous writer left open hides later records until
    brokers end it. Without `claim`, no entry is written.

    Raises LedgerProblem: LedgerUnavailable, LedgerReset or LedgerOwnedByAnother.
    """
    topic = ledger_topic.find(client, settings.topic, deadline)
    if topic is None:
        if settings.known is not None:
            raise LedgerProblem(
                f"the topic {settings.topic} is gone, and with it the ledger {settings.known}", reasons.LEDGER_RESET
            )
        if create is None:
            return None
        topic = ledger_topic.create(client, settings.topic, settings.replication_factor, deadline, create)
    if isinstance(topic, Fault):
        raise LedgerProblem(_cannot(settings, "opened", topic))
    cluster = kafka_cluster.read_identity(client, deadline)
    if isinstance(cluster, Fault):
        raise LedgerProblem(_cannot(settings, "opened", cluster))
    ledger = Ledger(client, settings, topic, cluster.id)
    ledger.check_settings(deadline)
    if claim:
        ledger.claim(deadline)
    else:
        ledger.read_on(deadline)
    return ledger


class Ledger:
    """Created by `open_ledger`. For one thread at a time.

    contents: the state up to the last read, own writes included. Replaced by another object, with a LedgerProblem, only
    after the topic was recreated, or a batch can be read that could not be read before.
    """

    def __init__(
        self, client: Client, settings: LedgerSettings, topic: ledger_topic.TopicMetadata, cluster: str
    ) -> None:
        """cluster: the id of the Kafka cluster."""
        self.contents = Contents()
        self._client = client
        self._settings = settings
        self._topic, self._cluster = topic, cluster
        self._known = settings.known
        self._leader = PartitionLeader(client, Partition(settings.topic, 0))
        self._writer = Writer(self._leader, settings.writer, settings.transaction_timeout)
        # Where the next read begins; None = at the first record. Each read proves that the batch before is still there.
        self._position: int | None = None
        self._last: Batch | None = None
        self._empty = True
        # The first offset of the log.
        self._log_start = 0
        # Whether a batch that could not be read changed: its records are older than what was read since.
        self._is_stale = False
        self._owner_problem = ""

    @property
    def writer(self) -> str:
        """The transactional.id of this process, and of its predecessors for the same connection."""
        return self._settings.writer

    @property
    def topic(self) -> str:
        return self._settings.topic

    @property
    def replicas(self) -> int:
        """The number of replicas that the topic has."""
        return self._topic.replicas

    @property
    def id(self) -> str | None:
        """The ledger's own id, to be passed as `known` later; None = it is not claimed yet."""
        return self.contents.owner.ledger if self.contents.owner else None

    def read_on(
        self, deadline: Deadline, until: Deadline | None = None, check: Callable[[Record], None] | None = None
    ) -> None:
        """Read the records committed since the last read, up to the current end of the log.

        until: how long to wait for open transactions. check: called with each record. Raises LedgerProblem, also if
        another client's open transaction hides later records, and LedgerFenced.
        """
        if self._writer.state is ProducerState.UNKNOWN:
            self._begin(deadline)
        topic = ledger_topic.find(self._client, self._settings.topic, deadline)
        if isinstance(topic, Fault):
            raise LedgerProblem(_cannot(self._settings, "read", topic))
        if topic is None:
            raise LedgerProblem(f"the topic {self._settings.topic} is gone", reasons.LEDGER_RESET)
        if self.contents.hidden:
            # Fetch the hidden records again, once: another replica may lead now, or brokers may have removed them.
            try:
                next(self._fetches(min(self.contents.hidden), deadline))
            except _OutOfRange:
                self._is_stale = True
        stale = self._is_stale
        other = stale or topic.id != self._topic.id or not self._continue(deadline, until, check)
        self._topic = topic
        if other:
            if self._writer.state is ProducerState.READY:
                # What the broker knew of this producer may be gone, too.
                self._begin(deadline)
            self._forget()
            self._continue(deadline)
        self._check_owner()
        if other:
            # Callers must not continue with the former contents.
            why = "has records that could not be read before" if stale else "was recreated, or lost its last records"
            raise LedgerProblem(f"the topic {self._settings.topic} {why}: it is read again")

    def check_settings(self, deadline: Deadline) -> None:
        """Check the topic's settings: with wrong ones Kafka may lose entries. Raises LedgerProblem."""
        wrong = ledger_topic.check(self._client, self._settings.topic, self._topic, deadline)
        if isinstance(wrong, Fault):
            raise LedgerProblem(_cannot(self._settings, "checked", wrong))
        if wrong:
            raise LedgerProblem(
                f"the settings of the topic {self._settings.topic} are not those of a ledger: {wrong}. If it has other "
                "data, leave it as it is, and name the ledger's topic"
            )

    def claim(self, deadline: Deadline | None = None) -> None:
        """Become the only writer, read to the end, and claim a command's ledger, or an empty topic if none is known.

        Raises LedgerProblem and LedgerFenced.
        """
        deadline = deadline or Deadline(_CALL_SECONDS)
        self._begin(deadline)
        self.read_on(deadline)
        owner, mine = self.contents.owner, self._settings.installation
        if owner is not None and (owner.installation != COMMAND_LINE or mine in (None, COMMAND_LINE)):
            return
        if mine is None:
            raise LedgerProblem(f"the topic {self._settings.topic} is not claimed as a ledger yet")
        ledger, start = (uuid.uuid4().hex, self._log_start) if owner is None else (owner.ledger, owner.start)
        now = datetime.now(UTC)
        # Another installation may have claimed it at the same time: the last Owner counts, for both.
        owner = Owner(installation=mine, ledger=ledger, since=now, cluster=self._cluster, start=start)
        self.write([owner], deadline)

    def note(self, changes: Iterable[Change], deadline: Deadline | None = None) -> datetime | None:
        """Write all in one transaction (beyond 100,000 in several). Call `claim` first.

        `contents` has it after the next read. Returns the broker's time of the last record; None if nothing was to be
        written, or the topic lost its LogAppendTime. Raises LedgerProblem: no record of this is visible, or, if the
        message says so, that is not known, and the next call finds out first. Raises LedgerFenced when another process
        took over.
        """
        pairs = [_pair(change) for change in changes]
        return _time(self._write(pairs, deadline or Deadline(_CALL_SECONDS)))

    def write(
        self, changes: Sequence[Change], deadline: Deadline | None = None, until: Deadline | None = None
    ) -> datetime | None:
        """The same, and read it back: then `contents` has it, and all that other processes wrote before it.

        until: how long to wait for the end of open transactions, as long as in `read_on` by default. Also raises
        LedgerProblem after the write: BackupNotReadable if another client's open transaction hides it, or if some of it
        is not in the log; OffsetsUnknown if its own transaction did not end in time.
        """
        deadline = deadline or Deadline(_CALL_SECONDS)
        pairs = [_pair(change) for change in changes]
        written = self._write(pairs, deadline)
        if written is not None:
            backups = {encode_key(change.key) for change in changes if isinstance(change, Backup)}
            self._read_back(dict(pairs), backups, written, deadline, until)
        return _time(written)

    def _read_back(
        self,
        pairs: Mapping[bytes, bytes | None],
        backups: Set[bytes],
        written: Written,
        deadline: Deadline,
        until: Deadline | None,
    ) -> None:
        """Read on, and compare what is found under the keys of `pairs`, which were written, with their values.

        Other processes may write other values under the same keys later, but not under those of `backups`.
        """
        missing = set(pairs)

        def check(record: Record) -> None:
            key = record.key
            if key is None or key not in pairs or record.offset < (written.start or 0):
                return
            if record.value == pairs[key]:
                missing.discard(key)
            elif key in backups:
                missing.add(key)

        try:
            self.read_on(deadline, until, check)
        except _OpenTransaction as hidden:
            if written.start is not None and written.start <= hidden.stable < written.end:
                raise LedgerProblem(
                    "saving took too long: the transaction has not ended yet", reasons.OFFSETS_UNKNOWN
                ) from hidden
            raise LedgerProblem(f"what was saved can't be read back: {hidden}", reasons.BACKUP_NOT_READABLE) from hidden
        if missing or (self._position or 0) < written.end:
            raise LedgerProblem(
                f"what was saved can't be read back: {len(missing)} of {len(pairs)} records are not in the topic "
                f"{self._settings.topic} as they were written before offset {written.end}",
                reasons.BACKUP_NOT_READABLE,
            )

    def _get_ready(self, deadline: Deadline) -> None:
        if self._writer.state is ProducerState.NEW:
            raise RuntimeError("a ledger must be claimed before it is written")
        if self._writer.state is ProducerState.UNKNOWN:
            self.read_on(deadline)

    def _write(self, pairs: Sequence[Pair], deadline: Deadline) -> Written | None:
        """Write the pairs: the offsets from the first to the last; None if there are none."""
        self._get_ready(deadline)
        done: Written | None = None
        for at in range(0, len(pairs), _TRANSACTION_ENTRIES):
            written = self._writer.write(pairs[at : at + _TRANSACTION_ENTRIES], deadline)
            if isinstance(written, Fault):
                self._fail(written)
            done = written if done is None else written._replace(start=done.start)
        return done

    def entries(self, wanted: Callable[[Key], bool], deadline: Deadline) -> Iterator[Entry]:
        """The latest entry of each key that is wanted, from the whole log, without unreadable ones.

        Raises LedgerProblem.
        """
        return (entry for _, entry in self.latest(wanted, deadline) if entry is not None)

    def latest(self, wanted: Callable[[Key], bool], deadline: Deadline) -> Iterator[tuple[Key, Entry | None]]:
        """The same with their keys; unreadable entries are None.

        Raises LedgerProblem, also if too little memory is left for all of them (MemoryExhausted).
        """
        latest: dict[Key, bytes] = {}
        size = checked = 0
        for key, record in self._all(deadline):
            if not wanted(key):
                continue
            size -= len(latest.pop(key, b""))
            if record.value is not None:
                latest[key] = record.value
                size += len(record.value)
            if size >= checked + _STEP_BYTES:
                checked = size
                try:
                    memory.require(size * _TIMES_AS_ENTRIES, "reading the backups")
                except memory.TooMuch as error:
                    raise LedgerProblem(str(error), reasons.MEMORY_EXHAUSTED) from error
        for key, value in latest.items():
            entry = _decoded(key, value)
            yield key, None if isinstance(entry, Unreadable) else entry

    def append_times(self, keys: Collection[Key], deadline: Deadline) -> dict[Key, datetime]:
        """The broker's time of the latest record of each key, from the whole log. The topic must have LogAppendTime.

        Raises LedgerProblem.
        """
        latest = {key: record.time_ms for key, record in self._all(deadline) if key in keys}
        return {key: _EPOCH + timedelta(milliseconds=time) for key, time in latest.items() if time >= 0}

    def sweep(self, now: datetime, deadline: Deadline | None = None) -> int:
        """Remove expired entries; returns their number. Removes none while a batch of records can't be read.

        An entry that is written again meanwhile stays: removals are committed only if the log has no newer records.

        now: a broker's time of a write, never the operator's clock, as the removal of a backup is final. Raises
        LedgerProblem, also if other clients write all the time, and LedgerFenced.
        """
        deadline = deadline or Deadline(_CALL_SECONDS)
        self._get_ready(deadline)
        expired: set[Key] = set()
        removed, position = 0, self._find_expired(self._start(deadline), expired, now, deadline)
        if self.contents.hidden:
            # A later entry that can't be read may have the same key.
            return 0
        while expired:
            pairs = [_pair(Removal(key)) for key in list(expired)[:_TRANSACTION_ENTRIES]]
            written = self._writer.write(pairs, deadline, position)
            if isinstance(written, Written):
                removed += len(pairs)
            elif written.code != MOVED:
                self._fail(written)
            # Entries that were written meanwhile have not expired.
            position = self._find_expired(position, expired, now, deadline)
        self.contents.forget_expired(now)
        return removed

    def _find_expired(self, position: int, expired: set[Key], now: datetime, deadline: Deadline) -> int:
        """Update the keys of expired entries from the offset to the end of the log, which is returned."""
        for fetched in self._fetches(position, deadline, whole=True):
            for key, record in _readable(fetched):
                # None also of an entry that can't be read.
                until = None if record.value is None else expires(_decoded(key, record.value))
                if until is not None and until <= now:
                    expired.add(key)
                else:
                    expired.discard(key)
            position = fetched.position
        return position

    def _begin(self, deadline: Deadline) -> None:
        fault = self._writer.begin(deadline)
        if fault is not None:
            self._fail(fault)

    def _all(self, deadline: Deadline) -> Iterator[tuple[Key, Record]]:
        """Every record of the log whose key can be read, in order."""
        for fetched in self._fetches(self._start(deadline), deadline, whole=True):
            yield from _readable(fetched)

    def _start(self, deadline: Deadline) -> int:
        place = self._leader.partition
        start = start_offsets(self._client, [place], deadline)[place]
        if isinstance(start, Fault):
            raise LedgerProblem(_cannot(self._settings, "read", start))
        return start

    def _continue(
        self, deadline: Deadline, until: Deadline | None = None, check: Callable[[Record], None] | None = None
    ) -> bool:
        """Read to the end; False = the log is another one, or no longer has all that was read of it."""
        whole = self._position is None
        position = self._start(deadline) if self._position is None else self._position
        try:
            for fetched in self._fetches(position, deadline, until, self._last, whole):
                for record in fetched.records:
                    self._take(record.key, record.value)
                    if check is not None:
                        check(record)
                self._position, self._last = fetched.position, fetched.last or self._last
        except _OutOfRange:
            return False
        return True

    def _fetches(
        self,
        position: int,
        deadline: Deadline,
        until: Deadline | None = None,
        last: Batch | None = None,
        whole: bool = False,
    ) -> Iterator[Fetched]:
        """Answers from `position` to the end of the log as it is at the first of them.

        until: how long to wait for open transactions. Then there are records, which markers may follow in a moment.
        last: the batch before `position`, to be proved by the first answer. whole: the log is read from its beginning,
        which may be long: then the deadline is that of one answer.
        """
        end: int | None = None
        each, all_ = deadline.left, Deadline(max(_WHOLE_SECONDS, deadline.left))
        stuck = until
        while end is None or position < end:
            deadline = Deadline(min(each, all_.left)) if whole else deadline
            wait = 0 if stuck is None else max(0, min(_WAIT_MS, int(stuck.left * 1000)))
            fetched = fetch_readable(self._leader, position, deadline, wait, last)
            if isinstance(fetched, Fault):
                problem = _OutOfRange if fetched.code == "OFFSET_OUT_OF_RANGE" else LedgerProblem
                raise problem(_cannot(self._settings, "read", fetched))
            end = fetched.end if end is None else end
            self._log_start = max(self._log_start, fetched.start)
            self._note_hidden(position, fetched)
            moved, position, last = fetched.position > position, fetched.position, None
            yield fetched
            if moved:
                stuck = until
            elif fetched.stable >= end:
                return
            else:
                # Leave time for one more answer, so that the error names the transaction and not the deadline.
                stuck = stuck or Deadline(min(_OPEN_SECONDS, deadline.left - _ANSWER_SECONDS))
                if stuck.left <= 0 and position < end:
                    raise _OpenTransaction(
                        f"a transaction has been open in the topic {self._settings.topic} since offset "
                        f"{fetched.stable}: later records can't be read before it ends; if it does not within minutes, "
                        "end it by kafka-transactions.sh abort",
                        stable=fetched.stable,
                    )

    def _note_hidden(self, start: int, fetched: Fetched) -> None:
        """Remember the batches that can't be read, and whether one of them can be read now, or is gone."""
        found, known = dict(fetched.hidden), self.contents.hidden
        if any(start <= offset < fetched.position and offset not in found for offset in known):
            self._is_stale = True
        known.update(found)
        self._empty = self._empty and not found

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        self._empty = False
        self.contents.take(key, value)
        if key == _OWNER_KEY:
            owner = None if value is None else _decoded(("owner",), value)
            self._owner_problem = str(owner) if isinstance(owner, Unreadable) else ""

    def _check_owner(self) -> None:
        topic, owner, mine = self._settings.topic, self.contents.owner, self._settings.installation
        if self._owner_problem:
            raise LedgerProblem(f"the owner of the ledger in the topic {topic} can't be read: {self._owner_problem}")
        if owner is None:
            if self.contents.hidden:
                raise LedgerProblem(
                    f"the owner of the ledger in the topic {topic} is not known: {self.contents.hidden_summary}"
                )
            if self._known is not None:
                message = f"the topic {topic} does not hold the ledger {self._known} any more"
                raise LedgerProblem(message, reasons.LEDGER_RESET)
            if not self._empty:
                raise LedgerProblem(f"the topic {topic} is no ledger: it holds records of something else")
            return
        if self._log_start > owner.start:
            message = (
                f"records were deleted from the topic {topic}: its log begins at offset {self._log_start}, and began "
                f"at {owner.start} when the ledger was claimed. Backups and requests to keep a group may be lost"
            )
            raise LedgerProblem(message, reasons.LEDGER_RESET)
        if owner.cluster not in ("", self._cluster):
            message = f"the ledger in the topic {topic} is a copy: it belongs to the cluster {owner.cluster}"
            raise LedgerProblem(message, reasons.LEDGER_OWNED)
        if mine is not None and mine != owner.installation and COMMAND_LINE not in (mine, owner.installation):
            message = f"the ledger in the topic {topic} belongs to the installation {owner.installation}, not to {mine}"
            raise LedgerProblem(message, reasons.LEDGER_OWNED)
        if self._known is not None and owner.ledger != self._known:
            message = f"the topic {topic} holds the ledger {owner.ledger}, not {self._known} as before"
            raise LedgerProblem(message, reasons.LEDGER_RESET)
        self._known = owner.ledger

    def _forget(self) -> None:
        self.contents = Contents()
        self._is_stale = False
        self._position = self._last = None
        self._log_start = 0
        self._empty = True
        self._owner_problem = ""

    def _fail(self, fault: Fault) -> NoReturn:
        if self._writer.state is ProducerState.FENCED:
            raise LedgerFenced(
                f"another process writes the ledger in the topic {self._settings.topic} now, as {self._settings.writer}"
                ": is there a second operator for this connection?"
            )
        raise LedgerProblem(_cannot(self._settings, "written", fault))


class _OutOfRange(LedgerProblem):
    """The log begins after the requested position, or ends before it."""


class _OpenTransaction(LedgerProblem):
    """An open transaction hides later records. stable: its first offset."""

    def __init__(self, message: str, reason: str | None = None, stable: int = -1) -> None:
        super().__init__(message, reason)
        self.stable = stable


def _cannot(settings: LedgerSettings, what: str, fault: Fault) -> str:
    return f"the ledger in the topic {settings.topic} can't be {what}: {fault}"


def _readable(fetched: Fetched) -> Iterator[tuple[Key, Record]]:
    """The records whose keys can be read."""
    for record in fetched.records:
        try:
            yield decode_key(record.key), record
        except Unreadable:
            continue


def _time(written: Written | None) -> datetime | None:
    """The broker's time of the last record."""
    return None if written is None or written.time < 0 else _EPOCH + timedelta(milliseconds=written.time)


def _pair(change: Change) -> Pair:
    return encode_key(change.key), None if isinstance(change, Removal) else encode_value(change)


def _decoded(key: Key, value: bytes) -> Entry | Unreadable:
    try:
        return decode(key, value)
    except Unreadable as error:
        return error
