"""When a GroupRestore that waits is tried again, without Kafka or an API server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from group_hygiene.controller.admission import Grants
from group_hygiene.controller.turns import Restores
from group_hygiene.engine.context import Context, Memory
from group_hygiene.errors import Unreachable
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import Connection, parse_connection


@dataclass
class Clock:
    """Stands still until it is set."""

    seconds: float = 1_000.0

    def now(self) -> datetime:
        return datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Written:
    """Records the reasons that are written into statuses."""

    reasons: list[str] = field(default_factory=list)

    def write(self, _plural: str, _obj: Any, new: dict[str, Any]) -> bool:
        self.reasons.append(new["conditions"][0]["reason"])
        return True


@dataclass
class Guard:
    left: float = 60.0

    def refusal(self) -> Refusal | None:
        return None

    def seconds_left(self) -> float:
        return self.left


def a_connection(generation: int = 1) -> Connection:
    metadata = {"namespace": "kafka", "name": "main", "uid": "c", "generation": generation}
    return parse_connection({"metadata": metadata, "spec": {"bootstrapServers": ["kafka:9092"]}})


def a_context(connection: Connection, clock: Clock) -> Context:
    """Of a run in which the ledger can't be read, so that every restore waits."""
    unread = Refusal(reasons.LEDGER_UNAVAILABLE, "nobody answers")
    journal = Journal(None, Contents(), {}, problem=unread)
    return Context(cast(Any, None), connection, Memory(), clock, journal)


def services(clock: Clock) -> Any:
    return SimpleNamespace(clock=clock, grants=Grants(cast(Any, None), clock))


RESTORE = {
    "metadata": {"namespace": "kafka", "name": "r", "uid": "r", "generation": 1},
    "spec": {"connectionRef": {"name": "main"}, "groups": ["billing"]},
}


def test_each_try_waits_longer() -> None:
    """Each reads the whole ledger; an edit of the connection may help, and so starts again."""
    clock, written = Clock(), Written()
    restores = Restores(services(clock), cast(Any, written), "kafka", "main")
    for generation, passed, expected in ((1, 0, 15), (1, 15, 30), (1, 30, 60), (1, 60, 120), (1, 120, 120), (2, 0, 15)):
        clock.seconds += passed
        connection = a_connection(generation)
        asked = restores.due(connection, [RESTORE])
        assert len(asked) == 1
        restores.run(a_context(connection, clock), asked, lambda _: Guard())
        assert (restores.due(connection, [RESTORE]), restores.seconds_to_wait()) == ([], expected)
    assert set(written.reasons) == {reasons.LEDGER_UNAVAILABLE}


def test_a_result_is_not_replaced_by_an_error_after_it() -> None:
    """When policies of the same round fail: the result may be the last that is written."""
    clock, written = Clock(), Written()
    restores = Restores(services(clock), cast(Any, written), "kafka", "main")
    asked = restores.due(a_connection(), [RESTORE])
    restores.run(a_context(a_connection(), clock), asked, lambda _: Guard())
    restores.report_not_ready(asked, Unreachable("nobody answers"))
    assert written.reasons == [reasons.LEDGER_UNAVAILABLE]
    clock.seconds += 60
    restores.report_not_ready(restores.due(a_connection(), [RESTORE]), Unreachable("nobody answers"))
    assert written.reasons == [reasons.LEDGER_UNAVAILABLE, reasons.CONNECTION_NOT_READY]


def test_an_error_of_our_own_ends_no_round() -> None:
    """Policies that run after the restores still run."""
    clock, written = Clock(), Written()
    restores = Restores(services(clock), cast(Any, written), "kafka", "main")
    asked = restores.due(a_connection(), [RESTORE])
    context = a_context(a_connection(), clock)
    broken = cast(Any, object())
    context = replace(context, memory=Memory(ledger=broken), journal=Journal(broken, Contents(), {}, writable=True))
    restores.run(context, asked, lambda _: Guard())
    assert written.reasons == [reasons.INTERNAL_ERROR]


def test_who_does_not_lead_writes_nothing() -> None:
    """The process that leads now has its own results, and they must not be overwritten."""
    written, connection = Written(), a_connection()
    restores = Restores(services(Clock()), cast(Any, written), "kafka", "main")
    restores.run(a_context(connection, Clock()), restores.due(connection, [RESTORE]), lambda _: Guard(left=0.0))
    assert written.reasons == []


def test_one_namespace_takes_some_turns_of_a_round() -> None:
    """However many of its restores wait: policies and others' restores have their turn, and all come to be tried."""
    clock, written = Clock(), Written()
    restores, connection = Restores(services(clock), cast(Any, written), "kafka", "main"), a_connection()
    metadata: Any = RESTORE["metadata"]
    many = [{**RESTORE, "metadata": {**metadata, "name": f"r{n}", "uid": f"r{n}"}} for n in range(50)]
    tried = []
    for _ in range(3):
        asked = restores.due(connection, many)
        before = len(written.reasons)
        restores.run(a_context(connection, clock), asked, lambda _: Guard())
        tried.append((len(asked), len(written.reasons) - before, restores.seconds_to_wait()))
        clock.seconds += 1
    assert tried == [(50, 20, 1.0), (30, 20, 1.0), (10, 10, 13.0)]


def test_those_that_are_gone_have_no_turn() -> None:
    """They had none in an earlier round: then nothing waits for the next one."""
    clock, connection, metadata = Clock(), a_connection(), cast(dict[str, Any], RESTORE["metadata"])
    there = [RESTORE, {**RESTORE, "metadata": metadata | {"uid": "2"}}]
    serving = services(clock)
    serving.granted = lambda *_: there
    restores = Restores(serving, cast(Any, Written()), "kafka", "main")
    asked = restores.due(connection, restores.open(connection))
    restores.run(a_context(connection, clock), asked, lambda asked: Guard(left=60.0 if asked.uid == "r" else 0.0))
    assert restores.seconds_to_wait() == 1.0
    there.clear()
    assert restores.due(connection, restores.open(connection)) == []
    assert restores.seconds_to_wait() is None
