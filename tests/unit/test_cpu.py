"""Turns of CPU-bound work."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from group_hygiene.process.clock import CpuTurns


def _compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_few_at_once() -> None:
    turns, most, lock, running = CpuTurns(2), [0], threading.Lock(), [0]

    def work(number: int) -> None:
        with turns.turn(f"n{number % 3}"):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            _compute(0.002)
            with lock:
                running[0] -= 1

    with ThreadPoolExecutor(30) as threads:
        list(threads.map(work, range(90)))
    assert most[0] <= 2


def test_a_namespace_with_many_threads_takes_no_more_than_its_part() -> None:
    """One thread of another namespace has about as many turns, also if it comes later; it has no credit from before."""
    turns, done, end = CpuTurns(1), Counter[str](), threading.Event()

    def work(namespace: str) -> None:
        while not end.is_set():
            with turns.turn(namespace):
                _compute(0.002)
                done[namespace] += 1

    with ThreadPoolExecutor(40) as threads:
        for _ in range(30):
            threads.submit(work, "many")
        while done["many"] < 100:
            time.sleep(0.01)
        before = done["many"]
        threads.submit(work, "one")
        while done["one"] < 100:
            time.sleep(0.01)
        end.set()
    assert done["many"] - before < 200


@pytest.mark.parametrize("fails", [False, True])
def test_a_turn_ends(fails: bool) -> None:
    """Also by an error."""
    turns, ran = CpuTurns(1), 0
    for _ in range(3):
        with suppress(ValueError), turns.turn("a"):
            ran += 1
            if fails:
                raise ValueError
    assert ran == 3


def test_many_items_leave_turns_to_others() -> None:
    """What takes long is done in several turns; `count` ends it, and an item is never lost between two of them."""
    turns, other, spent = CpuTurns(1), threading.Event(), list[float]()

    def wait_for_a_turn() -> None:
        with turns.turn("other"):
            other.set()

    def count(seconds: float) -> bool:
        spent.append(seconds)
        return True

    done, thread = list[int](), threading.Thread(target=wait_for_a_turn)
    for item in turns.each("many", range(1_000), count):
        if item == 0:
            thread.start()
        if not other.is_set():
            # Less than the time of a turn.
            _compute(0.01)
        done.append(item)
    assert other.is_set()
    assert done == list(range(1_000))
    assert len(spent) > 1
    assert list(turns.each("many", range(9), lambda _: False)) == list(range(9)), "in the first turn"
    thread.join()


def test_what_counts_too_much_ends() -> None:
    turns, done = CpuTurns(1), list[int]()
    for item in turns.each("many", range(1_000), lambda _: False):
        _compute(0.02)
        done.append(item)
    assert len(done) < 1_000


def test_an_error_gives_the_turn_back() -> None:
    """Also while the error is at hand, as in a log: what waits for a turn must not wait for that."""
    turns, other = CpuTurns(1), threading.Event()

    def wait_for_a_turn() -> None:
        with turns.turn("other"):
            other.set()

    def fail() -> None:
        for _ in turns.each("many", range(9), lambda _: True):
            raise ArithmeticError

    with pytest.raises(ArithmeticError) as caught:
        fail()
    threading.Thread(target=wait_for_a_turn, daemon=True).start()
    assert other.wait(10)
    assert caught.traceback
