"""The ledger of one Kafka cluster: entries in a compacted topic, written in transactions by one process at a time.

What entries mean is the subject of `entries`. Nothing here decides, and nothing is taken for written that a broker did
not confirm.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from group_hygiene import reasons
from group_hygiene.contents import Contents
from group_hygiene.entries import (
    Change,
    Entry,
    Key,
    Owner,
    Removal,
    Unreadable,
    decode,
    decode_key,
    encode_key,
    encode_value,
    expires,
)
from group_hygiene.errors import LedgerFenced, LedgerProblem
from group_hygiene.kafka import ledger_topic
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.offsets import start_offsets
from group_hygiene.kafka.partition import Fetched, Leader, Record, fetch
from group_hygiene.kafka.transactions import MOVED, Pair, State, Writer, Written
from group_hygiene.model import Fault, Partition

TOPIC = "__group_hygiene"
_CALL_SECONDS = 20.0
# How long somebody else's transaction may keep us from the end of the log.
_OPEN_SECONDS = 10.0
_WAIT_MS = 100
_ANSWER_SECONDS = 0.5
# A transaction of so many small entries takes a second; more go into several, each for itself all or nothing.
_TRANSACTION_ENTRIES = 100_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OWNER_KEY = encode_key(("owner",))


@dataclass(frozen=True, kw_only=True)
class LedgerSettings:
    """Whose ledger, and where.

    installation: who may own it; None = whoever does. writer: the transactional.id; who begins under the same one
    fences who wrote before. known: the ledger id that was seen before. transaction_timeout: seconds after which brokers
    abort what a dead process left open, and until then nobody can read on.
    """

    installation: str | None
    writer: str
    known: str | None = None
    topic: str = TOPIC
    replication_factor: int = 3
    transaction_timeout: float = 60.0


def open_ledger(
    client: Client, settings: LedgerSettings, deadline: Deadline, create: bool, claim: bool = False
) -> Ledger | None:
    """The ledger, read to its end; None = there is no such topic, and `create` is False.

    With `claim` it is claimed as well, before it is read: a transaction that our predecessor left open would hide what
    follows it until the brokers end it. Without, no entry is written.

    Raises LedgerProblem: LedgerUnavailable, LedgerReset or LedgerOwnedByAnother.
    """
    topic = ledger_topic.find(client, settings.topic, deadline)
    if topic is None:
        if settings.known is not None:
            raise LedgerProblem(
                f"the topic {settings.topic} is gone, and with it the ledger {settings.known}", reasons.LEDGER_RESET
            )
        if not create:
            return None
        topic = ledger_topic.create(client, settings.topic, settings.replication_factor, deadline)
    if isinstance(topic, Fault):
        raise LedgerProblem(_cannot(settings, "opened", topic))
    wrong = ledger_topic.check(client, settings.topic, topic, deadline)
    if isinstance(wrong, Fault):
        raise LedgerProblem(_cannot(settings, "checked", wrong))
    if wrong:
        raise LedgerProblem(f"the settings of the topic {settings.topic} are wrong: {wrong}")
    ledger = Ledger(client, settings, topic.id)
    if claim:
        ledger.claim(deadline)
    else:
        ledger.read_on(deadline)
    return ledger


class Ledger:
    """Made by `open_ledger`. For one thread at a time.

    contents: what the log adds up to, up to where it was read. Another object, and a LedgerProblem, only once the topic
    was made anew.
    """

    def __init__(self, client: Client, settings: LedgerSettings, topic_id: str) -> None:
        self.contents = Contents()
        self._client = client
        self._settings = settings
        self._topic_id = topic_id
        self._known = settings.known
        self._leader = Leader(client, Partition(settings.topic, 0))
        self._writer = Writer(self._leader, settings.writer, settings.transaction_timeout)
        # The offset to read on from; None = from the first record.
        self._position: int | None = None
        self._empty = True
        self._owner_problem = ""

    @property
    def writer(self) -> str:
        """Under which name this process writes, as its predecessors for the same connection did."""
        return self._settings.writer

    @property
    def id(self) -> str | None:
        """The ledger's own id, to be remembered as `known`; None as long as nobody claimed it."""
        return self.contents.owner.ledger if self.contents.owner else None

    def read_on(self, deadline: Deadline) -> None:
        """Take in what was committed since the last look, up to the end of the log as it is now.

        Raises LedgerProblem: also when somebody's open transaction hides what follows it; and LedgerFenced.
        """
        if self._writer.state is State.UNKNOWN:
            self._begin(deadline)
        topic = ledger_topic.find(self._client, self._settings.topic, deadline)
        if isinstance(topic, Fault):
            raise LedgerProblem(_cannot(self._settings, "read", topic))
        if topic is None:
            raise LedgerProblem(f"the topic {self._settings.topic} is gone", reasons.LEDGER_RESET)
        other = topic.id != self._topic_id or not self._continue(deadline)
        if other:
            self._forget()
            self._topic_id = topic.id
            self._continue(deadline)
        self._check_owner()
        if other:
            # Whoever holds the former contents must not go on with them.
            raise LedgerProblem(
                f"the topic {self._settings.topic} was made anew, and the ledger is in it: it is read again"
            )

    def claim(self, deadline: Deadline | None = None) -> None:
        """Become the one writer, read to the end, and make an empty topic our ledger where none is known.

        Raises LedgerProblem and LedgerFenced.
        """
        deadline = deadline or Deadline(_CALL_SECONDS)
        self._begin(deadline)
        self.read_on(deadline)
        if self.contents.owner is not None:
            return
        if self._settings.installation is None:
            raise LedgerProblem(f"the topic {self._settings.topic} is nobody's ledger yet")
        owner = Owner(installation=self._settings.installation, ledger=uuid.uuid4().hex, since=datetime.now(UTC))
        self.write([owner], deadline)
        # Another installation may have found it empty as well: the last Owner counts, for both.
        self.read_on(deadline)

    def write(self, changes: Iterable[Change], deadline: Deadline | None = None) -> datetime | None:
        """Write all in one transaction (beyond 100,000 in several) and take it into `contents`; `claim` comes first.

        Returns the broker's time of the last record; None where there is none, as nothing was to be written or the
        topic lost its LogAppendTime. Raises LedgerProblem: nothing of this is visible, or, if the message says so,
        nobody knows; then the next call finds out first. Raises LedgerFenced when another process took over.
        """
        deadline = deadline or Deadline(_CALL_SECONDS)
        pairs = [_pair(change) for change in changes]
        self._get_ready(deadline)
        time = None
        for at in range(0, len(pairs), _TRANSACTION_ENTRIES):
            written = self._write(pairs[at : at + _TRANSACTION_ENTRIES], deadline)
            if isinstance(written, Fault):
                self._fail(written)
            time = _EPOCH + timedelta(milliseconds=written.time) if written.time >= 0 else None
        return time

    def _get_ready(self, deadline: Deadline) -> None:
        if self._writer.state is State.NEW:
            raise RuntimeError("a ledger must be claimed before it is written")
        if self._writer.state is State.UNKNOWN:
            self.read_on(deadline)

    def _write(self, pairs: Sequence[Pair], deadline: Deadline, at: int | None = None) -> Written | Fault:
        """One transaction, which is taken into `contents`. at: see `Writer.write`."""
        written = self._writer.write(pairs, deadline, at)
        if isinstance(written, Fault):
            return written
        for key, value in pairs:
            self._take(key, value)
        # Where nobody wrote in between there is no need to read that again.
        if written.start == self._position:
            self._position = written.end
        return written

    def entries(self, wanted: Callable[[Key], bool], deadline: Deadline) -> Iterator[Entry]:
        """Every entry whose key is wanted, the latest of each, from the whole log; unreadable ones are left out.

        Raises LedgerProblem.
        """
        return (entry for _, entry in self.latest(wanted, deadline) if entry is not None)

    def latest(self, wanted: Callable[[Key], bool], deadline: Deadline) -> Iterator[tuple[Key, Entry | None]]:
        """The same with their keys, and with those that can't be read, as None. Raises LedgerProblem."""
        latest: dict[Key, bytes] = {}
        for key, record in self._all(deadline):
            if not wanted(key):
                continue
            latest.pop(key, None)
            if record.value is not None:
                latest[key] = record.value
        for key, value in latest.items():
            try:
                entry: Entry | None = decode(key, value)
            except Unreadable:
                entry = None
            yield key, entry

    def sweep(self, now: datetime, deadline: Deadline | None = None) -> int:
        """Remove what has expired; returns how many entries.

        An entry that is written again meanwhile stays: removals are committed only where the log ends as it was read.

        now: a broker's time of a write, never our own clock's, as a backup that is removed is gone for good. Raises
        LedgerProblem, also when others write all the time, and LedgerFenced.
        """
        deadline = deadline or Deadline(_CALL_SECONDS)
        self._get_ready(deadline)
        over: set[Key] = set()
        removed, position = 0, self._find_over(self._start(deadline), over, now, deadline)
        while over:
            pairs = [_pair(Removal(key)) for key in list(over)[:_TRANSACTION_ENTRIES]]
            written = self._write(pairs, deadline, position)
            if isinstance(written, Written):
                removed += len(pairs)
            elif written.code != MOVED:
                self._fail(written)
            # What was written meanwhile, by us or by others, is over no more.
            position = self._find_over(position, over, now, deadline)
        self.contents.forget_expired(now)
        return removed

    def _find_over(self, position: int, over: set[Key], now: datetime, deadline: Deadline) -> int:
        """Bring the keys of expired entries up to date, from the offset to the end of the log, which is returned."""
        for fetched in self._fetches(position, deadline):
            for key, record in _readable(fetched):
                if record.value is not None and _is_over(key, record.value, now):
                    over.add(key)
                else:
                    over.discard(key)
            position = fetched.position
        return position

    def close(self) -> None:
        """There is nothing to end: the client is somebody else's, and no transaction outlives its `write`."""

    def _begin(self, deadline: Deadline) -> None:
        fault = self._writer.begin(deadline)
        if fault is not None:
            self._fail(fault)

    def _all(self, deadline: Deadline) -> Iterator[tuple[Key, Record]]:
        """Every record of the log whose key can be read, in order."""
        for fetched in self._fetches(self._start(deadline), deadline):
            yield from _readable(fetched)

    def _start(self, deadline: Deadline) -> int:
        place = self._leader.partition
        start = start_offsets(self._client, [place], deadline)[place]
        if isinstance(start, Fault):
            raise LedgerProblem(_cannot(self._settings, "read", start))
        return start

    def _continue(self, deadline: Deadline) -> bool:
        """Read to the end; False = the log ends before our position, so it is another one."""
        if self._position is None:
            self._position = self._start(deadline)
        try:
            for fetched in self._fetches(self._position, deadline):
                for record in fetched.records:
                    self._take(record.key, record.value)
                self._position = fetched.position
        except _OutOfRange:
            return False
        return True

    def _fetches(self, position: int, deadline: Deadline) -> Iterator[Fetched]:
        """Answers from `position` to the end of the log as it is at the first of them."""
        end: int | None = None
        stuck: Deadline | None = None
        while end is None or position < end:
            fetched = fetch(self._leader, position, deadline, _WAIT_MS if stuck else 0)
            if isinstance(fetched, Fault):
                problem = _OutOfRange if fetched.code == "OFFSET_OUT_OF_RANGE" else LedgerProblem
                raise problem(_cannot(self._settings, "read", fetched))
            end = fetched.end if end is None else end
            moved, position = fetched.position > position, fetched.position
            yield fetched
            if moved:
                stuck = None
            elif fetched.stable >= end:
                return
            else:
                # Leaves time for one more answer, so that it is told what is in the way and not that time is over.
                stuck = stuck or Deadline(min(_OPEN_SECONDS, deadline.left - _ANSWER_SECONDS))
                if stuck.left <= 0 and position < end:
                    raise LedgerProblem(
                        f"a transaction has been open in the topic {self._settings.topic} since offset "
                        f"{fetched.stable}: what follows can't be read before it ends"
                    )

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        self._empty = False
        self.contents.take(key, value)
        if key == _OWNER_KEY:
            self._owner_problem = _problem(("owner",), value)

    def _check_owner(self) -> None:
        topic, owner, mine = self._settings.topic, self.contents.owner, self._settings.installation
        if self._owner_problem:
            raise LedgerProblem(f"who owns the ledger in the topic {topic} can't be read: {self._owner_problem}")
        if owner is None:
            if self._known is not None:
                message = f"the topic {topic} does not hold the ledger {self._known} any more"
                raise LedgerProblem(message, reasons.LEDGER_RESET)
            if not self._empty:
                raise LedgerProblem(f"the topic {topic} is no ledger: it holds records of something else")
            return
        if mine is not None and owner.installation != mine:
            message = f"the ledger in the topic {topic} belongs to the installation {owner.installation}, not to {mine}"
            raise LedgerProblem(message, reasons.LEDGER_OWNED)
        if self._known is not None and owner.ledger != self._known:
            message = f"the topic {topic} holds the ledger {owner.ledger}, not {self._known} as before"
            raise LedgerProblem(message, reasons.LEDGER_RESET)
        self._known = owner.ledger

    def _forget(self) -> None:
        self.contents = Contents()
        self._position = None
        self._empty = True
        self._owner_problem = ""

    def _fail(self, fault: Fault) -> NoReturn:
        if self._writer.state is State.FENCED:
            raise LedgerFenced(
                f"another process writes the ledger in the topic {self._settings.topic} now, as {self._settings.writer}"
            )
        raise LedgerProblem(_cannot(self._settings, "written", fault))


class _OutOfRange(LedgerProblem):
    """The log begins after the position that was asked for, or ends before it."""


def _cannot(settings: LedgerSettings, what: str, fault: Fault) -> str:
    return f"the ledger in the topic {settings.topic} can't be {what}: {fault}"


def _readable(fetched: Fetched) -> Iterator[tuple[Key, Record]]:
    """The records whose keys can be read."""
    for record in fetched.records:
        try:
            yield decode_key(record.key), record
        except Unreadable:
            continue


def _pair(change: Change) -> Pair:
    return encode_key(change.key), None if isinstance(change, Removal) else encode_value(change)


def _problem(key: Key, value: bytes | None) -> str:
    try:
        if value is not None:
            decode(key, value)
    except Unreadable as error:
        return str(error)
    return ""


def _is_over(key: Key, value: bytes, now: datetime) -> bool:
    try:
        entry = decode(key, value)
    except Unreadable:
        return False
    until = expires(entry)
    return until is not None and until <= now
