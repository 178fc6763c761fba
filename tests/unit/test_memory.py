"""Who may take in much now: in turns, to a bound of memory, and never for ever."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from group_hygiene.process import memory
from group_hygiene.process.memory import FREE_BYTES, Intake, MemoryTurn, MemoryTurns, TooMuch

# For a machine that is busy; nothing here takes that long.
_SECONDS = 60
_LARGE = FREE_BYTES + 1


def test_small_responses_do_not_wait() -> None:
    """While other connections have all turns."""
    turns = MemoryTurns()
    turns.take("team-a", _SECONDS)
    Intake("team-b", turns).take(FREE_BYTES - 1, 0)


def test_large_answers_are_refused_where_no_turn_comes_in_time() -> None:
    """Also those that are large together only; after the other run's end there is a turn."""
    turns = MemoryTurns()
    first, second = Intake("team-a", turns), Intake("team-b", turns)
    first.take(_LARGE, 0)
    second.take(FREE_BYTES - 1, 0)
    for _ in range(2):
        with pytest.raises(TooMuch, match="no turn came"):
            second.take(1, 0)
    first.end()
    second.take(1, _SECONDS)


def test_a_turn_that_takes_too_long_ends_for_those_who_wait() -> None:
    """What its owner reads after that is refused until its run ends; then it may take a turn again."""
    turns = MemoryTurns(seconds=0)
    slow, other = Intake("team-a", turns), Intake("team-b", turns)
    slow.take(_LARGE, 0)
    slow.take(_LARGE, 0)
    other.take(_LARGE, _SECONDS)
    with pytest.raises(TooMuch, match="took too long"):
        slow.take(_LARGE, 0)
    slow.end()
    other.end()
    slow.take(_LARGE, 0)


def test_the_owner_that_was_served_longest_ago_is_next() -> None:
    """Not the one that asks most often: its other connections wait behind those of others."""
    turns = MemoryTurns()
    order: list[str] = []
    first = turns.take("team-a", _SECONDS)
    waiting = threading.Barrier(3)

    def wait(owner: str) -> None:
        waiting.wait()
        turn = turns.take(owner, _SECONDS)
        order.append(owner)
        turns.give_back(turn)

    with ThreadPoolExecutor() as threads:
        served = [threads.submit(wait, owner) for owner in ("team-a", "team-b")]
        waiting.wait()
        while len(turns._waiting) < 2:
            pass
        turns.give_back(first)
        for each in served:
            each.result(_SECONDS)
    assert order == ["team-b", "team-a"]


@pytest.mark.parametrize(
    ("lasts", "seconds", "order"),
    [
        pytest.param(21.0, 5, ["short", "long-a", "long-b"], id="short-turns-come-first"),
        pytest.param(21.0, 500, ["long-a", "long-b", "short"], id="long-ones-come-first-in-the-end"),
        pytest.param(3600.0, 500, ["long-a", "long-b", "short"], id="hours-without-others"),
    ],
)
@pytest.mark.parametrize("ends", ["itself", "others"])
def test_who_takes_long_comes_after_those_who_do_not(
    monkeypatch: pytest.MonkeyPatch, lasts: float, seconds: float, order: list[str], ends: str
) -> None:
    """A short turn waits for one long turn, not for each that began to wait before it."""
    now = 0.0
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now))
    turns = MemoryTurns(seconds=20)
    for owner, held in (("long-a", lasts), ("long-b", lasts), ("in-between", seconds), ("short", 1.0)):
        turn = turns.take(owner, _SECONDS)
        now += held
        if ends == "itself" or "long" not in owner:
            turns.give_back(turn)
    asking = [MemoryTurn(owner) for owner in sorted(order)]
    for name in order:
        turns._waiting = asking
        (turn,) = filter(turns._is_next, asking)
        assert turn.owner == name
        asking = [each for each in asking if each is not turn]


def test_one_owner_leaves_room_for_others() -> None:
    """Of three slots it has two; the third is for others."""
    turns = MemoryTurns(slots=3)
    with turns.held("a", 1), turns.held("a", 1):
        with pytest.raises(TimeoutError), turns.held("a", 0):
            pass
        with turns.held("b", 0), pytest.raises(TimeoutError), turns.held("c", 0):
            pass
    with turns.held("a", 0), turns.held("a", 0), turns.held("b", 0):
        pass


@pytest.mark.parametrize("slots", [2, 3])
def test_two_owners_that_always_ask_do_not_shut_out_a_third(slots: int) -> None:
    """The next slot is for whoever was served longest ago, though the others asked before and ask for more."""
    turns = MemoryTurns(slots=slots)
    order: list[str] = []
    running = [turns.take(owner, _SECONDS) for owner in ("team-a", "team-b", "team-a")[:slots]]

    def wait(owner: str) -> None:
        turn = turns.take(owner, _SECONDS)
        order.append(owner)
        turns.give_back(turn)

    owners = ["team-a", "team-b", "team-a", "team-b", "team-c"]
    with ThreadPoolExecutor(len(owners)) as threads:
        served = []
        for count, owner in enumerate(owners, 1):
            served.append(threads.submit(wait, owner))
            while len(turns._waiting) < count:
                pass
        turns.give_back(running[0])
        while not order:
            pass
        for turn in running[1:]:
            turns.give_back(turn)
        for each in served:
            each.result(_SECONDS)
    assert order[0] == "team-c"


def test_what_is_reserved_is_taken_until_the_run_ends() -> None:
    """Also before it is taken: what others ask for meanwhile is held against both."""
    assert _limited(_RESERVING + "print(first, second, small, after)") == "True False True True"


def test_who_needs_much_waits_until_others_end() -> None:
    """No longer than it has time."""
    code = """
        import threading

        first, second = memory.Intake("a", memory.MemoryTurns()), memory.Intake("b", memory.MemoryTurns())
        first.reserve(120 << 20, "it", 1)
        threading.Timer(1, first.end).start()
        second.reserve(120 << 20, "it", 60)
        print("reserved")
        """
    assert _limited(code) == "reserved"


def test_a_run_of_as_much_as_the_last_one_is_let_in_again() -> None:
    """What it freed may still be the process's, which takes it again; a part stays reserved for what is remembered."""
    code = """
        run, other = memory.Intake("a", memory.MemoryTurns()), memory.Intake("b", memory.MemoryTurns())
        run.reserve(150 << 20, "it", 1)
        held = [b"x" * 1000 for _ in range(120_000)]
        run.end()
        run.reserve(150 << 20, "it", 1)
        run.end()
        print(memory._reserved.total == (150 << 20) // 5)
        del run
        print(memory._reserved.total)
        """
    assert _limited(code).split() == ["True", "0"]


def test_what_was_taken_counts_once() -> None:
    """A run that took what it reserved leaves as much to others as one that has not yet."""
    code = """
        run = memory.Intake()
        run.reserve(100 << 20, "it", 1)
        before = memory.left()
        held = b"x" * (80 << 20)
        print(abs(memory.left() - before) < 8 << 20)
        """
    assert _limited(code) == "True"


_RESERVING = """
def reserves(run, size):
    try:
        run.reserve(size, "it", 0.1)
    except memory.TooMuch:
        return False
    return True

runs = [memory.Intake(owner, memory.MemoryTurns()) for owner in "abc"]
first, second = reserves(runs[0], 120 << 20), reserves(runs[1], 120 << 20)
small = reserves(runs[2], memory.FREE_BYTES)
runs[0].end()
after = reserves(runs[1], 120 << 20)
"""


def _limited(code: str) -> str:
    """What this code prints in a process with 256 MiB of memory."""
    prelude = """
        import asyncio, resource

        resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))
        from group_hygiene.process import child, memory
        from group_hygiene.kafka.bounds import Rows
        """
    script = textwrap.dedent(prelude) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("memory.require(240 << 20, 'it')", id="more-than-there-is"),
        pytest.param("held = bytes(200 << 20); memory.require(50 << 20, 'it')", id="more-than-is-left"),
        pytest.param("held = bytes(225 << 20); memory.Intake().take(memory.FREE_BYTES, 1)", id="bytes"),
        pytest.param("held = bytes(200 << 20); Rows().take(200_000)", id="rows"),
        pytest.param("held = bytes(150 << 20); [bytes(200) for _ in Rows().each(500_000)]", id="rows-one-by-one"),
        pytest.param(
            "held, rows = [bytes(150 << 20)], Rows()\n"
            "    for _ in range(25): held.append([bytes(200) for _ in rows.each(19_999)])",
            id="rows-of-many-answers",
        ),
        pytest.param(
            "held = bytes(200 << 20); asyncio.run(child.run('itertools:repeat', bytes(1 << 16), {}, 60))",
            id="what-another-process-returns",
        ),
        pytest.param(
            "with memory.lent(112 << 20, 'a'): memory.Intake().take(120 << 20, 1)", id="beside-another-process"
        ),
        pytest.param(
            "with memory.lent(112 << 20, 'a'), memory.lent(130 << 20, 'b'): pass", id="more-than-one-other-process"
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_read(code: str) -> None:
    """TooMuch, and no MemoryError, which would meet others that need memory next."""
    printed = _limited(f"try:\n    {code}\nexcept memory.TooMuch as error:\n    print(error)")
    assert "more memory than the operator has left" in printed


def test_what_another_process_returns_is_bounded_by_the_memory_that_there_is() -> None:
    """An eighth of it, in memory once."""
    printed = _limited(
        """
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            asyncio.run(child.run("itertools:repeat", bytes(1 << 16), {}, 60))
        except child.ChildFailed as error:
            print(error, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10 < 48)
        """
    )
    assert printed == "its answer is too long True"


def test_what_fits_is_not_refused() -> None:
    """Freed memory counts as left."""
    printed = _limited(
        """
        memory.return_freed()
        for _ in range(20):
            held = bytes(150 << 20)
            del held
        memory.require(150 << 20, "it")
        intake = memory.Intake("a", memory.MemoryTurns())
        intake.take(64 << 20, 1)
        intake.end()
        print("fits")
        """
    )
    assert printed == "fits"
