"""Many GroupRestores of one connection, on a real broker: one reading of the ledger, a limit of time, fair turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from group_hygiene.controller.admission import Grants
from group_hygiene.controller.turns import Restores
from group_hygiene.engine.context import Context, Memory
from group_hygiene.kafka.client import Client
from group_hygiene.ledger import ledger as ledger_module
from group_hygiene.ledger.contents import encode_value
from group_hygiene.ledger.journal import Journal
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import reasons
from group_hygiene.model.entries import in_parts
from group_hygiene.model.groups import CommittedOffset, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.process import memory
from group_hygiene.process.clock import elapsed
from group_hygiene.spec.connection import parse_connection
from tests.kafka.makers import Maker, soon
from tests.kafka.scene import Clock
from tests.kafka.test_restoration import claimed, saved

# As long as a request of a busy machine may take.
ROUND_S = 60.0
ACCESS = [{"namespaces": {"names": ["team"]}, "groups": ["*"], "actions": ["Restore"]}]
Object = dict[str, Any]


@dataclass
class Written:
    """Records the name and the group results of each status that is written, and the last reason of Ready."""

    rows: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    def write(self, _plural: str, obj: Object, new: Object) -> bool:
        results = [(result["group"], result["reason"]) for result in new.get("results", [])]
        self.rows.append((obj["metadata"]["name"], results))
        self.reasons[obj["metadata"]["name"]] = next(c["reason"] for c in new["conditions"] if c["type"] == "Ready")
        return True


class Elapsed:
    """The time that passes, of which tests skip as much as a round has."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        return elapsed() + self._skipped

    def skip_a_round(self) -> None:
        self._skipped += ROUND_S


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    found = Elapsed()
    monkeypatch.setattr("group_hygiene.kafka.client.elapsed", found)
    return found


@dataclass
class Slow:
    """A guard that takes as long as a round has, and then has each group wait."""

    passing: Elapsed

    def refusal(self) -> Refusal | None:
        self.passing.skip_a_round()
        return Refusal(reasons.POLICY_CHANGED, "it was edited")

    def seconds_left(self) -> float:
        return 60.0


class Rounds:
    """What the loop of a connection with such a scan.timeout does with these objects, round after round."""

    def __init__(self, client: Client, ledger: Ledger, objects: Sequence[Object], passing: Elapsed) -> None:
        spec = {"bootstrapServers": ["kafka:9092"], "access": ACCESS, "scan": {"timeout": f"{ROUND_S:.0f}s"}}
        self._passing = passing
        metadata = {"namespace": "kafka", "name": "main", "uid": "c", "generation": 1}
        self.connection = parse_connection({"metadata": metadata, "spec": spec})
        self.clock, self.written, self.objects = Clock(step=0.001), Written(), objects
        memory = Memory(contents=ledger.contents, ledger=ledger, claimed=True)
        journal = Journal(ledger, ledger.contents, {}, writable=True)
        self.context = Context(client, self.connection, memory, self.clock, journal)
        unserved = SimpleNamespace(check=lambda *_: None)
        services: Any = SimpleNamespace(clock=self.clock, grants=Grants(cast(Any, None), self.clock), unserved=unserved)
        self.restores = Restores(services, cast(Any, self.written), "kafka", "main")

    def next(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The statuses that one round writes."""
        before = len(self.written.rows)
        due = self.restores.due(self.connection, self.objects)
        self.restores.run(self.context, due, lambda _: Slow(self._passing))
        return self.written.rows[before:]


def _restore(name: str, *groups: str, namespace: str = "kafka") -> Object:
    reference = {"name": "main", "namespace": "kafka"}
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{name}", "generation": 1}
    return {"metadata": metadata, "spec": {"connectionRef": reference, "groups": list(groups)}}


@pytest.fixture
def ledger(client: Client, make: Maker) -> Ledger:
    return claimed(client, make.name("ledger"))


@pytest.fixture
def deleted(client: Client, ledger: Ledger, make: Maker) -> list[str]:
    """Groups of which there are backups."""
    topic = make.topic()
    names = sorted(make.name(f"old-{number}") for number in range(4))
    for name in names:
        ledger.write(in_parts(saved(client, name, {Partition(topic, 0): CommittedOffset(0)})))
    return names


def test_the_ledger_is_read_once_for_all(client: Client, ledger: Ledger, deleted: list[str], passing: Elapsed) -> None:
    """However many restores are due, and whatever they ask for."""
    read: Callable[..., Iterator[Any]] = ledger.latest
    readings: list[None] = []

    def counting(*arguments: Any) -> Iterator[Any]:
        readings.append(None)
        return read(*arguments)

    cast(Any, ledger).latest = counting
    objects = [_restore(f"r-{number}", f"never-there-{number}") for number in range(20)]
    rounds = Rounds(client, ledger, [*objects, _restore("theirs", "never-there-0", namespace="team")], passing)
    statuses = rounds.next()
    assert len(statuses) == 21
    assert {reason for _, results in statuses for _, reason in results} == {reasons.NO_BACKUP}
    assert len(readings) == 1


def test_what_does_not_fit_into_the_memory_fails_alone(
    client: Client, ledger: Ledger, deleted: list[str], passing: Elapsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One restore needs more backups than there is memory for: it says so, and the others are tried."""
    one = sum(len(encode_value(part)) for part in ledger.entries(lambda key: key[:2] == ("backup", deleted[0]), soon()))
    monkeypatch.setattr(ledger_module, "_STEP_BYTES", 1)
    monkeypatch.setattr(memory, "left", lambda: 2 * one * ledger_module._TIMES_AS_ENTRIES)
    objects = [
        _restore("all", *deleted),
        _restore("mine", deleted[0]),
        _restore("theirs", deleted[3], namespace="team"),
    ]
    rounds = Rounds(client, ledger, objects, passing)
    for _ in objects:
        rounds.next()
    assert rounds.written.reasons == {
        "all": reasons.MEMORY_EXHAUSTED,
        "mine": reasons.POLICY_CHANGED,
        "theirs": reasons.POLICY_CHANGED,
    }


def test_namespaces_take_turns(client: Client, ledger: Ledger, deleted: list[str], passing: Elapsed) -> None:
    """When a round's time is over the others wait for the next one, and a namespace with many holds up no other."""
    many = [_restore(f"mine-{number}", name) for number, name in enumerate(deleted[:3])]
    rounds = Rounds(client, ledger, [*many, _restore("theirs", deleted[3], namespace="team")], passing)
    turns = []
    for _ in range(4):
        turns.append([name for name, _ in rounds.next()])
        waits = rounds.restores.seconds_to_wait()
        assert (waits == 1.0) is (len(turns) < 4)
    assert turns == [["mine-0"], ["theirs"], ["mine-1"], ["mine-2"]]


def test_one_restore_of_many_groups_goes_on_where_it_was(
    client: Client, ledger: Ledger, deleted: list[str], passing: Elapsed
) -> None:
    """In each round at least one of its groups is tried, and those that no time was left for say so.

    Once all were tried, it waits as any other restore does.
    """
    rounds = Rounds(client, ledger, [_restore("all", *deleted)], passing)
    for count in range(1, len(deleted) + 1):
        ((_, results),) = rounds.next()
        assert {name: reason == reasons.POLICY_CHANGED for name, reason in results} == {
            name: number < count for number, name in enumerate(deleted)
        }
        assert {reason for _, reason in results} <= {reasons.POLICY_CHANGED, reasons.INTERRUPTED}
        waits = rounds.restores.seconds_to_wait()
        assert (waits == 0.0) is (count < len(deleted))


def test_a_restore_of_which_every_group_is_refused_ends(
    client: Client, ledger: Ledger, make: Maker, passing: Elapsed
) -> None:
    """A large ledger leaves time for one group a round; none is tried twice, as no other try can change its result."""
    names = sorted(make.name(f"old-{number}") for number in range(3))
    for name in names:
        ledger.write(in_parts(saved(client, name, {Partition(make.name("gone"), 0): CommittedOffset(0)})))
    read: Callable[..., Iterator[Any]] = ledger.latest

    def slow(*arguments: Any) -> Iterator[Any]:
        found = list(read(*arguments))
        passing.skip_a_round()
        return iter(found)

    cast(Any, ledger).latest = slow
    rounds = Rounds(client, ledger, [_restore("all", *names)], passing)
    results = [dict(results) for _ in names for _, results in rounds.next()]
    assert results[-1] == dict.fromkeys(names, reasons.TOPIC_MISSING)
    assert rounds.restores.seconds_to_wait() is None, "it is over"
