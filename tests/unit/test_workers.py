"""Threads for connections: who hangs, hangs alone."""

from __future__ import annotations

import asyncio
import threading

import pytest

from group_hygiene.controller.services import _ALL, _SHARE, Workers

# For a machine that is busy; nothing here takes that long.
_SECONDS = 60


def test_a_namespace_that_hangs_leaves_threads_to_others() -> None:
    """However many connections it has: whose turn does not come are its own."""
    hanging = threading.Event()
    workers = Workers()

    async def main() -> None:
        stuck = [asyncio.create_task(workers.run("team-a", hanging.wait)) for _ in range(300)]
        try:
            for _ in range(3):
                async with asyncio.timeout(_SECONDS):
                    assert await workers.run("team-b", lambda: "served") == "served"
        finally:
            hanging.set()
            await asyncio.gather(*stuck)

    asyncio.run(main())
    workers.stop()


def test_whose_turn_comes_later_is_served_too() -> None:
    """A share of one runs all of it, one after the other, also after an error."""
    workers, order = Workers(share=1), list[int]()

    def work(number: int) -> None:
        order.append(number)
        if number == 1:
            raise ValueError("of its own")

    async def main() -> None:
        results = await asyncio.gather(
            *(workers.run("team-a", lambda number=number: work(number)) for number in range(5)),  # type: ignore[misc]
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [type(None), ValueError, type(None), type(None), type(None)]

    asyncio.run(main())
    workers.stop()
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("share", [1, 3])
def test_a_namespace_has_its_share_and_no_more(share: int) -> None:
    """At the same time: all of it, as each waits until the others of the share run, and no more."""
    workers, lock, running, most = Workers(share), threading.Lock(), 0, 0
    together = threading.Barrier(share)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(_SECONDS)
        with lock:
            running -= 1

    async def main() -> None:
        await asyncio.gather(*(workers.run("team-a", work) for _ in range(6 * share)))

    asyncio.run(main())
    workers.stop()
    assert most == share


def test_namespaces_that_hang_leave_threads_as_long_as_their_shares_do() -> None:
    """31 of them by default: the next one is served, though each has more to run than its share."""
    hanging, share = threading.Event(), 2
    workers = Workers(share, threads=32 * share)

    async def main() -> None:
        names = [f"team-{number}" for number in range(31)]
        stuck = [asyncio.create_task(workers.run(name, hanging.wait)) for name in names for _ in range(2 * share)]
        try:
            async with asyncio.timeout(_SECONDS):
                assert await workers.run("last", lambda: "served") == "served"
        finally:
            hanging.set()
            await asyncio.gather(*stuck)

    asyncio.run(main())
    workers.stop()
    assert (_ALL, _SHARE) == (32 * 64, 64)
