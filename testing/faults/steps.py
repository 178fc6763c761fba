"""The loop over the steps of a deletion: at each, the leader is killed or frozen, and another takes over."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from testing.faults.api_proxy import ApiRule, patches_status
from testing.faults.auditor import Audit
from testing.faults.errors import Broken, FaultsError
from testing.faults.kafka_proxy import Rule, Then, When
from testing.faults.operators import OperatorProcess
from testing.faults.requests import DELETE_GROUPS, Exchange
from testing.faults.stage import needed
from testing.faults.world import Setup, World
from testing.sandbox.errors import NotReached
from testing.sandbox.kafka import KafkaCluster

STATUS = "status"
# In the order of a run. The first three write a scan's observations.
STEPS = (
    *("note-add", "note-produce", "note-end"),
    *("mark-produce", "mark-end"),
    *("reread-state", "reread-offsets"),
    *("intent-add", "intent-produce", "intent-end"),
    "delete",
    *("outcome-add", "outcome-produce", "outcome-end"),
    STATUS,
)
_GROUPS = 3
_END_SECONDS = 30.0


@dataclass(frozen=True)
class Point:
    """One fault: kill or freeze the leader, at a step, before or after the request."""

    what: str
    step: str
    when: When

    def __str__(self) -> str:
        return f"{self.what} at {self.step}, {self.when.value}"


@dataclass
class Tally:
    """The results of rounds. Thread-safe."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    audit: Audit = field(default_factory=Audit)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def one(self, point: Point, failure: str | None) -> None:
        with self._lock:
            self.tried += 1
            if failure is not None:
                self.failures.append(f"{point}: {failure}")

    def audited(self, audit: Audit) -> None:
        with self._lock:
            self.audit.add(audit)

    def failed(self, what: str) -> None:
        with self._lock:
            self.failures.append(what)


def points(what: str, count: int) -> Iterator[Point]:
    """So many faults, over all steps and moments in turn."""
    every = [Point(what, step, when) for when in When for step in STEPS]
    return itertools.islice(itertools.cycle(every), count)


def loop(kafka: KafkaCluster, lanes: int, wanted: list[Point], say: Callable[[str], None], without: str = "") -> Tally:
    """All rounds, in so many concurrent worlds, which share the brokers."""
    queue: SimpleQueue[Point] = SimpleQueue()
    for point in wanted:
        queue.put(point)
    tally = Tally()

    def lane(index: int) -> None:
        try:
            with (
                World(Setup(f"{wanted[0].what}-{index}", kafka, door=index, without=without)) as world,
                ExitStack() as stack,
            ):
                _lane(world, stack, queue, tally, say)
        except Exception:
            # Any error must be reported: a thread that ends by one is silent.
            tally.failed(f"lane {index}: {traceback.format_exc()}")

    threads = [threading.Thread(target=lane, args=(index,)) for index in range(lanes)]
    for thread in threads:
        thread.start()
        # Spreads the CPU load of their starts.
        time.sleep(1)
    for thread in threads:
        thread.join()
    return tally


def _lane(world: World, stack: ExitStack, queue: SimpleQueue[Point], tally: Tally, say: Callable[[str], None]) -> None:
    needed(world, stack)
    world.start(2)
    while True:
        try:
            point = queue.get_nowait()
        except Empty:
            break
        started, failure = time.monotonic(), None
        try:
            one_round(world, point)
        except (FaultsError, NotReached) as error:
            failure = str(error)
            _fresh(world)
        tally.one(point, failure)
        say(f"{world.name} {point}: {failure or f'ok, {time.monotonic() - started:.0f} s'}")
    tally.audited(world.audit())


def one_round(world: World, point: Point) -> None:
    leader = world.replicas.leader()
    names = world.abandon(_GROUPS)
    released = threading.Event()
    fired = _arm(world, leader, point, released)
    try:
        world.until_deleted(names, fired.is_set)
    finally:
        _disarm(world, leader)
    if not fired.is_set():
        raise FaultsError("the run was over, and this step never came")
    frozen = point.what == "freeze"
    if not frozen:
        leader.wait(_END_SECONDS)
    world.start(1)
    try:
        world.replicas.another_leader(leader)
        world.until_deleted(names)
        if frozen and not (point.step == "delete" and point.when is When.BEFORE):
            # The groups are in use again: a process that resumes with an old plan must not delete them.
            world.groups.abandon({name: {(world.topic, 0): 5} for name in names})
            world.truth.made({name: {(world.topic, 0): 5} for name in names})
            world.truth.stays(names, "it was made again after its deletion")
    finally:
        released.set()
        if frozen:
            leader.thaw()
    if frozen and leader.wait(_END_SECONDS) == 0:
        raise Broken("it resumed, lost the lead, and exited without an error")


def _arm(world: World, leader: OperatorProcess, point: Point, released: threading.Event) -> threading.Event:
    """Inject the fault at that point of the leader's next run; the event is set once it happened."""
    fired = threading.Event()
    begun = len(world.proxy.seen(DELETE_GROUPS))

    def strike() -> Then:
        if point.what == "kill":
            leader.kill()
        else:
            leader.freeze()
        fired.set()
        if point.what == "freeze" and point.when is When.BEFORE:
            # The request arrives late: after another leads and has finished.
            released.wait(120)
            return Then.PASS
        return Then.DROP if point.when is When.BEFORE else Then.PASS

    if point.step == STATUS:

        def is_request(method: str, path: str) -> bool:
            return patches_status(method, path) and len(world.proxy.seen(DELETE_GROUPS)) > begun

        leader.api.rule(ApiRule(is_request, point.when, lambda: (strike(), None)[1]))
    else:

        def matches(exchange: Exchange) -> bool:
            return exchange.sender == leader.name and exchange.step == point.step

        world.proxy.rule(Rule(matches, point.when, lambda _: strike()))
    return fired


def _disarm(world: World, leader: OperatorProcess) -> None:
    world.proxy.clear()
    leader.api.clear()


def _fresh(world: World) -> None:
    """Start new replicas after a failed round."""
    for process in world.replicas.all:
        process.end()
    world.start(2)
    world.replicas.leader()
